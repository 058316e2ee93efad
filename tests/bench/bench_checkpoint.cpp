// SPDX-License-Identifier: Apache-2.0
// Under mpirun:
//   bench_checkpoint save DIRECTORY MIB    writes a checkpoint of a Llama of random weights and
//                                          moments, so many MiB altogether, and waits for it
//   bench_checkpoint async DIRECTORY MIB [SECONDS]
//                                          the same, with so many seconds of work between the save
//                                          and the next update (0: it comes at once); tells how
//                                          long training stood still, and the work that was done
//   bench_checkpoint load CHECKPOINT       into an engine of as many ranks as there are
// Prints a line of JSON. No training: bench_checkpoint.py and bench_checkpoint_dcp.py measure with
// it.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

#include "checkpoint/checkpoint_writer.hpp"
#include "checkpoint/load_weights.hpp"
#include "comm/world.hpp"
#include "core/system.hpp"
#include "io/checkpoint.hpp"
#include "io/retention.hpp"

namespace zea {
namespace {

constexpr int64_t kHidden = 1024, kIntermediate = 2816, kHeads = 16;
constexpr int64_t kLayerParameters = 4 * kHidden * kHidden + 3 * kHidden * kIntermediate;
constexpr int64_t kBytesPerParameter = 12;  // value and two moments

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
    for (const auto& buffer : engine.buffers())
      for (const at::Tensor& values : {buffer->master(), engine.state(*buffer, "exp_avg"),
                                       engine.state(*buffer, "exp_avg_sq")})
        values.uniform_(0, 1);
  }
};

/// Work for a core that lasts so long.
class Work {
 public:
  explicit Work(double seconds) : seconds_(seconds) {}
  /// How much was done.
  int64_t run() {
    const Stopwatch clock;
    int64_t products = 0;
    for (; clock.seconds() < seconds_; ++products) at::mm_out(result_, values_, values_);
    return products;
  }

 private:
  double seconds_;
  at::Tensor values_ = at::rand({256, 256}), result_ = at::empty_like(values_);
};

struct Saving {
  bool is_async = false;
  double work_seconds = 0;  ///< from the save to the next update
};

/// As training saves: work, an update, and more work until all ranks' files are there.
SaveReport save_once(Running& running, CheckpointWriter& writer, const std::string& directory,
                     int64_t step, const Saving& saving, Work& work, int64_t& worked) {
  running.control->barrier();
  writer.start({.directory = directory,
                .run_id = "bench",
                .position = {.step = step, .optimizer_step = step},
                .deck = "[run]\n"});
  if (saving.is_async) {
    worked = work.run();
    writer.snapshot_before_update();
  }
  while (writer.is_writing()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  running.control->barrier();  // as training finds out that all are done
  return writer.finish();
}

void save(const World& world, const std::string& directory, int64_t mib, const Saving& saving) {
  Running running(world, config_of(mib));
  running.fill();
  Work work(saving.work_seconds);
  const int64_t alone = work.run();
  CheckpointWriter writer(running.engine, *running.control);
  constexpr int kRounds = 3;
  for (int round = 1; round <= kRounds; ++round) {
    int64_t worked = 0;
    const SaveReport report = save_once(running, writer, directory, round, saving, work, worked);
    if (world.rank() != 0) continue;
    std::printf(
        "{\"seconds\": %.4f, \"mib\": %.1f, \"write_mib_per_second\": %.1f, "
        "\"blocked_seconds\": %.4f, \"copy_seconds\": %.4f, \"copied_mib\": %.1f, "
        "\"worked\": %ld, \"worked_alone\": %ld, "
        "\"path\": \"%s\"}\n",
        report.seconds, static_cast<double>(report.bytes) / (1 << 20), report.mib_per_second,
        report.stall_seconds, report.copy_seconds,
        static_cast<double>(report.copied_bytes) / (1 << 20), static_cast<long>(worked),
        static_cast<long>(alone), report.path.c_str());
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
  const bool is_async = command == "async";
  if ((command == "save" && argc == 4) || (is_async && argc >= 4 && argc <= 5))
    save(world, argv[2], std::atoll(argv[3]),
         {.is_async = is_async, .work_seconds = argc > 4 ? std::atof(argv[4]) : 0});
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
