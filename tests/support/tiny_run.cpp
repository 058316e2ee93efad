// SPDX-License-Identifier: Apache-2.0
#include "support/tiny_run.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "support/tiny_llava.hpp"
#include "zea/checkpoint/load_weights.hpp"
#include "zea/data/sampler.hpp"

namespace zea::testing {
namespace {

/// Kernels need their runtime for as long as tests run.
class KernelEnvironment : public ::testing::Environment {
 public:
  void SetUp() override { runtime_ = std::make_unique<KernelRuntime>(); }
  void TearDown() override { runtime_.reset(); }

 private:
  std::unique_ptr<KernelRuntime> runtime_;
};
[[maybe_unused]] const auto* const kKernels =
    ::testing::AddGlobalTestEnvironment(new KernelEnvironment);

/// Every parameter of the model in full, put together from the ranks' own cuts.
std::map<std::string, std::vector<double>> collect_weights(Engine& engine, Collectives& control) {
  const Plan& plan = engine.plan();
  std::map<std::string, std::vector<double>> weights;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const ShardedGroup& group = *engine.groups()[g];
    const at::Tensor master = group.master().to(at::kDouble).cpu();
    for (const FlatParam& member : plan.groups[g].params)
      weights[plan.model.params[member.param].name].resize(member.elements, 0);
    const FlatRange cut = plan.own_cut(engine.world_rank(), static_cast<int>(g));
    for (const FlatPart& part : parts_in_range(plan.groups[g], cut)) {
      const double* source = master.data_ptr<double>() + (part.flat_begin - group.range().begin);
      std::copy(source, source + part.elements,
                weights[plan.model.params[part.param].name].begin() + part.param_begin);
    }
  }
  for (auto& [name, values] : weights)
    control
        .all_reduce(values.data(), static_cast<int64_t>(values.size()), DType::Float64,
                    ReduceOp::Sum)
        .wait();
  return weights;
}

}  // namespace

TinyResult run_tiny(const Communicator& world, const MakeCollectives& make, const Dataset& dataset,
                    const TinyRunOptions& options) {
  Plan plan = make_plan(options.deck, options.config_json, world.size());
  if (options.adjust) options.adjust(plan);
  Mesh mesh(world, plan.mesh, make);
  const auto control = make_mpi_collectives(world);
  Engine engine(plan, mesh, at::kCPU);
  load_weights(engine, FilledSource(plan.model, options.config_json, options.weights_seed));
  if (options.deck.model.sync_module_states) engine.broadcast_weights();
  Optimizer optimizer(engine);
  TrainStep train_step(engine, optimizer, *control);
  Sampler sampler(static_cast<int64_t>(dataset.index().size()), options.deck.schedule.global_batch,
                  options.deck.run.seed, options.deck.data.shuffle);
  LoaderOptions loading;
  if (plan.model.vision) loading.image.size = plan.model.vision->image_size;

  TinyResult result;
  int64_t optimizer_step = 0;
  for (int64_t step = 0; step < options.steps; ++step) {
    const StepPlan step_plan = plan.step_plan(step, sampler.global_batch(step), dataset.index());
    std::vector<Microbatch> microbatches;
    for (const MicrobatchPlan& part : step_plan.replicas[plan.replica_of(world.rank())])
      microbatches.push_back(make_microbatch(load_microbatch(dataset, loading, part.samples),
                                             plan.model, engine.microbatch_options()));
    const StepReport report = train_step.run(step_plan, microbatches, 0, {}, optimizer_step);
    result.losses.push_back(report.loss);
    result.grad_norms.push_back(report.grad_norm);
  }
  result.peak_bytes = engine.ledger().peak_bytes();
  result.weights = collect_weights(engine, *control);
  return result;
}

MemoryDataset make_tiny_dataset(const ModelSpec& model, int64_t samples,
                                const std::vector<int>& images, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  std::vector<Sample> made;
  for (int64_t s = 0; s < samples; ++s) {
    Sample sample;
    const auto add = [&](int64_t id, bool loss) {
      sample.tokens.push_back(static_cast<int32_t>(id));
      sample.loss_mask.push_back(loss);
    };
    const auto text = [&](int64_t count, bool loss) {
      for (int64_t i = 0; i < count; ++i) {
        int64_t id = below(model.text.vocabulary);
        if (id == model.image_token) id = (id + 1) % model.text.vocabulary;
        add(id, loss);
      }
    };
    text(1 + below(3), false);
    for (int image = 0; model.vision && image < images[s % images.size()]; ++image) {
      for (int64_t i = 0; i < model.vision->features(); ++i) add(model.image_token, false);
      Item item;
      item.raw = true;
      item.height = item.width = model.vision->image_size;
      item.channels = 3;
      for (int64_t i = 0; i < item.height * item.width * 3; ++i)
        item.bytes.push_back(static_cast<uint8_t>(below(256)));
      sample.items.push_back(std::move(item));
    }
    text(1 + below(4), false);
    text(1 + below(6), true);
    made.push_back(std::move(sample));
  }
  return MemoryDataset(std::move(made), static_cast<int32_t>(model.image_token));
}

double max_difference(const std::map<std::string, std::vector<double>>& a,
                      const std::map<std::string, std::vector<double>>& b) {
  double largest = 0;
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second.size() != values.size())
      return std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < values.size(); ++i) {
      const double difference = std::abs(values[i] - other->second[i]);
      if (!(difference <= largest)) largest = difference;
    }
  }
  return largest;
}

}  // namespace zea::testing
