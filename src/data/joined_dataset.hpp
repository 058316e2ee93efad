// SPDX-License-Identifier: Apache-2.0
// Several data sets as one: their samples follow each other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.hpp"

namespace zea {

/// Of one or more, opened for the same model. Names of classes and bytes of tokens are those of the
/// first. Several that are the files of `folder` are one set, which has its name.
std::unique_ptr<Dataset> join_datasets(std::vector<std::unique_ptr<Dataset>> sets,
                                       const std::string& folder = "");

}  // namespace zea
