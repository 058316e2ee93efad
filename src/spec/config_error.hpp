// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/error.hpp"

namespace zea {

/// A config.json that makes no model. The plan knows its text alone; whoever read it knows the
/// file.
struct ConfigError : WeightsError {
  ConfigError(const std::string& key, const std::string& fault)
      : WeightsError("model config: " + key + fault), key(key), fault(fault) {}

  std::string key;    ///< from "config" on, or "image_processor" and the like
  std::string fault;  ///< the rest of the sentence
};

}  // namespace zea
