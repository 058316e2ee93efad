// SPDX-License-Identifier: Apache-2.0
// An encoder's side of a microbatch, whatever its items are: which of them this rank encodes, which
// of their tokens it holds, which features it makes, and where these go.
#include <algorithm>
#include <utility>

#include "batch/microbatch_parts.hpp"
#include "layout/item_row.hpp"
#include "model/index_tensor.hpp"

namespace zea::detail {
namespace {

/// The row of an encoder's table of positions for a token.
int64_t table_row(const EncoderSpec& encoder, const ItemRow& row, int64_t token) {
  const int64_t position = row.position_in_tile(token);
  if (encoder.modality() == Modality::Audio) {
    const MelInput& input = encoder.mels();
    if (input.chunk > 0) return position % input.chunk_positions();
    return std::min(position, input.positions - 1);  // one that stands apart has none
  }
  return encoder.patches().position(position, row.shape(row.item_of(token)));
}

/// A row here that the projector takes: its item, its index there, and whether it ends a row of the
/// image.
struct ProjectedRow {
  int64_t row, item, source;
  bool is_end;
};

std::vector<ProjectedRow> projected_rows(const TokenRuns& here, const ItemRow& row) {
  std::vector<ProjectedRow> projected;
  int64_t number = 0;
  for (const TokenRange& run : here)
    for (int64_t token = run.begin; token < run.end; ++token, ++number) {
      const size_t item = row.item_of(token);
      const ItemShape& shape = row.shape(item);
      const int64_t place = row.position(token), source = shape.source_of(place);
      if (source >= 0)
        projected.push_back({number, static_cast<int64_t>(item), source, shape.is_row_end(place)});
    }
  std::ranges::stable_sort(
      projected, {}, [](const ProjectedRow& each) { return std::pair(each.item, each.source); });
  return projected;
}

/// Returns runs of features with the same number of frames. `projected` rows are ordered by item.
std::vector<FrameRun> frame_runs(const std::vector<ProjectedRow>& projected, const ItemRow& row) {
  std::vector<FrameRun> runs;
  for (size_t i = 0; i < projected.size();) {
    const ItemShape& shape = row.shape(static_cast<size_t>(projected[i].item));
    if (runs.empty() || runs.back().frames != shape.averaged) runs.push_back({0, shape.averaged});
    ++runs.back().features;
    i += static_cast<size_t>(shape.feature_tokens());
  }
  return runs;
}

void fill_rows(EncoderPart& part, const EncoderSpec& encoder, const TokenRuns& here,
               const ItemRow& row) {
  Ids positions, feature_rows, row_ends;
  for (const TokenRange& run : here)
    for (int64_t token = run.begin; token < run.end; ++token)
      positions.push_back(table_row(encoder, row, token));
  const std::vector<ProjectedRow> projected = projected_rows(here, row);
  if (encoder.averages_frames()) part.frames = frame_runs(projected, row);
  for (const ProjectedRow& each : projected) {
    if (each.is_end) row_ends.push_back(std::ssize(feature_rows));
    feature_rows.push_back(each.row);
  }
  part.row_ends = index_tensor(row_ends);
  part.positions = index_tensor(positions);
  const bool are_all = feature_rows.size() == positions.size();
  if (!are_all || !std::ranges::is_sorted(feature_rows))
    part.feature_rows = index_tensor(feature_rows);
}

/// Fills the part of resampled features that comes from rows here; the rest comes from other ranks'
/// rows.
void fill_mixed_features(EncoderPart& part, const TokenRuns& here, const ItemRow& row,
                         at::ScalarType dtype) {
  const Ids rows = numbers_of(row.projected(here)), features = numbers_of(row.features(here));
  Ids corners, row_ends;
  std::vector<double> shares;
  for (const int64_t feature : features)
    for (const TableShare& corner : row.feature_shares(feature)) {
      const auto at = std::ranges::lower_bound(rows, corner.row);
      const bool is_here = at != rows.end() && *at == corner.row;
      corners.push_back(is_here ? at - rows.begin() : 0);
      shares.push_back(is_here ? corner.share : 0);
    }
  for (const int64_t token : numbers_of(here))
    if (row.shape(row.item_of(token)).is_row_end(row.position(token)))
      row_ends.push_back(std::ranges::lower_bound(features, row.feature(token)) - features.begin());
  part.row_ends = index_tensor(row_ends);
  part.feature_corners = index_tensor(corners).view({-1, 4});
  part.feature_shares_of = at::tensor(shares, at::kDouble).view({-1, 4}).to(dtype);
}

/// Fills the rows of an interpolated table that each row here lies between.
void fill_corners(EncoderPart& part, const PatchInput& input, const TokenRuns& here,
                  const ItemRow& row, at::ScalarType dtype) {
  std::vector<std::vector<TableShare>> of_rows;
  size_t most = 1;  // rows with fewer have the first of the table, and nothing of it
  for (const TokenRange& run : here)
    for (int64_t token = run.begin; token < run.end; ++token) {
      of_rows.push_back(
          input.table_shares(row.position_in_tile(token), row.shape(row.item_of(token))));
      most = std::max(most, of_rows.back().size());
    }
  Ids corners;
  std::vector<double> shares;
  for (std::vector<TableShare>& of_row : of_rows) {
    of_row.resize(most);
    for (const auto& [corner, share] : of_row) {
      corners.push_back(corner);
      shares.push_back(share);
    }
  }
  const auto width = static_cast<int64_t>(most);
  part.corners = index_tensor(corners).view({-1, width});
  part.corner_shares = at::tensor(shares, at::kDouble).view({-1, width}).to(dtype);
}

/// Returns the rotary position, by time, row and column of its image, of each patch among the cp
/// tokens `runs`.
std::vector<TokenPosition> patch_positions(const PatchInput& input, const TokenRuns& runs,
                                           const ItemRow& row) {
  std::vector<TokenPosition> positions;
  for (const TokenRange& run : runs)
    for (int64_t token = run.begin; token < run.end; ++token) {
      const ItemShape& image = row.shape(row.item_of(token));
      const PatchCell cell = input.cell(row.position_in_tile(token) - input.class_tokens(), image);
      positions.push_back({0, static_cast<float>(cell.row), static_cast<float>(cell.column)});
    }
  return positions;
}

/// The features that each rank of the replica makes.
std::vector<TokenRuns> made_features(const std::vector<ItemRow>& rows, const std::string& encoder,
                                     const ReplicaLayout& replica) {
  std::vector<TokenRuns> made;
  for (int rank = 0; rank < replica.ranks(); ++rank) {
    made.emplace_back();
    if (!replica.has_features(rank, encoder)) continue;
    const Coordinate coordinate = replica.coordinate(rank, encoder);
    const ItemRow& row = rows[coordinate.encoder_dp];
    made.back() = row.features(row.layout().held(coordinate.cp, coordinate.tp));
  }
  return made;
}

/// Fills this rank's rows of its items and the features they become.
void fill_rows_here(EncoderPart& part, const ItemRow& row, const TokenRuns& here,
                    const EncoderSpec& spec, at::ScalarType dtype,
                    const MicrobatchOptions& options) {
  const ReplicaLayout& replica = options.replica;
  const Coordinate coordinate = replica.coordinate(replica.rank, spec.name);
  const TokenLayout& layout = row.layout();
  fill_rows(part, spec, here, row);
  const auto is_shrunk = [](const ItemShape& shape) { return shape.is_interpolated(); };
  if (std::ranges::any_of(row.shapes(), is_shrunk)) fill_mixed_features(part, here, row, dtype);
  part.shares = layout.shares(coordinate.cp);
  for (size_t t = 0; t < part.shares.size(); ++t)
    part.feature_shares.push_back(
        count_tokens(row.projected(layout.held(coordinate.cp, static_cast<int>(t)))));
}

/// Fills the attention of these rows and their positions.
void fill_attention(EncoderPart& part, const ItemRow& row, const TokenRuns& here,
                    const EncoderSpec& spec, at::ScalarType dtype,
                    const MicrobatchOptions& options) {
  const ReplicaLayout& replica = options.replica;
  const int cp_rank = replica.coordinate(replica.rank, spec.name).cp;
  const TokenLayout& layout = row.layout();
  if (spec.modality() == Modality::Image && spec.patches().table_side > 0)
    fill_corners(part, spec.patches(), here, row, dtype);
  const ContextOptions context = replica.sharding(spec.name).context;
  for (const AttentionSpec& way : spec.block.attentions()) {
    TokenAttention& attention = part.attention.emplace_back();
    const bool in_windows = way.window > 0;
    if (context.ranks > 1)
      attention.context.emplace(
          make_context_plan(row.visible(in_windows), layout.owned(), context, cp_rank));
    if (context.inner < context.ranks) continue;
    AttentionMask& mask = attention.context ? attention.context->masks.at(0) : attention.mask;
    mask = AttentionMask(row.segments(in_windows), false);
  }
  if (!spec.block.rotary) return;
  const auto positions = patch_positions(spec.patches(), layout.owned()[cp_rank], row);
  fill_rotary_tables(part.attention, spec.block, positions, Ids(positions.size()), dtype);
}

}  // namespace

RowTransfer make_transfer(const std::vector<TokenRuns>& held, const std::vector<TokenRuns>& needed,
                          int rank, const std::vector<int>& parts) {
  const RowExchange exchange = plan_row_exchange(held, needed, rank, parts);
  RowTransfer transfer;
  Ids sent, received;
  for (const TokenRuns& runs : exchange.sends) {
    transfer.sent_counts.push_back(count_tokens(runs));
    for (int64_t index : indices_of_rows(runs, held[rank])) sent.push_back(index);
  }
  for (const TokenRuns& runs : exchange.receives) {
    transfer.received_counts.push_back(count_tokens(runs));
    for (int64_t index : indices_of_rows(runs, needed[rank])) received.push_back(index);
  }
  transfer.sent_rows = index_tensor(sent);
  transfer.received_rows = index_tensor(received);
  transfer.needed = count_tokens(needed[rank]);
  return transfer;
}

void fill_encoder(EncoderPart& part, const LoadedMicrobatch& loaded, const HostTokens& host,
                  const ModelSpec& model, int encoder, const MicrobatchOptions& options) {
  const ReplicaLayout& replica = options.replica;
  const auto e = static_cast<size_t>(encoder);
  const EncoderSpec& spec = model.encoders[e];
  const std::string& name = spec.name;
  const std::vector<ItemShape> all = loaded.items.shapes(encoder, spec);
  const std::vector<Ids> dealt =
      distribute_items(all, model, encoder, replica.grid(name).encoder_dp);
  std::vector<ItemRow> rows;
  for (const Ids& items : dealt) rows.emplace_back(all, items, name, replica);
  if (replica.ranks() > 1) {
    const std::vector<TokenRuns> made = made_features(rows, name, replica);
    const std::vector<TokenRuns> taken = taken_features(host, host.placeholders[e], model, options);
    part.features = make_transfer(made, taken, replica.rank, feature_parts(spec, replica));
    part.feature_gradients = make_transfer(taken, made, replica.rank);
  }
  if (!replica.has(replica.rank, name)) return;
  const Coordinate coordinate = replica.coordinate(replica.rank, name);
  const Ids& items = dealt[coordinate.encoder_dp];
  part.local_items = static_cast<int64_t>(items.size());
  if (items.empty()) return;
  const auto& dtypes = options.encoder_dtypes;
  const at::ScalarType dtype = e < dtypes.size() ? dtypes[e] : options.dtype;
  const ItemRow& row = rows[coordinate.encoder_dp];
  const TokenRuns here = row.layout().held(coordinate.cp, coordinate.tp);
  const Ids held = row.items_of(here);
  const OwnItems own{row, here, held, dtype};
  fill_rows_here(part, row, here, spec, dtype, options);
  fill_item_keys(part, host, row, items, model, encoder, options);
  if (const auto kept = loaded.states.find(encoder); kept != loaded.states.end()) {
    if (!replica.has_features(replica.rank, name)) return;  // its projectors read the states
    return fill_states(part, kept->second, own, std::ssize(model.read_by_projectors(encoder)));
  }
  fill_attention(part, row, here, spec, dtype, options);
  if (coordinate.pp > 0) return;  // the first stage reads the items
  if (spec.modality() == Modality::Audio)
    fill_clips(part, loaded.values[e], own, spec);
  else
    fill_images(part, loaded.values[e], own, spec);
}

}  // namespace zea::detail
