// SPDX-License-Identifier: Apache-2.0
#include "spec/audio_needs.hpp"

#include <algorithm>

#include "core/kernel_sizes.hpp"

namespace zea::detail {
namespace {

constexpr auto kRowIndex = static_cast<int64_t>(sizeof(int64_t));

/// Windows of `taps` rows each of a convolution.
FunctionMemory windows_memory(int64_t rows, int64_t width, int64_t taps,
                              const ElementBytes& bytes) {
  const int64_t output = taps * rows * width * bytes.param;
  // One column of the windows: its elements, their rows, and which of these lie in the clip.
  const int64_t column = rows * (width * bytes.param + kRowIndex + 1);
  return {.output = output, .forward_peak = output + column, .backward_working = column};
}

/// Angles, sines, cosines and both side by side are computed in double.
FunctionMemory sinusoids_memory(int64_t rows, int64_t width, const ElementBytes& bytes) {
  const int64_t output = rows * width * bytes.param;
  return {.output = output, .forward_peak = 5 * rows * width / 2 * kRowIndex + output};
}

/// Blocks of queries with the keys that they attend to, as model/relative_attention.cpp has them.
FunctionMemory relative_memory(int64_t rows, const HeadShape& heads, const RelativeSpec& spec,
                               const ElementBytes& bytes) {
  const int64_t blocks = (rows + kRelativeBlock - 1) / kRelativeBlock;
  const int64_t width = heads.query * heads.dim, reach = kRelativeBlock + spec.left + spec.right;
  const int64_t padded = blocks * kRelativeBlock;
  const int64_t queries = padded * width * bytes.wide;
  const int64_t around = blocks * reach * width * bytes.wide;  // keys, or values, of all blocks
  const int64_t scores = padded * heads.query * reach * bytes.wide;
  const int64_t row = rows * width, inputs = 3 * row * bytes.param;
  const int64_t copies = bytes.is_narrow() ? 3 * row * bytes.wide : 0;
  FunctionMemory f{
      .output = row * bytes.param, .saved = spec.rows() * width * bytes.param, .saves_input = true};
  const int64_t scoring = copies + 2 * queries + around + 3 * scores;
  f.forward_peak = std::max(scoring, 3 * queries + 2 * around + 2 * scores) + f.saved;
  const int64_t multiplying =
      copies / 3 + 3 * queries + 2 * around + 3 * scores + std::max(around, scores);
  const int64_t joining = copies + 6 * queries + 3 * around + scores;
  f.backward_working = std::max(std::max(scoring, multiplying) - inputs, joining);
  return f;
}

FunctionMemory convolution_memory(int64_t x_bytes, const ElementBytes& bytes) {
  const int64_t wide = x_bytes / bytes.param * bytes.wide;
  const int64_t copies = bytes.is_narrow() ? 2 * wide : 0;
  return {.output = x_bytes,
          .saves_input = true,
          .forward_peak = x_bytes + copies + wide,
          .backward_working = copies + 2 * wide};
}

}  // namespace

void declare_audio(const Operation& op, const AudioPart& part, OperationNeeds& needs) {
  const EncoderSpec& encoder = part.model.encoders[part.unit.encoder];
  const MelInput& input = encoder.mels();
  const int64_t hidden = encoder.block.hidden, tokens = part.sizes.tokens.here;
  switch (op.kind) {
    case OperationKind::Columns:  // a subsampled clip has a row for each bin of its first output
      needs.rows = 2 * tokens;
      if (input.subsampling) needs.rows = input.columns_after(1, tokens) * input.bins_after(1);
      return;
    case OperationKind::Windows: {
      const int64_t width = part.x_bytes / (std::max<int64_t>(1, part.x_rows) * part.bytes.param);
      const int64_t made = op.count + 2;  // convolutions so far
      needs.rows = input.subsampling ? input.columns_after(made, tokens) * input.bins_after(made)
                                     : part.x_rows / 2;
      needs.memory =
          windows_memory(needs.rows, width, input.subsampling ? Subsampling::kTaps : 3, part.bytes);
      return;
    }
    case OperationKind::Sinusoids:
      needs.rows = part.model.attention(part.unit).relative->rows();
      needs.memory = sinusoids_memory(needs.rows, hidden, part.bytes);
      return;
    case OperationKind::RelativeAttention: {
      const AttentionSpec& spec = part.model.attention(part.unit);
      // Scores of keys and of distances, and sums of values.
      needs.row_products = 3 * spec.relative->rows() * hidden;
      needs.memory = relative_memory(part.x_rows, spec.heads, *spec.relative, part.bytes);
      return;
    }
    case OperationKind::CausalConvolution:
      needs.row_products = encoder.block.conformer->taps * hidden;
      needs.memory = convolution_memory(part.x_bytes, part.bytes);
      return;
    default:
      return;
  }
}

}  // namespace zea::detail
