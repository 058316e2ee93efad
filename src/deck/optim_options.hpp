// SPDX-License-Identifier: Apache-2.0
// Keys of [optim] and [schedule] (see options.hpp).
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "deck/key_info.hpp"
#include "deck/named_values.hpp"

namespace zea {

struct OptimOptions {
  Choice<OptimizerKind> kind = OptimizerKind::Adamw;
  double lr = 1e-3;
  double min_lr = 0;
  double warmup_steps = 0;  ///< below 1: a share
  Choice<RateDecay> decay = RateDecay::Cosine;
  int64_t decay_steps = 0;
  int64_t decay_until = 0;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double momentum = 0.9;
  Choice<MuonRate> muon_rate = MuonRate::MatchRmsAdamw;
  double weight_decay = 0;
  std::vector<std::string> lr_factors;
  std::vector<std::string> weight_decays;
  std::vector<std::string> frozen;
  double clip_norm = 1;
  Choice<NonFiniteStep> on_nonfinite = NonFiniteStep::Stop;
  double spike_deviations = 0;
  int64_t spike_window = 100;
  int64_t max_skips = 5;

  /// The step at which the schedule of rates ends, in a run of `steps`.
  int64_t schedule_end(int64_t steps) const { return decay_until > 0 ? decay_until : steps; }
  /// Steps of the warm-up; a share is rounded up, as transformers does.
  int64_t warmup_in(int64_t steps) const {
    const double whole = warmup_steps < 1 ? static_cast<double>(schedule_end(steps)) : 1;
    return static_cast<int64_t>(std::ceil(warmup_steps * whole));
  }

  template <class Visitor>
  void visit(Visitor&& key) {
    key(kind, {"kind",
               "adamw decays weights beside the update, adam and sgd (with momentum) add the decay "
               "to the gradient; muon orthogonalises the updates of matrices inside blocks and "
               "projectors, and is adamw for the rest; adamw_8bit keeps the moments of matrices in "
               "8 bits",
               {}});
    key(lr, {"lr", "peak learning rate", {}, 0, 1e3});
    key(min_lr,
        {"min_lr",
         "floor of the learning rate: cosine, linear and wsd would reach it one step after their "
         "last, as in transformers, so that no step has rate 0; inverse_sqrt: the least of any",
         {},
         0,
         1e3});
    key(warmup_steps,
        {"warmup_steps",
         "steps over which the rate rises linearly to lr, from lr / warmup_steps at step 1; a "
         "number below 1 is a share of the schedule's steps, rounded up (0.1: a tenth)",
         {},
         0,
         1e12});
    key(decay,
        {"decay",
         "shape of the fall from lr to min_lr: from the warm-up on (cosine, linear), linearly over "
         "the last decay_steps (wsd), with the root of the step (inverse_sqrt), or none (constant)",
         {}});
    key(decay_steps, {"decay_steps",
                      "decay = \"wsd\": steps of the fall, the last ones of the run",
                      {},
                      0,
                      1e12});
    key(decay_until, {"decay_until",
                      "step at which the schedule ends; later steps keep the rate of that one; 0: "
                      "schedule.steps. A resumed run with more steps keeps its old schedule so",
                      {},
                      0,
                      1e12});
    key(betas, {"betas", "adam, adamw, muon: decay of the first and second moment", {}, 0, 1});
    key(eps, {"eps", "adam, adamw, muon: added to the root of the second moment", {}, 0, 1});
    key(momentum,
        {"momentum",
         "sgd: what is kept of the sum of gradients so far; muon: of their average (0.95 is "
         "usual); 0: nothing",
         {},
         0,
         1});
    key(muon_rate,
        {"muon_rate",
         "what the rate of a matrix (a, b) is multiplied by: 0.2 sqrt(max(a, b)), for rates and "
         "decays that suit AdamW, or sqrt(max(1, a / b)), the original",
         {}});
    key(weight_decay, {"weight_decay", "decay of parameters of two or more dims", {}, 0, 10});
    key(lr_factors, {"lr_factors",
                     "learning rates of some parameters, as factors of lr: \"pattern = factor\", "
                     "or \"pattern = "
                     "factor from updates\" for what holds after so many updates; the last that "
                     "matches counts; "
                     "a pattern is a module (vision, llm) or a parameter's name with *",
                     {}});
    key(weight_decays,
        {"weight_decays",
         "weight decay of some parameters, in place of weight_decay: \"pattern = decay\", or "
         "\"pattern = decay from updates\", as in lr_factors",
         {}});
    key(frozen,
        {"frozen",
         "parameters that are not trained: \"pattern\", \"pattern = updates\" for those that the "
         "first so many updates leave as they are, or \"pattern from updates\" for those that all "
         "later ones do; patterns as in lr_factors, the last that matches counts",
         {}});
    key(clip_norm,
        {"clip_norm", "largest norm of the whole gradient; 0: no clipping", {}, 0, 1e12});
    key(on_nonfinite,
        {"on_nonfinite",
         "a step whose loss or gradient is not finite: stop, or skip its update and go on",
         {}});
    key(spike_deviations,
        {"spike_deviations",
         "skip the update of a step whose loss or gradient's norm lies more than so many standard "
         "deviations above the mean of the last accepted steps; 0: none is",
         {},
         0,
         1e6});
    key(spike_window,
        {"spike_window",
         "accepted steps that spike_deviations looks back on; none is judged before there are so "
         "many",
         {},
         2,
         1e5});
    key(max_skips,
        {"max_skips",
         "steps in a row that on_nonfinite and spike_deviations may skip; the next one stops the "
         "run (exit code 5)",
         {},
         1,
         1e9});
  }
};

struct ScheduleOptions {
  int64_t steps = 100;
  int64_t global_batch = 32;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(steps, {"steps", "optimizer steps of the whole run", {}, 0, 1e12});
    key(global_batch, {"global_batch", "samples per optimizer step, over all ranks", {}, 1, 1e9});
  }
};

}  // namespace zea
