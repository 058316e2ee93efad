// SPDX-License-Identifier: Apache-2.0
#include "support/tiny_run.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "checkpoint/load_weights.hpp"
#include "data/sampler.hpp"
#include "kernels/flat_kernels.hpp"
#include "parallel/device_memory.hpp"
#include "support/tiny_llava.hpp"
#include "train/prefetched_steps.hpp"
#include "train/training_data.hpp"

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

}  // namespace

Plan plan_of(const TinyRunOptions& options, int ranks) {
  ModelSpec model = model_of(options.deck, options.config_json);
  if (options.remake) options.remake(model);
  Plan plan = make_plan(options.deck, model, options.config_json, ranks);
  if (options.adjust) options.adjust(plan);
  return plan;
}

TinyRun::TinyRun(const Communicator& world, const MakeCollectives& make, const Dataset& dataset,
                 const TinyRunOptions& options)
    : dataset_(dataset),
      plan_(plan_of(options, world.size())),
      mesh_(world, plan_.mesh, make),
      control_(make_mpi_collectives(world)),
      engine_(plan_, mesh_, options.device,
              replays() ? hashes_.observed(options.run_unit) : options.run_unit,
              replays() ? hashes_.gradient_reader() : ReadGradient()),
      sampler_(static_cast<int64_t>(dataset.index().size()), options.deck.schedule.global_batch,
               options.deck.run.seed, options.deck.data.shuffle) {
  const FilledSource weights(plan_.model, options.config_json, options.weights_seed);
  load_weights(engine_, weights);
  if (options.fill) options.fill(engine_);
  if (options.deck.model.sync_module_states) engine_.broadcast_weights();
  Log quiet(false, "");
  features_ = cache_features({engine_, *control_, dataset_, loading(), weights, quiet});
  optimizer_ = std::make_unique<Optimizer>(engine_);
}

LoaderOptions TinyRun::loading() const {
  return loading_on(plan_, mesh_.rank());
}

double TinyRun::evaluate() {
  return zea::evaluate(engine_, *control_, dataset_, loading(), {}).metrics.loss;
}

void TinyRun::train(int64_t steps, TinyResult& result) {
  const int64_t standing = engine_.ledger().now_bytes();
  const TensorBytes step_tensors;
  const LoaderOptions loading = with_features(this->loading(), features_, plan_, mesh_.rank());
  StepReplay replay(
      engine_, hashes_, *control_, dataset_, loading,
      [&](const ReplayFinding& finding) { result.replay_findings.push_back(finding); });
  TrainStep train_step(engine_, *optimizer_, *control_, {}, &replay);
  const int64_t end = position_.step + steps;
  const auto plan_step = [this, sampler = sampler_](int64_t step) mutable {
    return plan_.rank_step(plan_.step_plan(step, sampler.global_batch(step), dataset_.index()),
                           mesh_.rank());
  };
  const auto note = [&](const StepReport& report) {
    result.losses.push_back(report.loss);
    result.grad_norms.push_back(report.grad_norm);
    result.expert_imbalance.push_back(report.expert_imbalance);
  };
  Loader loader(dataset_, loading, plan_step, position_.step, end, 2);
  PrefetchedSteps made_steps(loader, engine_, position_.step, end);
  for (; position_.step < end; ++position_.step) {
    train_step.begin();
    PrefetchedStep made = made_steps.next();
    std::vector<Microbatch> microbatches;
    for (size_t m = 0; m < made.loaded.microbatches.size(); ++m)
      microbatches.push_back(made_steps.take(made, m));
    if (const auto report = train_step.run(made.loaded.plan, microbatches, 0, {}, position_))
      note(*report);
  }
  if (const std::optional<StepReport> report = train_step.finish(position_)) note(*report);
  result.graphs = train_step.graph_counts();
  result.peak_bytes = engine_.ledger().peak_bytes();
  result.tensor_peak_bytes = standing + step_tensors.peak();
}

/// Assembled from the boxes in the ranks' own parts; of replicated parts, the first rank's counts.
Tensors TinyRun::collect(const std::function<at::Tensor(const ShardedBuffer&)>& values,
                         const StateSpec& state) {
  Tensors tensors;
  for (const ParamSpec& param : plan_.model.params)
    tensors[param.name].resize(num_elements(param.tensor_shape()), 0);
  for (size_t g = 0; g < plan_.buffers.size(); ++g) {
    if (!plan_.counts(mesh_.rank(), static_cast<int>(g))) continue;
    const ShardedBuffer& buffer = *engine_.buffers()[g];
    const at::Tensor held = values(buffer);
    if (!held.defined()) continue;
    const at::Tensor wide = held.to(at::kDouble).cpu();
    const int piece_rank = plan_.piece_rank(mesh_.rank(), static_cast<int>(g));
    const FlatRange cut = plan_.own_range(mesh_.rank(), static_cast<int>(g));
    for (const FlatPart& part : parts_in_range(plan_.buffers[g], cut)) {
      if (!plan_.cuts[part.param].is_first_holder(piece_rank)) continue;
      const ParamSpec& param =
          plan_.model.params[plan_.cuts[part.param].param_of(part.param, piece_rank)];
      const int64_t each = state.elements_of_each(plan_.param_rules[part.param].state_block);
      if (each == 0) continue;
      const double* source =
          wide.data_ptr<double>() + state_elements(state, plan_.buffers[g], plan_.param_rules,
                                                   {buffer.range().begin, part.flat_begin});
      const Shape shape = in_blocks(param.tensor_shape(), each);
      for (const PieceBox& box :
           boxes_of_piece(param, plan_.cuts[part.param], piece_rank, part.param_begin,
                          part.param_begin + part.elements)) {
        const Extent extent = in_blocks(box.extent, each);
        for (const CopyRun& run : copy_runs(extent, extent, whole(shape)))
          std::copy_n(source + (box.begin - part.param_begin) / each + run.source_element,
                      run.elements, tensors[param.name].begin() + run.target_element);
      }
    }
  }
  std::vector<double> packed;
  for (const auto& [name, all] : tensors) packed.insert(packed.end(), all.begin(), all.end());
  control_
      ->all_reduce(packed.data(), static_cast<int64_t>(packed.size()), DType::Float64,
                   ReduceOp::Sum)
      .wait();
  auto next = packed.begin();
  for (auto& [name, all] : tensors) {
    std::copy_n(next, all.size(), all.begin());
    next += static_cast<int64_t>(all.size());
  }
  return tensors;
}

Tensors TinyRun::weights() {
  return collect([](const ShardedBuffer& buffer) { return buffer.master(); });
}

Tensors TinyRun::state(const std::string& name) {
  const auto& states = plan_.optimizer.states;
  return collect(
      [&](const ShardedBuffer& buffer) {
        return buffer.trainable() ? engine_.state(buffer, name) : at::Tensor();
      },
      *std::ranges::find(states, name, &StateSpec::name));
}

std::map<std::string, Tensors> TinyRun::states() {
  std::map<std::string, Tensors> all;
  for (const StateSpec& spec : plan_.optimizer.states) all[spec.name] = state(spec.name);
  return all;
}

TinyResult run_tiny(const Communicator& world, const MakeCollectives& make, const Dataset& dataset,
                    const TinyRunOptions& options) {
  TinyRun run(world, make, dataset, options);
  TinyResult result;
  run.train(options.steps, result);
  result.weights = run.weights();
  if (options.evaluates) result.eval_loss = run.evaluate();
  return result;
}

namespace {

/// Numbers of 0 to n - 1.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : random_(seed) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  std::vector<uint8_t> bytes(int64_t count) {
    std::vector<uint8_t> bytes;
    for (int64_t i = 0; i < count; ++i) bytes.push_back(static_cast<uint8_t>(below(256)));
    return bytes;
  }

 private:
  std::mt19937_64 random_;
};

Item make_item(const EncoderSpec& encoder, Numbers& random) {
  Item item;
  item.raw = true;
  item.modality = encoder.modality();
  if (item.modality == Modality::Image) {
    const int64_t largest = encoder.patches().image_size;
    item.height = item.width = largest;
    if (encoder.varies()) item.height = 1 + random.below(2 * largest);
    if (encoder.varies()) item.width = 1 + random.below(2 * largest);
    item.channels = 3;
    if (encoder.patches().video && random.below(2) == 0) {
      item.frames = 1 + random.below(4);
      item.rate = 1000 * random.below(4);
      item.frames_per_second = static_cast<double>(item.rate) / 1000;
    }
    const int64_t values = item.height * item.width * item.channels;
    item.bytes = random.bytes(values * std::max<int64_t>(1, item.frames));
    for (int64_t i = 1; i <= item.frames; ++i) item.frame_ends.push_back(i * values);
  } else {
    item.rate = kMelRate;
    const int64_t most = encoder.mels().columns() * kMelHop;
    item.samples = 400 + random.below(most);
    // A clip over this limit is refused; others are cut.
    if (encoder.mels().most_columns > 0) item.samples = std::min(item.samples, most);
    item.bytes = random.bytes(2 * item.samples);
  }
  return item;
}

/// The features of an item, and their placeholder.
struct Features {
  ItemShape shape;
  int64_t id;
};

/// Returns the placeholders of a video and of its audio track in the order of time.
std::vector<int64_t> interleaved(const Features& video, const Features& track) {
  std::vector<int64_t> ids;
  const int64_t together = video.shape.tile_features();
  for (int64_t seen = 0, heard = 0; seen < video.shape.features || heard < track.shape.features;) {
    const bool is_track = seen == video.shape.features ||
                          (heard < track.shape.features &&
                           video.shape.time_of(seen / together) > static_cast<float>(heard));
    ids.push_back(is_track ? track.id : video.id);
    ++(is_track ? heard : seen);
  }
  return ids;
}

}  // namespace

MemoryDataset make_tiny_dataset(const ModelSpec& model, int64_t samples,
                                const std::vector<int>& images, uint64_t seed,
                                const std::vector<int>& clips) {
  Numbers random(seed);
  std::vector<Sample> made;
  for (int64_t s = 0; s < samples; ++s) {
    Sample sample;
    const auto add = [&](int64_t id, bool loss) {
      sample.tokens.push_back(static_cast<int32_t>(id));
      sample.loss_mask.push_back(loss);
    };
    const auto text = [&](int64_t count, bool loss) {
      for (int64_t i = 0; i < count; ++i) {
        int64_t id = random.below(model.decoder.vocabulary);
        while (model.is_placeholder(id)) id = (id + 1) % model.decoder.vocabulary;
        add(id, loss);
      }
    };
    text(1 + random.below(3), false);
    std::optional<Features> video;  // whose audio track is the next item
    for (const EncoderSpec& encoder : model.encoders) {
      const auto& counts = encoder.modality() == Modality::Image ? images : clips;
      std::vector<Item> items;
      for (int item = 0; item < counts[s % counts.size()]; ++item)
        items.push_back(make_item(encoder, random));
      const bool is_alone = std::ranges::count(items, 0, &Item::frames) == 1;  // of images
      for (const Item& item : items) {
        sample.items.push_back(item);
        const ItemShape shape = shape_of(item, encoder, is_alone);
        const int64_t id = shape.frames > 0 ? encoder.video_placeholder : encoder.placeholder;
        if (shape.seconds > 0 && &item == &items.back() && clips[s % clips.size()] > 0) {
          video = {shape, id};
          continue;
        }
        if (video) {
          for (int64_t each : interleaved(*video, {shape, id})) add(each, false);
          video.reset();
          continue;
        }
        for (int64_t i = 0; i < shape.features; ++i) {
          if (shape.has_text_between && i % shape.tile_features() == 0) text(1, false);
          add(id, false);
        }
      }
    }
    text(1 + random.below(4), false);
    text(1 + random.below(6), true);
    made.push_back(std::move(sample));
  }
  return MemoryDataset(std::move(made), item_kinds(model));
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
      if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
      largest = std::max(largest, difference);
    }
  }
  return largest;
}

}  // namespace zea::testing
