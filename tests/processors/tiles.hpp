// SPDX-License-Identifier: Apache-2.0
// Instructions of a Xeon with AMX, carried out where the processor knows none of them: those on
// tiles as Intel's manual defines them, to the bit, and what oneDNN writes for halves by those of
// AVX512 that give the same.
#pragma once

#include <signal.h>
#include <ucontext.h>

namespace zea::testing {

/// The registers of a thread that a signal stopped.
using Registers = gregset_t;

/// Carries out the instructions on tiles that follow one another at rip; false: there is none.
bool run_tile_instructions(Registers& registers);

/// Lets the thread go on by way of others, where rip is at a vcvtph2psx; false: it is not.
bool replace_half_conversion(Registers& registers);

}  // namespace zea::testing
