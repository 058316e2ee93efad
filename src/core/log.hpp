// SPDX-License-Identifier: Apache-2.0
// What a run says to people: lines on the terminal and in log.txt, and one live line that is
// rewritten in place on a terminal. Only the root rank's log speaks; the others' swallow
// everything.
#pragma once

#include <memory>
#include <string>

namespace zea {

class Log {
 public:
  /// Speaks when `speaks`; appends to `file` unless it is empty.
  Log(bool speaks, const std::string& file);
  ~Log();
  Log(Log&&) noexcept;

  void info(const std::string& line);
  void warn(const std::string& line);
  /// Warns of each line of a text.
  void warn_each(const std::string& lines);
  /// Progress: on a terminal one line that the next one replaces; elsewhere a plain line.
  /// In the file always.
  void progress(const std::string& line, bool last);

 private:
  struct Sinks;
  std::unique_ptr<Sinks> sinks_;
};

}  // namespace zea
