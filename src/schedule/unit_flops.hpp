// SPDX-License-Identifier: Apache-2.0
// Model FLOPs, by which MFU is told (PaLM, arXiv:2204.02311, appendix B): floating point operations
// of a training step's products that the model asks for, whatever is computed again or on top of
// them. A multiplication with an addition is two.
#pragma once

#include <cstdint>
#include <vector>

#include "spec/model_spec.hpp"

namespace zea {

/// Of each unit: of the decoder's for one sample of so many tokens, every one of which is a target;
/// of an encoder's for an item with so many times the tokens of its usual one. Counted are products
/// with weights and the two of attention, over the pairs that its mask shows, in forward and, where
/// something that trains needs them, for the gradients of inputs and of weights: those of attention
/// twice as in forward. Norms, activations, biases, positions, look-ups, dropout and the optimizer
/// are not; nor are units whose outputs are read with the samples (ModelSpec::is_cached).
std::vector<double> unit_flops(const ModelSpec& model, int64_t times);

}  // namespace zea
