// SPDX-License-Identifier: Apache-2.0
// Every fault of a plan, collected and thrown together; and notes on what is accepted and has no
// effect.
#pragma once

#include <string>
#include <vector>

#include "core/error.hpp"

namespace zea::detail {

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

}  // namespace zea::detail
