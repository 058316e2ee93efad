// SPDX-License-Identifier: Apache-2.0
// The declarations of operations that audio encoders alone have: the inputs of their convolutions,
// and the attention and convolution of a conformer.
#pragma once

#include "spec/operation_needs.hpp"

namespace zea::detail {

/// An audio encoder's unit on one rank, and its operation's first input.
struct AudioPart {
  const ModelSpec& model;
  const UnitSpec& unit;
  const UnitSizes& sizes;
  const ElementBytes& bytes;
  int64_t x_rows = 0, x_bytes = 0;
};

void declare_audio(const Operation& op, const AudioPart& part, OperationNeeds& needs);

}  // namespace zea::detail
