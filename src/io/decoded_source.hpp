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
// MXFP4 (OCP Microscaling Formats, version 1.0) is that of gpt-oss, FP8 that of DeepSeek-V3, int4
// ("pack-quantized" of compressed-tensors) that of Kimi-K2.5's experts; NAME_shape has its shape.
// Scales have the dims of the tensor in blocks. The last blocks of rows and columns of FP8 may be
// cut; groups of int4 are whole, and its rows a multiple of 8.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "spec/quantization.hpp"
#include "zea/weights.hpp"

namespace zea {

/// Returns `source` with its quantized tensors as bf16 tensors; without such tensors `source`
/// itself. `float8` names its tensors of E4M3, which it has as bytes. Without `quantization`
/// (a file without a config.json) MXFP4 and FP8 of 128 x 128 are recognized by their tensors.
/// Throws WeightsError that names a tensor that cannot be decoded, e.g. one without scales.
std::unique_ptr<WeightsSource> with_decoded_tensors(
    std::unique_ptr<WeightsSource> source, const std::set<std::string>& float8,
    const std::optional<Quantization>& quantization);

}  // namespace zea
