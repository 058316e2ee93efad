// SPDX-License-Identifier: Apache-2.0
// Whether a data set was packed with the tokenizer of the model that reads it: both say what text
// each token id has.
#pragma once

#include <functional>
#include <string>

#include "data/dataset.hpp"
#include "io/tokenizer.hpp"

namespace zea {

/// Throws DataError where a token that the data set holds has another text in the model's
/// tokenizer. Returns what should be told of two tokenizers that differ in other tokens, or cannot
/// be compared; empty: nothing. `moved` is called now and then while samples are read.
std::string compare_tokens(
    const Dataset& dataset, const ModelTokens& model, const std::function<void()>& moved = [] {});

}  // namespace zea
