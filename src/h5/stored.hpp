// SPDX-License-Identifier: Apache-2.0
// A dataset as it lies in a file: wholly written, unfiltered, nothing of it elsewhere.
#pragma once

#include "h5/messages.hpp"

namespace zea {

struct H5Stored {
  H5Type type;
  Shape shape;
  bool is_contiguous = true;
  Shape chunk;                      ///< dims of a chunk; of the whole where it is contiguous
  std::vector<uint64_t> positions;  ///< in the file, of each chunk, row-major; none: no elements
};

/// What the messages of a dataset say of its data.
struct H5Description {
  const H5Type& type;
  const H5Space& space;
  const H5Layout& layout;  ///< contiguous or chunked
};

[[noreturn]] void refuse_h5_dataset(const H5Site& site, const std::string& name,
                                    const std::string& why);

/// Refuses data that the file does not hold.
H5Stored place_h5_dataset(const H5Bytes& file, const H5Description& described,
                          const std::string& name);

}  // namespace zea
