// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "core/text.hpp"
#include "inspect.hpp"
#include "zea/copy.hpp"

namespace zea {
namespace {

constexpr size_t kBufferBytes = 64 << 20;

std::string model_type(const std::string& config) {
  const nlohmann::json json = nlohmann::json::parse(config, nullptr, false);
  if (!json.is_object() || !json.contains("model_type") || !json["model_type"].is_string())
    return "not said";
  return json["model_type"].get<std::string>();
}

struct Summary {
  double sum_of_squares = 0, smallest = INFINITY, largest = -INFINITY;
};

/// Over all elements; NaN and infinity make the read fail, naming the first.
Summary summarise(const WeightsSource& source, const TensorInfo& tensor,
                  std::vector<char>& buffer) {
  Summary summary;
  stream_tensor(source, tensor, DType::Float64, buffer,
                [&](int64_t, int64_t count, const void* data) {
                  const auto* values = static_cast<const double*>(data);
                  for (int64_t i = 0; i < count; ++i) {
                    summary.sum_of_squares += values[i] * values[i];
                    summary.smallest = std::min(summary.smallest, values[i]);
                    summary.largest = std::max(summary.largest, values[i]);
                  }
                });
  return summary;
}

std::string norm_text(const WeightsSource& source, const TensorInfo& tensor,
                      std::vector<char>& buffer) {
  if (!is_floating(tensor.dtype)) return "";
  const Summary summary = summarise(source, tensor, buffer);
  return formatted("  norm %.6g  from %.6g to %.6g", std::sqrt(summary.sum_of_squares),
                   summary.smallest, summary.largest);
}

/// Prints the run's state in a weights file that a run can go on from.
void inspect_state(const StateSource& state, const InspectOptions& options) {
  print_position(state);
  int64_t trained = 0;
  for (const TensorInfo& tensor : state.tensors()) trained += !state.states(tensor.name).empty();
  print_line("optimizer state of %s parameters: zea -r can go on from it",
             grouped(trained).c_str());
  if (options.deck) print_deck(state);
  if (!options.check) return;
  state.check_all();
  print_line("checked: every tensor and state is there and every hash is right");
}

}  // namespace

void inspect_weights(const InspectOptions& options) {
  const auto source = open_weights(options.path);
  const auto* state = dynamic_cast<const StateSource*>(source.get());
  if ((options.check || options.deck) && !state)
    throw WeightsError(options.path + ": weights alone have no hashes to check, and no deck");
  print_line("weights %s", source->describe().c_str());
  print_line("model type: %s", model_type(source->config_json()).c_str());
  for (const std::string& name : source->companions()) print_line("holds %s", name.c_str());
  std::vector<char> buffer(options.norms ? kBufferBytes : 0);
  std::map<std::string, int64_t> elements_by_dtype;
  int64_t elements = 0, bytes = 0;
  for (const TensorInfo& tensor : source->tensors()) {
    const std::string norm = options.norms ? norm_text(*source, tensor, buffer) : "";
    print_line("%-72s %-20s %s%s", tensor.name.c_str(), shape_text(tensor.shape).c_str(),
               dtype_name(tensor.dtype), norm.c_str());
    elements += num_elements(tensor.shape);
    bytes += num_elements(tensor.shape) * static_cast<int64_t>(element_bytes(tensor.dtype));
    elements_by_dtype[dtype_name(tensor.dtype)] += num_elements(tensor.shape);
  }
  print_line("%zu tensors, %s elements, %s bytes", source->tensors().size(),
             grouped(elements).c_str(), grouped(bytes).c_str());
  for (const auto& [dtype, count] : elements_by_dtype)
    print_line("  %s: %s elements", dtype.c_str(), grouped(count).c_str());
  if (state) inspect_state(*state, options);
}

}  // namespace zea
