// SPDX-License-Identifier: Apache-2.0
// zea: from the command line to an exit code. What a run does is in launch.cpp; here it is started
// and its failures are told, once, by the rank that failed.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>

#include "launch.hpp"
#include "zea/comm/world.hpp"
#include "zea/core/error.hpp"

namespace {

struct Failure {
  zea::ExitCode code;
  const char* message;
};

/// Says what went wrong. Ranks that all failed say it once and leave in order; a rank that failed
/// alone takes the job down.
int report(const zea::World* world, const Failure& failure) {
  const int code = static_cast<int>(failure.code);
  if (!world || world->size() == 1) {
    std::fprintf(stderr, "zea: %s\n", failure.message);
    return code;
  }
  const bool together = world->meets_within(2.0);
  if (!together || world->rank() == 0)
    std::fprintf(stderr, "zea: %s%s%s\n", together ? "" : "rank ",
                 together ? "" : (std::to_string(world->rank()) + ": ").c_str(), failure.message);
  if (!together) world->abort(code);
  return code;
}

/// Of a run that hangs: from a thread beside the one that communicates, so MPI cannot be asked. The
/// launcher ends the other ranks when one has left without a word to it.
void give_up(const std::string& message) {
  std::fprintf(stderr, "zea: %s\n", message.c_str());
  std::_Exit(static_cast<int>(zea::ExitCode::Communication));
}

}  // namespace

int main(int argc, char** argv) {
  std::optional<zea::World> world;
  try {
    if (!zea::answers_without_ranks(argc, argv)) world.emplace(&argc, &argv);
    return static_cast<int>(zea::launch(argc, argv, world ? &*world : nullptr, give_up));
  } catch (const zea::Error& error) {
    return report(world ? &*world : nullptr, {error.code(), error.what()});
  } catch (const std::exception& error) {
    return report(world ? &*world : nullptr, {zea::ExitCode::Internal, error.what()});
  }
}
