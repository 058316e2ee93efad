// SPDX-License-Identifier: Apache-2.0
// Sums and lengths made right again after a change, which would else be all that readers see.
#pragma once

#include "target.hpp"

namespace zea::fuzz {

void mend_h5(Bytes& bytes);           ///< superblock and object headers
void mend_manifest(Bytes& bytes);     ///< the digest that ends it
void mend_png(Bytes& bytes);          ///< of every chunk
void mend_safetensors(Bytes& bytes);  ///< a length beyond the file

}  // namespace zea::fuzz
