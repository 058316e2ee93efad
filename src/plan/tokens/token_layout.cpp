// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/tokens/token_layout.hpp"

#include <algorithm>

#include "zea/core/decoder.hpp"

namespace zea {

bool ReplicaLayout::has(int rank_in_replica, const std::string& module) const {
  return grids.modules.empty() || grids.has(rank_in_replica, module);
}

bool ReplicaLayout::has_features(int rank_in_replica, const std::string& module) const {
  if (!has(rank_in_replica, module)) return false;
  const auto stage = feature_stages.find(module);
  return place(rank_in_replica, module).pp == (stage == feature_stages.end() ? 0 : stage->second);
}

bool ReplicaLayout::has_head(int rank_in_replica) const {
  return has(rank_in_replica, kDecoder) && place(rank_in_replica, kDecoder).pp == head_stage;
}

Coordinate ReplicaLayout::place(int rank_in_replica, const std::string& module) const {
  return grids.modules.empty() ? Coordinate{} : grids.coordinate(rank_in_replica, module);
}

ModuleGrid ReplicaLayout::grid(const std::string& module) const {
  return grids.modules.empty() ? ModuleGrid{.module = module} : grids.grid(module);
}

TokenSharding ReplicaLayout::sharding(const std::string& module) const {
  const auto found = tokens.find(module);
  return found == tokens.end() ? TokenSharding{} : found->second;
}

std::vector<int64_t> slice_rows(int64_t rows, int parts) {
  std::vector<int64_t> slices;
  for (int64_t part = 0; part < parts; ++part)
    slices.push_back(rows * (part + 1) / parts - rows * part / parts);
  return slices;
}

RowRuns rows_between(const RowRuns& runs, int64_t begin, int64_t count) {
  RowRuns found;
  int64_t before = 0;
  for (const TokenRange& run : runs) {
    const int64_t first = std::max<int64_t>(begin - before, 0);
    const int64_t last = std::min(begin + count - before, run.length());
    if (first < last) found.push_back({run.begin + first, run.begin + last});
    before += run.length();
  }
  return found;
}

TokenLayout::TokenLayout(const Visibility& row, const TokenSharding& sharding, int tp)
    : slices_(sharding.sequence_parallel ? tp : 1) {
  if (sharding.context.ranks > 1)
    owned_ = deal_tokens(row, sharding.context);
  else
    owned_ = {rows_between({{0, row.tokens()}}, 0, row.tokens())};
}

std::vector<int64_t> TokenLayout::shares(int cp_rank) const {
  if (slices_ == 1) return {};
  return slice_rows(count_rows(owned_[cp_rank]), slices_);
}

RowRuns TokenLayout::held(int cp_rank, int tp_rank) const {
  if (slices_ == 1) return owned_[cp_rank];
  const std::vector<int64_t> slices = shares(cp_rank);
  int64_t begin = 0;
  for (int t = 0; t < tp_rank; ++t) begin += slices[t];
  return rows_between(owned_[cp_rank], begin, slices[tp_rank]);
}

}  // namespace zea
