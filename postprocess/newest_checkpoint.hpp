// SPDX-License-Identifier: Apache-2.0
// The checkpoint of a run that a tool reads, while the run may go on and remove its older ones.
#pragma once

#include <functional>
#include <string>

namespace zea {

enum class DamagedNewest {
  Refuse,   ///< what is damaged is an error
  PassOver  ///< an older checkpoint that is whole is taken, and a note on stderr says so
};

/// Calls `read` with `path` or, where that is a run directory, with its newest complete checkpoint.
/// Where the run removes that one while it is read, `read` is called again with the one that is the
/// newest by then, a bounded number of times. Throws what `read` throws.
void read_newest(const std::string& path, DamagedNewest damaged,
                 const std::function<void(const std::string&)>& read);

}  // namespace zea
