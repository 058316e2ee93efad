// SPDX-License-Identifier: Apache-2.0
// Notes on a plan: settings without effect, and parameters that begin to train late.
#pragma once

#include <string>
#include <vector>

#include "schedule/plan.hpp"

namespace zea {

/// Returns a note on each setting without effect in `plan`: of gathering and reducing, of reading
/// weights, of images and audio, of frozen parameters. A run that does not train gets one note for
/// all settings of training, and one that does not evaluate one for those of evaluation.
std::vector<std::string> unused_settings(const Plan& plan);

/// Returns a warning for parameters that train for the first time after updates of a run under the
/// deck `before`, if their own updates are counted from another step: bias correction would take
/// moments that begin as zeros for old ones. Empty: there are none.
std::string late_starts(const Plan& plan, const Options& before, int64_t updates);

}  // namespace zea
