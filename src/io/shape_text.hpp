// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/extent.hpp"

namespace zea {

/// "(2, 3)", for people.
std::string shape_text(const Shape& shape);

}  // namespace zea
