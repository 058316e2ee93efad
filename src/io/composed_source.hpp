// SPDX-License-Identifier: Apache-2.0
// Composes one model of several: encoders and a decoder, each from its own source. Projectors and
// rows of the vocabulary for new placeholders, which no part has, keep initial values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zea/weights.hpp"

namespace zea {

/// A model that becomes a part.
struct ComposedPart {
  std::string name;  ///< of an encoder, as decks and units have it; or kDecoder
  std::unique_ptr<WeightsSource> source;
  /// The placeholder of an encoder: an id, or a token's text; empty: <image> or <audio>. A token
  /// that the decoder's tokenizer.json lacks becomes its next, which may be a row beyond the
  /// vocabulary. Without a tokenizer it is a new last row.
  std::string placeholder = {};
  std::string projector = "mlp";  ///< linear, mlp, pixel_shuffle_mlp, pool
  int64_t feature_layer = -2;     ///< of images: the hidden state that the projector reads
  bool feature_norm = false;      ///< ... through the norm behind the last
};

/// The parts under the config of a composed model (see composed_spec.cpp), whose tensors are called
/// "<encoder>.encoder.<name>" and "llm.<name>". Throws WeightsError where a part has no config, is
/// of no known family, or lacks tensors of it.
std::unique_ptr<WeightsSource> compose_source(std::vector<ComposedPart> parts, uint64_t seed);

}  // namespace zea
