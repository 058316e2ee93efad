// SPDX-License-Identifier: Apache-2.0
// The text files that lie beside a model's weights in a Hugging Face directory (tokenizer, image
// processor, chat template) and travel with them through weights files and exports.
#pragma once

#include <string>
#include <vector>

namespace zea {

/// Names of those that `directory` has, in name order.
std::vector<std::string> companion_names(const std::string& directory);

/// Text of a file that may be a symbolic link, since hub caches consist of them. Throws
/// WeightsError.
std::string read_model_text(const std::string& path);

}  // namespace zea
