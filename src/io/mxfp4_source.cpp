// SPDX-License-Identifier: Apache-2.0
#include "io/mxfp4_source.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include <nlohmann/json.hpp>

#include "io/tensor_request.hpp"

namespace zea {
namespace {

constexpr int64_t kBlock = 32;          ///< elements that share a scale
constexpr int64_t kBytes = kBlock / 2;  ///< of a block; its even elements are the lower halves
constexpr int kScaleBias = 127, kNotANumber = 255;
constexpr std::array<float, 16> kValues{0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                        -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/// The pair of tensors that another stands for.
struct PackedPair {
  TensorInfo blocks, scales;
};

/// The bf16 bits of a value, of which bf16 holds all.
uint16_t bf16_of(uint8_t code, uint8_t scale) {
  const float value = scale == kNotANumber ? std::numeric_limits<float>::quiet_NaN()
                                           : std::ldexp(kValues[code], scale - kScaleBias);
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

bool is_pair(const TensorInfo& blocks, const TensorInfo& scales) {
  const Shape &b = blocks.shape, &s = scales.shape;
  return blocks.dtype == DType::UInt8 && scales.dtype == DType::UInt8 && b.size() == 4 &&
         b.back() == kBytes && s == Shape(b.begin(), b.end() - 1) && num_elements(s) > 0;
}

class Mxfp4Source : public SourceOver {
 public:
  Mxfp4Source(std::unique_ptr<WeightsSource> source, std::map<std::string, PackedPair> pairs)
      : SourceOver(*source),
        source_(std::move(source)),
        pairs_(std::move(pairs)),
        config_(without_mxfp4(source_->config_json())) {
    std::map<std::string, TensorInfo> all;
    for (const TensorInfo& tensor : source_->tensors()) all.emplace(tensor.name, tensor);
    for (const auto& [name, pair] : pairs_) {
      all.erase(pair.blocks.name);
      all.erase(pair.scales.name);
      const Shape& shape = pair.blocks.shape;
      all.insert_or_assign(
          name, TensorInfo{name, {shape[0], shape[1], shape[2] * kBlock}, DType::BFloat16});
    }
    for (auto& [name, tensor] : all) tensors_.push_back(std::move(tensor));
  }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return config_; }
  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    const auto pair = pairs_.find(name);
    if (pair == pairs_.end()) return source_->read(name, shape, extent, dtype, target);
    const TensorInfo& tensor = find_tensor(tensors_, name, describe());
    check_request(tensor, shape, extent, dtype, describe());
    read_converted(tensor, extent, dtype, target, describe(), [&](const Extent& box, void* into) {
      auto* to = static_cast<uint16_t*>(into);
      for (int64_t e = box.offset[0]; e < box.offset[0] + box.length[0]; ++e)
        to = expand(pair->second, e, box, to);
    });
  }

 private:
  /// Writes the part of a box (experts, out, in) that is of one expert. Returns its end.
  uint16_t* expand(const PackedPair& pair, int64_t expert, const Extent& box, uint16_t* to) const {
    const int64_t row = box.offset[1], rows = box.length[1];
    const int64_t begin = box.offset[2], end = begin + box.length[2];
    const int64_t first = begin / kBlock, count = (end + kBlock - 1) / kBlock - first;
    std::vector<uint8_t> blocks(static_cast<size_t>(rows * count * kBytes));
    std::vector<uint8_t> scales(static_cast<size_t>(rows * count));
    source_->read(pair.blocks.name, pair.blocks.shape,
                  {{expert, row, first, 0}, {1, rows, count, kBytes}}, DType::UInt8, blocks.data());
    source_->read(pair.scales.name, pair.scales.shape, {{expert, row, first}, {1, rows, count}},
                  DType::UInt8, scales.data());
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = begin; i < end; ++i) {
        const int64_t block = r * count + i / kBlock - first;
        const auto byte = static_cast<size_t>(block * kBytes + i % kBlock / 2);
        const int code = i % 2 == 0 ? blocks[byte] & 15 : blocks[byte] >> 4;
        *to++ = bf16_of(static_cast<uint8_t>(code), scales[static_cast<size_t>(block)]);
      }
    return to;
  }

  std::unique_ptr<WeightsSource> source_;
  std::map<std::string, PackedPair> pairs_;  ///< by the name of what they stand for
  std::string config_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace

std::string without_mxfp4(const std::string& config_json) {
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(config_json, nullptr, false);
  if (!config.is_object()) return config_json;
  const auto said = config.find("quantization_config");
  if (said == config.end() || !said->is_object()) return config_json;
  const auto method = said->find("quant_method");
  if (method == said->end() || *method != "mxfp4") return config_json;
  config.erase(said);
  return config.dump(2);
}

std::unique_ptr<WeightsSource> with_mxfp4_expanded(std::unique_ptr<WeightsSource> source) {
  constexpr const char *kBlocks = "_blocks", *kScales = "_scales";
  const std::vector<TensorInfo>& tensors = source->tensors();
  std::map<std::string, PackedPair> pairs;
  for (const TensorInfo& blocks : tensors) {
    if (!blocks.name.ends_with(kBlocks)) continue;
    const std::string name = blocks.name.substr(0, blocks.name.rfind(kBlocks));
    const auto scales = std::ranges::find(tensors, name + kScales, &TensorInfo::name);
    if (scales != tensors.end() && is_pair(blocks, *scales)) pairs[name] = {blocks, *scales};
  }
  if (pairs.empty()) return source;
  return std::make_unique<Mxfp4Source>(std::move(source), std::move(pairs));
}

}  // namespace zea
