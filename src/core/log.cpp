// SPDX-License-Identifier: Apache-2.0
#include "zea/core/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "zea/core/error.hpp"
#include "zea/core/printable.hpp"

namespace zea {
namespace {

std::shared_ptr<spdlog::sinks::sink> open_sink(const std::string& file) {
  try {
    return std::make_shared<spdlog::sinks::basic_file_sink_mt>(file, /*truncate=*/false);
  } catch (const spdlog::spdlog_ex& error) {
    throw StorageError(std::string("cannot write the log: ") + error.what() +
                       "; choose another run directory with -d");
  }
}

/// Whether the terminal takes one line over another. mpirun gives ranks a terminal even where its
/// own output goes to a file; a job script then says TERM=dumb.
bool can_be_written_over() {
  const char* kind = std::getenv("TERM");
  return isatty(STDOUT_FILENO) && !(kind && std::string_view(kind) == "dumb");
}

}  // namespace

struct Log::Sinks {
  std::shared_ptr<spdlog::logger> terminal, file;
  bool live = false;  ///< a live line stands on the terminal
};

Log::Log(bool speaks, const std::string& file) : sinks_(std::make_unique<Sinks>()) {
  if (!speaks) return;
  sinks_->terminal = std::make_shared<spdlog::logger>(
      "terminal", std::make_shared<spdlog::sinks::stdout_sink_mt>());
  sinks_->terminal->set_pattern("%v");
  sinks_->terminal->flush_on(spdlog::level::info);
  if (file.empty()) return;
  sinks_->file = std::make_shared<spdlog::logger>("file", open_sink(file));
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

void Log::progress(const std::string& text, bool last) {
  if (!sinks_->terminal) return;
  const std::string line = printable(text);
  if (sinks_->file) sinks_->file->info("{}", line);
  if (!can_be_written_over()) {
    sinks_->terminal->info("{}", line);
    return;
  }
  std::fprintf(stdout, "%s%s%s", sinks_->live ? "\r\x1b[K" : "", line.c_str(), last ? "\n" : "");
  std::fflush(stdout);
  sinks_->live = !last;
}

}  // namespace zea
