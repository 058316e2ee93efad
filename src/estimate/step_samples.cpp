// SPDX-License-Identifier: Apache-2.0
#include "estimate/step_samples.hpp"

#include <algorithm>

#include "core/text.hpp"

namespace zea {
namespace {

/// A row that begins with an item of each encoder, where there is room for text after it.
MicrobatchTokens made_up_row(const Plan& plan) {
  MicrobatchTokens tokens;
  const auto end = static_cast<size_t>(plan.options.data.row_tokens);
  for (const EncoderSpec& encoder : plan.model.encoders) {
    const auto features = static_cast<size_t>(encoder.item_shape().features);
    if (tokens.words.size() + features >= end) continue;
    const int index = plan.model.encoder_index(encoder.name);
    tokens.words.insert(tokens.words.end(), features,
                        make_mask_word(0, mask_modality(encoder.modality()), 1, index));
    tokens.items.add(index, 1);
  }
  tokens.words.resize(end, make_mask_word(0, kModalityText, 0));
  for (size_t token = 0; token < end; ++token)
    tokens.is_target.push_back(token + 1 < end &&
                               word_modality(tokens.words[token + 1]) == kModalityText);
  return tokens;
}

/// "with an image (vision, 576 tokens) and text".
std::string contents_of(const Plan& plan, const ItemList& items) {
  std::vector<std::string> with;
  for (const EncoderSpec& encoder : plan.model.encoders)
    if (items.of(plan.model.encoder_index(encoder.name)) > 0)
      with.push_back(std::string(encoder.modality() == Modality::Audio ? "a clip" : "an image") +
                     " (" + encoder.name + ", " + std::to_string(encoder.item_shape().features) +
                     " tokens)");
  if (with.empty()) return "of text alone";
  return "with " + join(with, ", ", [](const std::string& item) { return item; }) + " and text";
}

}  // namespace

std::string StepSamples::steps_text(const Plan& plan) const {
  if (!is_real) return "a step of made-up samples";
  const bool trains = plan.options.run.mode == RunMode::Train;
  const std::string one = trains ? "step " : "batch ", several = trains ? "steps " : "batches ";
  const std::string first = std::to_string(first_step + 1);
  if (steps() == 1) return one + first;
  return several + first + " to " + std::to_string(first_step + steps());
}

StepSamples synthetic_samples(const Plan& plan) {
  const MicrobatchTokens row = made_up_row(plan);
  const int64_t count = plan.options.schedule.global_batch;
  StepSamples samples;
  samples.source = "made-up samples, " + std::to_string(count) + " a step of " +
                   std::to_string(row.words.size()) + " tokens each, " +
                   contents_of(plan, row.items);
  samples.index = {{.tokens = std::ssize(row.words),
                    .items = row.items,
                    .targets = std::ranges::count(row.is_target, true)}};
  samples.batches = {std::vector<int64_t>(static_cast<size_t>(count), 0)};
  samples.tokens = [row](int64_t) { return MicrobatchTokens(row); };
  return samples;
}

MicrobatchTokens tokens_of(const StepSamples& samples, const MicrobatchPlan& microbatch) {
  MicrobatchTokens tokens;
  int64_t number = 0;
  for (const int64_t id : microbatch.samples) append_sample(tokens, samples.tokens(id), number++);
  return tokens;
}

std::vector<StepPlan> plan_steps(const Plan& plan, const StepSamples& samples) {
  std::vector<StepPlan> steps;
  for (const std::vector<int64_t>& batch : samples.batches)
    steps.push_back(plan.step_plan(samples.first_step + std::ssize(steps), batch, samples.index));
  return steps;
}

std::vector<MicrobatchRows> rows_of_step(const Plan& plan, const StepSamples& samples,
                                         const StepPlan& step, int world_rank) {
  std::vector<MicrobatchRows> rows;
  const ReplicaLayout layout = plan.replica_layout(world_rank);
  const auto& microbatches = step.replicas[static_cast<size_t>(plan.replica_of(world_rank))];
  for (size_t m = 0; m < microbatches.size(); ++m) {
    if (m > 0 && microbatches[m].samples == microbatches[m - 1].samples)
      rows.push_back(MicrobatchRows(rows.back()));  // of made-up samples, as most are
    else
      rows.push_back(rows_of_microbatch(tokens_of(samples, microbatches[m]), plan.model, layout,
                                        plan.bidirectional_images));
    rows.back().text.experts.replicas = microbatches[m].expert_tokens;
  }
  return rows;
}

}  // namespace zea
