// SPDX-License-Identifier: Apache-2.0
#include "spec/check_roles.hpp"

#include "core/error.hpp"
#include "spec/passing_ops.hpp"

namespace zea::detail {
namespace {

struct Nothing {};

class RoleOps : public PassingOps<RoleOps, Nothing> {
 public:
  using PassingOps::PassingOps;
};

}  // namespace

void check_roles(const ModelSpec& model, const UnitSpec& unit) {
  RoleOps ops(unit);
  unit_forward(ops, model, unit);
  for (const std::string& role : ops.used())
    if (!unit.has(role))
      throw InternalError(unit.name + " reads a parameter \"" + role + "\" that it does not have");
  for (const std::string& role : unit.roles)
    if (!ops.used().contains(role))
      throw InternalError(unit.name + " has a parameter \"" + role + "\" that it does not read");
}

}  // namespace zea::detail
