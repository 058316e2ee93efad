// SPDX-License-Identifier: Apache-2.0
// What a shard holds beside its tensors: HDF5's structures, and gaps that hold nothing. Blocks of
// tensors have their hashes; with one of the rest there is no byte of the file without.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace zea {

/// Bytes [begin, end) of a file.
struct FileRange {
  int64_t begin = 0;
  int64_t end = 0;
};

/// XXH3-128 of all bytes of `path` outside of `data`, in their order, chained from part to part.
/// Throws the error that `code` selects where the file cannot be read, and where the ranges overlap
/// or leave it.
std::string hash_rest(const std::string& path, std::vector<FileRange> data, ExitCode code);

}  // namespace zea
