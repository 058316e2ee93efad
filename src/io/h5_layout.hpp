// SPDX-License-Identifier: Apache-2.0
// Whether a dataset is virtual, told without HDF5: its H5Dopen reads the names of a virtual
// dataset's files from a heap at once, and does not come back from a damaged one (1.10 to 2.0).
#pragma once

#include "h5_state.hpp"

namespace zea {

/// Of the object `name`, which is there. False where its header is not understood, too: then HDF5
/// says why.
bool is_virtual_dataset(const H5File::State& state, const std::string& name);

}  // namespace zea
