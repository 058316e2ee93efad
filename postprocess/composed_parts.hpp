// SPDX-License-Identifier: Apache-2.0
// A model that transformers has no counterpart of as models that it knows: a composed one as a
// LLaVA where it has that shape, else each part for itself; of a LLaVA with audio that encoder for
// itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "zea/weights.hpp"

namespace zea {

/// Some tensors of a model under the names and the config of a model of their own, with the files
/// that belong to it.
struct ModelPart {
  std::string directory;  ///< in the target's, with '/' at its end; empty: the target's own
  std::unique_ptr<WeightsSource> source;
};

/// `model` must outlive what is returned: nothing where transformers has such a model. A LLaVA: one
/// encoder of images with an mlp, and the decoder. Else a directory for each encoder, "<encoder>/",
/// its projector, "<encoder>.projector/", which is of no family and has its encoder's entry of the
/// composed config, and last the decoder's, "llm/", or that of the LLaVA without sound, "llava/".
std::vector<ModelPart> parts_of(const WeightsSource& model);

}  // namespace zea
