// SPDX-License-Identifier: Apache-2.0
// States of frozen encoders that are computed once (data.cache_features): this rank's rows of them
// where they were read with the samples, and the way of all rows to who writes them.

#include "batch/make_microbatch.hpp"
#include "batch/microbatch_parts.hpp"
#include "core/error.hpp"
#include "layout/item_row.hpp"
#include "model/index_tensor.hpp"

namespace zea {
namespace {

using detail::Ids;

/// Returns the first row of each item, one item after the other.
Ids first_rows(const std::vector<ItemShape>& all) {
  Ids firsts{0};
  for (const ItemShape& shape : all) firsts.push_back(firsts.back() + shape.tokens);
  return firsts;
}

/// Among the rows of all items that of a token of some of them.
int64_t row_of(const Ids& firsts, const Ids& items, const ItemRow& row, int64_t token) {
  return firsts[static_cast<size_t>(items[row.item_of(token)])] + row.position(token);
}

}  // namespace

void detail::fill_states(EncoderPart& part, const std::vector<uint8_t>& kept, const OwnItems& own,
                         int64_t states) {
  Ids firsts(own.row.shapes().size(), -1), rows;
  int64_t all = 0;
  for (const int64_t item : own.held) {
    firsts[static_cast<size_t>(item)] = all;
    all += own.row.shape(static_cast<size_t>(item)).tokens;
  }
  for (const TokenRange& run : own.here)
    for (int64_t token = run.begin; token < run.end; ++token)
      rows.push_back(firsts[own.row.item_of(token)] + own.row.position(token));
  const auto elements = static_cast<int64_t>(kept.size() / c10::elementSize(own.dtype));
  const int64_t width = all > 0 ? elements / (all * states) : 0;
  ZEA_ASSERT(width * all * states == elements);  // the loader took the same items
  const at::Tensor here =
      at::from_blob(const_cast<uint8_t*>(kept.data()), {all, states, width}, own.dtype)
          .index_select(0, index_tensor(rows));
  for (int64_t state = 0; state < states; ++state)
    part.states.push_back(here.select(1, state).contiguous());
}

RowTransfer gather_rows(const ItemList& items, const ModelSpec& model, int encoder,
                        const ReplicaLayout& replica, const GatheringRanks& ranks,
                        at::Device device) {
  const EncoderSpec& spec = model.encoders[static_cast<size_t>(encoder)];
  const std::vector<ItemShape> all = items.shapes(encoder, spec);
  const std::vector<Ids> dealt =
      distribute_items(all, model, encoder, replica.grid(spec.name).encoder_dp);
  const Ids firsts = first_rows(all);
  std::vector<TokenRuns> held, needed(ranks.in_replica.size());
  for (const int rank : ranks.in_replica) {
    const Coordinate coordinate = replica.coordinate(rank, spec.name);
    const Ids& own = dealt[static_cast<size_t>(coordinate.encoder_dp)];
    const ItemRow row(all, own, spec.name, replica);
    held.push_back(numbered(row.layout().held(coordinate.cp, coordinate.tp),
                            [&](int64_t token) { return row_of(firsts, own, row, token); }));
  }
  if (firsts.back() > 0) needed[static_cast<size_t>(ranks.taker)] = {{0, firsts.back()}};
  RowTransfer transfer = detail::make_transfer(held, needed, ranks.rank);
  transfer.sent_rows = transfer.sent_rows.to(device);
  transfer.received_rows = transfer.received_rows.to(device);
  return transfer;
}

}  // namespace zea
