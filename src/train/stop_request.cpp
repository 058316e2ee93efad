// SPDX-License-Identifier: Apache-2.0
#include "train/stop_request.hpp"

#include <atomic>
#include <csignal>
#include <filesystem>
#include <utility>

#include "core/action_record.hpp"

namespace zea {
namespace {

// Signal handlers can reach nothing but static storage.
std::atomic<int> save_signals{0};
std::atomic<int> leave_signals{0};
std::atomic<int> listeners{0};
std::atomic<int64_t> last_save_signal{0};  // clock_nanoseconds()
static_assert(std::atomic<int64_t>::is_always_lock_free);

void on_signal(int signal) {
  if (signal == SIGUSR1) last_save_signal = clock_nanoseconds();
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

/// Returns whether `file` was there; removes it, so that one touch is one request.
bool take_file(const std::filesystem::path& file) {
  std::error_code ignored;
  return std::filesystem::exists(file, ignored) && std::filesystem::remove(file, ignored);
}

}  // namespace

StopSignals::StopSignals() {
  if (listeners++ > 0) return;
  save_signals = leave_signals = 0;
  install(on_signal);
}

StopSignals::~StopSignals() {
  if (--listeners > 0) return;
  install(SIG_IGN);
  std::signal(SIGTERM, SIG_DFL);
}

StopRequest::StopRequest(std::string run_directory, bool is_root, double wall_seconds,
                         std::chrono::steady_clock::time_point start)
    : directory_(std::move(run_directory)),
      is_root_(is_root),
      wall_seconds_(wall_seconds),
      start_(start) {}

double StopRequest::elapsed_seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

/// Returns the signals since the last call, less the one that was on its way.
int StopRequest::take_save_signals() {
  int signals = save_signals.exchange(0);
  if (signals > 0 && last_save_signal < std::exchange(on_its_way_until_, 0)) --signals;
  return signals;
}

StepFlags StopRequest::poll(double seconds_to_save, bool has_saved) {
  StepFlags flags;
  flags.save = take_save_signals();
  flags.leave = leave_signals.exchange(0);
  const std::filesystem::path directory(directory_);
  if (is_root_) flags.save += take_file(directory / "SAVE");
  if (is_root_ && !has_saved && !is_half_over_ && is_time_up(wall_seconds_ / 2)) {
    is_half_over_ = true;
    ++flags.save;
  }
  has_asked_ |= flags.save > 0;
  if (!is_root_) return flags;
  if (take_file(directory / "STOP")) {
    note_ = "found the file STOP in " + directory_ + ": leaving";
    ++flags.leave;
  }
  flags.leave += is_time_up(seconds_to_save);
  return flags;
}

bool StopRequest::is_time_up(double seconds_to_save) const {
  return wall_seconds_ > 0 && elapsed_seconds() + seconds_to_save > wall_seconds_;
}

bool StopRequest::is_exit_requested(double seconds_to_save) const {
  if (leave_signals > 0) return true;
  std::error_code ignored;
  return is_root_ && (is_time_up(seconds_to_save) ||
                      std::filesystem::exists(std::filesystem::path(directory_) / "STOP", ignored));
}

void StopRequest::serve_save(double spread_seconds) {
  const int signals = save_signals.exchange(0);
  const bool was_asked = std::exchange(has_asked_, false) || signals > 0;
  on_its_way_until_ =
      was_asked ? 0 : clock_nanoseconds() + static_cast<int64_t>(1e9 * spread_seconds);
}

}  // namespace zea
