// SPDX-License-Identifier: Apache-2.0
// The input of an audio encoder: the log-mel columns that the rows here see through its two
// convolutions. Rows may be any part of the clips' tokens: columns at their edges are made on
// several ranks, so no rank needs another's.
#include <algorithm>
#include <cmath>

#include "batch/microbatch_parts.hpp"
#include "core/error.hpp"
#include "model/index_tensor.hpp"

namespace zea::detail {
namespace {

/// The second convolution: row p sees columns 2p - 1, 2p and 2p + 1 of the first.
constexpr int64_t kWidth = 3, kStride = 2;

/// The log-mel columns of the clips held, numbered one after the other, and their chunks, which see
/// nothing of each other; a clip that is not cut is one.
class HeldColumns {
 public:
  HeldColumns(const OwnItems& own, const MelInput& input) : own_(own), input_(input) {
    for (const int64_t item : own.held)
      starts_.push_back(starts_.back() + own.row.shape(static_cast<size_t>(item)).mel_columns);
  }

  /// The first column of a clip, and the columns of its chunk that has the row at `position`.
  struct Seen {
    int64_t clip, begin, end;
  };
  Seen seen_by(int64_t token) const {
    return chunk_of(index_of(token), kStride * own_.row.position(token));
  }
  /// Returns the first column of a token's clip.
  int64_t clip_of(int64_t token) const { return starts_[static_cast<size_t>(index_of(token))]; }
  /// Returns the chunk of a column.
  Seen around(int64_t column) const {
    const auto clip = std::ranges::upper_bound(starts_, column) - starts_.begin() - 1;
    return chunk_of(clip, column - starts_[static_cast<size_t>(clip)]);
  }
  int64_t all() const { return starts_.back(); }
  int64_t columns_from(int64_t start) const {
    return *std::ranges::upper_bound(starts_, start) - start;
  }

 private:
  Seen chunk_of(int64_t clip, int64_t column) const {
    const auto index = static_cast<size_t>(clip);
    const int64_t first = starts_[index], columns = starts_[index + 1] - first;
    if (input_.chunk == 0) return {first, first, first + columns};
    const int64_t begin = column / input_.chunk * input_.chunk;
    return {first, first + begin, first + std::min(columns, begin + input_.chunk)};
  }
  int64_t index_of(int64_t token) const {
    const auto item = static_cast<int64_t>(own_.row.item_of(token));
    return std::ranges::lower_bound(own_.held, item) - own_.held.begin();
  }

  const OwnItems& own_;
  const MelInput& input_;
  Ids starts_{0};
};

/// The columns that rows see, ascending; and for each row the indices of its columns among these.
struct SeenColumns {
  Ids columns, indices;
};

SeenColumns seen_columns(const OwnItems& own, const HeldColumns& held) {
  SeenColumns seen;
  for (const TokenRange& run : own.here)
    for (int64_t token = run.begin; token < run.end; ++token) {
      const auto [clip, begin, end] = held.seen_by(token);
      for (int64_t k = 0; k < kWidth; ++k) {
        const int64_t column = clip + kStride * own.row.position(token) + k - 1;
        if (column < begin || column >= end) {
          seen.indices.push_back(-1);
          continue;
        }
        // Neighbours share a column: the last one of a row is the first of the next.
        if (seen.columns.empty() || column > seen.columns.back()) seen.columns.push_back(column);
        seen.indices.push_back(std::lower_bound(seen.columns.begin(), seen.columns.end(), column) -
                               seen.columns.begin());
      }
    }
  return seen;
}

/// (columns, bins * 3): each column between its neighbours, of which those beyond its chunk are
/// zero. `values` are (bins, columns) of each clip.
at::Tensor with_neighbours(const std::vector<float>& values, int64_t bins, const Ids& columns,
                           const HeldColumns& held) {
  at::Tensor found = at::zeros({std::ssize(columns), bins * kWidth}, at::kFloat);
  auto* row = found.data_ptr<float>();
  for (const int64_t column : columns) {
    const auto [clip, begin, end] = held.around(column);
    const int64_t in_clip = held.columns_from(clip);
    const float* const first = values.data() + clip * bins + column - clip;
    for (int64_t bin = 0; bin < bins; ++bin)
      for (int64_t k = 0; k < kWidth; ++k, ++row)
        if (column + k - 1 >= begin && column + k - 1 < end) *row = first[bin * in_clip + k - 1];
  }
  return found;
}

/// (positions, width): sines, then cosines, as of Whisper's table.
at::Tensor sinusoids(int64_t positions, int64_t width) {
  const int64_t half = width / 2;
  const double step = std::log(10000.0) / static_cast<double>(half - 1);
  const at::Tensor rates = at::exp(at::arange(half, at::kDouble) * -step);
  const at::Tensor angles = at::arange(positions, at::kDouble).unsqueeze(1) * rates;
  return at::cat({at::sin(angles), at::cos(angles)}, 1);
}

/// An output column of a subsampling convolution, of a chunk of a local clip.
struct ConvolvedColumn {
  int64_t clip;   ///< first log-mel column of the clip, counted over all clips
  int64_t begin;  ///< first log-mel column of the chunk in the clip
  int64_t column;

  auto operator<=>(const ConvolvedColumn&) const = default;
};

/// The columns of each subsampling convolution that the local rows depend on.
class Subsampled {
 public:
  Subsampled(const MelInput& input, const HeldColumns& held) : input_(input), held_(held) {}

  /// Returns the output columns of the last convolution for the local rows, ascending.
  std::vector<ConvolvedColumn> last_columns(const OwnItems& own) const {
    std::vector<ConvolvedColumn> columns;
    for (const TokenRange& run : own.here)
      for (int64_t token = run.begin; token < run.end; ++token) {
        const int64_t position = own.row.position(token), clip = held_.clip_of(token);
        if (input_.chunk == 0) {
          columns.push_back({clip, 0, position});
          continue;
        }
        const int64_t each = input_.chunk_positions();
        columns.push_back({clip, position / each * input_.chunk, position % each});
      }
    return columns;
  }

  /// Returns the input columns of `columns`, outputs of the `number`-th convolution, ascending.
  std::vector<ConvolvedColumn> read_by(const std::vector<ConvolvedColumn>& columns,
                                       int64_t number) const {
    std::vector<ConvolvedColumn> read;
    for (const ConvolvedColumn& of : columns)
      for (int64_t k = -1; k <= 1; ++k) {
        const ConvolvedColumn one{of.clip, of.begin, kStride * of.column + k};
        // Neighboring windows share a column: the last of one is the first of the next.
        if (is_there(one, number - 1) && (read.empty() || one > read.back())) read.push_back(one);
      }
    return read;
  }

  /// Returns (columns * bins, kTaps) int64: for each bin of `columns`, outputs of the `number`-th
  /// convolution, the input rows of its window; `before` are the input columns, -1 is padding.
  at::Tensor windows(const std::vector<ConvolvedColumn>& columns,
                     const std::vector<ConvolvedColumn>& before, int64_t number) const {
    const int64_t bins = input_.bins_after(number - 1);
    Ids rows;
    const auto put = [&](const ConvolvedColumn& read, int64_t bin) {
      const bool is_read = is_there(read, number - 1) && bin >= 0 && bin < bins;
      const auto found = std::ranges::lower_bound(before, read);
      rows.push_back(is_read ? (found - before.begin()) * bins + bin : -1);
    };
    for_each_tap(columns, number, put);
    return index_tensor(rows).view({-1, Subsampling::kTaps});
  }

  /// Returns (columns * bins, kTaps) float: for each bin of `columns`, outputs of the first
  /// convolution, the values of its window. `values`: (mel_bins, columns) of each clip.
  at::Tensor taps(const std::vector<ConvolvedColumn>& columns,
                  const std::vector<float>& values) const {
    std::vector<float> taps;
    const auto put = [&](const ConvolvedColumn& read, int64_t bin) {
      const int64_t all = held_.columns_from(read.clip), column = read.begin + read.column;
      const bool is_read = is_there(read, 0) && column < all && bin >= 0 && bin < input_.mel_bins;
      const int64_t first = read.clip * input_.mel_bins + bin * all;
      taps.push_back(is_read ? values[static_cast<size_t>(first + column)] : 0);
    };
    for_each_tap(columns, 1, put);
    return at::tensor(taps, at::kFloat).view({-1, Subsampling::kTaps});
  }

 private:
  /// Whether the column exists in its chunk after `convolutions` convolutions.
  bool is_there(const ConvolvedColumn& of, int64_t convolutions) const {
    const int64_t columns = input_.chunk_columns(held_.columns_from(of.clip));
    return of.column >= 0 && of.column < Subsampling::halved(columns, convolutions);
  }

  /// Calls `put` with the input column and bin of each tap, for each bin of `columns`.
  template <class Put>
  void for_each_tap(const std::vector<ConvolvedColumn>& columns, int64_t number,
                    const Put& put) const {
    constexpr int64_t kSide = Subsampling::kSide;
    const bool bins_first = input_.subsampling->bins_first;
    for (const ConvolvedColumn& of : columns)
      for (int64_t bin = 0; bin < input_.bins_after(number); ++bin)
        for (int64_t tap = 0; tap < Subsampling::kTaps; ++tap) {
          const int64_t slow = tap / kSide - 1, fast = tap % kSide - 1;
          put({of.clip, of.begin, kStride * of.column + (bins_first ? fast : slow)},
              kStride * bin + (bins_first ? slow : fast));
        }
  }

  const MelInput& input_;
  const HeldColumns& held_;
};

void fill_subsampled(EncoderPart& part, const std::vector<float>& values, const OwnItems& own,
                     const MelInput& input, const HeldColumns& held) {
  const Subsampled subsampled(input, held);
  std::vector<ConvolvedColumn> columns = subsampled.last_columns(own);
  for (int64_t number = input.halvings(); number > 1; --number) {
    const std::vector<ConvolvedColumn> before = subsampled.read_by(columns, number);
    part.windows.push_back(subsampled.windows(columns, before, number));
    columns = before;
  }
  std::ranges::reverse(part.windows);
  part.columns = subsampled.taps(columns, values).to(own.dtype);
}

}  // namespace

void fill_clips(EncoderPart& part, const std::vector<float>& values, const OwnItems& own,
                const EncoderSpec& encoder) {
  const MelInput& input = encoder.mels();
  const HeldColumns held(own, input);
  ZEA_ASSERT(held.all() * input.mel_bins == std::ssize(values));  // the loader took the same items
  if (input.subsampling) {
    fill_subsampled(part, values, own, input, held);
  } else {
    const SeenColumns seen = seen_columns(own, held);
    part.columns = with_neighbours(values, input.mel_bins, seen.columns, held).to(own.dtype);
    part.windows = {index_tensor(seen.indices).view({-1, kWidth})};
  }
  if (input.chunk == 0) return;
  int64_t longest = 1;
  for (const int64_t item : own.held)
    longest = std::max(longest, own.row.shape(static_cast<size_t>(item)).tokens);
  part.position_table =
      sinusoids(std::min(input.chunk_positions(), longest), encoder.block.hidden).to(own.dtype);
}

}  // namespace zea::detail
