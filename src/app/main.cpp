// SPDX-License-Identifier: Apache-2.0
// zea: from the command line to an exit code. What a run does is in launch.cpp; here it is started
// and its failures are told, once, by the rank that failed.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "app/launch.hpp"
#include "comm/world.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace {

struct Failure {
  zea::ExitCode code;
  const char* message;
};

constexpr Failure kNoMemory{
    zea::ExitCode::Storage,
    "out of memory; take fewer tokens at once (data.row_tokens), or more ranks"};

/// Says what went wrong. Ranks that all failed say it once and leave in order; a rank that failed
/// alone takes the job down. `rank`: its number in the plan, where there is one.
int report(const zea::World* world, int rank, const Failure& failure) {
  const int code = static_cast<int>(failure.code);
  const std::string message = zea::printable(failure.message);
  if (!world || world->size() == 1) {
    std::fprintf(stderr, "zea: %s\n", message.c_str());
    return code;
  }
  const bool together = world->meets_within(2.0);
  if (!together || world->rank() == 0)
    std::fprintf(stderr, "zea: %s%s%s\n", together ? "" : "rank ",
                 together ? "" : (std::to_string(rank) + ": ").c_str(), message.c_str());
  if (!together) world->abort(code);
  return code;
}

/// Ends a run that hangs, from a thread beside the one that communicates. MPI's abort reaches all
/// ranks, stopped ones too, whatever launched them; but this rank may hang in MPI, or where it
/// writes to, and then leaves without a word.
void give_up(const zea::World& world, const std::string& message) {
  constexpr int kCode = static_cast<int>(zea::ExitCode::Communication);
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    std::_Exit(kCode);
  }).detach();
  std::fprintf(stderr, "zea: %s\n", zea::printable(message).c_str());
  world.abort(kCode);
  std::_Exit(kCode);
}

/// Faults of files; or of threads, for which a limit leaves no memory.
std::string advice_on(const std::system_error& error) {
  const bool is_limit = error.code() == std::errc::resource_unavailable_try_again ||
                        error.code() == std::errc::not_enough_memory;
  return is_limit ? std::string("out of memory or threads: ") + error.what() +
                        "; raise the limits of the process (ulimit -v, ulimit -u), or take fewer "
                        "tokens at once (data.row_tokens)"
                  : error.what();
}

int run(int argc, char** argv, std::optional<zea::World>& world) {
  int rank = 0;
  const auto failed = [&](zea::ExitCode code, const std::exception& error) {
    return report(world ? &*world : nullptr, rank, {code, error.what()});
  };
  try {
    if (!zea::answers_without_ranks(argc, argv)) world.emplace(&argc, &argv);
    if (world) rank = world->rank();
    return static_cast<int>(zea::launch(
        argc, argv, world ? &*world : nullptr,
        [&world](const std::string& message) { give_up(*world, message); }, rank));
  } catch (const zea::Error& error) {
    return failed(error.code(), error);
  } catch (const std::bad_alloc&) {
    return report(world ? &*world : nullptr, rank, kNoMemory);
  } catch (const std::system_error& error) {
    return report(world ? &*world : nullptr, rank,
                  {zea::ExitCode::Storage, advice_on(error).c_str()});
  } catch (const std::exception& error) {
    // libtorch's own, where the host has too little memory.
    const bool is_memory = std::strstr(error.what(), "can't allocate memory") != nullptr;
    return is_memory ? report(world ? &*world : nullptr, rank, kNoMemory)
                     : failed(zea::ExitCode::Internal, error);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ,
              SIG_IGN);  // a file beyond `ulimit -f` is an error of the call that writes it
  std::optional<zea::World> world;
  const int code = run(argc, argv, world);
  if (world) return code;
  // What libtorch undoes at the end is a quarter of the time that an answer takes.
  std::fflush(nullptr);
  std::_Exit(code);
}
