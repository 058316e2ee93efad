// SPDX-License-Identifier: Apache-2.0
// How the tokens of a module lie on the ranks of a replica, and which rows ranks exchange.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "layout/axis.hpp"
#include "layout/context_plan.hpp"
#include "layout/token_distribution.hpp"

namespace zea {

// Activations between two layouts: rows of one global list (features, in the order of their
// placeholders) that ranks hold, and rows that ranks need. Extents of one dim; every row may have
// several holders, of which one provides it, and several takers. All ranks work out the whole
// exchange alike, so no sizes travel.

/// Tokens of a row, or features in the order of their placeholders, as ascending runs.
using TokenRuns = std::vector<TokenRange>;

/// How many these are.
int64_t count_tokens(const TokenRuns& runs);
/// Each of them.
std::vector<int64_t> numbers_of(const TokenRuns& runs);

/// One rank's part: what it sends to and receives from each rank.
struct RowExchange {
  std::vector<TokenRuns> sends;
  std::vector<TokenRuns> receives;
};

/// `held` and `needed`: of each rank. A row comes from the taker itself where it holds it, else
/// from the first holder after the taker, around. Rows that nobody holds are not sent. With `parts`
/// a row is a sum: of each rank which part of the rows that it holds is there, so that a taker gets
/// each part once; empty: all are whole.
RowExchange plan_row_exchange(const std::vector<TokenRuns>& held,
                              const std::vector<TokenRuns>& needed, int rank,
                              const std::vector<int>& parts = {});

/// For each row of `wanted` (ascending, all of them in `held`) its index among the rows of `held`.
std::vector<int64_t> indices_of_rows(const TokenRuns& wanted, const TokenRuns& held);

// Where the tokens of a microbatch lie on the ranks that share it: dealt to cp ranks by the
// distribution, and under sequence parallel in slices to the tp ranks of each. Pure values that
// every rank of a replica works out alike.

/// How the tokens of a module lie on the tp and cp ranks of its grid.
struct TokenSharding {
  bool sequence_parallel = false;  ///< tp ranks hold slices of them between layers
  ContextOptions context;          ///< which cp rank owns which, and how they attend
  /// How cp ranks scan for mixers that carry a state: true: they pass states; false: they exchange
  /// tokens for heads.
  bool passes_states = false;
};

/// The ranks that share a microbatch. One rank by default.
struct ReplicaLayout {
  MeshShape grids;  ///< of one replica; empty: one rank
  std::map<std::string, TokenSharding> tokens;
  /// Along pp: where each encoder makes its features, and where the decoder merges them and has its
  /// head.
  std::map<std::string, int> feature_stages;
  int head_stage = 0;
  int rank = 0;  ///< this one's place in it

  int ranks() const { return grids.modules.empty() ? 1 : grids.ranks_per_replica(); }
  /// Whether a rank holds a part of `module`, whether that makes or takes features, and whether it
  /// has the model's head.
  bool has(int rank_in_replica, const std::string& module) const;
  bool has_features(int rank_in_replica, const std::string& module) const;
  bool has_head(int rank_in_replica) const;
  /// All zero, and a grid of one rank, where there are no grids.
  Coordinate coordinate(int rank_in_replica, const std::string& module) const;
  ModuleGrid grid(const std::string& module) const;
  TokenSharding sharding(const std::string& module) const;
  /// Returns for each rank which share of the module's tokens it holds: those with the same have
  /// copies.
  std::vector<int> token_shares(const std::string& module) const;
};

/// Rows of each of `parts` slices of `rows` rows: all are full but the last one that has any.
std::vector<int64_t> slice_rows(int64_t rows, int parts);

/// Rows that each rank sends of its share where they are gathered, or gets where they are summed:
/// as many of each where shares (not empty) are slices and that adds few, which then lie behind all
/// rows, since devices' collectives are of equal counts; otherwise the shares.
std::vector<int64_t> travelling_rows(const std::vector<int64_t>& shares);

/// Chunk number `chunk` of `rows` rows that are split into `chunks` chunks.
inline TokenRange chunk_of_rows(int64_t rows, int chunk, int chunks) {
  return {rows * chunk / chunks, rows * (chunk + 1) / chunks};
}

/// Rows of the language model's tokens on the ranks that share experts, in order of rank.
struct ExpertRows {
  std::vector<int64_t> cp;        ///< of each neighbor along cp; empty: there is one rank
  std::vector<int64_t> replicas;  ///< of each replica; empty: there is one

  /// Returns the rows of all of them, where this rank has `own`.
  int64_t all(int64_t own) const;
};

/// The tokens [begin, begin + count) of what `runs` hold.
TokenRuns tokens_between(const TokenRuns& runs, int64_t begin, int64_t count);

/// The tokens of one module in one row, on all ranks of a (encoder_dp, tp, cp) grid.
class TokenLayout {
 public:
  /// A group of contiguous tokens is not split over ranks. `group_ends`: the end of each group,
  /// ascending; a sample (item) has whole groups. Empty: each token is a group.
  TokenLayout(const Visibility& row, const TokenSharding& sharding, int tp,
              std::vector<int64_t> group_ends = {});

  /// The tokens of each cp rank.
  const std::vector<TokenRuns>& owned() const { return owned_; }
  /// Tokens of the `neighbors` cp ranks, of which one is `cp_rank`, that share experts; empty for
  /// one.
  std::vector<int64_t> expert_rows(int cp_rank, int neighbors) const;
  /// Rows of each tp rank of a cp rank's tokens; empty where each holds all of them.
  std::vector<int64_t> shares(int cp_rank) const;
  /// Returns the tokens that a rank holds between layers.
  TokenRuns held(int cp_rank, int tp_rank) const;

 private:
  std::vector<TokenRuns> owned_;
  int slices_;
  std::vector<int64_t> group_ends_;
};

}  // namespace zea
