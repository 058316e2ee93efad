// SPDX-License-Identifier: Apache-2.0
// What a model's family says of it as an encoder of a composed model.
#pragma once

#include <string>

namespace zea {

bool is_audio_family(const std::string& family);

struct ImageEncoderFacts {
  std::string select;  ///< the "vision_feature_select_strategy" that takes its patches alone
  bool has_pooler;     ///< its files hold one, unless its config has "add_pooling_layer": false
};

/// Of a config.json (`path` in messages). Throws WeightsError where no family is its own.
ImageEncoderFacts image_encoder_facts(const std::string& config_json, const std::string& path);

}  // namespace zea
