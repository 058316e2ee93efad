// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/job_info.hpp"
#include "app/run.hpp"
#include "comm/agree.hpp"
#include "core/text.hpp"
#include "io/strict_json.hpp"
#include "train/compare_runs.hpp"

namespace zea {
namespace {

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

/// Returns how the first start of the run can be repeated on the ranks of `world`, as the root rank
/// sees its directory. Collective.
CommandLine line_of_run(const CommandLine& line, const std::string& run, Collectives& control) {
  CommandLine repeated = line;
  repeated.deck = run + "/deck.used.toml";
  if (line.directory.empty()) repeated.directory = run + "-reproduced";
  int64_t last = 0;
  agree_on_root(control, [&] {
    const nlohmann::json facts = read_starts(run).front()["facts"];
    if (facts.contains("checkpoint"))
      repeated.restart = json_text(facts["checkpoint"], "path", run);
    last = last_logged_step(run);
  });
  control.broadcast(&last, 1, DType::Int64, 0).wait();
  repeated.restart = all_gather_texts(control, repeated.restart)[0];
  repeated.steps = line.steps > 0 ? std::min(line.steps, last) : last;
  return repeated;
}

/// Returns a start without where its values come from: every later one goes on with a checkpoint.
nlohmann::json without_source(nlohmann::json start) {
  start["facts"].erase("weights");
  start["facts"].erase("checkpoint");
  return start;
}

/// Says how the later starts of a run differ from its first.
std::string describe_starts(const std::vector<nlohmann::json>& starts) {
  std::string text;
  for (size_t number = 1; number < starts.size(); ++number) {
    const std::string differences =
        describe_differences(without_source(starts.front()), without_source(starts[number]));
    text += "start " + std::to_string(number + 1) + " of the run went on from step " +
            starts[number]["from_step"].dump() +
            (differences.empty() ? ", with the same facts\n" : ", with other facts:\n") +
            differences;
  }
  return text;
}

std::string describe(const RunComparison& found) {
  std::string text =
      "numbers of " + std::to_string(found.steps) + " logged steps: " +
      (found.number.empty() ? "the same bit for bit" : "differ; first at " + found.number) + "\n";
  if (found.checkpoint_step < 0)
    return text + "no checkpoint of one step is in both directories, so none was compared\n";
  return text + "checkpoint of step " + std::to_string(found.checkpoint_step) + ": " +
         (found.tensor.empty() ? std::to_string(found.tensors) + " tensors, the same bit for bit"
                               : "differs; first in " + found.tensor) +
         "\n";
}

}  // namespace

ExitCode reproduce(const CommandLine& line, Job& job) {
  const Communicator ranks = job.world.communicator();
  const std::unique_ptr<Collectives> control = make_mpi_collectives(ranks);
  const std::string run_directory = without_slashes(line.reproduce);
  const CommandLine repeated = line_of_run(line, run_directory, *control);
  std::string end;
  try {
    run(repeated, job);
  } catch (const NonFiniteError& error) {  // of all ranks; the earlier run may have ended so, too
    end = std::string("the new run ended: ") + error.what() + "\n";
  }
  int64_t is_same = 0;
  agree_on_root(*control, [&] {
    const std::vector<nlohmann::json> starts = read_starts(run_directory);
    const std::string differences =
        describe_differences(starts.front(), read_starts(repeated.directory).front());
    const RunComparison found = compare_runs(run_directory, repeated.directory, repeated.steps);
    is_same = found.is_same();
    const std::string text =
        "reproduced " + run_directory + " in " + repeated.directory + ", up to step " +
        std::to_string(repeated.steps) + "\n" + end + describe_starts(starts) +
        (differences.empty() ? "commit, libraries, processors, layout, deck, data and weights are "
                               "the same\n"
                             : "facts that differ:\n" + differences) +
        describe(found) +
        (is_same != 0 ? "the run is the same bit for bit\n" : "the run differs\n");
    std::fputs(printable(text).c_str(), stdout);
  });
  control->broadcast(&is_same, 1, DType::Int64, 0).wait();
  return is_same != 0 ? ExitCode::Done : ExitCode::LayoutDiffers;
}

}  // namespace zea
