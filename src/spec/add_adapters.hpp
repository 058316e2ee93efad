// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/config_reader.hpp"

namespace zea::detail {

/// Gives a model the adapters that its config names (adapters.hpp), and freezes what these stand
/// beside; those of a module that `trainable` freezes do not train, either. Throws PlanError where
/// a pattern matches no linear.
void add_adapters(ModelSpec& model, const ConfigReader& adapters, const Trainable& trainable);

}  // namespace zea::detail
