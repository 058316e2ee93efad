// SPDX-License-Identifier: Apache-2.0
// Throwing the errors of zea/error.hpp. Nothing below main prints or exits; the rank is added once,
// at the top.
#pragma once

#include <string>
#include <vector>

#include "zea/error.hpp"

namespace zea {

/// Throws the type that belongs to an exit code, so that a caller can catch it as any other.
[[noreturn]] void throw_error(ExitCode code, const std::string& message);

/// Throws InternalError with file, line and expression. Always on: it guards cheap invariants only.
#define ZEA_ASSERT(condition)                                                             \
  do {                                                                                    \
    if (!(condition))                                                                     \
      throw ::zea::InternalError(std::string(__FILE__) + ":" + std::to_string(__LINE__) + \
                                 ": assertion failed: " #condition);                      \
  } while (false)

namespace detail {

/// Collects the faults of a plan, to be thrown together, and notes on accepted settings without
/// effect.
class Faults {
 public:
  void add(const std::string& fault) { text_ += (text_.empty() ? "" : "\n") + fault; }
  void add(const Faults& others) {
    if (!others.none()) add(others.text_);
    notes_.insert(notes_.end(), others.notes_.begin(), others.notes_.end());
  }
  bool none() const { return text_.empty(); }
  void note(const std::string& note) { notes_.push_back(note); }
  const std::vector<std::string>& notes() const { return notes_; }
  void throw_if_any() const {
    if (!text_.empty()) throw PlanError(text_);
  }

 private:
  std::string text_;
  std::vector<std::string> notes_;
};

}  // namespace detail
}  // namespace zea
