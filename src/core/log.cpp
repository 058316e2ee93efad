// SPDX-License-Identifier: Apache-2.0
#include "core/log.hpp"

#include <fcntl.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>

#include "core/system.hpp"
#include "core/text.hpp"

namespace zea {
namespace {

/// Appends lines to a file; unlike spdlog's own sink, it follows no symbolic link.
class FileSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(const std::string& path) : file_(open_for_writing(path, O_APPEND)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    for (size_t done = 0; done < line.size();) {
      const ssize_t put = ::write(file_.number(), line.data() + done, line.size() - done);
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) spdlog::throw_spdlog_ex("cannot write the log", errno);
      done += static_cast<size_t>(put);
    }
  }
  void flush_() override {}

  Descriptor file_;
};

/// Returns whether the process that started this one writes to a terminal.
bool has_launcher_a_terminal() {
  const std::filesystem::path output = "/proc/" + std::to_string(getppid()) + "/fd/1";
  std::error_code unreadable;
  const std::string target = std::filesystem::read_symlink(output, unreadable);
  return target.starts_with("/dev/pts/") || target.starts_with("/dev/tty");
}

/// Returns whether the terminal can overwrite a line. Open MPI gives ranks a terminal even where
/// mpirun's own output goes to a file.
bool can_overwrite_lines() {
  const char* kind = std::getenv("TERM");
  if (!isatty(STDOUT_FILENO) || (kind && std::string_view(kind) == "dumb")) return false;
  return !std::getenv("OMPI_COMM_WORLD_SIZE") || has_launcher_a_terminal();
}

}  // namespace

struct Log::Sinks {
  std::shared_ptr<spdlog::logger> terminal, file;
  bool live = false;  ///< the terminal shows a live line
};

Log::Log(bool speaks, const std::string& file) : sinks_(std::make_unique<Sinks>()) {
  if (!speaks) return;
  sinks_->terminal = std::make_shared<spdlog::logger>(
      "terminal", std::make_shared<spdlog::sinks::stdout_sink_mt>());
  sinks_->terminal->set_pattern("%v");
  sinks_->terminal->flush_on(spdlog::level::info);
  if (file.empty()) return;
  sinks_->file = std::make_shared<spdlog::logger>("file", std::make_shared<FileSink>(file));
  sinks_->file->set_pattern("%Y-%m-%d %H:%M:%S %l %v");
  sinks_->file->flush_on(spdlog::level::info);
}

Log::~Log() {
  if (sinks_ && sinks_->live) std::fputc('\n', stdout);
}
Log::Log(Log&&) noexcept = default;

void Log::info(const std::string& line) {
  progress(line, true);
}

void Log::warn(const std::string& text) {
  if (!sinks_->terminal) return;
  const std::string line = printable(text);
  if (sinks_->file) sinks_->file->warn("{}", line);
  if (sinks_->live) std::fputc('\n', stdout);
  sinks_->live = false;
  sinks_->terminal->warn("warning: {}", line);
}

void Log::warn_each(const std::string& lines) {
  std::istringstream all(lines);
  for (std::string line; std::getline(all, line);) warn(line);
}

void Log::progress(const std::string& text, bool last) {
  if (!sinks_->terminal) return;
  const std::string line = printable(text);
  if (sinks_->file) sinks_->file->info("{}", line);
  if (!can_overwrite_lines()) {
    sinks_->terminal->info("{}", line);
    return;
  }
  std::fprintf(stdout, "%s%s%s", sinks_->live ? "\r\x1b[K" : "", line.c_str(), last ? "\n" : "");
  std::fflush(stdout);
  sinks_->live = !last;
}

}  // namespace zea
