// SPDX-License-Identifier: Apache-2.0
#include "support/flipped_units.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "core/error.hpp"

namespace zea::testing {
namespace {

at::Tensor with_flip(const at::Tensor& values, int64_t element, int bit) {
  const at::Tensor copy = values.detach().clone(at::MemoryFormat::Contiguous);
  flip_bit(copy, element, bit);
  return copy;
}

}  // namespace

void flip_bit(const at::Tensor& values, int64_t element, int bit) {
  ZEA_ASSERT(values.is_contiguous() && values.numel() > 0);
  const auto bytes = static_cast<int64_t>(values.element_size());
  auto* const first = static_cast<uint8_t*>(values.data_ptr());
  first[element % values.numel() * bytes + bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
}

RunUnit flipped(const Flips& flips, int rank) {
  return [flips, rank, calls = std::make_shared<int>(0)](const UnitArguments& call) {
    UnitOutput made = run_unit(call);
    if (call.unit.name != flips.unit || std::ranges::count(flips.ranks, rank) == 0) return made;
    const int pass = (*calls)++;
    if (!flips.passes.empty() && std::ranges::count(flips.passes, pass) == 0) return made;
    const int64_t element = flips.changes ? 7 * pass + rank : flips.element;
    if (flips.value == HashedValue::Output) {
      const at::NoGradGuard no_graph;
      flip_bit(made.value.detach(), element, flips.bit);
    } else if (flips.value == HashedValue::OutputGradient) {
      made.value.register_hook([element, bit = flips.bit](const at::Tensor& gradient) {
        return with_flip(gradient, element, bit);
      });
    } else {
      // The gradient of the input is the last that the unit's backward computes.
      call.inputs.front()->register_hook(
          [element, bit = flips.bit, of = call.parameters.back()](const at::Tensor&) {
            flip_bit(of->gradient(), element, bit);
          });
    }
    return made;
  };
}

}  // namespace zea::testing
