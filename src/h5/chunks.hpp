// SPDX-License-Identifier: Apache-2.0
// Where the chunks of a dataset lie, by each kind of index (III.A, VII).
#pragma once

#include "h5/messages.hpp"

namespace zea {

/// How many chunks of `layout` there are along each of `dims`.
Shape count_h5_chunks(const H5Layout& layout, const std::vector<uint64_t>& dims);

/// The position in the file of each chunk of `bytes`, row-major in `counts` chunks; kH5Undefined of
/// one that was never written. Refuses an index that is not sound.
std::vector<uint64_t> read_h5_chunks(const H5Bytes& file, const H5Layout& layout,
                                     const H5Space& space, const Shape& counts, uint64_t bytes);

}  // namespace zea
