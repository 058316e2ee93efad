// SPDX-License-Identifier: Apache-2.0
// One execution of zea, step by step: command line, deck, plan, mesh, model, data, restart,
// training.
#pragma once

#include <functional>
#include <string>

#include "comm/world.hpp"
#include "core/error.hpp"

namespace zea {

/// Whether the command line only asks for text (-h, -n, -c, --version): that needs no ranks.
bool answers_without_ranks(int argc, const char* const* argv);

/// Ends the job at once with this message: told by any thread of one rank that the run hangs.
using GiveUp = std::function<void(const std::string& message)>;

/// Runs what the command line asks for. `world` is null where answers_without_ranks. `rank` is
/// given this rank's number in the plan, which everybody uses, as soon as there is one. Collective.
ExitCode launch(int argc, const char* const* argv, World* world, const GiveUp& give_up, int& rank);

}  // namespace zea
