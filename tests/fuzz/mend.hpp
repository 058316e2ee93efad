// SPDX-License-Identifier: Apache-2.0
// Sums and lengths made right again after a change, which would else be all that readers see.
#pragma once

#include "target.hpp"

namespace zea::fuzz {

void mend_h5(Bytes& bytes);           ///< of every structure that has one (mend_h5.cpp)
void mend_manifest(Bytes& bytes);     ///< the digest that ends it
void mend_png(Bytes& bytes);          ///< of every chunk
void mend_safetensors(Bytes& bytes);  ///< a length beyond the file

/// The number of `count` bytes at `place`, lowest first; and to put it there.
uint64_t number_at(const Bytes& bytes, size_t place, size_t count);
void put_number(Bytes& bytes, size_t place, uint64_t number, size_t count);

}  // namespace zea::fuzz
