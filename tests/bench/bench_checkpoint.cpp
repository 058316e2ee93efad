// SPDX-License-Identifier: Apache-2.0
// Under mpirun:
//   bench_checkpoint save DIRECTORY MIB    writes a checkpoint of a Llama of random weights and
//                                          moments, so many MiB altogether, and waits for it
//   bench_checkpoint async DIRECTORY MIB   the same; tells how long training would have been
//                                          blocked if its next update came at once
//   bench_checkpoint load CHECKPOINT       into an engine of as many ranks as there are
// Prints a line of JSON. No training: bench_checkpoint.py and bench_checkpoint_dcp.py measure with
// it.
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

#include "zea/checkpoint/checkpoint_reader.hpp"
#include "zea/checkpoint/checkpoint_writer.hpp"
#include "zea/checkpoint/retention.hpp"
#include "zea/comm/world.hpp"
#include "zea/io/checkpoint_source.hpp"

namespace zea {
namespace {

constexpr int64_t kHidden = 1024, kIntermediate = 2816, kHeads = 16;
constexpr int64_t kLayerParameters = 4 * kHidden * kHidden + 3 * kHidden * kIntermediate;
constexpr int64_t kBytesPerParameter = 12;  // value and two moments

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Layers for most of the bytes, and an embedding for the rest.
std::string config_of(int64_t mib) {
  const int64_t parameters = (mib << 20) / kBytesPerParameter;
  const int64_t layers = std::max<int64_t>(1, parameters * 3 / 4 / kLayerParameters);
  const int64_t vocabulary =
      std::max<int64_t>(16, (parameters - layers * kLayerParameters) / kHidden);
  const auto number = [](int64_t value) { return std::to_string(value); };
  return R"({"model_type": "llama", "tie_word_embeddings": true, "hidden_size": )" +
         number(kHidden) + R"(, "intermediate_size": )" + number(kIntermediate) +
         R"(, "vocab_size": )" + number(vocabulary) + R"(, "num_hidden_layers": )" +
         number(layers) + R"(, "num_attention_heads": )" + number(kHeads) +
         R"(, "num_key_value_heads": )" + number(kHeads) + "}";
}

/// An engine of a config on all ranks, fully sharded.
struct Running {
  Plan plan;
  Mesh mesh;
  std::unique_ptr<Collectives> control;
  Engine engine;

  Running(const World& world, const std::string& config)
      : plan(make_plan(Options(), config, world.size())),
        mesh(world.communicator(), plan.mesh, make_mpi_collectives),
        control(make_mpi_collectives(world.communicator())),
        engine(plan, mesh, at::kCPU) {}

  void fill() {
    for (const auto& group : engine.groups())
      for (const at::Tensor& values : {group->master(), group->exp_avg(), group->exp_avg_sq()})
        values.uniform_(0, 1);
  }
};

/// A save whose next update comes at once where `is_async`: the worst for the time blocked.
SaveReport save_once(Running& running, const std::string& directory, int64_t step, bool is_async,
                     double& blocked_seconds) {
  CheckpointWriter writer(running.engine, *running.control);
  running.control->barrier();
  writer.start({.directory = directory,
                .run_id = "bench",
                .position = {.step = step, .optimizer_step = step},
                .deck = "[run]\n"});
  if (is_async) writer.keep_values();
  while (writer.is_writing()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  running.control->barrier();  // as training finds out that all are done
  const SaveReport report = writer.finish();
  blocked_seconds = report.stall_seconds;
  return report;
}

void save(const World& world, const std::string& directory, int64_t mib, bool is_async) {
  Running running(world, config_of(mib));
  running.fill();
  constexpr int kRounds = 3;
  for (int round = 1; round <= kRounds; ++round) {
    double blocked = 0;
    const SaveReport report = save_once(running, directory, round, is_async, blocked);
    if (world.rank() != 0) continue;
    std::printf(
        "{\"seconds\": %.4f, \"mib\": %.1f, \"write_mib_per_second\": %.1f, "
        "\"blocked_seconds\": %.4f, \"copy_seconds\": %.4f, \"copied_mib\": %.1f, "
        "\"path\": \"%s\"}\n",
        report.seconds, static_cast<double>(report.bytes) / (1 << 20), report.mib_per_second,
        blocked, report.copy_seconds, static_cast<double>(report.copied_bytes) / (1 << 20),
        report.path.c_str());
    keep_newest(directory, 1);
  }
}

void load(const World& world, const std::string& checkpoint) {
  const CheckpointSource source(checkpoint);
  Running running(world, source.config_json());
  running.fill();  // so that loading is not the first to touch the memory
  running.control->barrier();
  const Stopwatch clock;
  read_checkpoint(running.engine, *running.control, source);
  running.control->barrier();
  if (world.rank() == 0) std::printf("{\"seconds\": %.4f}\n", clock.seconds());
}

int run(const World& world, int argc, char** argv) {
  at::set_num_threads(1);
  const std::string command = argc > 2 ? argv[1] : "";
  if ((command == "save" || command == "async") && argc == 4)
    save(world, argv[2], std::atoll(argv[3]), command == "async");
  else if (command == "load" && argc == 3)
    load(world, argv[2]);
  else
    return 2;
  return 0;
}

}  // namespace
}  // namespace zea

int main(int argc, char** argv) {
  try {
    const zea::World world(&argc, &argv);
    return zea::run(world, argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_checkpoint: %s\n", error.what());
    return 1;
  }
}
