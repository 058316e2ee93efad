// SPDX-License-Identifier: Apache-2.0
// Where an HDF5 file begins: its superblock, of all versions (II.A).
#pragma once

#include "h5/bytes.hpp"

namespace zea {

/// The address of the root group's object. Sets the file's base. Throws where the file is none of
/// HDF5's, was cut short, or never closed.
uint64_t read_h5_superblock(H5Bytes& file);

}  // namespace zea
