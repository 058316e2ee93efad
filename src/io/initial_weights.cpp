// SPDX-License-Identifier: Apache-2.0
#include "io/model_source.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numbers>
#include <span>

#include "core/error.hpp"
#include "core/extent.hpp"
#include "core/mixed_bits.hpp"
#include "io/tensor_request.hpp"
#include "spec/model_spec.hpp"

namespace zea {
namespace {

/// In (0, 1]: its logarithm is finite.
double uniform(uint64_t key, uint64_t counter) {
  return static_cast<double>((mixed(key ^ mixed(counter)) >> 11) + 1) * 0x1p-53;
}

/// Standard normals `even` and even + 1: a Box-Muller transform. Always both, so that an element
/// has the same bits wherever a box begins and ends.
std::array<double, 2> normal_pair(uint64_t key, int64_t even) {
  const auto counter = static_cast<uint64_t>(even);
  const double radius = std::sqrt(-2 * std::log(uniform(key, counter)));
  const double angle = 2 * std::numbers::pi * uniform(key, counter + 1);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

/// Elements `first` and on, each pair drawn once.
void draw_normals(double deviation, uint64_t key, int64_t first, std::span<double> values) {
  const size_t odd = first % 2;
  if (odd) values[0] = deviation * normal_pair(key, first - 1)[1];
  for (size_t i = odd; i < values.size(); i += 2) {
    const auto [one, other] = normal_pair(key, first + static_cast<int64_t>(i));
    values[i] = deviation * one;
    if (i + 1 < values.size()) values[i + 1] = deviation * other;
  }
}

/// Whisper's positions: sines, then cosines, of wavelengths from 2 pi to 10000 times that.
double sinusoid(const Shape& shape, int64_t index) {
  const int64_t position = index / shape[1], column = index % shape[1], half = shape[1] / 2;
  const double step = std::log(10000.0) / static_cast<double>(half - 1);
  const double angle =
      static_cast<double>(position) * std::exp(-step * static_cast<double>(column % half));
  return column < half ? std::sin(angle) : std::cos(angle);
}

/// Fills `values` with elements `first` and on of a parameter, in row-major order.
void draw(const ParamSpec& param, uint64_t key, int64_t first, std::span<double> values) {
  switch (param.init) {
    case Init::Zeros:
      return std::fill(values.begin(), values.end(), 0.0);
    case Init::Ones:
      return std::fill(values.begin(), values.end(), 1.0);
    case Init::Constant:
      return std::fill(values.begin(), values.end(), param.std);
    case Init::Normal:
      return draw_normals(param.std, key, first, values);
    case Init::Uniform:
      for (double& value : values)
        value = param.std * (2 * uniform(key, static_cast<uint64_t>(first++)) - 1);
      return;
    case Init::LogUniform: {
      constexpr double kLeast = 0.01;
      for (double& value : values)
        value =
            std::log(kLeast + (param.std - kLeast) * uniform(key, static_cast<uint64_t>(first++)));
      return;
    }
    case Init::Sinusoids:
      for (double& value : values) value = sinusoid(param.shape, first++);
      return;
  }
  throw InternalError("unknown init");
}

class InitialWeights : public WeightsSource {
 public:
  InitialWeights(const std::string& config_json, uint64_t seed)
      : config_(config_json), seed_(seed) {
    for (const ParamSpec& param : make_model_spec(config_json).params) {
      if (!param.begins_tensor()) continue;
      tensors_.push_back({param.name, param.tensor_shape(), DType::Float64});
      params_.emplace(param.name, param);
    }
    std::sort(tensors_.begin(), tensors_.end(),
              [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  }

  std::string describe() const override {
    return "initial weights of seed " + std::to_string(seed_);
  }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return config_; }

  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    const TensorInfo& tensor = find_tensor(tensors_, name, describe());
    check_request(tensor, shape, extent, dtype, describe());
    const ParamSpec& param = params_.at(name);
    const uint64_t key = mixed_name(seed_, name);
    read_converted(tensor, extent, dtype, target, describe(), [&](const Extent& box, void* into) {
      auto* values = static_cast<double*>(into);
      for (const CopyRun& run : copy_runs(box, whole(shape), box))
        draw(param, key, run.source_element,
             {values + run.target_element, static_cast<size_t>(run.elements)});
    });
  }

 private:
  std::string config_;
  uint64_t seed_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, ParamSpec> params_;
};

}  // namespace

std::unique_ptr<WeightsSource> make_initial_weights(const std::string& config_json, uint64_t seed) {
  return std::make_unique<InitialWeights>(config_json, seed);
}

}  // namespace zea
