// SPDX-License-Identifier: Apache-2.0
#include "spec_builder.hpp"

namespace zea::detail {

void SpecBuilder::start(const std::string& name, const std::string& module, UnitKind kind,
                        std::vector<UnitInput> inputs) {
  model_.units.push_back({name, module, kind, {}, std::move(inputs)});
}

int SpecBuilder::add(const std::string& name, Shape shape, bool trainable, double std,
                     const TpCut& cut, bool fused_with_next) {
  ParamSpec param;
  param.name = name;
  param.module = model_.units.back().module;
  param.shape = std::move(shape);
  param.trainable = trainable;
  param.std = std;
  param.tp_cut = cut;
  param.fused_with_next = fused_with_next;
  if (param.shape.size() == 1) param.init = Init::Zeros;
  model_.params.push_back(std::move(param));
  const int index = static_cast<int>(model_.params.size()) - 1;
  model_.units.back().params.push_back(index);
  return index;
}

void SpecBuilder::add_norm(const std::string& name, int64_t width, bool trainable, bool bias) {
  model_.params[add(name + ".weight", {width}, trainable, 0)].init = Init::Ones;
  if (bias) add(name + ".bias", {width}, trainable, 0);
}

void SpecBuilder::add_class_token(const std::string& name, int64_t width, bool trainable,
                                  double std) {
  model_.params[add(name, {width}, trainable, std)].init = Init::Normal;
}

void SpecBuilder::add_sinusoids(const std::string& name, int64_t positions, int64_t width) {
  model_.params[add(name, {positions, width}, false, 0)].init = Init::Sinusoids;
}

}  // namespace zea::detail
