// SPDX-License-Identifier: Apache-2.0
#include "train/evaluate.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>

#include "comm/agree.hpp"
#include "core/error.hpp"
#include "data/text.hpp"
#include "files/durable_file.hpp"

namespace zea {
namespace {

using Ids = std::vector<int64_t>;

/// Returns the targets after the prompt up to the next token that is none: later turns answer
/// other questions.
std::vector<int32_t> answer_of(const Sample& sample, size_t prompt) {
  const auto begin = sample.loss_mask.begin() + static_cast<std::ptrdiff_t>(prompt);
  const auto length = std::find(begin, sample.loss_mask.end(), uint8_t{0}) - begin;
  const auto first = sample.tokens.begin() + static_cast<std::ptrdiff_t>(prompt);
  return {first, first + length};
}

struct Prediction {
  Sample sample;  ///< whole
  size_t prompt;  ///< tokens of it
  bool is_asked;
  std::vector<int32_t> generated;
};

/// One rank's part in evaluating a data set.
class Evaluator {
 public:
  Evaluator(Engine& engine, Collectives& control, const Dataset& dataset,
            const LoaderOptions& loading, const EvaluateOptions& options)
      : engine_(engine),
        control_(control),
        dataset_(dataset),
        loading_(loading),
        options_(options) {
    for (SampleIndex sample : dataset.index()) {
      sample.tokens += options.generate_tokens;
      grown_index_.add(sample);
    }
    generation_ = {.tokens = options.generate_tokens,
                   .sampling = options.sampling,
                   .end_tokens = options.stop_tokens.empty()
                                     ? engine.plan().model.decoder.end_tokens
                                     : options.stop_tokens,
                   .stop_texts = options.stop_texts,
                   .token_bytes = &dataset.texts().token_bytes,
                   .uses_kv_cache = options.uses_kv_cache};
    // Special tokens are no text: one that a stop text names ends it by its id.
    const std::vector<std::string>& special = dataset.texts().special_texts;
    for (size_t id = 0; id < special.size(); ++id)
      if (!special[id].empty() && std::ranges::count(options.stop_texts, special[id]) > 0)
        generation_.end_tokens.push_back(static_cast<int64_t>(id));
  }

  Evaluation run() {
    const int64_t available = static_cast<int64_t>(dataset_.index().size());
    const int64_t samples =
        options_.samples > 0 ? std::min(options_.samples, available) : available;
    const int64_t batch = engine_.plan().options.schedule.global_batch;
    int64_t begin = 0;
    for (; begin < samples && !is_left(); begin += batch) {
      Ids ids(std::min(batch, samples - begin));
      std::iota(ids.begin(), ids.end(), begin);
      if (options_.has_loss) add_loss(ids);
      if (options_.generate_tokens > 0) generate(ids);
    }
    Evaluation evaluation = collect(std::min(begin, samples));
    evaluation.is_whole = begin >= samples;
    return evaluation;
  }

 private:
  bool is_left() {
    if (!options_.is_exit_requested) return false;
    int64_t asked = options_.is_exit_requested();
    control_.all_reduce(&asked, 1, DType::Int64, ReduceOp::Max).wait();
    return asked > 0;
  }

  RankStep own_part(const StepPlan& step) const {
    return engine_.plan().rank_step(step, engine_.world_rank(), true);
  }

  std::vector<LoadedMicrobatch> load(const RankStep& step) const {
    const ActionRecord::Action action(engine_.mesh().record(), "load");
    std::vector<LoadedMicrobatch> loaded;
    for (const MicrobatchPlan& part : step.microbatches) {
      loaded.push_back(load_microbatch(dataset_, loading_, part.samples));
      loaded.back().expert_tokens = part.expert_tokens;
    }
    return loaded;
  }

  /// Ranks of a replica load the same samples; one of them reports bad items.
  bool reports() const { return engine_.plan().rank_in_replica(engine_.world_rank()) == 0; }

  void note_bad_items(const LoadedMicrobatch& part) {
    if (!reports()) return;
    bad_lines_ += describe(part.bad);
    own_.bad_items += std::ssize(part.bad);
  }

  void add_loss(const Ids& ids) {
    const RankStep step = own_part(engine_.plan().step_plan(0, ids, dataset_.index()));
    std::vector<Microbatch> microbatches;
    for (const LoadedMicrobatch& part : load(step)) {
      note_bad_items(part);
      const ActionRecord::Action action(engine_.mesh().record(), "make microbatch");
      microbatches.push_back(
          make_microbatch(part, engine_.plan().model, engine_.microbatch_options()));
      const Microbatch& made = microbatches.back();
      if (made.counts) own_.targets += made.targets;
    }
    own_.loss += engine_.run(step.schedule.actions, microbatches, HeadOutput::Loss).loss_sum();
  }

  /// A plan in which each sample has room for its prompt and all that may be generated.
  StepPlan generation_plan(const Ids& ids) const {
    StepPlanOptions options = engine_.plan().dealing;
    for (int64_t id : ids)
      options.row_tokens = std::max(options.row_tokens, grown_index_[id].tokens);
    return make_step_plan(0, ids, grown_index_, options);
  }

  void generate(const Ids& ids) {
    const StepPlan step = generation_plan(ids);
    Prompts prompts{step, load(own_part(step)), {}};
    std::vector<Prediction> predictions;
    for (LoadedMicrobatch& part : prompts.loaded) {
      if (!options_.has_loss) note_bad_items(part);  // which were not loaded for a loss before
      std::vector<bool>& is_asked = prompts.is_asked.emplace_back();
      for (Sample& sample : part.samples) {
        const auto prompt = static_cast<size_t>(prompt_length(sample, dataset_.kinds()));
        const bool is_bad = std::ranges::count(part.bad, sample.id, &BadItem::sample) > 0;
        const bool is_only_prompt = prompt == sample.tokens.size();  // or masked
        is_asked.push_back(!is_only_prompt || (!options_.has_loss && !is_bad));
        predictions.push_back({sample, prompt, is_asked.back(), {}});
        sample.tokens.resize(prompt);
        sample.loss_mask.resize(prompt);
      }
    }
    const Generated generated = zea::generate(engine_, control_, std::move(prompts), generation_);
    auto prediction = predictions.begin();
    for (const auto& microbatch : generated.texts)
      for (const std::vector<int32_t>& text : microbatch) (prediction++)->generated = text;
    std::ranges::move(predictions, std::back_inserter(predictions_));
    own_.prompt_seconds += generated.prompt_seconds;
    own_.generate_seconds += generated.seconds;
  }

  Evaluation collect(int64_t samples) {
    Evaluation evaluation;
    const std::string lines = describe_predictions();
    EvalMetrics& all = evaluation.metrics = own_;
    all.has_loss = options_.has_loss;
    all.samples = samples;
    constexpr std::array kCounts = {&EvalMetrics::targets,  &EvalMetrics::bad_items,
                                    &EvalMetrics::prompts,  &EvalMetrics::generated,
                                    &EvalMetrics::labelled, &EvalMetrics::correct};
    std::array<double, kCounts.size() + 1> sums{all.loss};  // counts are exact below 2^53
    for (size_t i = 0; i < kCounts.size(); ++i) sums[i + 1] = static_cast<double>(all.*kCounts[i]);
    control_.all_reduce(sums.data(), sums.size(), DType::Float64, ReduceOp::Sum).wait();
    for (size_t i = 0; i < kCounts.size(); ++i) all.*kCounts[i] = static_cast<int64_t>(sums[i + 1]);
    std::array seconds = {all.prompt_seconds, all.generate_seconds};
    control_.all_reduce(seconds.data(), seconds.size(), DType::Float64, ReduceOp::Max).wait();
    all.prompt_seconds = seconds[0];
    all.generate_seconds = seconds[1];
    all.loss = all.targets > 0 ? sums[0] / static_cast<double>(all.targets) : 0;
    if (options_.generate_tokens > 0) evaluation.predictions_jsonl = gather_lines(lines);
    if (loading_.mask_bad_items) evaluation.bad_items = gather_texts(control_, bad_lines_);
    return evaluation;
  }

  /// One JSON line per prediction of this rank; counts labelled and correct ones.
  std::string describe_predictions() {
    std::string lines;
    const auto& classes = dataset_.texts().classes;
    for (const Prediction& prediction : predictions_) {
      if (!reports() || !prediction.is_asked) continue;
      const auto& [sample, prompt, is_asked, tokens] = prediction;
      ++own_.prompts;
      own_.generated += std::ssize(tokens);
      const std::string generated =
          up_to_stop(text_of_tokens(dataset_.texts().token_bytes, tokens));
      std::vector<int32_t> before(sample.tokens.begin(), sample.tokens.begin() + prompt);
      std::erase_if(before, [&](int32_t token) { return is_placeholder(dataset_.kinds(), token); });
      nlohmann::ordered_json line{
          {"sample", sample.id},
          {"prompt", text_of_tokens(dataset_.texts().token_bytes, before)},
          {"generated", generated},
          {"answer", text_of_tokens(dataset_.texts().token_bytes, answer_of(sample, prompt))}};
      if (!sample.answers.empty()) line["answers"] = sample.answers;
      if (sample.label >= 0 && !classes.empty()) {
        const auto predicted = class_named_in(generated, classes);
        const bool correct = predicted == sample.label;
        line["label"] = classes.at(sample.label);
        line["predicted"] =
            predicted ? nlohmann::ordered_json(classes[*predicted]) : nlohmann::ordered_json();
        line["correct"] = correct;
        ++own_.labelled;
        own_.correct += correct;
      }
      lines += line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    }
    return lines;
  }

  /// Cuts a text before the first stop text.
  std::string up_to_stop(std::string text) const {
    for (const std::string& stop : options_.stop_texts)
      text.resize(std::min(text.find(stop), text.size()));
    return text;
  }

  /// All ranks' lines on the root rank, in the order of samples.
  std::string gather_lines(const std::string& lines) {
    std::vector<std::pair<int64_t, std::string>> order;
    for (const std::string& of_rank : gather_texts(control_, lines))
      for (size_t begin = 0; begin < of_rank.size();) {
        const size_t end = of_rank.find('\n', begin) + 1;
        const std::string line = of_rank.substr(begin, end - begin);
        order.emplace_back(std::stoll(line.substr(std::string_view("{\"sample\":").size())), line);
        begin = end;
      }
    std::sort(order.begin(), order.end());
    std::string sorted;
    for (const auto& [id, line] : order) sorted += line;
    return sorted;
  }

  Engine& engine_;
  Collectives& control_;
  const Dataset& dataset_;
  const LoaderOptions& loading_;
  const EvaluateOptions options_;
  SampleTable grown_index_;  ///< with room for what may be generated
  GenerateOptions generation_;
  EvalMetrics own_;        ///< of this rank; its loss is the sum over targets
  std::string bad_lines_;  ///< of this rank
  std::vector<Prediction> predictions_;
};

EvaluateOptions options_of(const Options& options) {
  const EvalOptions& eval = options.eval;
  return {.samples = eval.samples,
          .generate_tokens = eval.generate_tokens,
          .has_loss = options.run.mode != RunMode::Generate,
          .sampling = {.temperature = eval.temperature,
                       .top_p = eval.top_p,
                       .seed = static_cast<uint64_t>(options.run.seed)},
          .stop_tokens = {eval.stop_tokens.begin(), eval.stop_tokens.end()},
          .stop_texts = eval.stop_texts};
}

}  // namespace

Evaluation evaluate(Engine& engine, Collectives& control, const Dataset& dataset,
                    const LoaderOptions& loading, const EvaluateOptions& options) {
  return Evaluator(engine, control, dataset, loading, options).run();
}

namespace {

/// Writes an empty file, too: predictions of an earlier run would pass for these.
void write_predictions(const Evaluation& evaluation, const std::string& directory) {
  replace_text(directory + "/predictions.jsonl", evaluation.predictions_jsonl);
}

}  // namespace

bool evaluate_and_report(Engine& engine, Collectives& control, const Dataset& dataset,
                         const LoaderOptions& loading, Log& log, const MetricsFile& metrics,
                         const EvaluationOutput& output) {
  const ActionRecord::Action action(engine.mesh().record(), "evaluation");
  EvaluateOptions options = options_of(engine.plan().options);
  options.is_exit_requested = output.is_exit_requested;
  Evaluation evaluation = evaluate(engine, control, dataset, loading, options);
  if (!evaluation.is_whole) {
    log.warn("the evaluation after step " + std::to_string(output.step) + " ends with " +
             std::to_string(evaluation.metrics.samples) + " samples" +
             (output.counts_part ? "" : " and is not counted") + ": the run is asked to leave");
    if (!output.counts_part) return false;
  }
  evaluation.metrics.step = output.step;
  evaluation.metrics.seconds = output.seconds;
  for (const std::string& lines : evaluation.bad_items) log.warn_each(lines);
  log.info(eval_line(evaluation.metrics));
  if (evaluation.metrics.prompts > 0) log.info(generation_line(evaluation.metrics));
  if (control.rank() != 0) return evaluation.is_whole;
  const auto try_to = [&](const auto& write) {
    try {
      write();
    } catch (const StorageError& error) {
      if (!output.goes_on) throw;
      log.warn(error.what());
    }
  };
  try_to([&] { metrics.append(evaluation.metrics); });
  if (options.generate_tokens > 0) try_to([&] { write_predictions(evaluation, output.directory); });
  return evaluation.is_whole;
}

}  // namespace zea
