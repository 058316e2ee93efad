// SPDX-License-Identifier: Apache-2.0
#include "train/compare_runs.hpp"

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "zea/checkpoint.hpp"

namespace zea {
namespace {

/// Lines of metrics.jsonl by step and kind ("eval", "train").
using Lines = std::map<std::pair<int64_t, std::string>, nlohmann::json>;

/// Numbers of a line that do not depend on time, nor on where a run was resumed.
constexpr const char* kNumbers[] = {"loss", "grad_norm", "lr", "targets", "accuracy"};

/// Returns the last line of a step that ran several times.
Lines read_lines(const std::string& run) {
  Lines lines;
  std::ifstream file(run + "/metrics.jsonl");
  for (std::string text; std::getline(file, text);) {
    nlohmann::json line = nlohmann::json::parse(text, nullptr, false);
    if (!line.is_object()) continue;  // which a killed run did not end
    const nlohmann::json step = line.value("step", nlohmann::json()),
                         kind = line.value("kind", nlohmann::json());
    if (!step.is_number_integer() || (kind != "train" && kind != "eval")) continue;
    lines[{step.get<int64_t>(), kind.get<std::string>()}] = std::move(line);
  }
  return lines;
}

void compare_numbers(const Lines& then, const Lines& now, int64_t last_step, RunComparison& found) {
  for (const auto& [key, line] : then) {
    const auto& [step, kind] = key;
    const auto other = now.find(key);
    if (step > last_step || other == now.end()) continue;
    found.steps += kind == "train";
    for (const char* number : kNumbers) {
      const nlohmann::json was = line.value(number, nlohmann::json()),
                           is = other->second.value(number, nlohmann::json());
      if (was != is && found.number.empty())
        found.number = "step " + std::to_string(step) + (kind == "eval" ? ", evaluation" : "") +
                       ": " + number + " was " + was.dump() + " and is " + is.dump();
    }
  }
}

/// Pairs of a tensor's name and a state's.
using States = std::set<std::pair<std::string, std::string>>;

States states_of(const StateSource& source) {
  States all;
  for (const TensorInfo& tensor : source.tensors()) {
    all.emplace(tensor.name, kStateParameter);
    for (const std::string& state : source.states(tensor.name)) all.emplace(tensor.name, state);
  }
  return all;
}

std::vector<char> read_all(const StateSource& source, const std::string& tensor,
                           const std::string& state, const TensorInfo& info) {
  std::vector<char> bytes(static_cast<size_t>(num_elements(info.shape)) *
                          element_bytes(info.dtype));
  source.read_state(tensor, state, info.shape, whole(info.shape), info.dtype, bytes.data());
  return bytes;
}

void compare_checkpoints(const std::string& then, const std::string& now, RunComparison& found) {
  const std::unique_ptr<StateSource> was = open_state(then), is = open_state(now);
  const States all = states_of(*was), others = states_of(*is);
  if (all != others) {
    found.tensor = "the checkpoints hold other tensors or optimizer states";
    return;
  }
  for (const auto& [tensor, state] : all) {
    ++found.tensors;
    const TensorInfo info = was->state_info(tensor, state), other = is->state_info(tensor, state);
    const std::string about = tensor + " (" + state + ")";
    if (info.shape != other.shape || info.dtype != other.dtype) {
      found.tensor = about + " has another shape or type";
      return;
    }
    const std::vector<char> a = read_all(*was, tensor, state, info);
    const std::vector<char> b = read_all(*is, tensor, state, info);
    const auto first = std::ranges::mismatch(a, b).in1;
    if (first == a.end()) continue;
    const auto element = (first - a.begin()) / static_cast<int64_t>(element_bytes(info.dtype));
    found.tensor = about + ", element " + std::to_string(element) + " of " +
                   std::to_string(num_elements(info.shape));
    return;
  }
}

}  // namespace

int64_t last_logged_step(const std::string& run) {
  int64_t last = 0;
  for (const auto& [key, line] : read_lines(run))
    if (key.second == "train") last = std::max(last, key.first);
  if (last == 0)
    throw DeckError(run + "/metrics.jsonl holds no step, so there is nothing to compare with");
  return last;
}

RunComparison compare_runs(const std::string& then, const std::string& now, int64_t last_step) {
  RunComparison found;
  compare_numbers(read_lines(then), read_lines(now), last_step, found);
  std::map<int64_t, std::string> before;
  for (const CheckpointEntry& entry : list_checkpoints_of_run(then))
    before[entry.step] = entry.path;
  const std::vector<CheckpointEntry> after = list_checkpoints_of_run(now);
  for (auto entry = after.rbegin(); entry != after.rend(); ++entry) {
    if (entry->step > last_step || !before.contains(entry->step)) continue;
    found.checkpoint_step = entry->step;
    compare_checkpoints(before[entry->step], entry->path, found);
    break;
  }
  return found;
}

}  // namespace zea
