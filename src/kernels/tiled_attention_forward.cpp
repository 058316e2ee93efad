// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "attention_call.hpp"
#include "run_items.hpp"

namespace zea {
namespace {

using namespace detail;

/// One tile of one head while its keys come. Tiles of queries are transposed: (dim, lanes).
template <class W>
class ForwardTile {
 public:
  explicit ForwardTile(const TileHeads& heads)
      : heads_(heads),
        columns_(heads.columns<W>()),
        memory_(kTileQueries * (3 * columns_ + kTileKeys + 3) + 2 * kTileKeys * columns_),
        rows_(memory_.take(kTileQueries * columns_)),
        q_(memory_.take(kTileQueries * columns_)),
        out_(memory_.take(kTileQueries * columns_)),
        scores_(memory_.take(kTileQueries * kTileKeys)),
        largest_(memory_.take(kTileQueries)),
        sum_(memory_.take(kTileQueries)),
        factor_(memory_.take(kTileQueries)),
        k_(memory_.take(kTileKeys * columns_)),
        v_(memory_.take(kTileKeys * columns_)) {}

  void start(const AttentionInputs& in, const QueryTile& tile, int64_t head) {
    lanes_ = round_to(tile.queries, kLanes<W>);
    load_transposed(HeadTensor(in.q), tile, head, static_cast<W>(heads_.scale()), q_);
    std::fill_n(out_, lanes_ * columns_, W(0));
    std::fill_n(largest_, lanes_, kHidden<W>);
    std::fill_n(sum_, lanes_, W(0));
  }

  /// Goes on from the sums over other keys.
  void go_on(const AttentionSums& sums, const QueryTile& tile, int64_t head) {
    load_transposed(HeadTensor(sums.out), tile, head, W(1), out_);
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
      const int64_t rows = std::min(kTileKeys, piece.keys - begin);
      load_rows<W>(k, piece.key + begin, kv_head, W(1), {k_, rows, heads_.dim, columns_});
      load_rows<W>(v, piece.key + begin, kv_head, W(1), {v_, rows, heads_.dim, columns_});
      add_keys(SeenLanes(piece, begin, rows, kLanes<W>));
    }
  }

  void finish(const AttentionSums& sums, const QueryTile& tile, int64_t head) {
    for (int64_t l = 0; l < lanes_; ++l) factor_[l] = sum_[l] == 0 ? W(0) : 1 / sum_[l];
    scale_out(0, lanes_);
    transpose(out_, lanes_, columns_, lanes_, rows_, columns_);
    store_rows<W>({rows_, tile.queries, heads_.dim, columns_}, W(1), false, HeadTensor(sums.out),
                  tile.query, head);
    W* lse = lse_of(sums.lse, tile.query, head);
    for (int64_t l = 0; l < tile.queries; ++l, lse += sums.lse.stride(0))
      *lse = largest_[l] + std::log(sum_[l]);
  }

 private:
  static W* lse_of(const at::Tensor& lse, int64_t query, int64_t head) {
    return lse.mutable_data_ptr<W>() + query * lse.stride(0) + head * lse.stride(1);
  }

  void load_transposed(const HeadTensor& from, const QueryTile& tile, int64_t head, W scale,
                       W* target) {
    load_rows<W>(from, tile.query, head, scale, {rows_, tile.queries, heads_.dim, columns_});
    std::fill_n(rows_ + tile.queries * columns_, (lanes_ - tile.queries) * columns_, W(0));
    transpose(rows_, columns_, lanes_, columns_, target, lanes_);
  }

  void scale_out(int64_t begin, int64_t end) {
    for (int64_t d = 0; d < heads_.dim; ++d) {
      W* __restrict row = out_ + d * lanes_;
      for (int64_t l = begin; l < end; ++l) row[l] *= factor_[l];
    }
  }

  void add_keys(const SeenLanes& seen) {
    const int64_t first = seen.begin_lane, offset = seen.offset + first;
    const ScoreTile<W> scores{scores_, lanes_, seen};
    multiply<W>({k_, columns_, 1, q_ + first, lanes_, scores_ + first, lanes_, seen.rows,
                 seen.lanes(), heads_.dim, false, seen.part(Diagonal::Result), offset});
    hide(scores);
    take_largest(scores, largest_, factor_);
    scale_sums(first, seen.end_lane);
    exponentiate(scores, largest_, sum_);
    multiply<W>({v_, 1, columns_, scores_ + first, lanes_, out_ + first, lanes_, heads_.dim,
                 seen.lanes(), seen.rows, true, seen.part(Diagonal::RightInner), offset});
  }

  void scale_sums(int64_t begin, int64_t end) {
    bool changes = false;
    for (int64_t l = begin; l < end; ++l) changes |= factor_[l] != 1;
    if (!changes) return;
    for (int64_t l = begin; l < end; ++l) sum_[l] *= factor_[l];
    scale_out(begin, end);
  }

  const TileHeads& heads_;
  const int64_t columns_;
  TileMemory<W> memory_;
  W *rows_, *q_, *out_, *scores_, *largest_, *sum_, *factor_, *k_, *v_;
  int64_t lanes_ = 0;
};

template <class W>
void forward(const AttentionInputs& in, const AttentionTiles& tiles, const AttentionSums& sums,
             AttentionResult result) {
  const TileHeads heads(in);
  const auto items = static_cast<int64_t>(tiles.tiles.size()) * heads.heads;
  for_each_item(
      items, [&] { return ForwardTile<W>(heads); },
      [&](ForwardTile<W>& worker, int64_t item) {
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
    forward<double>(in, tiles, sums, result);
  else
    forward<float>(in, tiles, sums, result);
}

}  // namespace zea
