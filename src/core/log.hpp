// SPDX-License-Identifier: Apache-2.0
// The log of a run: lines on the terminal and in log.txt, and one live line that a terminal
// overwrites in place. Only the root rank's log writes; the logs of other ranks discard everything.
#pragma once

#include <memory>
#include <string>

namespace zea {

class Log {
 public:
  /// Writes only if `speaks`; appends to `file` unless its name is empty.
  Log(bool speaks, const std::string& file);
  ~Log();
  Log(Log&&) noexcept;

  void info(const std::string& line);
  void warn(const std::string& line);
  /// Warns of each line of a text.
  void warn_each(const std::string& lines);
  /// Reports progress: on a terminal, the next line replaces this one unless it is the `last`;
  /// elsewhere, and in the file, it is a line like others.
  void progress(const std::string& line, bool last);

 private:
  struct Sinks;
  std::unique_ptr<Sinks> sinks_;
};

}  // namespace zea
