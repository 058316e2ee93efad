// SPDX-License-Identifier: Apache-2.0
// Links of a group and attributes of an object: messages of its header while they are few, in a
// fractal heap when they are many (IV.A.2.c, g, m, v); links of an old group in a table of symbols
// (III.A.1, III.B).
#pragma once

#include <map>
#include <optional>

#include "h5/messages.hpp"

namespace zea {

bool is_h5_group(const H5Object& object);

std::map<std::string, H5Link> read_h5_links(const H5Object& group);

std::optional<H5Attribute> find_h5_attribute(const H5Object& object, const std::string& name);

}  // namespace zea
