// SPDX-License-Identifier: Apache-2.0
// The quantization_config of a config.json: how the files of a model store quantized weights.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace zea {

/// Ends a sentence about weights that zea does not read. transformers 5.17 takes the sides of FP8's
/// blocks from the number of scales, which is wrong where the last blocks are cut.
inline constexpr const char* kDequantizeAdvice =
    "take the model that they were made of, or load them with transformers, call dequantize() and "
    "save_pretrained() (not for FP8 with cut blocks, such as DeepSeek-V3's)";

enum class QuantizedFormat { Mxfp4, Fp8, Int4 };

/// How files store quantized weights (io/decoded_source.hpp).
struct Quantization {
  QuantizedFormat format;
  int64_t rows, columns;  ///< of a block, whose elements share a scale
};

inline constexpr Quantization kMxfp4{QuantizedFormat::Mxfp4, 1, 32};
inline constexpr Quantization kFp8{QuantizedFormat::Fp8, 128, 128};  ///< if nothing else is said

/// Reads the quantization_config of a config.json, or of its text_config; hostile files are parsed
/// with a limit of depth (parse_strict_json). Returns nullopt if there is none, or one of another
/// method, which make_model_spec() refuses. Throws ConfigError with the key, and the found and
/// allowed values, if zea does not read weights of its settings.
std::optional<Quantization> quantization_of(const nlohmann::json& config);

/// Returns the values of quant_method that quantization_of() reads, as a list for messages.
std::string quantized_methods();

/// Returns a config.json, an object, without its quantization_config, as if its weights were not
/// quantized.
nlohmann::json without_quantization(nlohmann::json config);

}  // namespace zea
