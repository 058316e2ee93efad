// SPDX-License-Identifier: Apache-2.0
// The plan of context parallelism: which rank owns which tokens of a packed row. A row is dealt in
// blocks of query tokens; what a block costs is read off what its tokens see, so rows whose tokens
// see different amounts (packed samples, images that see themselves both ways) are balanced, too.
#pragma once

#include <cstdint>
#include <vector>

#include "deck/key_types.hpp"
#include "layout/visibility.hpp"

namespace zea {

/// Neighbouring tokens of a row: [begin, end).
struct TokenRange {
  int64_t begin;
  int64_t end;

  int64_t length() const { return end - begin; }
  bool operator==(const TokenRange&) const = default;
};

struct DistributionOptions {
  TokenDistribution kind = TokenDistribution::MakespanMin;
  int64_t block = 128;
  /// Cost of a token outside attention, in unmasked tiles of block x block.
  double linear_tiles_per_token = 0;
  /// False where heads, not tokens, are dealt for attention (ulysses): only the linear part counts.
  bool counts_attention = true;
};

/// Where the sample (item) of a token ends.
int64_t end_of_sample(const Visibility& row, int64_t token);

/// Where the queries that are counted together with query `begin` of a run end: with the run, with
/// their sample, or at the next multiple of `block`. So a run costs what its blocks cost.
int64_t end_of_tile(const Visibility& row, TokenRange run, int64_t begin, int64_t block);

/// Returns the cost of attention of the queries of a run, in tiles of block x block: queries that
/// are counted together cost all keys that one of them sees.
double attention_tiles(const Visibility& row, TokenRange run, int64_t block);

/// The tokens of each rank, ascending, neighbours joined. Every token has one owner; ranks may hold
/// different numbers of tokens, or none. Deterministic.
std::vector<std::vector<TokenRange>> distribute_tokens(const Visibility& row, int ranks,
                                                       const DistributionOptions& options);

/// makespan_min with fewer runs: each long sample zigzag, which is as balanced where it is causal;
/// what lies between long samples in blocks.
std::vector<std::vector<TokenRange>> distribute_samples(const Visibility& row, int ranks,
                                                        const DistributionOptions& options);

/// Where every token costs as much as any other: the ranks' numbers differ by one at most
/// (zigzag: by two), so makespan_min is uniform.
std::vector<std::vector<TokenRange>> distribute_evenly(int64_t tokens, int ranks,
                                                       TokenDistribution kind);

/// The cost of each rank's tokens, in tiles: what makespan_min makes the largest of small.
std::vector<double> costs_of_ranks(const Visibility& row,
                                   const std::vector<std::vector<TokenRange>>& owned,
                                   const DistributionOptions& options);

}  // namespace zea
