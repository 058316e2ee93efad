// SPDX-License-Identifier: Apache-2.0
// Microbatches of decoding: prompts, whose keys and values the decoder keeps, and then of each
// sample the next token alone.
#pragma once

#include <memory>
#include <vector>

#include "batch/make_microbatch.hpp"
#include "layout/visibility.hpp"

namespace zea {

/// The part of a sample's KV cache that this rank holds.
struct CachedSample {
  int64_t first_row = 0;          ///< the cache's first row of the sample
  std::vector<int64_t> places;    ///< positions in the sample of the keys' tokens, ascending
  TokenPosition rope_delta = {};  ///< offset of rotary positions after the prompt
};

/// The KV cache of a microbatch's samples on this rank.
struct KvCacheState {
  std::shared_ptr<KvCache> cache;
  std::vector<CachedSample> samples;
};

/// The token of a sample that follows those in the KV cache.
struct NextToken {
  int64_t sample = 0;  ///< index in the microbatch
  int64_t id = 0;
  int64_t place = 0;  ///< position in its sample
};

/// Makes a microbatch of prompts as make_microbatch() does; the decoder's blocks write into the
/// cache that `keys` becomes, which has room for `more` tokens of each sample.
Microbatch make_prompt_microbatch(const LoadedMicrobatch& loaded, const ModelSpec& model,
                                  const MicrobatchOptions& options, int64_t more,
                                  KvCacheState& keys);

/// A token of some samples each, all of which attend to what precedes them. On every rank that
/// shares the microbatch with the same `next`, of ascending samples. Their rows join `keys`.
Microbatch make_next_microbatch(const std::vector<NextToken>& next, const ModelSpec& model,
                                const MicrobatchOptions& options, KvCacheState& keys);

/// Whether the rotary angles of all tokens of a sample change as it grows from `before` to `after`
/// tokens (LongRoPE), so that its cached keys are no longer valid.
bool invalidates_kv_cache(const ModelSpec& model, int64_t before, int64_t after);

}  // namespace zea
