// SPDX-License-Identifier: Apache-2.0
// Quantized tensors, read as bf16. Files store such a tensor as codes of a few bits and as scales,
// each for a block of elements: an element is its code's value times its block's scale, rounded to
// bf16 as transformers does. A read decodes only the blocks that its box touches.
//
// | format | codes | scales | block |
// |---|---|---|---|
// | MXFP4 | NAME_blocks (..., out, in / 32, 16), uint8: E2M1 | NAME_scales, uint8: E8M0 | 1 x 32 |
// | FP8 | NAME (..., out, in), E4M3 | NAME_scale_inv, fp32 or bf16 | of the config, or 128 x 128 |
// | int4 | NAME_packed (..., out, in / 8), int32: -8 to 7 | NAME_scale, fp32 or bf16 | 1 x group |
//
// gpt-oss is published in MXFP4 (OCP Microscaling Formats, version 1.0), DeepSeek-V3 in FP8, the
// experts of Kimi-K2.5 in int4 ("pack-quantized" of compressed-tensors), whose NAME_shape stores
// the shape of the decoded tensor. The shape of the scales is the number of blocks along each dim.
// The last FP8 blocks along rows and columns may be partial; int4 groups are whole, and rows have a
// multiple of 8 values.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "spec/quantization.hpp"
#include "zea/weights.hpp"

namespace zea {

/// Returns `source` with its quantized tensors decoded to bf16; `source` itself if it has none.
/// `float8`: the names of its E4M3 tensors, which `source` reads as bytes. Without `quantization`
/// (a file without a config.json), MXFP4 and FP8 with blocks of 128 x 128 are recognized by names.
/// Throws WeightsError with the name of a tensor that cannot be decoded, e.g. one without scales.
std::unique_ptr<WeightsSource> with_decoded_tensors(
    std::unique_ptr<WeightsSource> source, const std::set<std::string>& float8,
    const std::optional<Quantization>& quantization);

}  // namespace zea
