// SPDX-License-Identifier: Apache-2.0
// Matrices are cut into blocks of 32 rows and columns, four tiles of sums. What a product makes of
// a block is rounded and laid out for the next products while it is in the nearest cache.
#include "amx_iteration.hpp"

#include "tile_rows.hpp"

#ifdef ZEA_HAS_PAIRS
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "launch.hpp"
#include "padded_matrix.hpp"
#include "tile_chunks.hpp"

namespace zea::detail {
namespace {

#define ZEA_AMX_CODE [[gnu::target("arch=x86-64-v4,avx512bf16,amx-tile,amx-bf16")]]

/// Rows of a tile, and words of each.
constexpr int64_t kSide = 16, kTile = kSide * kSide;
/// Rows and columns of a block; words of it as sums, and as an operand.
constexpr int64_t kBlockSide = 2 * kSide, kBlockSums = 4 * kTile, kBlockPairs = 2 * kTile;

/// Linux gives a process the state of tiles if it asks for it.
bool allows_tiles() {
  constexpr long kAskForState = 0x1023, kTileData = 18;  // asm/prctl.h, of kernels from 5.16 on
  return syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}

/// As ldtilecfg reads it (Intel's manual): all eight tiles are whole.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileShapes) == 64);
/// A constant: GCC takes the intrinsic to read 8 bytes, and would not write the rest of a local.
constexpr TileShapes kShapes;

/// Tiles are set up for this thread while this lives; meanwhile a switch to another thread saves
/// 8 KiB more.
class UseOfTiles {
 public:
  ZEA_AMX_CODE UseOfTiles() { _tile_loadconfig(&kShapes); }
  UseOfTiles(const UseOfTiles&) = delete;
  UseOfTiles& operator=(const UseOfTiles&) = delete;
  ZEA_AMX_CODE ~UseOfTiles() { _tile_release(); }
};

/// An operand of products, block by block along the inner dim, two tiles each: of rows on the left,
/// whose words are neighbours in a row; of columns on the right, whose words are neighbours in a
/// column. So a tile of a matrix on the left, turned, is one of the transposed matrix on the right.
struct Operand {
  Bf16Pair* first;
  int64_t inner;  ///< blocks

  Bf16Pair* block(int64_t outer, int64_t k = 0) const {
    return first + (outer * inner + k) * kBlockPairs;
  }
};

/// The sums of one block, tile by tile: two of the upper rows, two of the lower ones.
ZEA_AMX_CODE void multiply_block(const Operand& left, int64_t i, const Operand& right, int64_t j,
                                 float* sums) {
  constexpr int kRowBytes = 64;
  const Bf16Pair *a = left.block(i), *b = right.block(j);
  // GCC does not know that loads of tiles read memory: what was written must be there.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < left.inner; ++k, a += kBlockPairs, b += kBlockPairs) {
    _tile_loadd(4, a, kRowBytes);
    _tile_loadd(6, b, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + kTile, kRowBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kTile, kRowBytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, kRowBytes);
  _tile_stored(1, sums + kTile, kRowBytes);
  _tile_stored(2, sums + 2 * kTile, kRowBytes);
  _tile_stored(3, sums + 3 * kTile, kRowBytes);
}

/// Where the numbers of a block lie.
struct BlockPlace {
  float* first;
  int64_t row, right, below;  ///< to the next row, tile on the right, and tile below

  float* at(int64_t tile_row, int64_t tile_column, int64_t r) const {
    return first + tile_row * below + tile_column * right + r * row;
  }
};

BlockPlace place_of_sums(float* sums) {
  return {sums, kSide, kTile, 2 * kTile};
}

/// to = by from + factor to, all of a block.
ZEA_AMX_CODE void combine(float by, const BlockPlace& from, float factor, const BlockPlace& to) {
  const __m512 bys = _mm512_set1_ps(by), factors = _mm512_set1_ps(factor);
  for (int64_t p = 0; p < 2; ++p)
    for (int64_t q = 0; q < 2; ++q)
      for (int64_t r = 0; r < kSide; ++r) {
        const __m512 added = _mm512_loadu_ps(to.at(p, q, r)) * factors;
        _mm512_storeu_ps(to.at(p, q, r),
                         _mm512_fmadd_ps(_mm512_loadu_ps(from.at(p, q, r)), bys, added));
      }
}

/// 32 numbers of a row.
ZEA_AMX_CODE inline __m512i rounded_row(const BlockPlace& from, int64_t tile_row, int64_t r,
                                        __m512 scale) {
  return joined(narrowed(_mm512_loadu_ps(from.at(tile_row, 0, r)) * scale),
                narrowed(_mm512_loadu_ps(from.at(tile_row, 1, r)) * scale));
}

/// Of a block, scale times which is rounded: its tiles of rows and those of columns.
ZEA_AMX_CODE void pack_block(const BlockPlace& from, float scale, Bf16Pair* rows,
                             Bf16Pair* columns) {
  const __m512 scales = _mm512_set1_ps(scale);
  for (int64_t p = 0; p < 2; ++p)
    for (int64_t r = 0; r < kSide; r += 2) {
      const __m512i first = rounded_row(from, p, r, scales),
                    second = rounded_row(from, p, r + 1, scales);
      Bf16Pair* const row = rows + p * kTile + r * kSide;
      _mm512_store_si512(row, first);
      _mm512_store_si512(row + kSide, second);
      Bf16Pair* const pairs = columns + (p * kSide + r) / 2 * kSide;
      _mm512_store_si512(pairs, woven_part(first, second, 0));
      _mm512_store_si512(pairs + kTile, woven_part(first, second, 1));
    }
}

ZEA_AMX_CODE void turn_block(const Bf16Pair* from, Bf16Pair* to) {
  for (int64_t tile = 0; tile < kBlockPairs; tile += kTile) {
    LaneVector<float>::Type rows[kSide];
    for (int64_t r = 0; r < kSide; ++r)
      load_vector(rows[r], reinterpret_cast<const float*>(from + tile + r * kSide));
    transpose_square<float>(rows);
    for (int64_t r = 0; r < kSide; ++r)
      store_vector(reinterpret_cast<float*>(to + tile + r * kSide), rows[r]);
  }
}

/// What is above the diagonal goes below it.
void mirror_block(float* sums) {
  transpose(sums + kTile, kSide, kSide, kSide, sums + 2 * kTile, kSide);
  mirror_square(sums, kSide, kSide);
  mirror_square(sums + 3 * kTile, kSide, kSide);
}

/// A symmetric matrix: the blocks of its upper half in fp32, and all of it as operands.
struct Square {
  Square(const at::Tensor& memory, int64_t blocks)
      : sums(elements<float>(memory)),
        left{reinterpret_cast<Bf16Pair*>(sums + blocks * blocks * kBlockSums), blocks},
        right{left.block(blocks), blocks} {}
  float* block(int64_t i, int64_t j) const { return sums + (i * left.inner + j) * kBlockSums; }

  float* sums;
  Operand left, right;
};

/// scale left right + addends becomes `to`.
struct SquareProduct {
  Operand left, right;
  float scale;
  std::vector<std::pair<Square, float>> addends;
  Square to;
};

ZEA_AMX_CODE void make_block(const SquareProduct& product, int64_t i, int64_t j) {
  const Square& to = product.to;
  float* const made = to.block(i, j);
  const BlockPlace place = place_of_sums(made);
  multiply_block(product.left, i, product.right, j, made);
  float scale = product.scale;
  for (const auto& [addend, factor] : product.addends)
    combine(factor, place_of_sums(addend.block(i, j)), std::exchange(scale, 1.0F), place);
  if (scale != 1)
    std::transform(made, made + kBlockSums, made, [&](float sum) { return sum * scale; });
  // Left and right operands must be the same: those of a rounded product are not quite so.
  if (i == j) mirror_block(made);
  pack_block(place, 1, to.left.block(i, j), to.right.block(j, i));
  if (i == j) return;
  turn_block(to.left.block(i, j), to.right.block(i, j));
  turn_block(to.right.block(j, i), to.left.block(j, i));
}

class InTiles : public GramIteration {
 public:
  InTiles(const at::Tensor& x, double divisor)
      : x_(x, kBlockSide),
        rows_(x_.all.size(0) / kBlockSide),
        columns_(x_.all.size(1) / kBlockSide),
        short_(std::min(rows_, columns_)),
        divided_(static_cast<float>(1 / divisor)),
        first_(elements<float>(x_.all)),
        stride_(x_.all.stride(0)),
        memory_(at::empty({3, rows_ * columns_ * kBlockPairs}, x.options())),
        left_{reinterpret_cast<Bf16Pair*>(elements<float>(memory_)), columns_},
        right_{left_.block(rows_), rows_},
        turned_{right_.block(columns_), std::max(rows_, columns_)} {}

  at::Tensor gram() override {
    each_part(rows_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t j = 0; j < columns_; ++j) pack(i, j);
    });
    return is_wide() ? made(left_, turned_, 1, {}) : made(turned_, right_, 1, {});
  }

  at::Tensor product(const at::Tensor& a, const at::Tensor& b, double scale,
                     const Addends& addends) override {
    return made(Square(a, short_).left, Square(b, short_).right, scale, addends);
  }

  void apply(const at::Tensor& square, double factor, double scale) override {
    const Square by(square, short_);
    const Operand &left = is_wide() ? by.left : left_, &right = is_wide() ? right_ : by.right;
    const auto kept = static_cast<float>(factor * scale) * divided_;
    each_part(rows_, [&](int64_t begin, int64_t end) {
      const UseOfTiles tiles;
      alignas(64) float sums[kBlockSums];
      for (int64_t i = begin; i < end; ++i)
        for (int64_t j = 0; j < columns_; ++j) {
          multiply_block(left, i, right, j, sums);
          combine(static_cast<float>(scale), place_of_sums(sums), kept, place(i, j));
        }
    });
    divided_ = 1;
  }

  at::Tensor x() const override { return x_.part; }

 private:
  bool is_wide() const { return rows_ <= columns_; }
  BlockPlace place(int64_t i, int64_t j) const {
    return {first_ + (i * stride_ + j) * kBlockSide, stride_, kSide, kSide * stride_};
  }

  /// visit(begin, end) of rows of blocks: a thread that is alone takes all at once.
  static void each_part(int64_t rows, const auto& visit) {
    const bool is_alone = at::get_num_threads() == 1 || at::in_parallel_region();
    for_each_chunk(
        rows, [&](int64_t, int64_t begin, int64_t end) { visit(begin, end); },
        is_alone ? std::max<int64_t>(1, rows) : 1);
  }

  void pack(int64_t i, int64_t j) const {
    Bf16Pair *const row = left_.block(i, j), *const column = right_.block(j, i);
    pack_block(place(i, j), divided_, row, column);
    if (is_wide())
      turn_block(row, turned_.block(i, j));
    else
      turn_block(column, turned_.block(j, i));
  }

  at::Tensor made(const Operand& left, const Operand& right, double scale,
                  const Addends& addends) const {
    const at::Tensor memory = at::empty({2 * short_ * short_ * kBlockSums}, memory_.options());
    SquareProduct product{left, right, static_cast<float>(scale), {}, Square(memory, short_)};
    for (const Addend& addend : addends)
      product.addends.push_back({Square(addend.matrix, short_), static_cast<float>(addend.factor)});
    const auto make_row = [&](int64_t i) {
      for (int64_t j = i; j < short_; ++j) make_block(product, i, j);
    };
    // A long row of the upper half and a short one at once: as many blocks for each thread.
    each_part(parts_of(short_, 2), [&](int64_t begin, int64_t end) {
      const UseOfTiles tiles;
      for (int64_t i = begin; i < end; ++i) {
        make_row(i);
        if (const int64_t other = short_ - 1 - i; other != i) make_row(other);
      }
    });
    return memory;
  }

  PaddedMatrix x_;
  int64_t rows_, columns_, short_;  ///< blocks
  float divided_;                   ///< x is so many times x_
  float* first_;                    ///< of x_
  int64_t stride_;
  at::Tensor memory_;
  Operand left_, right_;  ///< x
  Operand turned_;        ///< where x is wide x^T on the right, else x^T on the left
};

}  // namespace

bool has_amx() {
  static const bool has = __builtin_cpu_supports("amx-tile") &&
                          __builtin_cpu_supports("amx-bf16") &&
                          __builtin_cpu_supports("avx512bf16") && allows_tiles();
  return has;
}

bool takes_amx(const at::Tensor& x) {
  return has_amx() &&
         round_to(x.size(0), kBlockSide) * round_to(x.size(1), kBlockSide) <= kCachedElements;
}

std::unique_ptr<GramIteration> amx_iteration(const at::Tensor& x, double divisor) {
  return std::make_unique<InTiles>(x, divisor);
}

}  // namespace zea::detail
#endif
