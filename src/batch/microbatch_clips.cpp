// SPDX-License-Identifier: Apache-2.0
// The input of an audio encoder: the log-mel columns that the rows here see through its two
// convolutions. Rows may be any part of the clips' tokens: columns at their edges are made on
// several ranks, so no rank needs another's. Clips that are subsampled are whole here.
#include <algorithm>

#include "batch/microbatch_parts.hpp"
#include "core/error.hpp"
#include "model/index_tensor.hpp"

namespace zea::detail {
namespace {

/// The second convolution: row p sees columns 2p - 1, 2p and 2p + 1 of the first.
constexpr int64_t kWidth = 3, kStride = 2;

/// The columns, numbered through the clips held, that rows see, ascending; and for each row the
/// indices of its columns among these.
struct SeenColumns {
  Ids columns, indices;
};

SeenColumns seen_columns(const OwnItems& own, const MelInput& input) {
  SeenColumns seen;
  const auto place = [&](int64_t token) {
    const auto item = static_cast<int64_t>(own.row.item_of(token));
    return std::ranges::lower_bound(own.held, item) - own.held.begin();
  };
  for (const TokenRange& run : own.here)
    for (int64_t token = run.begin; token < run.end; ++token)
      for (int64_t k = 0; k < kWidth; ++k) {
        const int64_t first = place(token) * input.columns();
        const int64_t column = first + kStride * own.row.position(token) + k - 1;
        if (column < first || column >= first + input.columns()) {
          seen.indices.push_back(-1);
          continue;
        }
        // Neighbours share a column: the last one of a row is the first of the next.
        if (seen.columns.empty() || column > seen.columns.back()) seen.columns.push_back(column);
        seen.indices.push_back(std::lower_bound(seen.columns.begin(), seen.columns.end(), column) -
                               seen.columns.begin());
      }
  return seen;
}

/// (columns, mel_bins * 3): each column between its neighbours, of which those beyond the clip are
/// zero. `mels` are (clips, mel_bins, columns).
at::Tensor with_neighbours(const at::Tensor& mels, const Ids& columns) {
  const int64_t bins = mels.size(1);
  const at::Tensor padded = at::constant_pad_nd(mels, {1, 1});
  const at::Tensor unfolded = padded.unfold(2, kWidth, 1).permute({0, 2, 1, 3});
  if (static_cast<int64_t>(columns.size()) == mels.size(0) * mels.size(2))
    return unfolded.reshape({-1, bins * kWidth});
  const at::Tensor all = index_tensor(columns);
  const at::Tensor clips = all.div(mels.size(2), "floor");
  return unfolded.index({clips, all - clips * mels.size(2)}).reshape({-1, bins * kWidth});
}

/// The inputs of a subsampling: for each bin of each column that the first convolution makes the 9
/// values that it reads, and for each bin of each column of the second one the rows that it reads.
/// A clip has two columns of the first for each of its positions, of which the last may lie beyond
/// the clip and is then not read.
void fill_subsampled(EncoderPart& part, const at::Tensor& mels, const OwnItems& own,
                     const MelInput& input) {
  constexpr int64_t kSide = Subsampling::kSide;
  const int64_t bins = Subsampling::halved(input.mel_bins), last_bins = input.subsampled_bins();
  std::vector<at::Tensor> columns;
  Ids rows;
  int64_t first = 0;  // row of the clip
  for (size_t clip = 0; clip < own.held.size(); ++clip) {
    const ItemShape& shape = own.row.shape(static_cast<size_t>(own.held[clip]));
    const int64_t made = 2 * shape.tokens;
    const int64_t seen =
        shape.mel_columns > 0 ? Subsampling::halved(shape.mel_columns) : made;  // by the second
    // (bins, columns) -> (2 columns made + 1, 2 bins + 1), with zeros around.
    const at::Tensor mel = mels[static_cast<int64_t>(clip)].t();
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
                const MelInput& input) {
  const at::Tensor mels =
      at::from_blob(const_cast<float*>(values.data()),
                    {std::ssize(own.held), input.mel_bins, input.columns()}, at::kFloat);
  ZEA_ASSERT(mels.numel() == std::ssize(values));  // the loader took the same items
  if (input.subsampling) return fill_subsampled(part, mels, own, input);
  const SeenColumns seen = seen_columns(own, input);
  part.columns = with_neighbours(mels, seen.columns).to(own.dtype);
  part.windows = index_tensor(seen.indices).view({-1, kWidth});
}

}  // namespace zea::detail
