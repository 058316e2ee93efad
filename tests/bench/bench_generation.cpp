// SPDX-License-Identifier: Apache-2.0
// Generation with a KV cache against the whole forward for each token, taking turns on the same
// prompts of random text; both generate the same.
//   mpirun -n 1 bench_generation CONFIG.json SAMPLES PROMPT NEW ROUNDS [section.key=value ...]
// Prints one line of JSON: seconds of each round, by the clock and of the processor, and the
// quotients of their medians.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "checkpoint/load_weights.hpp"
#include "comm/world.hpp"
#include "deck/deck.hpp"
#include "io/model_source.hpp"
#include "kernels/flat_kernels.hpp"
#include "support/memory_dataset.hpp"
#include "train/evaluate.hpp"
#include "train/training_data.hpp"

namespace {

using namespace zea;

/// Prompts of unequal lengths, `tokens` at most, each with an answer of one token.
MemoryDataset make_prompts(int64_t samples, int64_t tokens, int64_t vocabulary) {
  std::mt19937_64 random(7);
  std::vector<Sample> made(samples);
  for (Sample& sample : made) {
    const auto length = static_cast<int64_t>(tokens - random() % (1 + tokens / 4));
    for (int64_t i = 0; i <= length; ++i) {
      sample.tokens.push_back(static_cast<int32_t>(10 + random() % (vocabulary - 10)));
      sample.loss_mask.push_back(i == length);
    }
  }
  std::vector<std::string> names;
  for (int64_t token = 0; token < vocabulary; ++token) names.push_back(std::to_string(token) + " ");
  return MemoryDataset(std::move(made), std::vector<ItemKind>{}, {}, names, "prompts");
}

/// Returns the processor time of all threads of this process: it excludes time that other processes
/// take.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void bench(const World& world, const std::vector<std::string>& arguments) {
  if (arguments.size() < 5)
    throw DeckError(
        "usage: bench_generation CONFIG.json SAMPLES PROMPT NEW ROUNDS [section.key=value ...]");
  const int64_t samples = std::stoll(arguments[1]), prompt = std::stoll(arguments[2]),
                tokens = std::stoll(arguments[3]), rounds = std::stoll(arguments[4]);
  const Options options = parse_deck(
      "[model]\nconfig = \"" + arguments[0] +
          "\"\n[run]\nmode = \"evaluate\"\n[data]\neval = \"prompts\"\nrow_tokens = 8192\n"
          "[schedule]\nglobal_batch = " +
          std::to_string(samples) + "\n",
      "bench_generation", {arguments.begin() + 5, arguments.end()});
  at::set_num_threads(static_cast<int>(options.run.threads));
  std::ifstream file(arguments[0]);
  const std::string config{std::istreambuf_iterator<char>(file), {}};
  const Plan plan = make_plan(options, config, world.size());
  const KernelRuntime kernels;
  Mesh mesh(world.communicator(), plan.mesh, make_host_collectives);
  Engine engine(plan, mesh, at::kCPU);
  load_weights(engine, *make_initial_weights(config, 1));
  const auto dataset = make_prompts(samples, prompt, plan.model.decoder.vocabulary);
  const auto control = make_mpi_collectives(world.communicator());

  nlohmann::json times;
  std::string said[2];
  int64_t generated = 0;
  for (int64_t round = 0; round < rounds; ++round)
    for (const bool keeps : {false, true}) {
      const double cpu_before = cpu_seconds();
      const Evaluation made = evaluate(engine, *control, dataset, loading_on(plan, mesh.rank()),
                                       {.generate_tokens = tokens,
                                        .has_loss = false,
                                        .stop_tokens = {plan.model.decoder.vocabulary},  // none
                                        .uses_kv_cache = keeps});
      times[keeps ? "kept" : "whole"].push_back(made.metrics.generate_seconds);
      times[keeps ? "kept_cpu" : "whole_cpu"].push_back(cpu_seconds() - cpu_before);
      said[keeps] = made.predictions_jsonl;
      generated = made.metrics.generated;
    }
  const auto seconds = [&](const char* side) { return median(times[side]); };
  times["generated"] = generated;
  times["same"] = said[0] == said[1];
  times["tokens_per_second"] = {{"whole", static_cast<double>(generated) / seconds("whole")},
                                {"kept", static_cast<double>(generated) / seconds("kept")}};
  times["times_faster"] = {{"seconds", seconds("whole") / seconds("kept")},
                           {"cpu", seconds("whole_cpu") / seconds("kept_cpu")}};
  if (world.rank() == 0) std::printf("%s\n", times.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  World world(&argc, &argv);
  try {
    bench(world, {argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
