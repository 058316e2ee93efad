// SPDX-License-Identifier: Apache-2.0
#include "io/decoded_source.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/extent.hpp"
#include "io/tensor_request.hpp"

namespace zea {
namespace {

constexpr int64_t kDecodedElements = int64_t{1} << 20;  ///< decoded at once (at least one row)

constexpr std::array<float, 16> kE2m1{0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                      -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/// An int4 code is the signed value plus 8.
constexpr std::array<float, 16> kInt4{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

/// Decodes E4M3 (FN): 1 sign bit, 4 exponent bits, 3 mantissa bits; no infinity, one NaN.
constexpr float value_of_e4m3(int bits) {
  constexpr int kBias = 7, kFloatBias = 127;
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const auto power = [](int n) { return std::bit_cast<float>((n + kFloatBias) << 23); };
  float magnitude = static_cast<float>(8 + mantissa) * power(exponent - kBias - 3);
  if (exponent == 0) magnitude = static_cast<float>(mantissa) * power(1 - kBias - 3);
  if ((bits & 0x7f) == 0x7f) magnitude = std::numeric_limits<float>::quiet_NaN();
  return bits < 0x80 ? magnitude : -magnitude;
}

constexpr std::array<float, 256> kE4m3 = [] {
  std::array<float, 256> values{};
  for (int bits = 0; bits < 256; ++bits) values[static_cast<size_t>(bits)] = value_of_e4m3(bits);
  return values;
}();

/// How files store a kind of quantized tensor.
struct Format {
  const char* name;            ///< for messages
  const char *codes, *scales;  ///< suffixes after the name of the decoded tensor
  const char* shape;           ///< suffix of the tensor that stores the shape; null: none
  const char* layout;          ///< the shape of the codes, for messages
  DType code_type;
  int bits;               ///< bits per code; the first code of a byte is in its lower bits
  int64_t block_bytes;    ///< size of an extra last dim of codes, the bytes of a block; 0: none
  bool has_exponents;     ///< scales are E8M0, not floats
  const float* values;    ///< lookup table, by code
  int64_t rows, columns;  ///< block size
};

Format format_of(const Quantization& found) {
  switch (found.format) {
    case QuantizedFormat::Fp8:
      return {.name = "FP8",
              .codes = "",
              .scales = "_scale_inv",
              .shape = nullptr,
              .layout = "(..., out, in)",
              .code_type = DType::UInt8,
              .bits = 8,
              .block_bytes = 0,
              .has_exponents = false,
              .values = kE4m3.data(),
              .rows = found.rows,
              .columns = found.columns};
    case QuantizedFormat::Int4:
      return {.name = "int4",
              .codes = "_packed",
              .scales = "_scale",
              .shape = "_shape",
              .layout = "(..., out, in / 8)",
              .code_type = DType::Int32,
              .bits = 4,
              .block_bytes = 0,
              .has_exponents = false,
              .values = kInt4.data(),
              .rows = found.rows,
              .columns = found.columns};
    case QuantizedFormat::Mxfp4:
      return {.name = "MXFP4",
              .codes = "_blocks",
              .scales = "_scales",
              .shape = nullptr,
              .layout = "(..., out, in / 32, 16)",
              .code_type = DType::UInt8,
              .bits = 4,
              .block_bytes = 16,
              .has_exponents = true,
              .values = kE2m1.data(),
              .rows = found.rows,
              .columns = found.columns};
  }
  throw InternalError("unknown quantized format");
}

/// A quantized tensor (..., rows, columns), and the tensors that store it. Codes are (..., rows,
/// columns / step()), in MXFP4 with one more dim: the bytes of a step.
struct QuantizedTensor {
  Format format;
  TensorInfo decoded, codes, scales;
  std::optional<TensorInfo> shape;  ///< the tensor that stores the shape

  int64_t step() const { return decoded.shape.back() / codes.shape[decoded.shape.size() - 1]; }
  /// Experts of gpt-oss are (experts, out, in) in MXFP4 files, and (experts, in, out) in others.
  bool is_transposed() const { return format.block_bytes > 0 && decoded.shape.size() == 3; }
  TensorInfo listed() const {
    TensorInfo tensor = decoded;
    if (is_transposed()) std::swap(tensor.shape[1], tensor.shape[2]);
    return tensor;
  }
};

/// Decodes an E8M0 scale, a power of two.
float power_of_two(uint8_t exponent) {
  constexpr int kBias = 127, kNotANumber = 255;
  return exponent == kNotANumber ? std::numeric_limits<float>::quiet_NaN()
                                 : std::ldexp(1.0f, exponent - kBias);
}

/// Converts dim `dim` of a box from elements to the blocks of `length` elements that it touches.
void in_runs(Extent& box, size_t dim, int64_t length) {
  const int64_t end = box.offset[dim] + box.length[dim];
  box.offset[dim] /= length;
  box.length[dim] = (end + length - 1) / length - box.offset[dim];
}

class DecodedSource : public SourceOver {
 public:
  DecodedSource(std::unique_ptr<WeightsSource> source,
                std::map<std::string, QuantizedTensor> quantized)
      : SourceOver(*source), source_(std::move(source)), quantized_(std::move(quantized)) {
    std::map<std::string, TensorInfo> all;
    for (const TensorInfo& tensor : source_->tensors()) all.emplace(tensor.name, tensor);
    for (const auto& [name, tensor] : quantized_) {
      all.erase(tensor.codes.name);
      all.erase(tensor.scales.name);
      if (tensor.shape) all.erase(tensor.shape->name);
      all.insert_or_assign(name, tensor.listed());
    }
    for (auto& [name, tensor] : all) tensors_.push_back(std::move(tensor));
  }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    const auto found = quantized_.find(name);
    if (found == quantized_.end()) return source_->read(name, shape, extent, dtype, target);
    const QuantizedTensor& tensor = found->second;
    const TensorInfo listed = tensor.listed();
    check_request(listed, shape, extent, dtype, describe());
    check_shape(tensor);
    read_converted(listed, extent, dtype, target, describe(), [&](const Extent& box, void* into) {
      const auto to = static_cast<uint16_t*>(into);
      tensor.is_transposed() ? decode_transposed(tensor, box, to) : decode_parts(tensor, box, to);
    });
  }

 private:
  /// Throws unless the stored shape is that of the codes. The check is made when codes are read,
  /// because a model may have many such tensors.
  void check_shape(const QuantizedTensor& tensor) const {
    if (!tensor.shape) return;
    const TensorInfo& stored = *tensor.shape;
    Shape found(tensor.decoded.shape.size());
    std::vector<int32_t> narrow(found.size());
    const bool is_narrow = stored.dtype == DType::Int32;
    source_->read(stored.name, stored.shape, whole(stored.shape), stored.dtype,
                  is_narrow ? static_cast<void*>(narrow.data()) : found.data());
    if (is_narrow) found.assign(narrow.begin(), narrow.end());
    if (found != tensor.decoded.shape)
      throw WeightsError(describe() + ": tensor \"" + stored.name + "\" says " + shape_text(found) +
                         ", but \"" + tensor.codes.name + "\" has codes for " +
                         shape_text(tensor.decoded.shape));
  }

  /// Decodes a box (experts, in, out). Caches the last decoded expert, since shards are read by
  /// single rows, which are columns of the files.
  void decode_transposed(const QuantizedTensor& tensor, const Extent& box, uint16_t* to) const {
    const std::lock_guard lock(mutex_);
    const int64_t rows = tensor.decoded.shape[1], columns = tensor.decoded.shape[2];
    for (int64_t e = box.offset[0]; e < box.offset[0] + box.length[0]; ++e) {
      if (kept_ != std::pair(&tensor, e)) {
        kept_ = {};  // until it is decoded
        matrix_.resize(static_cast<size_t>(rows * columns));
        decode_parts(tensor, {{e, 0, 0}, {1, rows, columns}}, matrix_.data());
        kept_ = {&tensor, e};
      }
      for (int64_t in = box.offset[1]; in < box.offset[1] + box.length[1]; ++in)
        for (int64_t out = box.offset[2]; out < box.offset[2] + box.length[2]; ++out)
          *to++ = matrix_[static_cast<size_t>(out * columns + in)];
    }
  }

  /// Decodes a box in parts of whole rows, at most kDecodedElements elements at once.
  void decode_parts(const QuantizedTensor& tensor, const Extent& box, uint16_t* to) const {
    const int64_t columns = box.length.back(), elements = box.elements();
    const int64_t most = std::max(kDecodedElements / columns, int64_t{1}) * columns;
    for (int64_t first = 0; first < elements; first += most)
      for (const Extent& part : boxes_inside(box, first, std::min(first + most, elements)))
        to = decode(tensor, part, to);
  }

  /// Writes the bf16 values of a box to `to`. Returns the end of the written values.
  uint16_t* decode(const QuantizedTensor& tensor, const Extent& box, uint16_t* to) const {
    const Format& format = tensor.format;
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
    if (is_floating(scales.dtype)) {
      source_->read(scales.name, scales.shape, box, DType::Float32, values.data());
      return values;
    }
    std::vector<uint8_t> exponents(values.size());
    source_->read(scales.name, scales.shape, box, DType::UInt8, exponents.data());
    std::ranges::transform(exponents, values.begin(), power_of_two);
    return values;
  }

  std::unique_ptr<WeightsSource> source_;
  std::map<std::string, QuantizedTensor> quantized_;  ///< by the name of the decoded tensor
  std::vector<TensorInfo> tensors_;
  mutable std::mutex mutex_;  ///< guards the two below
  mutable std::pair<const QuantizedTensor*, int64_t> kept_ = {};
  mutable std::vector<uint16_t> matrix_;
};

/// Finds the quantized tensors of a source.
class QuantizedTensors {
 public:
  QuantizedTensors(const WeightsSource& source, const std::set<std::string>& float8)
      : where_(source.describe()), float8_(float8) {
    for (const TensorInfo& tensor : source.tensors()) all_.emplace(tensor.name, tensor);
  }

  void find(const Format& format) {
    for (const auto& [name, tensor] : all_)
      if (are_codes(format, tensor)) found_[stem_of(format, name)] = checked(format, tensor);
  }

  std::map<std::string, QuantizedTensor> take() {
    for (const std::string& name : float8_)
      if (!found_.contains(name))
        throw WeightsError(
            where_ + ": tensor \"" + name +
            "\" is quantized (FP8), but quant_method in config.json is not \"fp8\"; " +
            kDequantizeAdvice);
    return std::move(found_);
  }

 private:
  bool are_codes(const Format& format, const TensorInfo& tensor) const {
    if (format.bits == 8) return float8_.contains(tensor.name);
    return tensor.name.ends_with(format.codes) && tensor.dtype == format.code_type;
  }

  static std::string stem_of(const Format& format, const std::string& codes) {
    return codes.substr(0, codes.size() - std::strlen(format.codes));
  }

  QuantizedTensor checked(const Format& format, const TensorInfo& codes) const {
    const auto refuse = [&](const std::string& why) {
      throw WeightsError(where_ + ": tensor \"" + codes.name + "\" is quantized (" + format.name +
                         "), but " + why + "; " + kDequantizeAdvice);
    };
    Shape shape = codes.shape;
    int64_t step = static_cast<int64_t>(element_bytes(codes.dtype)) * 8 / format.bits;
    bool fits = num_elements(shape) > 0;
    if (format.block_bytes > 0 && !shape.empty()) {
      fits &= shape.back() == format.block_bytes;
      step *= format.block_bytes;
      shape.pop_back();
    }
    if (!fits || shape.size() < 2)
      refuse("has shape " + shape_text(codes.shape) + "; allowed: " + format.layout);
    shape.back() *= step;
    const std::string stem = stem_of(format, codes.name);
    if (stem != codes.name && all_.contains(stem)) refuse("the files also have \"" + stem + '"');
    const TensorInfo& scales = scales_of(format, stem, shape, refuse);
    const std::optional<TensorInfo> stored = shape_of(format, stem, shape.size(), refuse);
    return {format, {stem, shape, DType::BFloat16}, codes, scales, stored};
  }

  template <class Refuse>
  std::optional<TensorInfo> shape_of(const Format& format, const std::string& stem, size_t dims,
                                     const Refuse& refuse) const {
    if (!format.shape) return std::nullopt;
    for (const char* other : {"_zero_point", "_g_idx"})
      if (all_.contains(stem + other))
        refuse("the files also have \"" + stem + other + "\"; allowed: symmetric groups in order");
    const std::string name = stem + format.shape;
    const auto found = all_.find(name);
    if (found == all_.end()) refuse('"' + name + "\" is missing");
    const TensorInfo& stored = found->second;
    if (stored.dtype != DType::Int64 && stored.dtype != DType::Int32)
      refuse('"' + name + "\" has type " + dtype_name(stored.dtype) + "; allowed: int64, int32");
    if (stored.shape != Shape{static_cast<int64_t>(dims)})
      refuse('"' + name + "\" has shape " + shape_text(stored.shape) + "; allowed: (" +
             std::to_string(dims) + ")");
    return stored;
  }

  template <class Refuse>
  const TensorInfo& scales_of(const Format& format, const std::string& stem, Shape shape,
                              const Refuse& refuse) const {
    const std::string name = stem + format.scales;
    const auto found = all_.find(name);
    if (found == all_.end()) refuse("its scales \"" + name + "\" are missing");
    const TensorInfo& scales = found->second;
    const bool has_type = format.has_exponents
                              ? scales.dtype == DType::UInt8 && !float8_.contains(name)
                              : scales.dtype == DType::Float32 || scales.dtype == DType::BFloat16;
    if (!has_type)
      refuse("its scales \"" + name + "\" have type " +
             (float8_.contains(name) ? "F8_E4M3" : dtype_name(scales.dtype)) +
             "; allowed: " + (format.has_exponents ? "uint8" : "float32, bfloat16"));
    const size_t last = shape.size() - 1;
    if (format.shape) refuse_padded_codes(format, shape[last], scales, refuse);
    if (format.shape && shape[last] % format.columns != 0)
      refuse("its rows of " + std::to_string(shape[last]) +
             " are not a multiple of the group size " + std::to_string(format.columns));
    shape[last - 1] = (shape[last - 1] + format.rows - 1) / format.rows;
    shape[last] = (shape[last] + format.columns - 1) / format.columns;
    if (scales.shape != shape)
      refuse("its scales \"" + name + "\" have shape " + shape_text(scales.shape) +
             "; allowed for blocks of " + std::to_string(format.rows) + " x " +
             std::to_string(format.columns) + ": " + shape_text(shape));
    return scales;
  }

  /// Refuses rows whose groups end inside the last integer of codes, which is padded.
  template <class Refuse>
  static void refuse_padded_codes(const Format& format, int64_t columns, const TensorInfo& scales,
                                  const Refuse& refuse) {
    const int64_t codes = static_cast<int64_t>(element_bytes(format.code_type)) * 8 / format.bits;
    const int64_t groups = scales.shape.empty() ? 0 : scales.shape.back();
    if (groups == 0 || format.columns > columns / groups) return;
    if (const int64_t said = groups * format.columns; said < columns && said > columns - codes)
      refuse("its scales \"" + scales.name + "\" are for rows of " + std::to_string(said) +
             "; allowed: a multiple of " + std::to_string(codes));
  }

  std::string where_;
  const std::set<std::string>& float8_;
  std::map<std::string, TensorInfo> all_;
  std::map<std::string, QuantizedTensor> found_;  ///< by the name of the decoded tensor
};

}  // namespace

std::unique_ptr<WeightsSource> with_decoded_tensors(
    std::unique_ptr<WeightsSource> source, const std::set<std::string>& float8,
    const std::optional<Quantization>& quantization) {
  QuantizedTensors tensors(*source, float8);
  if (quantization) tensors.find(format_of(*quantization));
  if (!quantization)
    for (const Quantization& usual : {kMxfp4, kFp8}) tensors.find(format_of(usual));
  std::map<std::string, QuantizedTensor> found = tensors.take();
  if (found.empty()) return source;
  return std::make_unique<DecodedSource>(std::move(source), std::move(found));
}

}  // namespace zea
