// SPDX-License-Identifier: Apache-2.0
// zea: from the command line to an exit code. The rank that failed prints a failure, once.
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

#include "app/answer.hpp"
#include "app/run.hpp"
#include "comm/world.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace {

struct Failure {
  zea::ExitCode code;
  const char* message;
};

constexpr const char* kNoMemory =
    "out of memory; take fewer tokens at once (data.row_tokens), or more ranks";

/// Prints what went wrong. If all ranks failed, one prints it and all leave in order; a rank that
/// failed alone takes the job down. `job` is null where there are no ranks.
int report(const zea::Job* job, const Failure& failure) {
  const int code = static_cast<int>(failure.code);
  const std::string message = zea::printable(failure.message);
  if (!job || job->world.size() == 1) {
    std::fprintf(stderr, "zea: %s\n", message.c_str());
    return code;
  }
  const bool together = job->world.barrier_within(2.0);
  if (!together || job->world.rank() == 0)
    std::fprintf(stderr, "zea: %s%s%s\n", together ? "" : "rank ",
                 together ? "" : (std::to_string(job->rank) + ": ").c_str(), message.c_str());
  if (!together) job->world.abort(code);
  return code;
}

/// Ends a run that hangs, from a thread other than the one that communicates. MPI's abort reaches
/// all ranks, stopped ones too, whatever launched them; but this rank may hang in MPI, or where it
/// writes to, and then leaves without a word.
void abort_job(const zea::World& world, const std::string& message) {
  constexpr int kCode = static_cast<int>(zea::ExitCode::Communication);
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    std::_Exit(kCode);
  }).detach();
  std::fprintf(stderr, "zea: %s\n", zea::printable(message).c_str());
  world.abort(kCode);
  std::_Exit(kCode);
}

void warn(const std::string& message) {
  std::fprintf(stderr, "zea: warning: %s\n", zea::printable(message).c_str());
}

/// Faults of files, or of threads, for which a limit leaves no memory.
std::string advice_on(const std::system_error& error) {
  const bool is_limit = error.code() == std::errc::resource_unavailable_try_again ||
                        error.code() == std::errc::not_enough_memory;
  return is_limit ? std::string("out of memory or threads: ") + error.what() +
                        "; raise the limits of the process (ulimit -v, ulimit -u), or take fewer "
                        "tokens at once (data.row_tokens)"
                  : error.what();
}

int run(int argc, char** argv, std::optional<zea::World>& world) {
  std::optional<zea::Job> job;
  const auto fail = [&](zea::ExitCode code, const char* message) {
    return report(job ? &*job : nullptr, {code, message});
  };
  try {
    if (!zea::answers_without_ranks(argc, argv)) {
      world.emplace(&argc, &argv);
      job.emplace(zea::Job{*world,
                           [&world](const std::string& message) { abort_job(*world, message); },
                           warn, world->rank()});
    }
    const zea::CommandLine line = zea::parse_command_line(argc, argv);
    return static_cast<int>(!job                         ? zea::answer(line)
                            : line.check_node            ? zea::check_nodes(line, *job)
                            : !line.hardware_out.empty() ? zea::profile_hardware(line, *job)
                            : line.verify_layout         ? zea::verify_layout(line, *job)
                            : !line.reproduce.empty()    ? zea::reproduce(line, *job)
                                                         : zea::run(line, *job));
  } catch (const zea::Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(zea::ExitCode::Storage, kNoMemory);
  } catch (const std::system_error& error) {
    return fail(zea::ExitCode::Storage, advice_on(error).c_str());
  } catch (const std::exception& error) {
    // libtorch's own, where the host has too little memory.
    const bool is_memory = std::strstr(error.what(), "can't allocate memory") != nullptr;
    return is_memory ? fail(zea::ExitCode::Storage, kNoMemory)
                     : fail(zea::ExitCode::Internal, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ,
              SIG_IGN);  // a file beyond `ulimit -f` is an error of the call that writes it
  std::optional<zea::World> world;
  const int code = run(argc, argv, world);
  if (world) return code;
  // The end of libtorch takes a quarter of the time of an answer.
  std::fflush(nullptr);
  std::_Exit(code);
}
