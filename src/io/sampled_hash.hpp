// SPDX-License-Identifier: Apache-2.0
// A hash of files that tells versions of weights apart and costs a start of a run little: it reads
// all of small files and samples of large ones.
#pragma once

#include <cstdint>
#include <string>

namespace zea {

inline constexpr int64_t kWholeBytes = 1 << 20;   ///< of a file that is hashed as a whole
inline constexpr int64_t kHeadBytes = 64 << 10;   ///< hashed at the begin of a larger one
inline constexpr int64_t kSampleBytes = 4 << 10;  ///< of each of its samples
inline constexpr int kSamples = 64;               ///< at even distances, the last at its end

/// Returns the XXH3-128 (hex) of the size and the sampled bytes of the file `path`; of a checkpoint
/// that of its manifest, which holds the hashes of all of it; of another directory that of the
/// names and sampled hashes of all regular files right in it. Throws WeightsError where one cannot
/// be read.
std::string sampled_hash(const std::string& path);

}  // namespace zea
