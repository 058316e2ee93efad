// SPDX-License-Identifier: Apache-2.0
#include "zea/model/unit.hpp"

#include "unit_kinds.hpp"
#include "zea/core/error.hpp"

namespace zea {

at::Tensor run_unit(const ModelSpec& model, const UnitSpec& unit,
                    const std::vector<Parameter*>& parameters, const UnitInputs& inputs,
                    const Microbatch& microbatch, HeadOutput head) {
  detail::ParameterList next(parameters);
  at::Tensor output;
  switch (unit.kind) {
    case UnitKind::PatchEmbed:
      output = detail::patch_embed(*model.vision, next, microbatch);
      break;
    case UnitKind::VisionBlock:
      output = detail::vision_block(*model.vision, next, *inputs[0], microbatch);
      break;
    case UnitKind::Projector:
      output = detail::projector(model, next, inputs);
      break;
    case UnitKind::TokenEmbed:
      output = detail::token_embed(model.text, next, microbatch);
      break;
    case UnitKind::Merge:
      output = detail::merge(*inputs[0], inputs[1], microbatch);
      break;
    case UnitKind::DecoderBlock:
      output = detail::decoder_block(model.text, next, *inputs[0], microbatch);
      break;
    case UnitKind::Gpt2Block:
      output = detail::gpt2_block(model.text, next, *inputs[0], microbatch);
      break;
    case UnitKind::Head:
      output = detail::head(model.text, next, *inputs[0], microbatch, head);
      break;
  }
  next.check_all_used(unit.name);
  return output;
}

}  // namespace zea
