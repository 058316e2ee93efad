// SPDX-License-Identifier: Apache-2.0
#include "tool.hpp"

#include <algorithm>
#include <cstdio>
#include <string>

#include <unistd.h>

namespace zea {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBarWidth = 30;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

Progress::Progress(int64_t total_bytes, bool always)
    : total_bytes_(std::max<int64_t>(1, total_bytes)),
      is_bar_(::isatty(STDERR_FILENO) != 0),
      is_shown_(is_bar_ || always),
      start_(Clock::now()),
      last_shown_(start_) {}

Progress::~Progress() {
  if (!is_shown_ || done_bytes_ == 0) return;
  show();
  if (is_bar_) std::fputc('\n', stderr);
}

void Progress::add(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  done_bytes_ += bytes;
  if (!is_shown_) return;
  const Clock::time_point now = Clock::now();
  if (seconds_between(last_shown_, now) < (is_bar_ ? 0.1 : 1.0)) return;
  last_shown_ = now;
  show();
}

void Progress::show() const {
  const double fraction = static_cast<double>(done_bytes_) / static_cast<double>(total_bytes_);
  const double seconds = seconds_between(start_, Clock::now());
  const double mib = static_cast<double>(done_bytes_) / (1 << 20);
  std::string bar;
  if (is_bar_) {
    const auto filled = static_cast<size_t>(kBarWidth * std::min(1.0, fraction));
    bar = "\r[" + std::string(filled, '#') + std::string(kBarWidth - filled, ' ') + "] ";
  }
  std::fprintf(stderr, "%s%5.1f %%  %.0f of %.0f MiB  %.0f MiB/s%s", bar.c_str(), 100 * fraction,
               mib, static_cast<double>(total_bytes_) / (1 << 20), mib / std::max(seconds, 1e-3),
               is_bar_ ? "  " : "\n");
  std::fflush(stderr);
}

}  // namespace zea
