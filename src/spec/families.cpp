// SPDX-License-Identifier: Apache-2.0
// The tables of families, by the model_type of their configs. Each family is a function of the file
// NAME_spec.cpp, declared here.
#include "spec/families.hpp"

namespace zea::detail {

Decoder read_deepseek_v3(const ConfigReader&), read_gemma(const ConfigReader&),
    read_gemma2(const ConfigReader&), read_gemma3(const ConfigReader&),
    read_gemma4(const ConfigReader&), read_glm4_moe(const ConfigReader&),
    read_gpt2(const ConfigReader&), read_gpt_oss(const ConfigReader&),
    read_llama(const ConfigReader&), read_mistral(const ConfigReader&),
    read_mixtral(const ConfigReader&), read_olmoe(const ConfigReader&),
    read_phi3(const ConfigReader&), read_qwen2(const ConfigReader&),
    read_qwen2_moe(const ConfigReader&), read_qwen3(const ConfigReader&),
    read_qwen3_5_moe_text(const ConfigReader&), read_qwen3_5_text(const ConfigReader&),
    read_qwen3_moe(const ConfigReader&), read_qwen3_next(const ConfigReader&);

const std::map<std::string, ReadDecoder>& decoders() {
  static const std::map<std::string, ReadDecoder> families{
      {"deepseek_v3", read_deepseek_v3},
      {"gemma", read_gemma},
      {"gemma2", read_gemma2},
      {"gemma3_text", read_gemma3},
      {"glm4_moe", read_glm4_moe},
      {"gemma4_text", read_gemma4},
      {"gpt2", read_gpt2},
      {"gpt_oss", read_gpt_oss},
      {"llama", read_llama},
      {"mistral", read_mistral},
      {"mixtral", read_mixtral},
      {"olmoe", read_olmoe},
      {"phi3", read_phi3},
      {"qwen2", read_qwen2},
      {"qwen2_moe", read_qwen2_moe},
      {"qwen3", read_qwen3},
      {"qwen3_5_moe_text", read_qwen3_5_moe_text},
      {"qwen3_5_text", read_qwen3_5_text},
      {"qwen3_moe", read_qwen3_moe},
      {"qwen3_next", read_qwen3_next}};
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
    make_gemma4(const ConfigReader&, const Trainable&),
    make_glm46v(const ConfigReader&, const Trainable&),
    make_glm4v(const ConfigReader&, const Trainable&),
    make_glm4v_moe(const ConfigReader&, const Trainable&),
    make_idefics3(const ConfigReader&, const Trainable&),
    make_internvl(const ConfigReader&, const Trainable&),
    make_kimi_k25(const ConfigReader&, const Trainable&),
    make_llava(const ConfigReader&, const Trainable&),
    make_llava_next(const ConfigReader&, const Trainable&),
    make_llava_onevision(const ConfigReader&, const Trainable&),
    make_mistral3(const ConfigReader&, const Trainable&),
    make_qwen2_audio(const ConfigReader&, const Trainable&),
    make_qwen2_5_omni(const ConfigReader&, const Trainable&),
    make_qwen2_5_omni_thinker(const ConfigReader&, const Trainable&),
    make_qwen2_5_vl(const ConfigReader&, const Trainable&),
    make_qwen2_vl(const ConfigReader&, const Trainable&),
    make_qwen3_5(const ConfigReader&, const Trainable&),
    make_qwen3_omni(const ConfigReader&, const Trainable&),
    make_qwen3_omni_thinker(const ConfigReader&, const Trainable&),
    make_qwen3_5_moe(const ConfigReader&, const Trainable&),
    make_qwen3_vl(const ConfigReader&, const Trainable&),
    make_qwen3_vl_moe(const ConfigReader&, const Trainable&),
    make_voxtral(const ConfigReader&, const Trainable&);

const std::map<std::string, MakeComposite>& composites() {
  static const std::map<std::string, MakeComposite> families{
      {"gemma3", make_gemma3},
      {"gemma4", make_gemma4},
      {"glm46v", make_glm46v},
      {"glm4v", make_glm4v},
      {"glm4v_moe", make_glm4v_moe},
      {"idefics3", make_idefics3},
      {"internvl", make_internvl},
      {"kimi_k25", make_kimi_k25},
      {"llava", make_llava},
      {"llava_next", make_llava_next},
      {"llava_onevision", make_llava_onevision},
      {"mistral3", make_mistral3},
      {"qwen2_5_omni", make_qwen2_5_omni},
      {"qwen2_5_omni_thinker", make_qwen2_5_omni_thinker},
      {"qwen2_5_vl", make_qwen2_5_vl},
      {"qwen2_audio", make_qwen2_audio},
      {"qwen2_vl", make_qwen2_vl},
      {"qwen3_5", make_qwen3_5},
      {"qwen3_5_moe", make_qwen3_5_moe},
      {"qwen3_omni_moe", make_qwen3_omni},
      {"qwen3_omni_moe_thinker", make_qwen3_omni_thinker},
      {"qwen3_vl", make_qwen3_vl},
      {"qwen3_vl_moe", make_qwen3_vl_moe},
      {"smolvlm", make_idefics3},
      {"voxtral", make_voxtral},
  };
  return families;
}

}  // namespace zea::detail
