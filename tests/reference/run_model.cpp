// SPDX-License-Identifier: Apache-2.0
// Runs one step over a whole data set, on one rank or on several under mpirun, and writes what a
// reference can compare: the logits of every target row and which token of which sample each
// belongs to, the loss, and the gradient of every parameter that has one. Fails where the logits
// are others than decoding has: prompts, then a token of each sample at a time with kept keys.
// Libraries and ranks start once for all runs: each is a line of the standard input, its fields
// parted by tabs, which is answered by a line "done". The first that fails ends the program.
//   run_model          RANKS DECK OUT [section.key=value ...]
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>
#include <thread>

#include "batch/decoding.hpp"
#include "checkpoint/held_boxes.hpp"
#include "checkpoint/load_weights.hpp"
#include "comm/world.hpp"
#include "core/error.hpp"
#include "core/extent.hpp"
#include "deck/deck.hpp"
#include "h5/h5.hpp"
#include "io/weights_file.hpp"
#include "kernels/flat_kernels.hpp"
#include "parallel/engine.hpp"
#include "parallel/replicated_grad_sync.hpp"
#include "schedule/step_plan.hpp"
#include "train/router_losses.hpp"
#include "train/training_data.hpp"

namespace {

using namespace zea;

/// A token that the model predicts: its sample and position.
using Target = std::pair<int64_t, int64_t>;

struct Step {
  StepPlan plan;
  std::vector<Target> targets;  ///< of all ranks, in order
  std::vector<LoadedMicrobatch> loaded;
  std::vector<Microbatch> microbatches;
};

/// The targets among the tokens [begin, end) of the row that `samples` make.
std::vector<Target> targets_between(const std::vector<Sample>& samples, int64_t begin,
                                    int64_t end) {
  std::vector<Target> targets;
  int64_t token = 0;
  for (const Sample& sample : samples)
    for (size_t i = 0; i < sample.tokens.size(); ++i, ++token)
      if (token >= begin && token < end && i + 1 < sample.tokens.size() && sample.loss_mask[i + 1])
        targets.emplace_back(sample.id, static_cast<int64_t>(i + 1));
  return targets;
}

Step make_step(const Engine& engine, const Dataset& dataset) {
  const Plan& plan = engine.plan();
  std::vector<int64_t> ids(dataset.index().size());
  std::iota(ids.begin(), ids.end(), int64_t{0});
  Step step;
  step.plan = plan.step_plan(0, ids, dataset.index());
  step.targets = targets_between(load_microbatch(dataset, loading_of(plan), ids).samples, 0,
                                 std::numeric_limits<int64_t>::max());
  for (const MicrobatchPlan& part : step.plan.replicas.at(plan.replica_of(engine.world_rank()))) {
    step.loaded.push_back(
        load_microbatch(dataset, loading_on(plan, engine.world_rank()), part.samples));
    step.loaded.back().expert_tokens = part.expert_tokens;
    step.microbatches.push_back(
        make_microbatch(step.loaded.back(), plan.model, engine.microbatch_options()));
  }
  return step;
}

/// The targets of this rank's share of a microbatch, in the order of its target logits.
std::vector<Target> own_targets(const Engine& engine, const LoadedMicrobatch& loaded,
                                const Microbatch& microbatch) {
  const MicrobatchOptions options = engine.microbatch_options();
  const ReplicaLayout& replica = options.replica;
  const int64_t window = engine.plan().model.decoder.block.widest_attention().window;
  const TokenLayout layout(
      visible_text(microbatch.words, is_bidirectional(options.bidirectional_images, window),
                   window),
      replica.sharding("llm"), replica.grid("llm").tp);
  std::vector<Target> targets;
  for (const TokenRange& run : layout.owned()[replica.coordinate(replica.rank, "llm").cp])
    for (const Target& target : targets_between(loaded.samples, run.begin, run.end))
      targets.push_back(target);
  return targets;
}

at::Tensor summed(Collectives& all, at::Tensor values) {
  all.all_reduce(values.data_ptr(), values.numel(), DType::Float64, ReduceOp::Sum).wait();
  return values;
}

void write(H5File* out, const std::string& name, const Shape& shape, const at::Tensor& values) {
  if (out) out->write(name, shape, DType::Float64, values.data_ptr<double>());
}

/// Sample and position of the token that each row of logits predicts.
void write_rows(H5File& out, const Step& step) {
  std::vector<int64_t> samples, positions;
  for (const auto& [sample, position] : step.targets) {
    samples.push_back(sample);
    positions.push_back(position);
  }
  const Shape shape{static_cast<int64_t>(samples.size())};
  out.write("sample", shape, DType::Int64, samples.data());
  out.write("position", shape, DType::Int64, positions.data());
}

/// The logits of all ranks; those of tp ranks are equal, so the first one's count.
at::Tensor write_logits(H5File* out, Engine& engine, Collectives& all, const Step& step) {
  const auto actions =
      engine.plan().rank_step(step.plan, engine.world_rank(), true).schedule.actions;
  const EngineResult result = engine.run(actions, step.microbatches, HeadOutput::TargetLogits);
  const Shape shape{static_cast<int64_t>(step.targets.size()),
                    engine.plan().model.decoder.vocabulary};
  const at::Tensor logits = at::zeros(shape, at::kDouble);
  for (size_t m = 0; m < step.microbatches.size(); ++m) {
    if (!result.outputs[m].defined() || !step.microbatches[m].counts) continue;
    int64_t row = 0;
    for (const Target& target : own_targets(engine, step.loaded[m], step.microbatches[m])) {
      const auto place = std::find(step.targets.begin(), step.targets.end(), target);
      logits[place - step.targets.begin()] += result.outputs[m][row++].to(at::kDouble);
    }
    ZEA_ASSERT(row == result.outputs[m].size(0));
  }
  summed(all, logits);
  write(out, "logits", shape, logits);
  return logits;
}

/// Samples that grow a token at a time, as they are.
class Growing {
 public:
  Growing(Engine& engine, const Step& step)
      : engine_(engine), step_(step), keys_(step.loaded.size()) {
    for (const LoadedMicrobatch& part : step.loaded)
      for (const Sample& sample : part.samples)
        longest_ = std::max(longest_, std::ssize(sample.tokens) - prompt_length(sample, kinds_));
  }

  int64_t& longest() { return longest_; }

  /// Returns the inputs of pass `token`: all prompts, then the next token of each text that is long
  /// enough.
  std::vector<Microbatch> microbatches(int64_t token) {
    std::vector<Microbatch> made;
    for (size_t m = 0; m < keys_.size(); ++m)
      made.push_back(token == 0 ? prompts(m)
                                : make_next_microbatch(next(m, token), model(),
                                                       engine_.microbatch_options(), keys_[m]));
    return made;
  }

 private:
  const ModelSpec& model() const { return engine_.plan().model; }

  Microbatch prompts(size_t m) {
    LoadedMicrobatch cut = step_.loaded[m];
    for (Sample& sample : cut.samples) {
      sample.tokens.resize(prompt_length(sample, kinds_));
      sample.loss_mask.resize(sample.tokens.size());
    }
    return make_prompt_microbatch(cut, model(), engine_.microbatch_options(), longest_, keys_[m]);
  }

  std::vector<NextToken> next(size_t m, int64_t token) const {
    std::vector<NextToken> next;
    const std::vector<Sample>& samples = step_.loaded[m].samples;
    for (size_t s = 0; s < samples.size(); ++s) {
      const int64_t place = prompt_length(samples[s], kinds_) + token - 1;
      if (place < std::ssize(samples[s].tokens))
        next.push_back({static_cast<int64_t>(s), samples[s].tokens[place], place});
    }
    if (next.empty() && !samples.empty()) next.push_back({0, samples[0].tokens[0], 0});
    return next;
  }

  Engine& engine_;
  const Step& step_;
  const std::vector<ItemKind> kinds_ = item_kinds(model());
  std::vector<KvCacheState> keys_;
  int64_t longest_ = 0;
};

/// The rows of `expected` whose samples are gone on from their prompts must come again.
void check_decoding(Engine& engine, Collectives& all, const Step& step,
                    const at::Tensor& expected) {
  const Plan& plan = engine.plan();
  const std::vector<ItemKind> kinds = item_kinds(plan.model);
  Growing growing(engine, step);
  all.all_reduce(&growing.longest(), 1, DType::Int64, ReduceOp::Max).wait();
  const RankStep prompts = plan.rank_step(step.plan, engine.world_rank(), true),
                 next = plan.rank_step(plan_of_next_tokens(step.plan), engine.world_rank(), true);
  const at::Tensor found = at::zeros_like(expected),
                   times = at::zeros({expected.size(0)}, at::kDouble);
  for (int64_t token = 0; token < growing.longest(); ++token) {
    const std::vector<Microbatch> microbatches = growing.microbatches(token);
    const auto& actions = (token == 0 ? prompts : next).schedule.actions;
    const EngineResult result = engine.run(actions, microbatches, HeadOutput::LastLogits);
    for (size_t m = 0; m < microbatches.size(); ++m)
      for (size_t i = 0; microbatches[m].counts && i < microbatches[m].samples.size(); ++i) {
        const Sample& sample = step.loaded[m].samples[microbatches[m].samples[i]];
        const int64_t prompt = prompt_length(sample, kinds);
        const auto place = std::ranges::find(step.targets, Target{sample.id, prompt + token});
        if (place == step.targets.end() ||
            invalidates_kv_cache(plan.model, prompt, std::ssize(sample.tokens)))
          continue;
        found[place - step.targets.begin()] +=
            result.outputs[m][static_cast<int64_t>(i)].to(at::kDouble);
        times[place - step.targets.begin()] += 1;
      }
  }
  summed(all, found);
  summed(all, times);
  ZEA_ASSERT(times.max().item<double>() <= 1);
  if (plan.precision.param == DType::BFloat16) return;
  const double off = (found - expected * times.unsqueeze(1)).abs().max().item<double>();
  const double largest = expected.abs().max().item<double>();
  // Norms of what a scan has made of few tokens enlarge its rounding; in fp64 it has no excuse.
  const bool is_exact = plan.precision.param == DType::Float64;
  const double bound = is_exact ? 1e-10 : plan.model.decoder.block.carries_state() ? 2e-4 : 2e-5;
  if (!(off <= bound * std::max(1.0, largest)))
    throw InternalError("decoding with kept keys gives other logits, by up to " +
                        std::to_string(off) + " of " + std::to_string(largest));
}

/// Stages know of the buffers that they hold.
std::vector<bool> on_any_rank(Collectives& all, const std::vector<bool>& here) {
  const at::Tensor ranks = at::zeros(static_cast<int64_t>(here.size()), at::kDouble);
  for (size_t i = 0; i < here.size(); ++i) ranks[static_cast<int64_t>(i)] = here[i] ? 1.0 : 0.0;
  summed(all, ranks);
  std::vector<bool> anywhere;
  for (size_t i = 0; i < here.size(); ++i) anywhere.push_back(ranks.data_ptr<double>()[i] > 0);
  return anywhere;
}

/// The packed elements of `box` that start at element `begin` of `flat` go to their places.
void copy_box(const at::Tensor& flat, int64_t begin, const Extent& box, const at::Tensor& target) {
  const Extent all = whole({target.sizes().begin(), target.sizes().end()});
  for (const CopyRun& run : copy_runs(box, box, all))
    std::copy_n(flat.data_ptr<double>() + begin + run.source_element, run.elements,
                target.data_ptr<double>() + run.target_element);
}

/// The gradient of the mean over targets, of each parameter that this step trains.
void write_gradients(H5File* out, Engine& engine, Collectives& all,
                     const std::vector<bool>& has_gradient, double targets) {
  const Plan& plan = engine.plan();
  const std::vector<bool> is_written = on_any_rank(all, has_gradient);
  std::map<std::string, at::Tensor> whole_gradients;  // by tensor, of which buffers may have parts
  for (size_t g = 0; g < plan.buffers.size(); ++g) {
    if (!is_written[g]) continue;
    for (const FlatParam& member : plan.buffers[g].params) {
      const ParamSpec& param = plan.model.params[member.param];
      at::Tensor& whole_gradient = whole_gradients[param.name];
      if (!whole_gradient.defined()) whole_gradient = at::zeros(param.tensor_shape(), at::kDouble);
    }
    // Stages that hold the same one have its sum.
    if (plan.counts(engine.world_rank(), static_cast<int>(g))) {
      const ShardedBuffer& buffer = *engine.buffers()[g];
      const at::Tensor flat = buffer.gradient().to(at::kDouble).div(targets);
      for (const zea::detail::HeldBox& box :
           zea::detail::own_boxes(plan, static_cast<int>(g), engine.world_rank()))
        copy_box(flat, box.flat_begin - buffer.range().begin, box.extent,
                 whole_gradients.at(plan.model.params[box.param].name));
    }
  }
  for (const auto& [name, gradient] : whole_gradients)
    write(out, "gradients/" + name, {gradient.sizes().begin(), gradient.sizes().end()},
          summed(all, gradient));
}

/// Collective over `ranks`.
void run_model(const Communicator& ranks, const Options& options, const std::string& path) {
  const auto weights = open_weights_file(options.model.weights);
  const Plan plan = make_plan(options, weights->config_json(), ranks.size());
  const auto dataset =
      open_dataset(options.data.train.sets.at(0).path, kHeldBytes, {}, item_kinds(plan.model));
  Mesh mesh(ranks, plan.mesh, make_mpi_collectives);
  Engine engine(plan, mesh, at::kCPU);
  load_weights(engine, *weights);

  const Step step = make_step(engine, *dataset);
  const auto all = make_mpi_collectives(ranks);
  const RankStep part = plan.rank_step(step.plan, ranks.rank());
  const Schedule& schedule = part.schedule;
  ShardedBuffer::zero_gradients(engine.buffers());
  const RouterLossesOfUnits losses = RouterLosses(engine, *all).weights(part, step.microbatches);
  const double loss =
      engine.run(schedule.actions, step.microbatches, HeadOutput::Loss, losses).loss_sum();
  ReplicatedGradSync(plan, mesh, engine.buffers(), at::kCPU).run(schedule.has_gradient);

  std::optional<H5File> file;
  if (ranks.rank() == 0) file = H5File::create(path);
  H5File* out = file ? &*file : nullptr;
  const double targets = static_cast<double>(step.plan.targets);
  write(out, "loss", {1}, summed(*all, at::full({1}, loss / targets, at::kDouble)));
  write(out, "targets", {1}, at::full({1}, targets, at::kDouble));
  write_gradients(out, engine, *all, schedule.has_gradient, targets);
  check_decoding(engine, *all, step, write_logits(out, engine, *all, step));
  if (!out) return;
  write_rows(*out, step);
  out->close_and_sync();
}

/// The next line of rank 0's standard input, on all ranks; empty at its end. Who waits for it
/// leaves the cores to others.
std::string next_line(const Communicator& all) {
  std::array<char, 8192> text{};
  if (std::string line; all.rank() == 0 && std::getline(std::cin, line)) {
    ZEA_ASSERT(line.size() < text.size());
    std::ranges::copy(line, text.begin());
  }
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibcast(text.data(), text.size(), MPI_CHAR, 0, all.handle(), &request),
            "MPI_Ibcast");
  for (int done = 0; !done; check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test"))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return text.data();
}

void run_line(const Communicator& all, const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream stream(line);
  for (std::string field; std::getline(stream, field, '\t');) fields.push_back(field);
  ZEA_ASSERT(fields.size() >= 3);
  const bool takes_part = all.rank() < std::stoi(fields[0]);
  const Communicator ranks = all.split(takes_part ? 0 : Communicator::kNoColor, "ranks of a run");
  if (takes_part)
    run_model(ranks, read_deck(fields[1], {fields.begin() + 3, fields.end()}), fields[2]);
  if (all.rank() == 0) std::cout << "done" << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  const World world(&argc, &argv);
  const KernelRuntime kernels;
  try {
    const Communicator all = world.communicator();
    for (std::string line; !(line = next_line(all)).empty();) run_line(all, line);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    world.abort(static_cast<int>(error.code()));
  }
  return 0;
}
