// SPDX-License-Identifier: Apache-2.0
// Backward: of each pair of tiles p = exp(scores - lse) again, ds = p (dout v^T - rowsum(dout
// out)), then dv += p^T dout, dk += ds^T q, dq += ds k. Keys' gradients add up in a thread's memory
// over all tiles of a group, or over some keys, where the groups are too few for the threads.
#include "kernels/attention_operands.hpp"

namespace zea {
namespace {

using namespace detail;

/// The work of one thread at a time for a KV head: the gradients of queries of some tiles, or of
/// some keys, or both.
struct BackwardItem {
  int64_t group, kv_head;
  int64_t first_tile, end_tile;
  int64_t first_key, end_key;  ///< a range of the group's keys
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

/// A thread's tiles.
template <class Terms>
class BackwardTile {
  using W = typename Terms::Sum;
  using Group = typename Terms::Group;

 public:
  BackwardTile(const BackwardCall& call, int64_t most_keys)
      : call_(call),
        shapes_(call.heads.dim),
        columns_(shapes_.columns),
        memory_(kTileQueries * (6 * columns_ + 4 * kTileKeys + 2) + 2 * kTileKeys * columns_ +
                2 * most_keys * columns_),
        q_{take_rows(), take_rows()},
        dout_{take_rows(), take_rows()},
        spare_(memory_.take(kTileQueries * columns_)),
        dq_(memory_.take(kTileQueries * columns_)),
        scores_(memory_.take(kTileQueries * kTileKeys)),
        gradients_(memory_.take(kTileQueries * kTileKeys)),
        paired_scores_{take_paired(), nullptr},
        paired_gradients_{take_paired(), take_paired()},
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
  Group* take_rows() { return reinterpret_cast<Group*>(memory_.take(kTileQueries * columns_)); }
  Bf16Pair* take_paired() {
    return reinterpret_cast<Bf16Pair*>(memory_.take(kTileQueries * kTileKeys / 2));
  }
  W scale() const { return static_cast<W>(call_.heads.scale()); }

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
    store_rows<W>({dq_, tile.queries, shapes_.dim, columns_}, scale(), call_.adds,
                  HeadTensor(call_.gradients.dq), tile.query, head);
  }

  void load_tile(const QueryTile& tile, int64_t head) {
    lanes_ = round_to(tile.queries, kLanes<W>);
    const HeadTensor q(call_.in.q), dout(call_.dout), out(call_.sums.out);
    load_queries({q, tile.query, head, tile.queries}, lanes_, shapes_, spare_, q_);
    load_queries({dout, tile.query, head, tile.queries}, lanes_, shapes_, spare_, dout_);
    std::fill_n(dq_, lanes_ * columns_, W(0));
    std::fill_n(lse_, lanes_, W(0));
    std::fill_n(subtracted_, lanes_, W(0));
    const at::Tensor& lse = call_.sums.lse;
    const W* sums = lse.const_data_ptr<W>() + tile.query * lse.stride(0) + head * lse.stride(1);
    for (int64_t l = 0; l < tile.queries; ++l) lse_[l] = sums[l * lse.stride(0)];
    dot_rows<W>(dout, out, tile.query, head, {subtracted_, tile.queries, shapes_.dim, 1});
  }

  void add_keys(const BackwardItem& item, const TilePiece& piece, int64_t begin, int64_t count) {
    const int64_t token = piece.key + begin;
    const KeyOperands<Terms> k = load_keys({HeadTensor(call_.in.k), token, item.kv_head, count},
                                           shapes_, k_, item.wants_queries);
    const KeyOperands<Terms> v =
        load_keys({HeadTensor(call_.in.v), token, item.kv_head, count}, shapes_, v_, false);
    const SeenLanes seen(piece, begin, count, kLanes<W>);
    score(k, q_, seen, scale(), scores_);
    score(v, dout_, seen, W(1), gradients_);
    const ScoreTile<W> scores{scores_, lanes_, seen}, gradients{gradients_, lanes_, seen};
    const auto cap = static_cast<W>(call_.heads.scores.softcap);
    if (cap != 0) cap_scores(scores, cap);
    hide(scores);
    if (cap != 0)
      score_gradients<true>(scores, gradients_, lse_, subtracted_, cap);
    else
      score_gradients<false>(scores, gradients_, lse_, subtracted_, cap);
    const WeightOperands<Terms> ds = weight_operands(Terms(), gradients, paired_gradients_);
    if (item.wants_keys) {
      const int64_t row = (piece.sum_row + begin - item.first_key) * columns_;
      const WeightOperands<Terms> p = weight_operands(Terms(), scores, paired_scores_);
      add_key_gradient(p, dout_, seen, dv_ + row);
      add_key_gradient(ds, q_, seen, dk_ + row);
    }
    if (item.wants_queries) add_query_gradient(ds, k, seen);
  }

  void score(const KeyOperands<Terms>& keys, const QueryOperands<Terms>& queries,
             const SeenLanes& seen, W scale, W* target) {
    const int64_t first = seen.begin_lane;
    multiply(TileProduct<Terms>{keys.along_dim.data, keys.along_dim.stride, 1,
                                queries.along_dim + first, lanes_, target + first, lanes_,
                                seen.rows, seen.lanes(), shapes_.groups(), false, scale,
                                seen.part(Diagonal::Result)});
  }

  void add_key_gradient(const WeightOperands<Terms>& weights, const QueryOperands<Terms>& queries,
                        const SeenLanes& seen, W* target) {
    const int64_t first = seen.begin_lane, group = first / Terms::kElements;
    multiply(TileProduct<Terms>{weights.along_lanes.data + group, weights.along_lanes.stride, 1,
                                queries.across_lanes + group * columns_, columns_, target, columns_,
                                seen.rows, columns_, groups_of<Terms>(seen.lanes()), true, W(1),
                                seen.part(Diagonal::LeftInner)});
  }

  void add_query_gradient(const WeightOperands<Terms>& ds, const KeyOperands<Terms>& k,
                          const SeenLanes& seen) {
    const int64_t first = seen.begin_lane;
    multiply(TileProduct<Terms>{ds.across_keys.data + first, 1, ds.across_keys.stride,
                                k.across_keys.data, k.across_keys.stride, dq_ + first * columns_,
                                columns_, seen.end - first, columns_, groups_of<Terms>(seen.rows),
                                true, W(1), seen.part(Diagonal::LeftColumns)});
  }

  void store_keys(const BackwardItem& item) {
    for (const KeyRange& range : call_.tiles.groups[item.group].ranges) {
      const int64_t begin = std::max(range.sum_row, item.first_key);
      const int64_t count = std::min(range.sum_row + range.keys, item.end_key) - begin;
      if (count <= 0) continue;
      const int64_t row = begin - item.first_key, token = range.key + begin - range.sum_row;
      const auto put = [&](W* sum, W factor, const at::Tensor& to) {
        store_rows<W>({sum + row * columns_, count, shapes_.dim, columns_}, factor, call_.adds,
                      HeadTensor(to), token, item.kv_head);
      };
      put(dk_, scale(), call_.gradients.dk);
      put(dv_, W(1), call_.gradients.dv);
    }
  }

  const BackwardCall& call_;
  const OperandShapes<Terms> shapes_;
  const int64_t columns_;
  TileMemory<W> memory_;
  QueryOperands<Terms> q_, dout_;
  W *spare_, *dq_, *scores_, *gradients_;
  PairedRows paired_scores_, paired_gradients_;
  W *lse_, *subtracted_, *k_, *v_, *dk_, *dv_;
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

template <class Terms>
void backward(const BackwardCall& call) {
  const std::vector<BackwardItem> items = make_items(call, at::get_num_threads());
  int64_t most_keys = 0;
  for (const BackwardItem& item : items)
    if (item.wants_keys) most_keys = std::max(most_keys, item.end_key - item.first_key);
  for_each_item(
      static_cast<int64_t>(items.size()), [&] { return BackwardTile<Terms>(call, most_keys); },
      [&](BackwardTile<Terms>& worker, int64_t item) { worker.run(items[item]); });
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
  if (sums.lse.scalar_type() == at::kDouble) return backward<Singles<double>>(call);
#ifdef ZEA_HAS_PAIRS
  if (take_pairs({&in.q, &in.k, &in.v, &dout})) return backward<Pairs>(call);
#endif
  backward<Singles<float>>(call);
}

}  // namespace zea
