// SPDX-License-Identifier: Apache-2.0
// Gemma 3 with images (arXiv:2503.19786): what SigLIP makes of them, normed, averaged over squares
// of patches and normed again, times a matrix of (in, out), in the text of a Gemma 3 decoder, where
// the features of an image see all of it.
#include <cmath>

#include "spec/families.hpp"

namespace zea::detail {
namespace {

constexpr const char* kProjectorRoot = "multi_modal_projector.";

/// Patches along the side of a square that becomes one feature.
int64_t read_pooled_side(const ConfigReader& config, const PatchInput& patches) {
  const int64_t features = config.positive("mm_tokens_per_image", 256);
  const auto side = std::llround(std::sqrt(features));
  if (side * side != features || patches.side() % side != 0)
    config.refuse(
        "mm_tokens_per_image", std::to_string(features),
        "the square of a divisor of image_size / patch_size = " + std::to_string(patches.side()));
  return patches.side() / side;
}

VisionEncoder read_pooled_siglip(const ConfigReader& config) {
  const ConfigReader vision = config.object("vision_config");
  vision.require_text("model_type", "siglip_vision_model");
  VisionEncoder encoder = read_siglip(vision);
  encoder.norms_features = true;
  EncoderSpec& spec = encoder.spec;
  PatchInput& patches = spec.patches();
  patches.block = read_pooled_side(config, patches);
  patches.resampling = Resampling::Bilinear;  // of its processor
  patches.as<SquareImages>()->pan_and_scan = PanAndScan{};
  spec.name = "vision";
  spec.placeholder = config.integer("image_token_index", config.integer("image_token_id", 262144));
  spec.drops_first_token = false;
  spec.projector = {.norm = {NormKind::Rms, spec.block.norm.eps, 1},
                    .merge = patches.block * patches.block,
                    .pools = true,
                    .pools_first = true,
                    .is_linear = true,
                    .order = WeightOrder::InOut};
  return encoder;
}

/// The matrix has initial values as other projectors do; transformers begins it with zeros.
void add_pooled_projector(SpecBuilder& builder, const VisionEncoder& encoder,
                          const std::string& tower, int64_t hidden,
                          const Trainable::Encoder& trains) {
  const EncoderSpec& vision = encoder.spec;
  const int64_t width = vision.block.hidden;
  const std::string root = kProjectorRoot;
  builder.start(vision.name + ".projector", vision.name, UnitKind::Projector,
                {{builder.last_unit(), false}});
  builder.add_norm("encoder_norm", tower + encoder.names.final_norm, vision.block.norm, width,
                   trains.encoder);
  builder.add_norm("norm", root + "mm_soft_emb_norm", vision.projector.norm, width,
                   trains.projector);
  builder.add("linear.weight", root + "mm_input_projection_weight", {width, hidden},
              trains.projector, 0.02);
}

}  // namespace

ModelSpec make_gemma3(const ConfigReader& config, const Trainable& trainable) {
  // Tokens around images are text like any other.
  config.ignore_keys({"boi_token_id", "boi_token_index", "eoi_token_id", "eoi_token_index"});
  const ConfigReader text = config.object("text_config");
  text.require_text("model_type", "gemma3_text");
  Decoder decoder = read_merging_decoder(text, "gemma3_text");
  decoder.spec.tied_embeddings = config.boolean("tie_word_embeddings", true);
  decoder.spec.bidirectional_images = BidirectionalLayers::All;
  if (config.has("eos_token_id")) decoder.spec.end_tokens = config.integers("eos_token_id", 1);
  const VisionEncoder encoder = read_pooled_siglip(config);
  const std::string tower = "vision_tower.";
  const Trainable::Encoder trains = trainable.of(encoder.spec.name);
  const auto add_projector = [&](SpecBuilder& builder, const std::vector<int>&) {
    add_pooled_projector(builder, encoder, tower, decoder.spec.block.hidden, trains);
    return std::vector{builder.last_unit()};
  };
  return make_with_tower(decoder, encoder, tower, "language_model.", trainable, add_projector);
}

}  // namespace zea::detail
