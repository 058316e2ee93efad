// SPDX-License-Identifier: Apache-2.0
#include "zea/train/evaluate.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "zea/core/error.hpp"
#include "zea/data/text.hpp"
#include "zea/train/gather_text.hpp"

namespace zea {
namespace {

using Ids = std::vector<int64_t>;

bool is_placeholder(const Dataset& dataset, int32_t token) {
  return std::ranges::any_of(dataset.kinds(),
                             [&](const ItemKind& kind) { return kind.token == token; });
}

/// Where the answer starts: at the first target after the last item, as nothing can be generated
/// after half of the items. The sample's length where there is no such target.
size_t prompt_length(const Dataset& dataset, const Sample& sample) {
  const auto last = std::find_if(sample.tokens.rbegin(), sample.tokens.rend(),
                                 [&](int32_t token) { return is_placeholder(dataset, token); });
  const int64_t after_items = sample.tokens.rend() - last;
  return static_cast<size_t>(first_target(sample.loss_mask, std::max<int64_t>(1, after_items)));
}

/// One rank's part in evaluating a data set.
class Evaluator {
 public:
  Evaluator(Engine& engine, Collectives& control, const Dataset& dataset,
            const LoaderOptions& loading, const EvaluateOptions& options)
      : engine_(engine),
        control_(control),
        dataset_(dataset),
        loading_(loading),
        options_(options),
        grown_index_(dataset.index()) {
    for (SampleIndex& sample : grown_index_) sample.tokens += options.generate_tokens;
  }

  Evaluation run() {
    const int64_t available = static_cast<int64_t>(dataset_.index().size());
    const int64_t samples =
        options_.samples > 0 ? std::min(options_.samples, available) : available;
    const int64_t batch = engine_.plan().options.schedule.global_batch;
    for (int64_t begin = 0; begin < samples; begin += batch) {
      Ids ids(std::min(batch, samples - begin));
      std::iota(ids.begin(), ids.end(), begin);
      add_loss(ids);
      if (options_.generate_tokens > 0) generate(ids);
    }
    return collect(samples);
  }

 private:
  WalkResult walk(const RankStep& step, const std::vector<LoadedMicrobatch>& loaded,
                  HeadOutput head, double* targets) {
    std::vector<Microbatch> microbatches;
    for (const LoadedMicrobatch& part : loaded) {
      const ActionRecord::Action action(engine_.mesh().record(), "make microbatch");
      microbatches.push_back(
          make_microbatch(part, engine_.plan().model, engine_.microbatch_options()));
      const Microbatch& made = microbatches.back();
      if (targets && made.counts) *targets += static_cast<double>(made.targets);
    }
    WalkResult result = engine_.run(step.schedule.actions, microbatches, head);
    if (head == HeadOutput::LastLogits) best_ = best_tokens(result, microbatches, loaded);
    return result;
  }

  /// The likeliest token after each sample of each microbatch, on all ranks of the replica: each
  /// has the logits of the samples whose last token it holds.
  std::vector<Ids> best_tokens(const WalkResult& result,
                               const std::vector<Microbatch>& microbatches,
                               const std::vector<LoadedMicrobatch>& loaded) {
    std::vector<Ids> best;
    for (size_t m = 0; m < microbatches.size(); ++m) {
      Ids tokens(loaded[m].samples.size(), 0);
      const std::vector<int64_t>& own = microbatches[m].samples;
      if (microbatches[m].counts && !own.empty()) {
        const at::Tensor likeliest = result.outputs[m].argmax(1).cpu();
        for (size_t i = 0; i < own.size(); ++i)
          tokens[own[i]] = likeliest[static_cast<int64_t>(i)].item<int64_t>();
      }
      best.push_back(shared_in_replica(tokens));
    }
    return best;
  }

  /// Sums over the ranks that share the microbatch.
  Ids shared_in_replica(const Ids& tokens) {
    if (tokens.empty() || engine_.plan().mesh.ranks_per_replica() == 1) return tokens;
    const at::Tensor sum = at::tensor(tokens, at::kLong).to(engine_.microbatch_options().device);
    engine_.mesh()
        .replica()
        .all_reduce(sum.data_ptr(), sum.numel(), DType::Int64, ReduceOp::Sum)
        .wait();
    const at::Tensor host = sum.cpu();
    return {host.data_ptr<int64_t>(), host.data_ptr<int64_t>() + host.numel()};
  }

  RankStep own_part(const StepPlan& step) const {
    return engine_.plan().rank_step(step, engine_.world_rank(), true);
  }

  std::vector<LoadedMicrobatch> load(const RankStep& step) const {
    const ActionRecord::Action action(engine_.mesh().record(), "load");
    std::vector<LoadedMicrobatch> loaded;
    for (const MicrobatchPlan& part : step.microbatches)
      loaded.push_back(load_microbatch(dataset_, loading_, part.samples));
    return loaded;
  }

  void add_loss(const Ids& ids) {
    const RankStep step = own_part(engine_.plan().step_plan(0, ids, dataset_.index()));
    loss_sum_ += walk(step, load(step), HeadOutput::Loss, &targets_).loss_sum;
  }

  /// A plan in which each sample has room for its prompt and all that may be generated.
  StepPlan generation_plan(const Ids& ids) const {
    StepPlanOptions options = engine_.plan().step_plan_options();
    for (int64_t id : ids)
      options.row_tokens = std::max(options.row_tokens, grown_index_[id].tokens);
    return make_step_plan(0, ids, grown_index_, options);
  }

  void generate(const Ids& ids) {
    const RankStep step = own_part(generation_plan(ids));
    std::vector<LoadedMicrobatch> loaded = load(step);
    std::vector<std::vector<Prediction>> predictions(loaded.size());
    std::vector<std::vector<bool>> ended(loaded.size());
    for (size_t m = 0; m < loaded.size(); ++m)
      for (Sample& sample : loaded[m].samples) {
        references_.push_back(sample);
        const size_t prompt = prompt_length(dataset_, sample);
        ended[m].push_back(prompt == sample.tokens.size());  // masked, or only a prompt
        sample.tokens.resize(prompt);
        sample.loss_mask.resize(sample.tokens.size());
        predictions[m].push_back({sample.id, {}});
      }
    for (int64_t token = 0; token < options_.generate_tokens; ++token) {
      walk(step, loaded, HeadOutput::LastLogits, nullptr);
      double open = 0;
      for (size_t m = 0; m < loaded.size(); ++m)
        if (!loaded[m].samples.empty())
          open += append_best(best_[m], loaded[m], predictions[m], ended[m]);
      // Every rank walks as long as some rank has an open sample, since walks may communicate.
      control_.all_reduce(&open, 1, DType::Float64, ReduceOp::Sum).wait();
      if (open == 0) break;
    }
    for (auto& part : predictions)
      std::move(part.begin(), part.end(), std::back_inserter(predictions_));
  }

  /// Appends the likeliest token to each sample that has not ended; returns how many are still
  /// open.
  double append_best(const Ids& best, LoadedMicrobatch& loaded,
                     std::vector<Prediction>& predictions, std::vector<bool>& ended) const {
    const auto& ends = engine_.plan().model.decoder.end_tokens;
    double open = 0;
    for (size_t s = 0; s < predictions.size(); ++s) {
      const int32_t token = static_cast<int32_t>(best[s]);
      const bool is_end = std::find(ends.begin(), ends.end(), token) != ends.end();
      // A generated placeholder would ask for an item that is not there.
      ended[s] = ended[s] || is_end || engine_.plan().model.is_placeholder(token);
      if (ended[s]) continue;
      predictions[s].generated.push_back(token);
      loaded.samples[s].tokens.push_back(token);
      loaded.samples[s].loss_mask.push_back(0);
      ++open;
    }
    return open;
  }

  Evaluation collect(int64_t samples) {
    Evaluation evaluation;
    const std::string lines = describe_predictions();
    double sums[] = {loss_sum_, targets_, labelled_, correct_};
    control_.all_reduce(sums, std::size(sums), DType::Float64, ReduceOp::Sum).wait();
    evaluation.metrics.samples = samples;
    evaluation.metrics.targets = static_cast<int64_t>(sums[1]);
    evaluation.metrics.loss = sums[1] > 0 ? sums[0] / sums[1] : 0;
    evaluation.metrics.labelled = static_cast<int64_t>(sums[2]);
    evaluation.metrics.correct = static_cast<int64_t>(sums[3]);
    if (options_.generate_tokens > 0) evaluation.predictions_jsonl = gather_lines(lines);
    return evaluation;
  }

  /// One JSON line per prediction of this rank; counts labelled and correct ones.
  std::string describe_predictions() {
    std::string lines;
    const auto& classes = dataset_.classes();
    // Those that share a replica have the same predictions.
    const bool reports = engine_.mesh().replica().rank() == 0;
    for (size_t i = 0; reports && i < predictions_.size(); ++i) {
      const Sample& sample = references_[i];
      const size_t prompt = prompt_length(dataset_, sample);
      if (prompt == sample.tokens.size()) continue;  // masked, or only a prompt
      const std::string generated =
          text_of_tokens(dataset_.token_bytes(), predictions_[i].generated);
      std::vector<int32_t> before(sample.tokens.begin(), sample.tokens.begin() + prompt);
      std::erase_if(before, [&](int32_t token) { return is_placeholder(dataset_, token); });
      nlohmann::ordered_json line{
          {"sample", sample.id},
          {"prompt", text_of_tokens(dataset_.token_bytes(), before)},
          {"generated", generated},
          {"answer", text_of_tokens(dataset_.token_bytes(),
                                    {sample.tokens.begin() + prompt, sample.tokens.end()})}};
      if (sample.label >= 0 && !classes.empty()) {
        const auto predicted = class_named_in(generated, classes);
        const bool correct = predicted == sample.label;
        line["label"] = classes.at(sample.label);
        line["predicted"] =
            predicted ? nlohmann::ordered_json(classes[*predicted]) : nlohmann::ordered_json();
        line["correct"] = correct;
        ++labelled_;
        correct_ += correct;
      }
      lines += line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    }
    return lines;
  }

  /// All ranks' lines on the root rank, in the order of samples.
  std::string gather_lines(const std::string& lines) {
    const std::string all = gather_text(control_, lines);
    if (control_.rank() != 0) return "";
    std::vector<std::pair<int64_t, std::string>> order;
    for (size_t begin = 0; begin < all.size();) {
      const size_t end = all.find('\n', begin) + 1;
      // Every line starts with {"sample":<id>,
      order.emplace_back(std::stoll(all.substr(begin + 10)), all.substr(begin, end - begin));
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
  std::vector<SampleIndex> grown_index_;  ///< with room for what may be generated
  double loss_sum_ = 0, targets_ = 0, labelled_ = 0, correct_ = 0;
  std::vector<Ids> best_;  ///< of the last walk for generation
  std::vector<Prediction> predictions_;
  std::vector<Sample> references_;  ///< of the predictions, whole
};

}  // namespace

Evaluation evaluate(Engine& engine, Collectives& control, const Dataset& dataset,
                    const LoaderOptions& loading, const EvaluateOptions& options) {
  return Evaluator(engine, control, dataset, loading, options).run();
}

void evaluate_and_report(Engine& engine, Collectives& control, const Dataset& dataset,
                         const LoaderOptions& loading, Log& log, const MetricsFile& metrics,
                         const EvaluationOutput& output) {
  const ActionRecord::Action action(engine.mesh().record(), "evaluation");
  const EvalOptions& eval = engine.plan().options.eval;
  Evaluation evaluation =
      evaluate(engine, control, dataset, loading,
               {.samples = eval.samples, .generate_tokens = eval.generate_tokens});
  evaluation.metrics.step = output.step;
  evaluation.metrics.seconds = output.seconds;
  log.info(eval_line(evaluation.metrics));
  metrics.append(evaluation.metrics);
  if (control.rank() != 0 || evaluation.predictions_jsonl.empty()) return;
  const std::string path = output.directory + "/predictions.jsonl";
  std::ofstream out(path);
  out << evaluation.predictions_jsonl;
  out.close();
  if (!out) throw StorageError("cannot write " + path + "; is the disk full?");
}

}  // namespace zea
