// SPDX-License-Identifier: Apache-2.0
// A composed model as models that transformers knows: a LLaVA where it has that shape, else each
// part for itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "zea/io/weights_source.hpp"

namespace zea {

bool is_composed(const WeightsSource& source);

/// Some tensors of a composed model under the names and the config of a model of its own.
struct ModelPart {
  std::string directory;  ///< in the target's, with '/' at its end; empty: the target's own
  std::unique_ptr<WeightsSource> source;
};

/// `composed` must outlive what is returned. A LLaVA: one encoder of images with an mlp, and the
/// decoder. Else a directory for each encoder, "<encoder>/", its projector, "<encoder>.projector/",
/// which is of no family and has its encoder's entry of the composed config, and "llm/".
std::vector<ModelPart> parts_of(const WeightsSource& composed);

}  // namespace zea
