// SPDX-License-Identifier: Apache-2.0
#include "zea/model/unit.hpp"

#include "unit_kinds.hpp"
#include "zea/core/error.hpp"

namespace zea {

at::Tensor run_unit(const ModelSpec& model, const UnitSpec& unit,
                    const std::vector<Parameter*>& parameters, const UnitInputs& inputs,
                    const Microbatch& microbatch, HeadOutput head, const Layers& layers) {
  const detail::UnitContext context{model, microbatch, layers,
                                    unit.encoder < 0 ? nullptr : &microbatch.encoder(unit)};
  detail::ParameterList next(parameters);
  at::Tensor output;
  switch (unit.kind) {
    case UnitKind::PatchEmbed:
      output = detail::patch_embed(context, next);
      break;
    case UnitKind::VisionBlock:
      output = detail::vision_block(context, next, *inputs[0]);
      break;
    case UnitKind::Projector:
      output = detail::projector(context, next, inputs);
      break;
    case UnitKind::AudioEmbed:
      output = detail::audio_embed(context, next);
      break;
    case UnitKind::AudioBlock:
      output = detail::audio_block(context, next, *inputs[0]);
      break;
    case UnitKind::AudioProjector:
      output = detail::audio_projector(context, next, *inputs[0]);
      break;
    case UnitKind::TokenEmbed:
      output = detail::token_embed(context, next);
      break;
    case UnitKind::Merge:
      output = detail::merge(context, unit, inputs);
      break;
    case UnitKind::DecoderBlock:
      output = detail::decoder_block(context, next, *inputs[0]);
      break;
    case UnitKind::Gpt2Block:
      output = detail::gpt2_block(context, next, *inputs[0]);
      break;
    case UnitKind::Head:
      output = detail::head(context, next, *inputs[0], head);
      break;
  }
  next.check_all_used(unit.name);
  return output;
}

}  // namespace zea
