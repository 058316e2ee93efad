// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/text.hpp"
#include "train/compare_records.hpp"

namespace zea {
namespace {

using Json = nlohmann::ordered_json;

std::string words_of(const FoundDifference& first) {
  switch (first.kind) {
    case Compared::Outputs:
      return "the output of " + first.unit;
    case Compared::Losses:
      return "the step's " + first.unit;
    case Compared::OutputGradients:
      return "the gradient of the output of " + first.unit;
    case Compared::ParameterGradients:
      return "the gradient of " + first.parameter + " (" + first.unit + ")";
    case Compared::Updates:
      return "the update of " + first.parameter + " (" + first.unit + ")";
  }
  return {};
}

bool is_of_rows(Compared kind) {
  return kind == Compared::Outputs || kind == Compared::OutputGradients;
}

std::string words_of(const RowName& row) {
  const std::string sample = "sample " + std::to_string(row.sample);
  return sample + (row.item < 0 ? ", token " : ", item " + std::to_string(row.item) + ", row ") +
         std::to_string(row.position);
}

std::string cell(const BoundedDifference* found) {
  if (!found) return formatted(" %10s %9s", "-", "");
  return formatted(" %10.2e%s%8.1e", found->difference, found->is_beyond() ? "!" : " ",
                   found->bound);
}

/// Numbers that JSON has; others are null.
Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

Json to_json(const FoundDifference& first) {
  Json json{{"kind", compared_name(first.kind)},
            {"step", first.step},
            {"unit", first.unit},
            {"ranks", first.ranks},
            {"difference", number(first.found.difference)},
            {"bound", first.found.bound}};
  if (!first.parameter.empty()) json["parameter"] = first.parameter;
  if (is_of_rows(first.kind)) {
    json["microbatch"] = first.microbatch;
    json["sample"] = first.row.sample;
    if (first.row.item >= 0) json["item"] = first.row.item;
    json["position"] = first.row.position;
  }
  if (!first.note.empty()) json["note"] = first.note;
  return json;
}

}  // namespace

const char* compared_name(Compared kind) {
  constexpr std::array kNames{"outputs", "loss", "output gradients", "parameter gradients",
                              "updates"};
  return kNames.at(static_cast<size_t>(kind));
}

std::string describe(const FoundDifference& first) {
  std::string text =
      "first difference: step " + std::to_string(first.step) + ", " + words_of(first);
  if (!first.ranks.empty())
    text += ", on rank" + std::string(first.ranks.size() > 1 ? "s " : " ") +
            join(first.ranks, ", ", [](int rank) { return std::to_string(rank); });
  if (is_of_rows(first.kind))
    text += (first.ranks.size() > 1 ? "; on rank " + std::to_string(first.ranks[0]) : "") +
            ", microbatch " + std::to_string(first.microbatch) + ", " + words_of(first.row);
  text += formatted(": differs by %.2e, bound %.1e", first.found.difference, first.found.bound);
  return text + (first.note.empty() ? "" : "; " + first.note) + "\n";
}

std::string describe(const LayoutComparison& comparison) {
  size_t width = 4;
  for (const ComparedUnit& unit : comparison.units) width = std::max(width, unit.unit.size());
  std::vector<std::string> names;
  std::map<std::string, std::map<Compared, const ComparedUnit*>> found;
  for (const ComparedUnit& unit : comparison.units) {
    if (!found.contains(unit.unit)) names.push_back(unit.unit);
    found[unit.unit][unit.kind] = &unit;
  }
  std::string text = "largest relative difference of each unit, with its bound (!: beyond it)\n" +
                     formatted("%-*s %20s %20s %20s %20s\n", static_cast<int>(width), "unit",
                               "outputs", "output gradients", "parameter gradients", "updates");
  for (const std::string& name : names) {
    text += formatted("%-*s", static_cast<int>(width), name.c_str());
    auto& kinds = found[name];
    for (const Compared kind : {Compared::Outputs, Compared::OutputGradients,
                                Compared::ParameterGradients, Compared::Updates}) {
      const bool is_number = kind == Compared::Outputs && kinds.contains(Compared::Losses);
      const auto there = kinds.find(is_number ? Compared::Losses : kind);
      text += cell(there == kinds.end() ? nullptr : &there->second->largest);
    }
    text += "\n";
  }
  for (const std::string& note : comparison.notes) text += "note: " + note + "\n";
  int64_t rows = 0, parameters = 0, beyond = 0;
  for (const ComparedUnit& unit : comparison.units) {
    (is_of_rows(unit.kind) ? rows : parameters) += unit.count;
    beyond += unit.beyond;
  }
  text +=
      formatted("compared %ld rows and %ld other values; %ld are beyond their bounds\n",
                static_cast<long>(rows), static_cast<long>(parameters), static_cast<long>(beyond));
  return text + (comparison.first ? describe(*comparison.first) : "");
}

std::string json_of(const LayoutComparison& comparison, Json json) {
  json["equal"] = !comparison.first.has_value();
  json["units"] = Json::array();
  for (const ComparedUnit& unit : comparison.units)
    json["units"].push_back({{"unit", unit.unit},
                             {"kind", compared_name(unit.kind)},
                             {"compared", unit.count},
                             {"beyond", unit.beyond},
                             {"difference", number(unit.largest.difference)},
                             {"bound", unit.largest.bound},
                             {"step", unit.step}});
  json["first"] = comparison.first ? to_json(*comparison.first) : Json();
  json["not_compared"] = comparison.notes;
  return json.dump(1) + "\n";
}

}  // namespace zea
