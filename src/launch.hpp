// SPDX-License-Identifier: Apache-2.0
// One execution of zea, step by step: command line, deck, plan, mesh, model, data, restart,
// training.
#pragma once

#include "zea/comm/world.hpp"
#include "zea/core/error.hpp"

namespace zea {

/// Whether the command line only asks for text (-h, -n, -c, --version): that needs no ranks.
bool answers_without_ranks(int argc, const char* const* argv);

/// Runs what the command line asks for. `world` is null where answers_without_ranks. Collective.
ExitCode launch(int argc, const char* const* argv, World* world);

}  // namespace zea
