// SPDX-License-Identifier: Apache-2.0
// What generation keeps of tokens: keys and values of the decoder's blocks.
#pragma once

#include <string>

#include "schedule/plan.hpp"

namespace zea {

/// Bytes of a token that `world_rank` keeps the keys of: of its heads in the blocks of its stage.
int64_t key_bytes_per_token(const Plan& plan, int world_rank);

/// Those of all samples of a replica at most, of full rows: whether the run generates or not.
int64_t kept_key_bytes(const Plan& plan, int world_rank);

/// That of the fullest rank, what the samples of a replica take at most, and what ends a text;
/// empty where nothing is generated.
std::string describe_generation(const Plan& plan);

}  // namespace zea
