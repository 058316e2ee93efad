// SPDX-License-Identifier: Apache-2.0
// The audio encoder of Gemma 4, a conformer.
#pragma once

#include "spec/families.hpp"

namespace zea::detail {

/// `out`: the width of the encoder's outputs before the projector.
struct Gemma4Audio {
  EncoderSpec spec;
  int64_t out = 0;
  double std = 0.02;
};
Gemma4Audio read_gemma4_audio(const ConfigReader& config);
/// Throws unless the settings of a feature extractor are those of data/usm_mel.cpp.
void check_feature_extractor(const ConfigReader& config, const EncoderSpec& audio);
/// Adds the encoder with its projector to the width `hidden`. Returns the unit that makes the
/// features.
int add_gemma4_audio(SpecBuilder& builder, const Gemma4Audio& audio, int64_t hidden,
                     const Trainable::Encoder& trains);

}  // namespace zea::detail
