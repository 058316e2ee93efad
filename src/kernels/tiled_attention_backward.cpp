// SPDX-License-Identifier: Apache-2.0
// Backward: of each pair of tiles p = exp(scores - lse) again, ds = p (dout v^T - rowsum(dout
// out)), then dv += p^T dout, dk += ds^T q, dq += ds k. Keys' gradients add up in a thread's memory
// over all tiles of a group, or over some keys, where the groups are too few for the threads.
#include "attention_call.hpp"

namespace zea {
namespace {

using namespace detail;

/// What one thread computes at a time: of a KV head, the gradients of queries of some tiles, or of
/// some keys, or both.
struct BackwardItem {
  int64_t group, kv_head;
  int64_t first_tile, end_tile;
  int64_t first_key, end_key;  ///< of the group
  bool wants_queries, wants_keys;
};

struct BackwardCall {
  const AttentionInputs& in;
  const at::Tensor& dout;
  const AttentionSums& sums;
  const AttentionGradients& gradients;
  bool adds;
  TileHeads heads;
  AttentionTiles tiles;
};

/// A thread's tiles. Those of queries exist twice: as rows, and transposed.
template <class W>
class BackwardTile {
 public:
  BackwardTile(const BackwardCall& call, int64_t most_keys)
      : call_(call),
        columns_(call.heads.columns<W>()),
        memory_(kTileQueries * (6 * columns_ + 2 * kTileKeys + 2) + 2 * kTileKeys * columns_ +
                2 * most_keys * columns_),
        q_(memory_.take(kTileQueries * columns_)),
        dout_(memory_.take(kTileQueries * columns_)),
        rows_(memory_.take(kTileQueries * columns_)),
        q_lanes_(memory_.take(kTileQueries * columns_)),
        dout_lanes_(memory_.take(kTileQueries * columns_)),
        dq_lanes_(memory_.take(kTileQueries * columns_)),
        scores_(memory_.take(kTileQueries * kTileKeys)),
        gradients_(memory_.take(kTileQueries * kTileKeys)),
        lse_(memory_.take(kTileQueries)),
        subtracted_(memory_.take(kTileQueries)),
        k_(memory_.take(kTileKeys * columns_)),
        v_(memory_.take(kTileKeys * columns_)),
        dk_(memory_.take(most_keys * columns_)),
        dv_(memory_.take(most_keys * columns_)) {}

  void run(const BackwardItem& item) {
    const int64_t keys = item.end_key - item.first_key, group = call_.heads.group();
    if (item.wants_keys)
      for (W* sum : {dk_, dv_}) std::fill_n(sum, keys * columns_, W(0));
    for (int64_t head = item.kv_head * group; head < (item.kv_head + 1) * group; ++head)
      for (int64_t tile = item.first_tile; tile < item.end_tile; ++tile)
        run_tile(item, call_.tiles.tiles[tile], head);
    if (item.wants_keys) store_keys(item);
  }

 private:
  void run_tile(const BackwardItem& item, const QueryTile& tile, int64_t head) {
    bool is_loaded = false;
    for (const TilePiece& piece : tile.pieces) {
      const int64_t begin = std::max<int64_t>(0, item.first_key - piece.sum_row);
      const int64_t end = std::min(piece.keys, item.end_key - piece.sum_row);
      if (begin >= end) continue;
      if (!std::exchange(is_loaded, true)) load_tile(tile, head);
      for (int64_t key = begin; key < end; key += kTileKeys)
        add_keys(item, piece, key, std::min(kTileKeys, end - key));
    }
    if (!item.wants_queries) return;
    transpose(dq_lanes_, lanes_, columns_, lanes_, rows_, columns_);
    store_rows<W>({rows_, tile.queries, call_.heads.dim, columns_},
                  static_cast<W>(call_.heads.scale()), call_.adds, HeadTensor(call_.gradients.dq),
                  tile.query, head);
  }

  void load_queries(const at::Tensor& from, const QueryTile& tile, int64_t head, W scale,
                    W* target) {
    load_rows<W>(HeadTensor(from), tile.query, head, scale,
                 {target, tile.queries, call_.heads.dim, columns_});
    std::fill_n(target + tile.queries * columns_, (lanes_ - tile.queries) * columns_, W(0));
  }

  void load_tile(const QueryTile& tile, int64_t head) {
    lanes_ = round_to(tile.queries, kLanes<W>);
    load_queries(call_.in.q, tile, head, static_cast<W>(call_.heads.scale()), q_);
    load_queries(call_.dout, tile, head, W(1), dout_);
    load_queries(call_.sums.out, tile, head, W(1), rows_);
    transpose(q_, columns_, lanes_, columns_, q_lanes_, lanes_);
    transpose(dout_, columns_, lanes_, columns_, dout_lanes_, lanes_);
    std::fill_n(dq_lanes_, lanes_ * columns_, W(0));
    const at::Tensor& lse = call_.sums.lse;
    const W* sums = lse.const_data_ptr<W>() + tile.query * lse.stride(0) + head * lse.stride(1);
    for (int64_t l = 0; l < lanes_; ++l) {
      lse_[l] = l < tile.queries ? sums[l * lse.stride(0)] : W(0);
      W sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t d = 0; d < columns_; ++d)
        sum += dout_[l * columns_ + d] * rows_[l * columns_ + d];
      subtracted_[l] = sum;
    }
  }

  void add_keys(const BackwardItem& item, const TilePiece& piece, int64_t begin, int64_t count) {
    const int64_t dim = call_.heads.dim;
    load_rows<W>(HeadTensor(call_.in.k), piece.key + begin, item.kv_head, W(1),
                 {k_, count, dim, columns_});
    load_rows<W>(HeadTensor(call_.in.v), piece.key + begin, item.kv_head, W(1),
                 {v_, count, dim, columns_});
    const SeenLanes seen(piece, begin, count, kLanes<W>);
    score(k_, q_lanes_, seen, scores_);
    score(v_, dout_lanes_, seen, gradients_);
    const ScoreTile<W> scores{scores_, lanes_, seen};
    hide(scores);
    score_gradients(scores, gradients_, lse_, subtracted_);
    if (item.wants_keys) {
      const int64_t row = piece.sum_row + begin - item.first_key;
      add_key_gradient(scores_, dout_, seen, dv_ + row * columns_);
      add_key_gradient(gradients_, q_, seen, dk_ + row * columns_);
    }
    if (item.wants_queries)
      multiply<W>({k_, 1, columns_, gradients_ + seen.begin_lane, lanes_,
                   dq_lanes_ + seen.begin_lane, lanes_, dim, seen.lanes(), count, true,
                   seen.part(Diagonal::RightInner), seen.offset + seen.begin_lane});
  }

  void score(const W* keys, const W* queries, const SeenLanes& seen, W* target) {
    const int64_t first = seen.begin_lane;
    multiply<W>({keys, columns_, 1, queries + first, lanes_, target + first, lanes_, seen.rows,
                 seen.lanes(), call_.heads.dim, false, seen.part(Diagonal::Result),
                 seen.offset + first});
  }

  void add_key_gradient(const W* weights, const W* queries, const SeenLanes& seen, W* target) {
    const int64_t first = seen.begin_lane;
    multiply<W>({weights + first, lanes_, 1, queries + first * columns_, columns_, target, columns_,
                 seen.rows, columns_, seen.lanes(), true, seen.part(Diagonal::LeftInner),
                 seen.offset + first});
  }

  void store_keys(const BackwardItem& item) {
    for (const KeyRange& range : call_.tiles.groups[item.group].ranges) {
      const int64_t begin = std::max(range.sum_row, item.first_key);
      const int64_t count = std::min(range.sum_row + range.keys, item.end_key) - begin;
      if (count <= 0) continue;
      const int64_t row = begin - item.first_key, token = range.key + begin - range.sum_row;
      const auto put = [&](W* sum, const at::Tensor& to) {
        store_rows<W>({sum + row * columns_, count, call_.heads.dim, columns_}, W(1), call_.adds,
                      HeadTensor(to), token, item.kv_head);
      };
      put(dk_, call_.gradients.dk);
      put(dv_, call_.gradients.dv);
    }
  }

  const BackwardCall& call_;
  const int64_t columns_;
  TileMemory<W> memory_;
  W *q_, *dout_, *rows_, *q_lanes_, *dout_lanes_, *dq_lanes_, *scores_, *gradients_, *lse_,
      *subtracted_, *k_, *v_, *dk_, *dv_;
  int64_t lanes_ = 0;
};

/// Whole groups of a KV head, with 5 products for each pair of tiles; or, where these would leave
/// threads idle, tiles of queries and then of keys, with 7 products and the same sums.
std::vector<BackwardItem> make_items(const BackwardCall& call, int64_t workers) {
  constexpr int64_t kWholeProducts = 5, kSplitProducts = 7;
  std::vector<BackwardItem> whole, split;
  const AttentionTiles& tiles = call.tiles;
  for (size_t g = 0; g < tiles.groups.size(); ++g)
    for (int64_t head = 0; head < call.heads.kv_heads; ++head) {
      const TileGroup& group = tiles.groups[g];
      const BackwardItem all{static_cast<int64_t>(g),
                             head,
                             group.first_tile,
                             group.end_tile,
                             0,
                             group.keys(),
                             true,
                             true};
      whole.push_back(all);
    }
  const auto items = static_cast<int64_t>(whole.size());
  const int64_t rounds = (items + workers - 1) / workers;
  if (rounds * workers * kWholeProducts <= items * kSplitProducts) return whole;
  for (const BackwardItem& all : whole) {
    for (int64_t tile = all.first_tile; tile < all.end_tile; ++tile) {
      split.push_back(all);
      split.back().first_tile = tile;
      split.back().end_tile = tile + 1;
      split.back().wants_keys = false;
    }
    for (int64_t key = 0; key < all.end_key; key += kTileKeys) {
      split.push_back(all);
      split.back().first_key = key;
      split.back().end_key = std::min(key + kTileKeys, all.end_key);
      split.back().wants_queries = false;
    }
  }
  return split;
}

template <class W>
void backward(const BackwardCall& call) {
  const std::vector<BackwardItem> items = make_items(call, at::get_num_threads());
  int64_t most_keys = 0;
  for (const BackwardItem& item : items)
    if (item.wants_keys) most_keys = std::max(most_keys, item.end_key - item.first_key);
  for_each_item(
      static_cast<int64_t>(items.size()), [&] { return BackwardTile<W>(call, most_keys); },
      [&](BackwardTile<W>& worker, int64_t item) { worker.run(items[item]); });
}

}  // namespace

void tiled_attention_backward(const AttentionInputs& in, const at::Tensor& dout,
                              const AttentionSums& sums, const std::vector<AttentionSlice>& slices,
                              const AttentionGradients& gradients, AttentionResult result) {
  const BackwardCall call{in,
                          dout,
                          sums,
                          gradients,
                          result == AttentionResult::Added,
                          TileHeads(in),
                          make_attention_tiles(slices)};
  if (sums.lse.scalar_type() == at::kDouble)
    backward<double>(call);
  else
    backward<float>(call);
}

}  // namespace zea
