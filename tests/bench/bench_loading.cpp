// SPDX-License-Identifier: Apache-2.0
// Times what a run does to load a mixture of 128 experts x 48 layers of tiny widths, from two
// Hugging Face directories of the same bytes: a tensor for each matrix of each expert (18,432), and
// two tensors for all experts of a layer. `open` reads headers and matches names, `plan` makes the
// plan and the engine, `load` reads the values; `one tensor` opens and reads a file with a single
// tensor of as many bytes. Prints medians of alternating rounds, and the median ratio of the first
// directory to each of the others. Files come from the page cache.
//   mpirun -n 1 bench_loading FOLDER [rounds [hidden inner]]
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "checkpoint/load_weights.hpp"
#include "comm/world.hpp"
#include "core/error.hpp"
#include "core/system.hpp"
#include "io/model_source.hpp"
#include "io/open_source.hpp"
#include "io/safetensors.hpp"
#include "kernels/flat_kernels.hpp"
#include "support/tensors_of.hpp"

namespace zea {
namespace {

using testing::tensors_of;

constexpr int kLayers = 48, kExperts = 128;
constexpr uint16_t kValueBits = 0x3c00;  // bf16
constexpr double kValue = 1.0 / 128;

std::string config_of(int64_t hidden, int64_t inner, const std::string& more) {
  const auto number = [](int64_t value) { return std::to_string(value); };
  return R"({"model_type": "qwen3_5_moe_text", "num_hidden_layers": )" + number(kLayers) +
         R"(, "num_experts": )" + number(kExperts) + R"(, "hidden_size": )" + number(hidden) +
         R"(, "moe_intermediate_size": )" + number(inner) +
         R"(, "shared_expert_intermediate_size": )" + number(inner) +
         R"(, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,)"
         R"( "vocab_size": 64, "full_attention_interval": 1)" +
         more + "}";
}

/// Writes the tensors of a model's parameters, all of one value, as a Hugging Face directory.
void write_model(const std::string& directory, const std::string& config,
                 const std::vector<TensorInfo>& tensors) {
  std::filesystem::create_directories(directory);
  std::ofstream(directory + "/config.json") << config;
  constexpr int64_t kShardBytes = int64_t{1} << 30;  // one file
  SafetensorsShards shards(directory, tensors, kShardBytes);
  for (const TensorInfo& tensor : tensors) {
    const int64_t elements = num_elements(tensor.shape);
    const std::vector<uint16_t> values(static_cast<size_t>(elements), kValueBits);
    shards.write(tensor.name, 0, elements, values.data());
  }
  shards.finish();
}

struct Seconds {
  double open = 0, plan = 0, load = 0;
  double without_plan() const { return open + load; }
};

/// Throws unless all parameters have the value that write_model() writes.
void check(Engine& engine) {
  double sum = 0, elements = 0;
  for (const auto& buffer : engine.buffers())
    sum += buffer->master().sum(at::kDouble).item<double>();
  for (const ParamSpec& param : engine.plan().model.params)
    elements += static_cast<double>(num_elements(param.shape));
  if (sum != elements * kValue) throw InternalError("bench_loading: values were not loaded");
}

Seconds load(const World& world, const std::string& directory) {
  Seconds seconds;
  Stopwatch clock;
  const ModelSource source(open_weights(directory), "");
  seconds.open = clock.seconds();
  clock = Stopwatch();
  const Plan plan = make_plan(Options(), source.config_json(), world.size());
  Mesh mesh(world.communicator(), plan.mesh, make_mpi_collectives);
  Engine engine(plan, mesh, at::kCPU);
  seconds.plan = clock.seconds();
  clock = Stopwatch();
  load_weights(engine, source, at::get_num_threads());
  seconds.load = clock.seconds();
  check(engine);
  return seconds;
}

double load_one_tensor(const std::string& path) {
  const Stopwatch clock;
  const auto source = open_weights(path);
  const TensorInfo& tensor = source->tensors().front();
  const at::Tensor values = at::empty(tensor.shape, at::kFloat);
  source->read(tensor.name, tensor.shape, whole(tensor.shape), DType::Float32, values.data_ptr());
  return clock.seconds();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void run(const World& world, const std::string& folder, int rounds, int64_t hidden, int64_t inner) {
  const std::string split = folder + "/split", stacked = folder + "/stacked",
                    one = folder + "/one.safetensors";
  const std::string config = config_of(hidden, inner, "");
  const ModelSpec by_expert = make_model_spec(config_of(
      hidden, inner, std::string(", \"") + kWeightsFiles + "\": {\"splits_experts\": true}"));
  const std::vector<TensorInfo> tensors = tensors_of(by_expert, DType::BFloat16);
  write_model(split, config, tensors);
  write_model(stacked, config, tensors_of(make_model_spec(config), DType::BFloat16));
  int64_t elements = 0;
  for (const TensorInfo& tensor : tensors) elements += num_elements(tensor.shape);
  SafetensorsWriter writer(one, {{"one", {elements}, DType::BFloat16}});
  const std::vector<uint16_t> values(static_cast<size_t>(elements), kValueBits);
  writer.write("one", 0, elements, values.data());
  writer.finish();

  std::vector<Seconds> first, second;
  std::vector<double> third;
  for (int round = 0; round <= rounds; ++round) {  // the first one fills the page cache
    first.push_back(load(world, split));
    second.push_back(load(world, stacked));
    third.push_back(load_one_tensor(one));
  }
  const auto of_rounds = [&](const auto& value) {
    std::vector<double> all;
    for (size_t round = 1; round < first.size(); ++round) all.push_back(value(round));
    return median(all);
  };
  const auto print = [&](const char* what, double Seconds::*part) {
    const auto ratio = [&](size_t i) { return first[i].*part / (second[i].*part); };
    std::printf("| %s | %.1f | %.1f | %.2f |\n", what,
                1e3 * of_rounds([&](size_t i) { return first[i].*part; }),
                1e3 * of_rounds([&](size_t i) { return second[i].*part; }), of_rounds(ratio));
  };
  std::printf("%zu and %zu tensors of %.1f MB\n", tensors.size(),
              tensors_of(make_model_spec(config)).size(), 2e-6 * static_cast<double>(elements));
  std::printf("| part | split, ms | stacked, ms | ratio |\n|---|---|---|---|\n");
  print("open", &Seconds::open);
  print("plan", &Seconds::plan);
  print("load", &Seconds::load);
  const auto whole_ratio = [&](size_t i) {
    return first[i].without_plan() / second[i].without_plan();
  };
  std::printf("| open and load | %.1f | %.1f | %.2f |\n",
              1e3 * of_rounds([&](size_t i) { return first[i].without_plan(); }),
              1e3 * of_rounds([&](size_t i) { return second[i].without_plan(); }),
              of_rounds(whole_ratio));
  std::printf("one tensor: %.1f ms, ratio %.2f\n",
              1e3 * of_rounds([&](size_t i) { return third[i]; }),
              of_rounds([&](size_t i) { return first[i].without_plan() / third[i]; }));
}

}  // namespace
}  // namespace zea

int main(int argc, char** argv) {
  try {
    const zea::World world(&argc, &argv);
    if (argc < 2) {
      std::fprintf(stderr, "usage: bench_loading FOLDER [rounds [hidden inner]]\n");
      return 2;
    }
    at::set_num_threads(1);
    const zea::KernelRuntime runtime;
    zea::run(world, argv[1], argc > 2 ? std::atoi(argv[2]) : 7, argc > 4 ? std::atoll(argv[3]) : 64,
             argc > 4 ? std::atoll(argv[4]) : 32);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_loading: %s\n", error.what());
    return 1;
  }
}
