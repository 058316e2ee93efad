// SPDX-License-Identifier: Apache-2.0
// Runs one step over a whole data set on one rank and writes what a reference can compare: the
// logits of every target row and which token of which sample each belongs to, the loss, and the
// gradient of every parameter that has one.
//   run_model DECK OUT [section.key=value ...]
#include <cstdio>
#include <numeric>

#include "zea/checkpoint/load_weights.hpp"
#include "zea/comm/world.hpp"
#include "zea/deck/deck.hpp"
#include "zea/io/h5.hpp"
#include "zea/io/weights_file.hpp"
#include "zea/kernels/flat_kernels.hpp"
#include "zea/parallel/engine.hpp"

namespace {

using namespace zea;

struct Step {
  StepPlan plan;
  std::vector<LoadedMicrobatch> loaded;
  std::vector<Microbatch> microbatches;
};

LoaderOptions loading_of(const Plan& plan) {
  LoaderOptions loading;
  if (plan.model.vision) loading.image.size = plan.model.vision->image_size;
  loading.image.mean = plan.options.data.image_mean;
  loading.image.std = plan.options.data.image_std;
  return loading;
}

Step make_step(const Engine& engine, const Dataset& dataset) {
  const Plan& plan = engine.plan();
  std::vector<int64_t> ids(dataset.index().size());
  std::iota(ids.begin(), ids.end(), int64_t{0});
  Step step;
  step.plan = plan.step_plan(0, ids, dataset.index());
  for (const MicrobatchPlan& part : step.plan.replicas.at(0)) {
    step.loaded.push_back(load_microbatch(dataset, loading_of(plan), part.samples));
    step.microbatches.push_back(
        make_microbatch(step.loaded.back(), plan.model, engine.microbatch_options()));
  }
  return step;
}

/// Sample and position of the token that each target row predicts, in the order of the rows.
void write_rows(H5File& out, const Step& step) {
  std::vector<int64_t> samples, positions;
  for (const LoadedMicrobatch& part : step.loaded)
    for (const Sample& sample : part.samples)
      for (size_t i = 1; i < sample.tokens.size(); ++i)
        if (sample.loss_mask[i]) {
          samples.push_back(sample.id);
          positions.push_back(static_cast<int64_t>(i));
        }
  const Shape shape{static_cast<int64_t>(samples.size())};
  out.write("sample", shape, DType::Int64, samples.data());
  out.write("position", shape, DType::Int64, positions.data());
}

void write_logits(H5File& out, Engine& engine, const Step& step) {
  const auto actions = make_schedule(engine.plan().schedule_input(step.plan, 0, true));
  std::vector<at::Tensor> parts;
  for (const at::Tensor& logits :
       engine.run(actions, step.microbatches, HeadOutput::TargetLogits).outputs)
    if (logits.defined()) parts.push_back(logits.to(at::kDouble));
  const at::Tensor logits = at::cat(parts).contiguous();
  out.write("logits", {logits.size(0), logits.size(1)}, DType::Float64, logits.data_ptr<double>());
}

/// The gradient of the mean over targets, of each parameter that this step trains.
void write_gradients(H5File& out, Engine& engine, const std::vector<bool>& has_gradient,
                     double targets) {
  const Plan& plan = engine.plan();
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    if (!has_gradient[g]) continue;
    const at::Tensor flat = engine.groups()[g]->gradient().to(at::kDouble).div(targets);
    for (const FlatParam& member : plan.groups[g].params) {
      const ParamSpec& param = plan.model.params[member.param];
      out.write("gradients/" + param.name, param.shape, DType::Float64,
                flat.data_ptr<double>() + member.offset);
    }
  }
}

void write_loss(H5File& out, double loss, double targets) {
  out.write("loss", {1}, DType::Float64, &loss);
  out.write("targets", {1}, DType::Float64, &targets);
}

void run_model(const World& world, const Options& options, const std::string& path) {
  const auto weights = open_weights_file(options.model.weights);
  const auto dataset = open_dataset(options.data.train);
  const Plan plan = make_plan(options, weights->config_json(), world.size());
  const KernelRuntime kernels;
  Mesh mesh(world.communicator(), plan.mesh, make_mpi_collectives);
  Engine engine(plan, mesh, at::kCPU);
  load_weights(engine, *weights);

  const Step step = make_step(engine, *dataset);
  const ScheduleInput input = plan.schedule_input(step.plan, 0, false);
  for (auto& group : engine.groups()) group->zero_gradient();
  const double loss = engine.run(make_schedule(input), step.microbatches).loss_sum;

  H5File out = H5File::create(path);
  const double targets = static_cast<double>(step.plan.targets);
  write_loss(out, loss / targets, targets);
  write_rows(out, step);
  write_logits(out, engine, step);
  write_gradients(out, engine, groups_with_gradient(input), targets);
  out.close_and_sync();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return static_cast<int>(ExitCode::Usage);
  World world(&argc, &argv);
  try {
    run_model(world, read_deck(argv[1], {argv + 3, argv + argc}), argv[2]);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
