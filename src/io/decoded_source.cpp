// SPDX-License-Identifier: Apache-2.0
#include "io/decoded_source.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include <nlohmann/json.hpp>

#include "core/dtype.hpp"
#include "core/extent.hpp"
#include "io/tensor_request.hpp"

namespace zea {
namespace {

constexpr int64_t kDecodedElements = int64_t{1} << 20;  ///< decoded at once, but for longer rows

constexpr std::array<float, 16> kE2m1{0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                      -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/// How files store a kind of quantized tensor.
struct Format {
  const char *codes, *scales;  ///< ends of names, after the name of the decoded tensor
  int bits;                    ///< of a code; the first code of a byte is in its lower bits
  const float* values;         ///< by code
  int64_t rows, columns;       ///< of a block
};

constexpr Format kMxfp4{"_blocks", "_scales", 4, kE2m1.data(), 1, 32};

/// A quantized tensor (..., rows, columns), and the tensors that store it. The codes have the same
/// dims, the last one in steps of several elements, and perhaps one more with the bytes of a step.
struct QuantizedTensor {
  const Format* format;
  TensorInfo decoded, codes, scales;

  int64_t step() const { return decoded.shape.back() / codes.shape[decoded.shape.size() - 1]; }
};

/// The scale that 8 bits of exponent are (E8M0).
float power_of_two(uint8_t exponent) {
  constexpr int kBias = 127, kNotANumber = 255;
  return exponent == kNotANumber ? std::numeric_limits<float>::quiet_NaN()
                                 : std::ldexp(1.0f, exponent - kBias);
}

/// The runs of `length` elements that dim `dim` of a box touches.
void in_runs(Extent& box, size_t dim, int64_t length) {
  const int64_t end = box.offset[dim] + box.length[dim];
  box.offset[dim] /= length;
  box.length[dim] = (end + length - 1) / length - box.offset[dim];
}

bool is_mxfp4(const TensorInfo& blocks, const TensorInfo& scales) {
  constexpr int64_t kBytes = 16;
  const Shape &b = blocks.shape, &s = scales.shape;
  return blocks.dtype == DType::UInt8 && scales.dtype == DType::UInt8 && b.size() == 4 &&
         b.back() == kBytes && s == Shape(b.begin(), b.end() - 1) && num_elements(s) > 0;
}

class DecodedSource : public SourceOver {
 public:
  DecodedSource(std::unique_ptr<WeightsSource> source,
                std::map<std::string, QuantizedTensor> quantized)
      : SourceOver(*source),
        source_(std::move(source)),
        quantized_(std::move(quantized)),
        config_(without_quantization(source_->config_json())) {
    std::map<std::string, TensorInfo> all;
    for (const TensorInfo& tensor : source_->tensors()) all.emplace(tensor.name, tensor);
    for (const auto& [name, tensor] : quantized_) {
      all.erase(tensor.codes.name);
      all.erase(tensor.scales.name);
      all.insert_or_assign(name, tensor.decoded);
    }
    for (auto& [name, tensor] : all) tensors_.push_back(std::move(tensor));
  }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return config_; }
  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    const auto found = quantized_.find(name);
    if (found == quantized_.end()) return source_->read(name, shape, extent, dtype, target);
    const QuantizedTensor& tensor = found->second;
    check_request(tensor.decoded, shape, extent, dtype, describe());
    read_converted(tensor.decoded, extent, dtype, target, describe(),
                   [&](const Extent& box, void* into) {
                     decode_parts(tensor, box, static_cast<uint16_t*>(into));
                   });
  }

 private:
  /// Decodes whole rows of a box, a bounded number at once.
  void decode_parts(const QuantizedTensor& tensor, const Extent& box, uint16_t* to) const {
    const int64_t columns = box.length.back(), elements = box.elements();
    const int64_t most = std::max(kDecodedElements / columns, int64_t{1}) * columns;
    for (int64_t first = 0; first < elements; first += most)
      for (const Extent& part : boxes_inside(box, first, std::min(first + most, elements)))
        to = decode(tensor, part, to);
  }

  /// Writes the bf16 of a box. Returns their end.
  uint16_t* decode(const QuantizedTensor& tensor, const Extent& box, uint16_t* to) const {
    const Format& format = *tensor.format;
    const size_t last = box.offset.size() - 1, row = last - 1;
    Extent codes = box, blocks = box;
    in_runs(codes, last, tensor.step());
    in_runs(blocks, row, format.rows);
    in_runs(blocks, last, format.columns);
    const std::vector<uint8_t> bytes = read_codes(tensor.codes, codes);
    const std::vector<float> scales = read_scales(tensor.scales, blocks);
    const int64_t rows = box.length[row], matrices = box.elements() / (rows * box.length[last]);
    const int64_t row_bytes = std::ssize(bytes) / (matrices * rows);
    const int64_t first_code = codes.offset[last] * tensor.step();
    const int64_t begin = box.offset[last], end = begin + box.length[last];
    for (int64_t r = 0; r < matrices * rows; ++r) {
      const int64_t block_row = (box.offset[row] + r % rows) / format.rows - blocks.offset[row] +
                                r / rows * blocks.length[row];
      const uint8_t* row_codes = bytes.data() + r * row_bytes;
      const float* row_scales = scales.data() + block_row * blocks.length[last];
      for (int64_t column = begin; column < end;) {
        const int64_t block = column / format.columns;
        const float scale = row_scales[block - blocks.offset[last]];
        for (const int64_t stop = std::min(end, (block + 1) * format.columns); column < stop;
             ++column)
          *to++ = float_to_bfloat16(scale *
                                    format.values[code(format, row_codes, column - first_code)]);
      }
    }
    return to;
  }

  static int code(const Format& format, const uint8_t* codes, int64_t index) {
    if (format.bits == 8) return codes[index];
    return index % 2 == 0 ? codes[index / 2] & 15 : codes[index / 2] >> 4;
  }

  std::vector<uint8_t> read_codes(const TensorInfo& codes, Extent box) const {
    for (size_t dim = box.offset.size(); dim < codes.shape.size(); ++dim) {
      box.offset.push_back(0);
      box.length.push_back(codes.shape[dim]);
    }
    std::vector<uint8_t> bytes(static_cast<size_t>(box.elements()) * element_bytes(codes.dtype));
    source_->read(codes.name, codes.shape, box, codes.dtype, bytes.data());
    return bytes;
  }

  std::vector<float> read_scales(const TensorInfo& scales, const Extent& box) const {
    std::vector<float> values(static_cast<size_t>(box.elements()));
    std::vector<uint8_t> exponents(values.size());
    source_->read(scales.name, scales.shape, box, DType::UInt8, exponents.data());
    std::ranges::transform(exponents, values.begin(), power_of_two);
    return values;
  }

  std::unique_ptr<WeightsSource> source_;
  std::map<std::string, QuantizedTensor> quantized_;  ///< by the name of the decoded tensor
  std::string config_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace

std::string without_quantization(const std::string& config_json) {
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(config_json, nullptr, false);
  if (!config.is_object()) return config_json;
  const auto said = config.find("quantization_config");
  if (said == config.end() || !said->is_object()) return config_json;
  const auto method = said->find("quant_method");
  if (method == said->end() || *method != "mxfp4") return config_json;
  config.erase(said);
  return config.dump(2);
}

std::unique_ptr<WeightsSource> with_decoded_tensors(std::unique_ptr<WeightsSource> source) {
  std::map<std::string, TensorInfo> all;
  for (const TensorInfo& tensor : source->tensors()) all.emplace(tensor.name, tensor);
  std::map<std::string, QuantizedTensor> quantized;
  for (const auto& [name, codes] : all) {
    if (!name.ends_with(kMxfp4.codes)) continue;
    const std::string stem = name.substr(0, name.rfind(kMxfp4.codes));
    const auto scales = all.find(stem + kMxfp4.scales);
    if (scales == all.end() || !is_mxfp4(codes, scales->second)) continue;
    Shape shape = scales->second.shape;
    shape.back() *= kMxfp4.columns;
    quantized[stem] = {&kMxfp4, {stem, shape, DType::BFloat16}, codes, scales->second};
  }
  if (quantized.empty()) return source;
  return std::make_unique<DecodedSource>(std::move(source), std::move(quantized));
}

}  // namespace zea
