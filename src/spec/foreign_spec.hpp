// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace zea {

/// For refusals of a "model_type" that is none of zea's families: the end of a sentence that tells
/// what such a model is and where to get one that zea reads; may be empty.
std::string type_advice(const std::string& model_type);

}  // namespace zea
