// SPDX-License-Identifier: Apache-2.0
// Quantized tensors, read as bf16. Files store such a tensor as codes of a few bits and as scales,
// each for a block of elements: an element is its code's value times its block's scale. A read
// decodes only the blocks that its box touches.
//
// MXFP4 (OCP Microscaling Formats, version 1.0), in which gpt-oss is published: 32 neighboring
// inputs of an output have 4 bits each (E2M1) and share a scale (E8M0). A tensor NAME of experts is
// the pair NAME_blocks (experts, out, in / 32, 16) and NAME_scales (experts, out, in / 32), uint8.
#pragma once

#include <memory>
#include <string>

#include "zea/weights.hpp"

namespace zea {

/// Returns `source` with its quantized tensors as bf16 tensors (experts, out, in), and with a
/// config that does not say that they are quantized; without such tensors `source` itself.
std::unique_ptr<WeightsSource> with_decoded_tensors(std::unique_ptr<WeightsSource> source);

/// Returns a config.json without what says that its weights are in MXFP4; any other as it is.
std::string without_quantization(const std::string& config_json);

}  // namespace zea
