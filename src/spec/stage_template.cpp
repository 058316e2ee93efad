// SPDX-License-Identifier: Apache-2.0
// Stages as a user writes them: lists of names of units, or of runs of them. Every fault is
// collected, so that one look shows all that is wrong.
#include "spec/stage_template.hpp"

#include <algorithm>
#include <map>

#include "deck/key_table.hpp"

namespace zea {
namespace {

constexpr const char* kRun = "..";

/// "llm.layers." of "llm.layers.3".
std::string stem(const std::string& name) {
  return name.substr(0, name.find_last_not_of("0123456789") + 1);
}

class StageTemplate {
 public:
  StageTemplate(const ModelSpec& model, const std::string& module, std::vector<std::string>& faults)
      : model_(model), module_(module), key_("mesh." + module + ".stages"), faults_(faults) {
    for (size_t u = 0; u < model.units.size(); ++u) {
      if (model.units[u].module != module) continue;
      names_.push_back(model.units[u].name);
      units_.push_back(static_cast<int>(u));
    }
    stage_of_.assign(names_.size(), -1);
  }

  std::vector<int> lengths(const std::vector<std::vector<std::string>>& stages) {
    const size_t faults_before = faults_.size();
    for (const auto& stage : stages) {
      const int number = static_cast<int>(lengths_.size());
      lengths_.push_back(0);
      for (const std::string& entry : stage) take(entry, number);
      if (stage.empty())
        fault("stage " + std::to_string(number) + " of " + key_ +
              " has no units; each stage needs one at least: leave it out, or give it some");
    }
    report_missing();
    return faults_.size() == faults_before ? lengths_ : std::vector<int>{};
  }

 private:
  void fault(const std::string& sentence) { faults_.push_back(sentence); }

  void take(const std::string& entry, int stage) {
    const size_t dots = entry.find(kRun);
    const int first = index_of(entry.substr(0, dots), entry);
    const int last = dots == std::string::npos ? first : index_of(entry.substr(dots + 2), entry);
    if (first < 0 || last < 0) return;
    if (first > last)
      fault(key_ + " has \"" + entry + "\", but " + names_[first] + " comes after " + names_[last] +
            "; write \"" + names_[last] + kRun + names_[first] + "\"");
    for (int unit = first; unit <= last; ++unit) take(unit, stage);
  }

  void take(int unit, int stage) {
    if (stage_of_[unit] >= 0) {
      fault(key_ + " has " + names_[unit] + " twice, in stage " + std::to_string(stage_of_[unit]) +
            " and in stage " + std::to_string(stage) +
            "; each unit stands in one stage: take it out of one");
      return;
    }
    if (unit < last_)
      fault(key_ + " has " + names_[unit] + " after " + names_[last_] +
            ", but units run in the order " + all_units() + "; keep that order");
    last_ = std::max(last_, unit);
    stage_of_[unit] = stage;
    ++lengths_[stage];
  }

  /// -1, and a fault, where there is no such unit.
  int index_of(const std::string& name, const std::string& entry) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found != names_.end()) return static_cast<int>(found - names_.begin());
    std::string sentence = key_ + " has \"" + entry + "\"";
    const auto other = std::find_if(model_.units.begin(), model_.units.end(),
                                    [&](const UnitSpec& unit) { return unit.name == name; });
    if (other != model_.units.end())
      sentence += ", but " + name + " is a unit of " + other->module + ", not of " + module_;
    else
      sentence += ", but there is no unit \"" + name + "\"" + nearest(name);
    fault(sentence + "; the units of " + module_ + " are " + all_units());
    return -1;
  }

  /// A name is one word here, whatever dots it has.
  std::string nearest(const std::string& name) const {
    const auto one_word = [](std::string text) {
      std::replace(text.begin(), text.end(), '.', ' ');
      return text;
    };
    std::map<std::string, std::string> units;
    std::vector<std::string> words;
    for (const std::string& unit : names_) {
      words.push_back(one_word(unit));
      units[words.back()] = unit;
    }
    std::vector<std::string> meant;
    for (const std::string& word : nearest_paths(one_word(name), words))
      meant.push_back(units[word]);
    return meant.empty() ? "" : " (did you mean " + join_words(meant) + "?)";
  }

  void report_missing() {
    std::vector<int> missing;
    for (size_t unit = 0; unit < names_.size(); ++unit)
      if (stage_of_[unit] < 0) missing.push_back(units_[unit]);
    if (!missing.empty())
      fault(key_ + " leaves out " + unit_names(model_, missing) + "; every unit of " + module_ +
            " stands in one stage");
  }

  std::string all_units() const { return unit_names(model_, units_); }

  const ModelSpec& model_;
  std::string module_, key_;
  std::vector<std::string>& faults_;
  std::vector<std::string> names_;  ///< of the module's units
  std::vector<int> units_;          ///< these in the model
  std::vector<int> stage_of_;       ///< of each; -1: not named yet
  std::vector<int> lengths_;
  int last_ = -1;
};

}  // namespace

std::string unit_names(const ModelSpec& model, const std::vector<int>& units) {
  const auto name = [&](size_t i) { return model.units[units[i]].name; };
  std::string text;
  for (size_t i = 0; i < units.size();) {
    size_t end = i + 1;
    while (end < units.size() && units[end] == units[end - 1] + 1 &&
           stem(name(end)) == stem(name(i)))
      ++end;
    text += (text.empty() ? "" : ", ") + name(i);
    if (end > i + 1) text += kRun + name(end - 1);
    i = end;
  }
  return text;
}

std::vector<int> stages_of_template(const ModelSpec& model, const std::string& module,
                                    const std::vector<std::vector<std::string>>& stages,
                                    std::vector<std::string>& faults) {
  return StageTemplate(model, module, faults).lengths(stages);
}

}  // namespace zea
