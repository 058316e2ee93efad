// SPDX-License-Identifier: Apache-2.0
// Muon's iteration by AMX, whose registers are tiles of 16 rows of 64 bytes. The library's own
// products by it are rounded to bf16 as they come out, before anything can be added.
#pragma once

#include <memory>

#include "zea/kernels/gram_iteration.hpp"

namespace zea::detail {

/// Whether the processor has AMX for bf16, and the system lets this process use it.
bool has_amx();

/// Whether that is here, and a core keeps x, which then has whole blocks of 32 rows and columns.
bool takes_amx(const at::Tensor& x);

/// Of x / divisor, fp32 on the host, whose rows are dense; operands of products are bf16.
std::unique_ptr<GramIteration> amx_iteration(const at::Tensor& x, double divisor);

}  // namespace zea::detail
