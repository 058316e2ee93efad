// SPDX-License-Identifier: Apache-2.0
// The tables of families, by the model_type of their configs, and advice on models that have
// another form than transformers', or that are a part of one. Each family is a function of the file
// NAME_spec.cpp.
#include "spec/families.hpp"

#include <array>

namespace zea::detail {

Decoder read_gemma(const ConfigReader&), read_gemma2(const ConfigReader&),
    read_gemma3(const ConfigReader&), read_gpt2(const ConfigReader&),
    read_llama(const ConfigReader&), read_mistral(const ConfigReader&),
    read_phi3(const ConfigReader&), read_qwen2(const ConfigReader&),
    read_qwen3(const ConfigReader&);

const std::map<std::string, ReadDecoder>& decoders() {
  static const std::map<std::string, ReadDecoder> families{
      {"gemma", read_gemma}, {"gemma2", read_gemma2}, {"gemma3_text", read_gemma3},
      {"gpt2", read_gpt2},   {"llama", read_llama},   {"mistral", read_mistral},
      {"phi3", read_phi3},   {"qwen2", read_qwen2},   {"qwen3", read_qwen3}};
  return families;
}

VisionEncoder read_clip(const ConfigReader&), read_dinov2(const ConfigReader&),
    read_dinov2_with_registers(const ConfigReader&), read_pixtral(const ConfigReader&),
    read_siglip2(const ConfigReader&), read_vit(const ConfigReader&);

const std::map<std::string, ReadVisionEncoder>& vision_encoders() {
  static const std::map<std::string, ReadVisionEncoder> families{
      {"clip_vision_model", read_clip},
      {"dinov2", read_dinov2},
      {"dinov2_with_registers", read_dinov2_with_registers},
      {"pixtral", read_pixtral},
      {"siglip2_vision_model", read_siglip2},
      {"siglip_vision_model", read_siglip},
      {"vit", read_vit}};
  return families;
}

EncoderSpec read_whisper(const ConfigReader&);

const std::map<std::string, ReadAudioEncoder>& audio_encoders() {
  static const std::map<std::string, ReadAudioEncoder> families{{"whisper", read_whisper}};
  return families;
}

ModelSpec make_gemma3(const ConfigReader&, const Trainable&),
    make_idefics3(const ConfigReader&, const Trainable&),
    make_internvl(const ConfigReader&, const Trainable&),
    make_llava(const ConfigReader&, const Trainable&),
    make_llava_next(const ConfigReader&, const Trainable&),
    make_llava_onevision(const ConfigReader&, const Trainable&),
    make_mistral3(const ConfigReader&, const Trainable&),
    make_qwen2_audio(const ConfigReader&, const Trainable&),
    make_qwen2_5_vl(const ConfigReader&, const Trainable&),
    make_qwen2_vl(const ConfigReader&, const Trainable&),
    make_qwen3_vl(const ConfigReader&, const Trainable&),
    make_voxtral(const ConfigReader&, const Trainable&);

const std::map<std::string, MakeComposite>& composites() {
  static const std::map<std::string, MakeComposite> families{
      {"gemma3", make_gemma3},         {"idefics3", make_idefics3},
      {"internvl", make_internvl},     {"llava", make_llava},
      {"llava_next", make_llava_next}, {"llava_onevision", make_llava_onevision},
      {"mistral3", make_mistral3},     {"qwen2_audio", make_qwen2_audio},
      {"qwen2_5_vl", make_qwen2_5_vl}, {"qwen2_vl", make_qwen2_vl},
      {"qwen3_vl", make_qwen3_vl},     {"smolvlm", make_idefics3},
      {"voxtral", make_voxtral},
  };
  return families;
}

}  // namespace zea::detail

namespace zea {
namespace {

struct Known {
  const char *begin, *advice;
};

constexpr const char* kOriginalLlava =
    "; this is a model in the original LLaVA's own form: take one in that of transformers "
    "(llava-hf/... on the Hugging Face hub), or convert it with convert_llava_weights_to_hf.py of "
    "transformers";
constexpr const char* kOriginalInternVl =
    "; this is a model in InternVL's own form: take one in that of transformers "
    "(OpenGVLab/...-hf on the Hugging Face hub)";
constexpr const char* kImageEncoder =
    "; this is an encoder of images: name it in model.vision.weights, beside a language model in "
    "model.llm.weights";
constexpr const char* kAudioEncoder =
    "; this is an encoder of sound: name it in model.audio.weights, beside a language model in "
    "model.llm.weights";

/// By the beginning of the name.
constexpr std::array<Known, 8> kKnown{{{"llava_", kOriginalLlava},
                                       {"internvl_chat", kOriginalInternVl},
                                       {"clip", kImageEncoder},
                                       {"siglip", kImageEncoder},
                                       {"dinov2", kImageEncoder},
                                       {"vit", kImageEncoder},
                                       {"pixtral", kImageEncoder},
                                       {"whisper", kAudioEncoder}}};

}  // namespace

std::string type_advice(const std::string& model_type) {
  if (model_type.starts_with("llava_next") || model_type.starts_with("llava_onevision")) return "";
  for (const auto& [begin, advice] : kKnown)
    if (model_type.starts_with(begin)) return advice;
  return "";
}

std::string detail::advice_on_type(const ConfigReader& config) {
  return config.has("mm_vision_tower") ? kOriginalLlava
                                       : type_advice(config.text("model_type", ""));
}

}  // namespace zea
