// SPDX-License-Identifier: Apache-2.0
// Every fault of a plan, collected and thrown together.
#pragma once

#include <string>

#include "zea/core/error.hpp"

namespace zea::detail {

class Faults {
 public:
  void add(const std::string& fault) { text_ += (text_.empty() ? "" : "\n") + fault; }
  void throw_if_any() const {
    if (!text_.empty()) throw PlanError(text_);
  }

 private:
  std::string text_;
};

}  // namespace zea::detail
