// SPDX-License-Identifier: Apache-2.0
#include "train/generate.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "batch/decoding.hpp"
#include "core/mixed_bits.hpp"
#include "core/system.hpp"
#include "data/text.hpp"
#include "schedule/step_plan.hpp"

namespace zea {
namespace {

using TokenIds = std::vector<int64_t>;

/// The actions of a forward that is repeated. If all buffers that it gathers fit in memory at the
/// same time, as without reshard_after_forward, they are gathered before the first forward and
/// dropped after the last.
struct RepeatedWalk {
  std::vector<Action> before, each, after;
};

bool has_memory_for_all(const SlotPlan& slots, const std::vector<Action>& unshards) {
  std::set<int> taken;
  return std::ranges::all_of(unshards, [&](const Action& action) {
    return taken.insert(slots.slot_of_buffer[action.buffer]).second;
  });
}

RepeatedWalk repeated(const std::vector<Action>& walk, const SlotPlan& slots) {
  RepeatedWalk split;
  std::set<int> buffers;
  for (const Action& action : walk) {
    if (action.kind == ActionKind::ReshardSubgroup) return {{}, walk, {}};
    const bool unshards = action.kind == ActionKind::Unshard;
    if (unshards && buffers.insert(action.buffer).second) split.before.push_back(action);
    if (!unshards && action.kind != ActionKind::Reshard) split.each.push_back(action);
  }
  for (Action action : split.before) {
    action.kind = ActionKind::Reshard;
    split.after.push_back(action);
  }
  if (has_memory_for_all(slots, split.before)) return split;
  return {{}, walk, {}};
}

class Generation {
 public:
  Generation(Engine& engine, Collectives& control, Prompts prompts, const GenerateOptions& options)
      : engine_(engine),
        control_(control),
        options_(options),
        loaded_(std::move(prompts.loaded)),
        is_open_(std::move(prompts.is_asked)),
        keys_(loaded_.size()),
        prompts_(actions_of(prompts.step)),
        next_(repeated(actions_of(plan_of_next_tokens(prompts.step)), slots())) {
    for (const LoadedMicrobatch& part : loaded_) {
      TokenIds lengths;
      for (const Sample& sample : part.samples) lengths.push_back(std::ssize(sample.tokens));
      prompt_lengths_.push_back(std::move(lengths));
    }
  }

  Generated run() {
    const Stopwatch clock;
    Generated generated;
    bool from_prompts = true;
    for (int64_t token = 0; token < options_.tokens; ++token) {
      if (from_prompts)
        prefill(options_.tokens - token);
      else
        decode_next();
      if (token == 0) generated.prompt_seconds = clock.seconds();
      // Every rank decodes as long as some rank has an open sample: a forward may communicate.
      double sums[] = {0, 0};
      for (size_t m = 0; m < loaded_.size(); ++m) {
        sums[0] += static_cast<double>(std::ranges::count(is_open_[m], true));
        sums[1] += options_.uses_kv_cache ? count_invalidated(m) : 1;
      }
      control_.all_reduce(sums, std::size(sums), DType::Float64, ReduceOp::Sum).wait();
      if (sums[0] == 0) break;
      from_prompts = sums[1] > 0;
    }
    drop_gathered();
    generated.seconds = clock.seconds();
    generated.texts = texts();
    return generated;
  }

 private:
  std::vector<Action> actions_of(const StepPlan& step) const {
    return engine_.plan().rank_step(step, engine_.world_rank(), true).schedule.actions;
  }

  const SlotPlan& slots() const {
    const Plan& plan = engine_.plan();
    return plan.slots[plan.group_of(engine_.world_rank())].gathered;
  }

  void prefill(int64_t more) {
    drop_gathered();
    walk(prompts_, prompt_microbatches(more));
  }

  void decode_next() {
    if (!std::exchange(is_gathered_, true)) engine_.run(next_.before, {}, HeadOutput::LastLogits);
    walk(next_.each, next_microbatches());
  }

  void drop_gathered() {
    if (std::exchange(is_gathered_, false)) engine_.run(next_.after, {}, HeadOutput::LastLogits);
  }

  std::vector<Microbatch> prompt_microbatches(int64_t more) {
    const ActionRecord::Action action(engine_.mesh().record(), "make microbatch");
    const ModelSpec& model = engine_.plan().model;
    MicrobatchOptions making = engine_.microbatch_options();
    std::vector<Microbatch> microbatches;
    for (size_t m = 0; m < loaded_.size(); ++m) {
      making.prompt_lengths = prompt_lengths_[m];
      microbatches.push_back(options_.uses_kv_cache
                                 ? make_prompt_microbatch(loaded_[m], model, making, more, keys_[m])
                                 : make_microbatch(loaded_[m], model, making));
    }
    return microbatches;
  }

  std::vector<Microbatch> next_microbatches() {
    const ActionRecord::Action action(engine_.mesh().record(), "make microbatch");
    std::vector<Microbatch> microbatches;
    for (size_t m = 0; m < loaded_.size(); ++m)
      microbatches.push_back(make_next_microbatch(next_tokens(m), engine_.plan().model,
                                                  engine_.microbatch_options(), keys_[m]));
    return microbatches;
  }

  /// Returns the last token of each open sample; if none is open, an unused token,
  /// since the forwards of all ranks have the same actions.
  std::vector<NextToken> next_tokens(size_t m) const {
    std::vector<NextToken> next;
    const std::vector<Sample>& samples = loaded_[m].samples;
    const bool any = std::ranges::count(is_open_[m], true) > 0;
    for (size_t s = 0; s < samples.size(); ++s)
      if (is_open_[m][s] || (!any && s == 0))
        next.push_back(
            {static_cast<int64_t>(s), samples[s].tokens.back(), std::ssize(samples[s].tokens) - 1});
    return next;
  }

  void walk(const std::vector<Action>& actions, const std::vector<Microbatch>& microbatches) {
    const EngineResult result = engine_.run(actions, microbatches, HeadOutput::LastLogits);
    TokenIds chosen;
    for (size_t m = 0; m < microbatches.size(); ++m) {
      const TokenIds own = chosen_tokens(result.outputs[m], microbatches[m], m);
      chosen.insert(chosen.end(), own.begin(), own.end());
    }
    share_in_replica(chosen);
    auto next = chosen.begin();
    for (size_t m = 0; m < loaded_.size(); ++m)
      for (size_t s = 0; s < loaded_[m].samples.size(); ++s, ++next)
        if (is_open_[m][s]) is_open_[m][s] = append(m, s, static_cast<int32_t>(*next));
  }

  /// Returns the token after each sample of a microbatch, 0 where this rank has no logits of
  /// it.
  TokenIds chosen_tokens(const at::Tensor& logits, const Microbatch& microbatch, size_t m) const {
    TokenIds tokens(loaded_[m].samples.size(), 0);
    const TokenIds& own = microbatch.samples;
    if (!microbatch.counts || own.empty()) return tokens;
    const bool draws = options_.sampling.temperature > 0;
    const at::Tensor rows = (draws ? logits : logits.argmax(1)).cpu();
    for (size_t i = 0; i < own.size(); ++i) {
      const at::Tensor row = rows.select(0, static_cast<int64_t>(i));
      const Sample& sample = loaded_[m].samples[own[i]];
      tokens[own[i]] = draws ? sampled_token(row, options_.sampling,
                                             drawn_number(options_.sampling.seed, sample.id,
                                                          std::ssize(sample.tokens)))
                             : row.item<int64_t>();
    }
    return tokens;
  }

  /// Sums tokens over the ranks that share the microbatches.
  void share_in_replica(TokenIds& tokens) {
    if (tokens.empty() || engine_.plan().mesh.ranks_per_replica() == 1) return;
    const at::Tensor sum = at::tensor(tokens, at::kLong).to(engine_.microbatch_options().device);
    engine_.mesh()
        .replica()
        .all_reduce(sum.data_ptr(), sum.numel(), DType::Int64, ReduceOp::Sum)
        .wait();
    const at::Tensor host = sum.cpu();
    tokens.assign(host.data_ptr<int64_t>(), host.data_ptr<int64_t>() + host.numel());
  }

  /// Appends `token`; returns whether the sample goes on after it.
  bool append(size_t m, size_t s, int32_t token) {
    // A generated placeholder would ask for an item that is not there.
    if (std::ranges::count(options_.end_tokens, token) > 0 ||
        engine_.plan().model.is_placeholder(token))
      return false;
    Sample& sample = loaded_[m].samples[s];
    sample.tokens.push_back(token);
    sample.loss_mask.push_back(0);
    return !has_stop_text(m, s);
  }

  bool has_stop_text(size_t m, size_t s) const {
    if (options_.stop_texts.empty()) return false;
    const std::string text = text_of_tokens(*options_.token_bytes, text_of(m, s));
    return std::ranges::any_of(options_.stop_texts, [&](const std::string& stop) {
      return text.find(stop) != std::string::npos;
    });
  }

  std::vector<int32_t> text_of(size_t m, size_t s) const {
    const std::vector<int32_t>& tokens = loaded_[m].samples[s].tokens;
    return {tokens.begin() + prompt_lengths_[m][s], tokens.end()};
  }

  std::vector<std::vector<std::vector<int32_t>>> texts() const {
    std::vector<std::vector<std::vector<int32_t>>> texts(loaded_.size());
    for (size_t m = 0; m < loaded_.size(); ++m)
      for (size_t s = 0; s < loaded_[m].samples.size(); ++s) texts[m].push_back(text_of(m, s));
    return texts;
  }

  /// Counts open samples whose cached keys have other positions now.
  double count_invalidated(size_t m) const {
    double turned = 0;
    for (size_t s = 0; s < loaded_[m].samples.size(); ++s) {
      const int64_t length = std::ssize(loaded_[m].samples[s].tokens);
      turned += is_open_[m][s] && invalidates_kv_cache(engine_.plan().model, length - 1, length);
    }
    return turned;
  }

  Engine& engine_;
  Collectives& control_;
  const GenerateOptions& options_;
  std::vector<LoadedMicrobatch> loaded_;  ///< their samples grow
  std::vector<TokenIds> prompt_lengths_;
  std::vector<std::vector<bool>> is_open_;
  std::vector<KvCacheState> keys_;
  const std::vector<Action> prompts_;
  const RepeatedWalk next_;
  bool is_gathered_ = false;  ///< for next_
};

}  // namespace

double drawn_number(uint64_t seed, int64_t sample, int64_t place) {
  const uint64_t bits =
      mixed(mixed(mixed(seed) ^ static_cast<uint64_t>(sample)) ^ static_cast<uint64_t>(place));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

int64_t sampled_token(const at::Tensor& logits, const Sampling& sampling, double drawn) {
  const at::Tensor likely = (logits.to(at::kDouble) / sampling.temperature).softmax(0);
  // Stable: of equally likely tokens the first comes first.
  const auto [sorted, tokens] = likely.sort(true, 0, true);
  const auto* shares = sorted.const_data_ptr<double>();
  int64_t count = 0;
  double sum = 0;
  while (count < sorted.numel() && (count == 0 || sum < sampling.top_p)) sum += shares[count++];
  double before = 0;
  int64_t chosen = 0;
  while (chosen + 1 < count && before + shares[chosen] <= drawn * sum) before += shares[chosen++];
  return tokens.const_data_ptr<int64_t>()[chosen];
}

Generated generate(Engine& engine, Collectives& control, Prompts prompts,
                   const GenerateOptions& options) {
  return Generation(engine, control, std::move(prompts), options).run();
}

}  // namespace zea
