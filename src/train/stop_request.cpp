// SPDX-License-Identifier: Apache-2.0
#include "zea/train/stop_request.hpp"

#include <atomic>
#include <csignal>
#include <filesystem>

namespace zea {
namespace {

// Signal handlers can reach nothing but static storage.
std::atomic<int> save_signals{0};
std::atomic<int> leave_signals{0};

void on_signal(int signal) {
  (signal == SIGUSR1 ? save_signals : leave_signals).fetch_add(1);
}

void install(void (*handler)(int)) {
  for (int signal : {SIGUSR1, SIGUSR2, SIGTERM}) {
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
  }
}

/// Whether `file` was there; it is removed, so that one touch is one request.
bool take_file(const std::filesystem::path& file) {
  std::error_code ignored;
  return std::filesystem::exists(file, ignored) && std::filesystem::remove(file, ignored);
}

}  // namespace

StopRequest::StopRequest(std::string run_directory, bool is_root, double wall_seconds)
    : directory_(std::move(run_directory)),
      is_root_(is_root),
      wall_seconds_(wall_seconds),
      start_(std::chrono::steady_clock::now()) {
  save_signals = leave_signals = 0;
  install(on_signal);
}

/// A request that comes when the run is over changes nothing: launchers tell one rank after the
/// other, and what USR1 and USR2 do by default would end this one with another exit code.
StopRequest::~StopRequest() {
  install(SIG_IGN);
  std::signal(SIGTERM, SIG_DFL);
}

double StopRequest::elapsed_seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

StepFlags StopRequest::poll(double seconds_to_save) {
  StepFlags flags;
  flags.save = save_signals.exchange(0);
  flags.leave = leave_signals.exchange(0);
  if (!is_root_) return flags;
  const std::filesystem::path directory(directory_);
  flags.save += take_file(directory / "SAVE");
  flags.leave += take_file(directory / "STOP");
  if (wall_seconds_ > 0) flags.leave += elapsed_seconds() + seconds_to_save > wall_seconds_;
  return flags;
}

}  // namespace zea
