// SPDX-License-Identifier: Apache-2.0
// The quantization_config of a config.json: how the files of a model store quantized weights.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace zea {

/// Advice that ends error messages about quantized weights that zea cannot read. transformers 5.17
/// derives the sides of FP8 blocks from the number of scales, which is wrong for partial blocks.
inline constexpr const char* kDequantizeAdvice =
    "use the original unquantized model, or load it with transformers, call dequantize() and "
    "save_pretrained() (not for FP8 with partial blocks, such as DeepSeek-V3's)";

enum class QuantizedFormat { Mxfp4, Fp8, Int4 };

/// How files store quantized weights (io/decoded_source.hpp).
struct Quantization {
  QuantizedFormat format;
  int64_t rows, columns;  ///< elements of a block, which share a scale
};

inline constexpr Quantization kMxfp4{QuantizedFormat::Mxfp4, 1, 32};
inline constexpr Quantization kFp8{QuantizedFormat::Fp8, 128, 128};  ///< the default block size

/// Reads the quantization_config of a config.json, or of its text_config. Returns nullopt if there
/// is none, or if zea does not know its quant_method, which make_model_spec() refuses. Throws
/// ConfigError with the key, and the found and allowed values, for unsupported settings.
std::optional<Quantization> quantization_of(const nlohmann::json& config);

/// Returns the supported values of quant_method, as a list for messages.
std::string quantized_methods();

/// Returns a config.json, an object, without its quantization_config, as if its weights were not
/// quantized.
nlohmann::json without_quantization(nlohmann::json config);

}  // namespace zea
