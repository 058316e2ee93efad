// SPDX-License-Identifier: Apache-2.0
// Forward: the softmax over keys is taken as tiles of them come, so a tile of queries keeps its
// running sums and nothing of the scores.
#include <limits>

#include "kernels/attention_operands.hpp"
#include "kernels/run_items.hpp"

namespace zea {
namespace {

using namespace detail;

/// One tile of one head while its keys come.
template <class Terms>
class ForwardTile {
  using W = typename Terms::Sum;
  using Group = typename Terms::Group;

 public:
  explicit ForwardTile(const TileHeads& heads)
      : heads_(heads),
        shapes_(heads.dim),
        columns_(shapes_.columns),
        memory_(kTileQueries * (3 * columns_ + 2 * kTileKeys + 3) + 2 * kTileKeys * columns_),
        spare_(memory_.take(kTileQueries * columns_)),
        q_(reinterpret_cast<Group*>(memory_.take(kTileQueries * columns_))),
        out_(memory_.take(kTileQueries * columns_)),
        scores_(memory_.take(kTileQueries * kTileKeys)),
        paired_(memory_.take(kTileQueries * kTileKeys)),
        largest_(memory_.take(kTileQueries)),
        sum_(memory_.take(kTileQueries)),
        factor_(memory_.take(kTileQueries)),
        k_(memory_.take(kTileKeys * columns_)),
        v_(memory_.take(kTileKeys * columns_)) {}

  void start(const AttentionInputs& in, const QueryTile& tile, int64_t head) {
    lanes_ = round_to(tile.queries, kLanes<W>);
    load_queries({HeadTensor(in.q), tile.query, head, tile.queries}, lanes_, shapes_, spare_,
                 {q_, nullptr});
    std::fill_n(out_, lanes_ * columns_, W(0));
    std::fill_n(largest_, lanes_, kHidden<W>);
    std::fill_n(sum_, lanes_, W(0));
  }

  /// Goes on from the sums over other keys.
  void go_on(const AttentionSums& sums, const QueryTile& tile, int64_t head) {
    load_rows<W>(HeadTensor(sums.out), tile.query, head, W(1),
                 {out_, tile.queries, shapes_.dim, columns_});
    const W* lse = lse_of(sums.lse, tile.query, head);
    for (int64_t l = 0; l < tile.queries; ++l, lse += sums.lse.stride(0)) {
      const bool has_seen = *lse != -std::numeric_limits<W>::infinity();
      largest_[l] = has_seen ? *lse : kHidden<W>;
      sum_[l] = has_seen ? 1 : 0;
    }
  }

  void add_piece(const AttentionInputs& in, const TilePiece& piece, int64_t kv_head) {
    const HeadTensor k(in.k), v(in.v);
    for (int64_t begin = 0; begin < piece.keys; begin += kTileKeys) {
      const int64_t token = piece.key + begin, rows = std::min(kTileKeys, piece.keys - begin);
      add_keys(SeenLanes(piece, begin, rows, kLanes<W>),
               load_keys({k, token, kv_head, rows}, shapes_, k_, false).along_dim,
               load_keys({v, token, kv_head, rows}, shapes_, v_, true).across_keys);
    }
  }

  void finish(const AttentionSums& sums, const QueryTile& tile, int64_t head) {
    for (int64_t l = 0; l < lanes_; ++l) factor_[l] = sum_[l] == 0 ? W(0) : 1 / sum_[l];
    scale_rows(out_, columns_, 0, tile.queries, factor_);
    store_rows<W>({out_, tile.queries, shapes_.dim, columns_}, W(1), false, HeadTensor(sums.out),
                  tile.query, head);
    W* lse = lse_of(sums.lse, tile.query, head);
    for (int64_t l = 0; l < tile.queries; ++l, lse += sums.lse.stride(0))
      *lse = largest_[l] + std::log(sum_[l]);
  }

 private:
  static W* lse_of(const at::Tensor& lse, int64_t query, int64_t head) {
    return lse.mutable_data_ptr<W>() + query * lse.stride(0) + head * lse.stride(1);
  }

  void add_keys(const SeenLanes& seen, const GroupRows<Terms>& k, const GroupRows<Terms>& v) {
    const int64_t first = seen.begin_lane;
    const ScoreTile<W> scores{scores_, lanes_, seen};
    multiply(TileProduct<Terms>{k.data, k.stride, 1, q_ + first, lanes_, scores_ + first, lanes_,
                                seen.rows, seen.lanes(), shapes_.groups(), false,
                                static_cast<W>(heads_.scale()), seen.part(Diagonal::Result)});
    if (heads_.scores.softcap != 0) cap_scores(scores, static_cast<W>(heads_.scores.softcap));
    hide(scores);
    take_largest(scores, largest_, factor_);
    scale_sums(first, seen.end_lane);
    exponentiate(scores, largest_, sum_);
    const GroupRows<Terms> p =
        weight_operands(Terms(), scores, {nullptr, reinterpret_cast<Bf16Pair*>(paired_)})
            .across_keys;
    multiply(TileProduct<Terms>{p.data + first, 1, p.stride, v.data, v.stride,
                                out_ + first * columns_, columns_, seen.end - first, columns_,
                                groups_of<Terms>(seen.rows), true, W(1),
                                seen.part(Diagonal::LeftColumns)});
  }

  void scale_sums(int64_t begin, int64_t end) {
    bool changes = false;
    for (int64_t l = begin; l < end; ++l) changes |= factor_[l] != 1;
    if (!changes) return;
    for (int64_t l = begin; l < end; ++l) sum_[l] *= factor_[l];
    scale_rows(out_, columns_, begin, end, factor_);
  }

  const TileHeads& heads_;
  const OperandShapes<Terms> shapes_;
  const int64_t columns_;
  TileMemory<W> memory_;
  W* spare_;
  Group* q_;  ///< (dim, lanes)
  W *out_, *scores_, *paired_, *largest_, *sum_, *factor_, *k_, *v_;
  int64_t lanes_ = 0;
};

template <class Terms>
void forward(const AttentionInputs& in, const AttentionTiles& tiles, const AttentionSums& sums,
             AttentionResult result) {
  const TileHeads heads(in);
  const auto items = static_cast<int64_t>(tiles.tiles.size()) * heads.heads;
  for_each_item(
      items, [&] { return ForwardTile<Terms>(heads); },
      [&](ForwardTile<Terms>& worker, int64_t item) {
        const QueryTile& tile = tiles.tiles[item / heads.heads];
        const int64_t head = item % heads.heads;
        worker.start(in, tile, head);
        if (result == AttentionResult::Added) worker.go_on(sums, tile, head);
        for (const TilePiece& piece : tile.pieces)
          worker.add_piece(in, piece, head / heads.group());
        worker.finish(sums, tile, head);
      });
}

}  // namespace

bool takes_tiled_attention(const at::Tensor& x) {
  return x.is_cpu() && detail::runs_kernels(x);
}

void tiled_attention_forward(const AttentionInputs& in, const std::vector<AttentionSlice>& slices,
                             const AttentionSums& sums, AttentionResult result) {
  const AttentionTiles tiles = make_attention_tiles(slices);
  if (sums.lse.scalar_type() == at::kDouble)
    return forward<Singles<double>>(in, tiles, sums, result);
#ifdef ZEA_HAS_PAIRS
  if (take_pairs({&in.q, &in.k, &in.v})) return forward<Pairs>(in, tiles, sums, result);
#endif
  forward<Singles<float>>(in, tiles, sums, result);
}

}  // namespace zea
