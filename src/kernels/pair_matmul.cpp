// SPDX-License-Identifier: Apache-2.0
#include "kernels/pair_matmul.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/kernel_sizes.hpp"
#include "kernels/launch.hpp"
#include "kernels/tile_rows.hpp"

namespace zea::detail {
namespace {

#ifdef ZEA_HAS_PAIRS
/// Linux gives a process the state of AMX's tiles only if the process asks for it.
bool has_amx() {
  constexpr long kAskForState = 0x1023, kTileData = 18;  // asm/prctl.h, of kernels from 5.16 on
  return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
         syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}
#endif

PairUse pairs_of_processor() {
#ifdef ZEA_HAS_PAIRS
  const bool has = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512f") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq");
  if (has) return has_amx() ? PairUse::Attention : PairUse::All;
#endif
  return PairUse::None;
}

PairUse pairs_asked_for() {
  const char* asked = std::getenv("ZEA_BF16_PAIRS");
  if (asked == nullptr) return PairUse::All;
  const std::string_view use = asked;
  if (use == "none" || use == "converted") return PairUse::None;
  if (use == "attention") return PairUse::Attention;
  throw Error(ExitCode::Usage, "ZEA_BF16_PAIRS = " + std::string(use) +
                                   "; use none, attention or converted, or unset it");
}

}  // namespace

PairUse pair_use() {
  static const PairUse use = std::min(pairs_of_processor(), pairs_asked_for());
  return use;
}

#ifdef ZEA_HAS_PAIRS

namespace {

/// Columns of a panel of the right matrix: as wide as a block of sums.
constexpr int64_t kPanel = 48;
/// Rows of a block of a packed left matrix: as high as a block of sums.
constexpr int64_t kBlockRows = 8;
/// Blocks that are packed, or rounded, at once.
constexpr int64_t kBlocks = 8;

/// A matrix of bf16: `outer` rows, or columns, of the result, of `inner` elements that are summed.
struct Side {
  Side(const at::Tensor& x, int64_t outer_dim)
      : data(elements<Bf16>(x)),
        outer(x.size(outer_dim)),
        inner(x.size(1 - outer_dim)),
        pairs(parts_of(inner, 2)),
        lies_along(x.stride(1 - outer_dim) == 1 && (inner % 2 == 0 || x.stride(outer_dim) != 1)),
        stride(x.stride(lies_along ? outer_dim : 1 - outer_dim)) {}

  /// Whether memory has whole pairs, or rows that can be woven.
  bool has_pairs() const {
    return !lies_along || (inner % 2 == 0 && (stride % 2 == 0 || outer == 1));
  }
  const Bf16Pair* row(int64_t i) const {
    return reinterpret_cast<const Bf16Pair*>(data + i * stride);
  }

  const Bf16* data;
  int64_t outer, inner, pairs;
  bool lies_along;  ///< rows of memory go along `inner`; else along `outer`
  int64_t stride;   ///< between rows of memory
};

/// Pairs [first, end) of columns [column, width), one by one, as (pairs, stride).
void pack_rest(const Side& side, int64_t column, int64_t width, int64_t first, Bf16Pair* to,
               int64_t stride) {
  for (int64_t pair = first; pair < side.pairs; ++pair)
    for (int64_t i = column; i < width; ++i) to[pair * stride + i] = side.row(i)[pair];
}

/// The first `width` columns of the right matrix, as (pairs, width in whole vectors).
ZEA_PAIR_CODE void pack_panel(const Side& side, int64_t width, Bf16Pair* to) {
  constexpr int64_t L = kLanes<float>;
  const int64_t stride = round_to(width, L);
  if (!side.lies_along) return weave_rows(side.data, side.stride, side.inner, width, to, stride);
  const int64_t columns = width / L * L, pairs = side.pairs / L * L;
  transpose(reinterpret_cast<const float*>(side.data), side.stride / 2, columns, pairs,
            reinterpret_cast<float*>(to), stride);
  pack_rest(side, 0, columns, pairs, to, stride);
  if (columns == width) return;
  for (int64_t pair = 0; pair < side.pairs; ++pair) std::fill_n(to + pair * stride + columns, L, 0);
  pack_rest(side, columns, width, 0, to, stride);
}

/// Eight bf16, each in the lower half of 32 bits.
ZEA_PAIR_CODE inline __m256i widened(const Bf16* from) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

/// Eight neighbours of two rows.
ZEA_PAIR_CODE inline __m256i eight_woven(const Bf16* first, const Bf16* second) {
  return _mm256_or_si256(widened(first), _mm256_slli_epi32(widened(second), 16));
}

/// Rows [first, first + count) of a left matrix that lies across, as blocks of (pairs, kBlockRows).
ZEA_PAIR_CODE void pack_blocks(const Side& side, int64_t first, int64_t count, Bf16Pair* to) {
  for (int64_t pair = 0; pair < side.pairs; ++pair) {
    const Bf16* one = side.data + 2 * pair * side.stride + first;
    const bool has_other = 2 * pair + 1 < side.inner;
    Bf16Pair* target = to + pair * kBlockRows;
    int64_t row = 0;
    for (; has_other && row + kBlockRows <= count; row += kBlockRows)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + row * side.pairs),
                          eight_woven(one + row, one + side.stride + row));
    for (; row < count; ++row)
      target[row / kBlockRows * kBlockRows * side.pairs + row % kBlockRows] =
          one[row].bits |
          (has_other ? static_cast<uint32_t>(one[side.stride + row].bits) << 16 : 0);
  }
}

/// Adds `bias` to the first `width` of rows of whole vectors of floats, and rounds them into rows
/// of bf16.
ZEA_PAIR_CODE void round_rows(const float* from, int64_t rows, int64_t width, const float* bias,
                              Bf16* to, int64_t stride) {
  constexpr int64_t L = kLanes<float>;
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = from + i * round_to(width, L);
    for (int64_t c = 0; c < width; c += L) {
      const SixteenBf16 values =
          narrowed(_mm512_add_ps(_mm512_loadu_ps(row + c), _mm512_loadu_ps(bias + c)));
      Bf16* const target = to + i * stride + c;
      if (c + L <= width)
        store_sixteen(values, target);
      else
        for (int64_t l = 0; l < width - c; ++l) target[l].bits = values[l];
    }
  }
}

/// Asks for rows of the result while their sums are made.
void prefetch_rows(const Bf16* first, int64_t rows, int64_t width, int64_t stride) {
  for (int64_t i = 0; i < rows; ++i) {
    __builtin_prefetch(first + i * stride, 1);
    __builtin_prefetch(first + i * stride + width - 1, 1);
  }
}

/// Rounds into a result, or adds to it.
enum class Target { Rounded, Sum };

static_assert(kLanes<float> == 16 && sizeof(Bf16Pair) == sizeof(float),
              "pair_product_elements() counts vectors of 16 words");

class PairMatmul {
 public:
  PairMatmul(Target target, const at::Tensor& result, const at::Tensor& a, const at::Tensor& b,
             const at::Tensor& bias)
      : adds_(target == Target::Sum),
        result_(result),
        a_(a, 0),
        b_(b, 1),
        memory_(at::empty({pair_product_elements(a_.outer, a_.inner, b_.outer, !a_.lies_along)},
                          at::kFloat)),
        panels_(elements<Bf16Pair>(memory_)),
        blocks_(panels_ + packed_pairs(b_.outer, b_.inner)),
        bias_(elements<float>(memory_) + memory_.numel() - round_to(b_.outer, kLanes<float>)) {
    std::fill_n(bias_, round_to(b_.outer, kLanes<float>), 0.0F);
    if (bias.defined())
      for (int64_t i = 0; i < b_.outer; ++i) bias_[i] = load(elements<Bf16>(bias)[i]);
  }

  void run() {
    const int64_t panels = parts_of(b_.outer, kPanel);
    const int64_t pieces = a_.lies_along ? 0 : parts_of(a_.outer, kBlocks * kBlockRows);
    for_each_chunk(
        panels + pieces,
        [&](int64_t, int64_t i, int64_t) { i < panels ? pack(i) : pack_piece(i - panels); }, 1);
    for_each_chunk(
        a_.outer, [&](int64_t, int64_t begin, int64_t end) { multiply_part(begin, end); },
        rows_at_once());
  }

 private:
  /// Returns the rows of the result that a task computes, for two tasks per thread.
  int64_t rows_at_once() const {
    return round_to(parts_of(a_.outer, 2 * at::get_num_threads()), kBlockRows);
  }
  int64_t width(int64_t panel) const { return std::min(kPanel, b_.outer - panel * kPanel); }
  /// Columns in whole vectors.
  int64_t columns(int64_t panel) const { return round_to(width(panel), kLanes<float>); }
  Bf16Pair* panel_at(int64_t panel) const { return panels_ + panel * kPanel * b_.pairs; }

  void pack(int64_t panel) const {
    Side part = b_;
    part.data += panel * kPanel * (b_.lies_along ? b_.stride : 1);
    pack_panel(part, width(panel), panel_at(panel));
  }
  void pack_piece(int64_t piece) const {
    const int64_t first = piece * kBlocks * kBlockRows;
    pack_blocks(a_, first, std::min(kBlocks * kBlockRows, a_.outer - first),
                blocks_ + first * a_.pairs);
  }

  void multiply_part(int64_t begin, int64_t end) const {
    for (int64_t panel = 0; panel * kPanel < b_.outer; ++panel)
      if (adds_ && columns(panel) == width(panel))
        multiply_rows_of(panel, begin, end,
                         elements<float>(result_) + begin * result_.stride(0) + panel * kPanel,
                         result_.stride(0), true);
      else
        for (int64_t row = begin; row < end; row += kBlocks * kBlockRows)
          store_block(panel, row, std::min(kBlocks * kBlockRows, end - row));
  }

  /// Stores a block through a buffer of sums that are rounded, or of which only some are added.
  void store_block(int64_t panel, int64_t row, int64_t rows) const {
    alignas(64) float sums[kBlocks * kBlockRows * kPanel];
    const int64_t stride = columns(panel), place = row * result_.stride(0) + panel * kPanel;
    if (!adds_) {
      Bf16* const target = elements<Bf16>(result_) + place;
      prefetch_rows(target, rows, width(panel), result_.stride(0));
      multiply_rows_of(panel, row, row + rows, sums, stride, false);
      return round_rows(sums, rows, width(panel), bias_ + panel * kPanel, target,
                        result_.stride(0));
    }
    multiply_rows_of(panel, row, row + rows, sums, stride, false);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t c = 0; c < width(panel); ++c)
        elements<float>(result_)[place + i * result_.stride(0) + c] += sums[i * stride + c];
  }

  /// Computes packed blocks one by one.
  void multiply_rows_of(int64_t panel, int64_t begin, int64_t end, float* sum, int64_t stride,
                        bool adds) const {
    const bool along = a_.lies_along;
    const int64_t columns = this->columns(panel), step = along ? end - begin : kBlockRows;
    for (int64_t row = begin; row < end; row += step)
      multiply(TileProduct<Pairs>{along ? a_.row(row) : blocks_ + row * a_.pairs,
                                  along ? a_.stride / 2 : 1, along ? 1 : kBlockRows,
                                  panel_at(panel), columns, sum + (row - begin) * stride, stride,
                                  std::min(step, end - row), columns, a_.pairs, adds});
  }

  const bool adds_;
  const at::Tensor& result_;
  Side a_, b_;
  const at::Tensor memory_;  ///< a tensor: it counts as one, and is kept for the next product
  Bf16Pair *panels_, *blocks_;
  float* bias_;  ///< all columns in whole vectors; zeros without a bias
};

bool is_dense(const at::Tensor& x) {
  return x.dim() == 2 && (x.stride(0) == 1 || x.stride(1) == 1);
}

/// Nothing below looks at sizes and types again.
void check(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b) {
  ZEA_ASSERT(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0));
  ZEA_ASSERT(result.sizes().equals({a.size(0), b.size(1)}));
  ZEA_ASSERT(a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16);
}

}  // namespace

bool takes_pair_product(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b) {
  const auto type = result.scalar_type();
  if (pair_use() != PairUse::All || !a.is_cpu() || a.scalar_type() != at::kBFloat16) return false;
  if (type != at::kBFloat16 && type != at::kFloat) return false;
  if (result.numel() == 0 || a.numel() == 0 || result.stride(1) != 1) return false;
  return is_dense(a) && is_dense(b) && Side(a, 0).has_pairs() && Side(b, 1).has_pairs();
}

void pair_product(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b,
                  const at::Tensor& bias) {
  check(result, a, b);
  ZEA_ASSERT(result.scalar_type() == at::kBFloat16);
  if (bias.defined()) {
    ZEA_ASSERT(bias.scalar_type() == at::kBFloat16 && bias.is_contiguous());
    ZEA_ASSERT(bias.sizes().equals({b.size(1)}));
  }
  PairMatmul(Target::Rounded, result, a, b, bias).run();
}

void add_pair_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  check(sum, a, b);
  ZEA_ASSERT(sum.scalar_type() == at::kFloat);
  PairMatmul(Target::Sum, sum, a, b, {}).run();
}

#else

bool takes_pair_product(const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  return false;
}

void pair_product(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  throw InternalError("no pairs of bf16 here");
}

void add_pair_product(const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  throw InternalError("no pairs of bf16 here");
}

#endif

}  // namespace zea::detail
