// SPDX-License-Identifier: Apache-2.0
// What transformers' classes of image processors do where a file leaves it out: a file names its
// class, which need not be the usual one of its encoder.
#pragma once

#include <string>

#include "spec/config_reader.hpp"

namespace zea::detail {

struct ProcessorClass {
  const char* name;  ///< without what the names of all end in
  bool squares;      ///< a size that is one number is both sides; false: the shorter one
  bool crops;        ///< the middle of an image is taken
  bool halves;       ///< mean and deviation are 0.5; false: those of CLIP
  Resampling resampling;

  ImageColours colours() const;
};

/// The class that a processor's file names, as ViT of ViTImageProcessorFast; empty: none.
std::string processor_class_name(const ConfigReader& config);
/// Null: none is named, or one that zea does not know.
const ProcessorClass* processor_class(const ConfigReader& config);

}  // namespace zea::detail
