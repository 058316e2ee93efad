// SPDX-License-Identifier: Apache-2.0
// Arrays that tell where chunks lie, each in a slot of its own: of a dataset of fixed dims, and of
// one that can grow (VII.C, VII.D).
#pragma once

#include <memory>
#include <vector>

#include "h5/bytes.hpp"

namespace zea {

/// Addresses in all slots; kH5Undefined in one that was never written.
std::vector<uint64_t> read_h5_fixed_array(const H5Bytes& file, uint64_t address);
/// The same of the first `count` slots.
std::vector<uint64_t> read_h5_extensible_array(const H5Bytes& file, uint64_t address,
                                               uint64_t count);

}  // namespace zea
