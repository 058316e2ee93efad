// SPDX-License-Identifier: Apache-2.0
#include "device/planted_loss.hpp"

#include <cmath>

namespace zea::testing {
namespace {

int64_t losses_left = 0;

}  // namespace

void plant_loss(int64_t losses_until_fault) {
  losses_left = losses_until_fault;
}

UnitOutput planted_unit(const UnitArguments& call) {
  UnitOutput made = run_unit(call);
  if (made.loss.defined() && losses_left > 0 && --losses_left == 0) made.loss = made.loss * NAN;
  return made;
}

}  // namespace zea::testing
