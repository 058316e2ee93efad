// SPDX-License-Identifier: Apache-2.0
// AdamW whose moments are kept in 8 bits (Dettmers et al., arXiv:2110.02861): of each block of
// elements the largest magnitude, its scale, and of each element a code for what part of it it is.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "kernels/flat_kernels.hpp"

namespace zea {

/// The parts of a scale that codes stand for, ascending: 0 and 1, and in each of seven decades
/// below 1 the middles of equal parts, twice as many as in the decade below it. Signed: from 1 part
/// in the lowest decade on, of both signs. Unsigned: from 2 on.
const std::array<double, 256>& dynamic_codes(bool is_signed);

/// A moment in blocks; 1-d, contiguous.
struct BlockwiseMoment {
  at::Tensor codes;   ///< (elements) bytes, indices into dynamic_codes()
  at::Tensor scales;  ///< (elements / block), of the parameter's type
};

/// One update of AdamW in the parameter's type (fp32 or fp64); then the moments become their
/// nearest codes, but a second moment above 0 never 0. `exp_avg` is signed. All are of whole
/// blocks.
void blockwise_adamw(at::Tensor parameter, const at::Tensor& gradient,
                     const BlockwiseMoment& exp_avg, const BlockwiseMoment& exp_avg_sq,
                     const AdamwUpdate& update);

/// The same by adamw() and libtorch's operations, for devices without zea's kernels.
void blockwise_adamw_reference(at::Tensor parameter, const at::Tensor& gradient,
                               const BlockwiseMoment& exp_avg, const BlockwiseMoment& exp_avg_sq,
                               const AdamwUpdate& update);

}  // namespace zea
