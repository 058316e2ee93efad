// SPDX-License-Identifier: Apache-2.0
// The input of an audio encoder: the log-mel columns that the rows here see through its two
// convolutions. Rows may be any part of the clips' tokens: columns at their edges are made on
// several ranks, so no rank needs another's. Clips that are subsampled are whole here.
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
  HeldColumns(const OwnItems& own, const MelInput& input) : own_(own), chunk_(input.chunk) {
    for (const int64_t item : own.held)
      starts_.push_back(starts_.back() + own.row.shape(static_cast<size_t>(item)).mel_columns);
  }

  /// The first column of a clip, and the columns of its chunk that has the row at `position`.
  struct Seen {
    int64_t clip, begin, end;
  };
  Seen seen_by(int64_t token) const {
    const auto item = static_cast<int64_t>(own_.row.item_of(token));
    const auto clip = std::ranges::lower_bound(own_.held, item) - own_.held.begin();
    return chunk_of(clip, kStride * own_.row.position(token));
  }
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
    if (chunk_ == 0) return {first, first, first + columns};
    const int64_t begin = column / (kStride * chunk_) * kStride * chunk_;
    return {first, first + begin, first + std::min(columns, begin + kStride * chunk_)};
  }

  const OwnItems& own_;
  const int64_t chunk_;
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

/// Fills the inputs of a subsampling's two convolutions. First: the 9 values that each bin of each
/// output column reads. Second: for each bin of each output column, the rows of the first one's
/// output that it reads. The first convolution makes two columns for each position of a clip; the
/// last of these columns may lie beyond the clip and is then not read.
void fill_subsampled(EncoderPart& part, const std::vector<float>& values, const OwnItems& own,
                     const MelInput& input) {
  constexpr int64_t kSide = Subsampling::kSide;
  const int64_t bins = Subsampling::halved(input.mel_bins), last_bins = input.subsampled_bins();
  std::vector<at::Tensor> columns;
  Ids rows;
  int64_t first = 0;  // row of the clip
  auto* value = const_cast<float*>(values.data());
  for (size_t clip = 0; clip < own.held.size(); ++clip) {
    const ItemShape& shape = own.row.shape(static_cast<size_t>(own.held[clip]));
    const int64_t made = 2 * shape.tokens;
    const int64_t seen = Subsampling::halved(shape.mel_columns);  // by the second
    // (bins, columns) -> (2 columns made + 1, 2 bins + 1), with zeros around.
    const at::Tensor mel =
        at::from_blob(value, {input.mel_bins, shape.mel_columns}, at::kFloat).t();
    value += mel.numel();
    const int64_t here = std::min(mel.size(0), 2 * made);
    const at::Tensor padded = at::constant_pad_nd(
        mel.narrow(0, 0, here), {1, 2 * bins - input.mel_bins, 1, 2 * made - here});
    columns.push_back(
        padded.unfold(0, kSide, 2).unfold(1, kSide, 2).reshape({made * bins, Subsampling::kTaps}));
    for (int64_t position = 0; position < shape.tokens; ++position)
      for (int64_t bin = 0; bin < last_bins; ++bin)
        for (int64_t tap = 0; tap < Subsampling::kTaps; ++tap) {
          const int64_t column = 2 * position + tap / kSide - 1, of = 2 * bin + tap % kSide - 1;
          const bool is_there = column >= 0 && column < seen && of >= 0 && of < bins;
          rows.push_back(is_there ? first + column * bins + of : -1);
        }
    first += made * bins;
  }
  part.columns = at::cat(columns).to(own.dtype);
  part.windows = index_tensor(rows).view({-1, Subsampling::kTaps});
}

}  // namespace

void fill_clips(EncoderPart& part, const std::vector<float>& values, const OwnItems& own,
                const EncoderSpec& encoder) {
  const MelInput& input = encoder.mels();
  const HeldColumns held(own, input);
  ZEA_ASSERT(held.all() * input.mel_bins == std::ssize(values));  // the loader took the same items
  if (input.subsampling) return fill_subsampled(part, values, own, input);
  const SeenColumns seen = seen_columns(own, held);
  part.columns = with_neighbours(values, input.mel_bins, seen.columns, held).to(own.dtype);
  part.windows = index_tensor(seen.indices).view({-1, kWidth});
  if (input.chunk == 0) return;
  int64_t longest = 1;
  for (const int64_t item : own.held)
    longest = std::max(longest, own.row.shape(static_cast<size_t>(item)).tokens);
  part.position_table =
      sinusoids(std::min(input.chunk, longest), encoder.block.hidden).to(own.dtype);
}

}  // namespace zea::detail
