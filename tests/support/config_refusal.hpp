// SPDX-License-Identifier: Apache-2.0
// The error message of an unsupported config.json.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "spec/model_spec.hpp"

namespace zea::testing {

/// "accepted" where a model is made of it.
inline std::string refusal_of(const nlohmann::json& config) {
  try {
    make_model_spec(config.dump());
  } catch (const WeightsError& error) {
    return error.what();
  }
  return "accepted";
}

inline void expect_refusal(const std::string& found, const std::string& expected) {
  EXPECT_NE(found.find(expected), std::string::npos) << found;
}

}  // namespace zea::testing
