// SPDX-License-Identifier: Apache-2.0
// Settings that a plan accepts and that change nothing in it, told as notes.
#pragma once

#include <string>
#include <vector>

#include "zea/plan/plan.hpp"

namespace zea {

/// A note on each setting of prefetching, of reading weights, or of images and sound, that has no
/// effect in `plan`.
std::vector<std::string> idle_settings(const Plan& plan);

}  // namespace zea
