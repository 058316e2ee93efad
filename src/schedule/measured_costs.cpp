// SPDX-License-Identifier: Apache-2.0
// Reads the costs of units from a file of `zea --profile`.
#include "schedule/unit_cost.hpp"

#include <nlohmann/json.hpp>

#include "core/error.hpp"

namespace zea {
namespace {

using nlohmann::json;

/// Keys of the file.
constexpr const char* kRowTokens = "row_tokens";
constexpr const char* kRows = "rows_per_microbatch";
constexpr const char* kPrecision = "precision";
constexpr const char* kDevice = "device";
constexpr const char* kUnits = "units";
constexpr const char* kHint = "; write another with zea --profile";

[[noreturn]] void refuse(const std::string& source, const std::string& what) {
  throw PlanError("mesh.profile = \"" + source + "\" " + what + kHint);
}

double seconds(const json& unit, const char* key, const std::string& source,
               const std::string& name) {
  const auto found = unit.is_object() ? unit.find(key) : unit.end();
  if (!unit.is_object() || found == unit.end() || !found->is_number() || found->get<double>() < 0)
    refuse(source, "has no seconds \"" + std::string(key) + "\" of unit " + name);
  return found->get<double>();
}

void note_difference(const json& file, const char* key, const json& now, const std::string& source,
                     std::vector<std::string>& notes) {
  const auto found = file.find(key);
  if (found == file.end() || *found == now) return;
  notes.push_back("mesh.profile = \"" + source + "\" was measured with " + key + " = " +
                  found->dump() + ", and this deck has " + now.dump() +
                  ": what units cost there is only about what they cost here" + kHint);
}

}  // namespace

std::string profile_json(const ModelSpec& model, const std::vector<UnitCost>& costs,
                         const ProfileConditions& conditions) {
  json units = json::object();
  for (size_t u = 0; u < model.units.size(); ++u)
    units[model.units[u].name] = {{"forward", costs[u].forward},
                                  {"backward_input", costs[u].backward_input},
                                  {"backward_weight", costs[u].backward_weight}};
  return json{{kRowTokens, conditions.row_tokens},
              {kRows, conditions.rows_per_microbatch},
              {kPrecision, conditions.precision},
              {kDevice, conditions.device},
              {kUnits, units}}
             .dump(1) +
         "\n";
}

std::vector<UnitCost> measured_costs(const ModelSpec& model, const std::string& text,
                                     const std::string& source, const ProfileConditions& now,
                                     std::vector<std::string>& notes) {
  const json file = json::parse(text, nullptr, false);
  if (!file.is_object() || !file.contains(kUnits) || !file[kUnits].is_object())
    refuse(source, "is no file of measured costs");
  std::vector<UnitCost> costs;
  for (const UnitSpec& unit : model.units) {
    const auto found = file[kUnits].find(unit.name);
    if (found == file[kUnits].end())
      refuse(source, "has no unit " + unit.name + ", so it is of another model");
    UnitCost cost;
    cost.forward = seconds(*found, "forward", source, unit.name);
    cost.backward_input = seconds(*found, "backward_input", source, unit.name);
    cost.backward_weight = seconds(*found, "backward_weight", source, unit.name);
    costs.push_back(cost);
  }
  note_difference(file, kRowTokens, now.row_tokens, source, notes);
  note_difference(file, kRows, now.rows_per_microbatch, source, notes);
  note_difference(file, kPrecision, now.precision, source, notes);
  note_difference(file, kDevice, now.device, source, notes);
  return costs;
}

}  // namespace zea
