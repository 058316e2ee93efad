// SPDX-License-Identifier: Apache-2.0
// The value of a key whose default follows from other keys: "auto", true, false, or a count where
// the key allows one. So a plan can tell what was asked for from what was left open.
#pragma once

#include <cstdint>

namespace zea {

class AutoOption {
 public:
  AutoOption() = default;  ///< "auto"
  static AutoOption of(bool value) { return AutoOption(value ? Kind::Yes : Kind::No, 0); }
  static AutoOption of_count(int64_t count) { return AutoOption(Kind::Count, count); }

  bool is_auto() const { return kind_ == Kind::Auto; }
  bool is_yes() const { return kind_ == Kind::Yes; }
  bool is_no() const { return kind_ == Kind::No; }
  bool is_count() const { return kind_ == Kind::Count; }
  int64_t count() const { return count_; }
  /// True, false, or `fallback` where nothing was asked for. Not for counts.
  bool value_or(bool fallback) const { return is_auto() ? fallback : is_yes(); }

  bool operator==(const AutoOption&) const = default;

 private:
  enum class Kind { Auto, No, Yes, Count };
  AutoOption(Kind kind, int64_t count) : kind_(kind), count_(count) {}

  Kind kind_ = Kind::Auto;
  int64_t count_ = 0;
};

}  // namespace zea
