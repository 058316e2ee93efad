// SPDX-License-Identifier: Apache-2.0
// Intercepts the file system calls of a program: counts those that change something below a
// directory, and lets one of them fail, or kills the process there, or notes the losses of a power
// cut. A test that links this has its calls of libc replaced, those of HDF5 included.
#pragma once

#include <string>
#include <vector>

namespace zea::testing {

enum class FaultKind {
  Count,  ///< none: the calls are counted only
  Kill,   ///< the process is killed right before the call
  Slow,   ///< each call that removes takes 50 ms
  Error   ///< the call fails
};

struct FileFault {
  std::string directory;  ///< only calls below it count
  FaultKind kind = FaultKind::Count;
  int at = 0;            ///< which call, from 1
  int error_number = 0;  ///< of Error
};

/// From now on, for all threads. One at a time.
void arm(const FileFault& fault);
void disarm();
/// Calls since arm().
int num_calls();
/// "pwrite /path" of each, in order.
std::vector<std::string> calls();

/// Returns the files that were renamed to a name not ending in .tmp, or left by disarm(), before
/// they were synced: one line per loss.
std::vector<std::string> power_cut_losses();

}  // namespace zea::testing
