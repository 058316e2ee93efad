// SPDX-License-Identifier: Apache-2.0
// Names of the rows that units make: which token of which sample or item a row is. A name does not
// depend on the layout, so rows of two layouts can be compared.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "batch/make_microbatch.hpp"

namespace zea {

struct RowName {
  int64_t sample = 0;    ///< id in the data set
  int32_t item = -1;     ///< index among the sample's items; -1: a token of its text
  int32_t position = 0;  ///< of the token in its sample or item, or of the feature in its item

  auto operator<=>(const RowName&) const = default;
};

/// The rows that this rank holds between layers.
struct RowNames {
  struct Encoder {
    std::vector<RowName> tokens;
    std::vector<RowName> features;  ///< rows of the projector, before any are interpolated
  };

  std::vector<RowName> text;
  std::vector<Encoder> encoders;  ///< as in ModelSpec::encoders
};

/// Names the rows of make_microbatch(loaded, model, options), whose mask words are `words`.
RowNames names_of_rows(const LoadedMicrobatch& loaded, const std::vector<MaskWord>& words,
                       const ModelSpec& model, const MicrobatchOptions& options);

}  // namespace zea
