// SPDX-License-Identifier: Apache-2.0
// The input of an audio encoder: the log-mel columns that the rows here see through its two
// convolutions. Rows may be any part of the clips' tokens: columns at their edges are made on
// several ranks, so no rank needs another's.
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

}  // namespace

void fill_clips(EncoderPart& part, const std::vector<float>& values, const OwnItems& own,
                const MelInput& input) {
  const at::Tensor mels =
      at::from_blob(const_cast<float*>(values.data()),
                    {std::ssize(own.held), input.mel_bins, input.columns()}, at::kFloat);
  ZEA_ASSERT(mels.numel() == std::ssize(values));  // the loader took the same items
  const SeenColumns seen = seen_columns(own, input);
  part.columns = with_neighbours(mels, seen.columns).to(own.dtype);
  part.windows = index_tensor(seen.indices).view({-1, kWidth});
}

}  // namespace zea::detail
