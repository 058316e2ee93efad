// SPDX-License-Identifier: Apache-2.0
#include "watch/hang_report.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/system.hpp"
#include "files/durable_file.hpp"

namespace zea {
namespace {

/// Whether this node is the first that asks. What cannot be claimed at all is not another's.
bool claim(const std::string& mark) {
  const int file = open(mark.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file >= 0) close(file);
  return file >= 0 || errno != EEXIST;
}

bool is_written_within(const std::string& mark, double seconds) {
  const Stopwatch clock;
  while (clock.seconds() < seconds) {
    char byte;
    if (std::ifstream file(mark); file.get(byte)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

}  // namespace

std::string hang_report_path(const std::string& directory) {
  return directory + "/report.txt";
}

HangReport write_hang_report(const std::string& directory, const std::string& text,
                             double seconds) {
  std::error_code ignored;
  std::filesystem::create_directories(directory, ignored);
  // Empty until the report is written.
  const std::string mark = directory + "/told";
  if (!claim(mark))
    return is_written_within(mark, seconds) ? HangReport::ByAnother : HangReport::HalfWritten;
  replace_text(hang_report_path(directory), text);
  replace_text(mark, "written\n");
  return HangReport::Written;
}

}  // namespace zea
