// SPDX-License-Identifier: Apache-2.0
// Models that come in a form other than that of transformers, or that are a part of one.
#include "spec/foreign_spec.hpp"

#include <array>

#include "spec/families.hpp"

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
  // These are of transformers.
  if (model_type.starts_with("llava_next") || model_type.starts_with("llava_onevision")) return "";
  for (const auto& [begin, advice] : kKnown)
    if (model_type.starts_with(begin)) return advice;
  return "";
}

/// The first files of LLaVA are called as those of transformers.
std::string detail::advice_on_type(const ConfigReader& config) {
  return config.has("mm_vision_tower") ? kOriginalLlava
                                       : type_advice(config.text("model_type", ""));
}

}  // namespace zea
