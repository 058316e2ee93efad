// SPDX-License-Identifier: Apache-2.0
// The deck's sections [data], [optim] and [schedule]; see options.hpp for how declarations work.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "deck/key_types.hpp"

namespace zea {

struct DataOptions {
  DataSources train;
  std::string eval;
  int64_t row_tokens = 2048;
  int64_t rows_per_microbatch = 1;
  bool packing = true;
  bool balance = true;
  bool shuffle = true;
  bool allow_changed = false;
  Choice<BadItems> bad_items = BadItems::Stop;
  std::vector<double> image_mean, image_std;
  Choice<ImageBackend> image_backend = ImageBackend::Auto;
  int64_t resized_min_pixels = 0, resized_max_pixels = 0;
  int64_t video_min_pixels = 0, video_max_pixels = 0, max_frames = 0;
  int64_t min_tiles = 0, max_tiles = 0;
  int64_t max_image_pixels = 100000000;
  int64_t max_clip_seconds = 3600;
  int64_t decoding_threads = 0;
  std::string cache_features;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(train,
        {"train",
         "training data set (.h5, or a folder of such files); for a mixture a list of paths, "
         "or of {path, weight}, from which samples are drawn in proportion to the weights"});
    key(eval, {"eval", "evaluation data set (.h5); empty: none"});
    key(row_tokens, {"row_tokens",
                     "maximum sequence length: tokens of a packed row; no sample may be longer",
                     {1, 1e9}});
    key(rows_per_microbatch, {"rows_per_microbatch", "microbatch size in rows", {1, 1e6}});
    key(packing,
        {"packing", "sequence packing: several samples in a row; false: each sample is a row"});
    key(balance,
        {"balance",
         "distribute the samples of a global batch to replicas and microbatches by their cost, "
         "so that none waits; false: in order"});
    key(shuffle, {"shuffle", "shuffle the samples of each epoch; false: in the order of the file"});
    key(allow_changed,
        {"allow_changed",
         "resume on other training data than the checkpoint's, with a note; false: refuse that"});
    key(bad_items, {"bad_items",
                    "for an item that cannot be decoded: stop, or mask the labels of its sample"});
    key(image_mean,
        {"image_mean",
         "mean of each channel for normalization, of pixels in 0..1; empty: the encoder "
         "family's"});
    key(image_std,
        {"image_std",
         "standard deviation of each channel for normalization, of pixels in 0..1; empty: the "
         "encoder family's",
         {1e-6}});
    key(image_backend,
        {"image_backend",
         "resize images exactly like pil or torchvision; auto: torchvision if the model's "
         "directory names a processor of it (...Fast) and the kernel is not Lanczos, else pil; "
         "frames of videos: always torchvision"});
    key(resized_min_pixels, {"resized_min_pixels",
                             "minimum pixels of a resized image, for encoders of images of any "
                             "size; 0: the encoder family's",
                             {0, 1e10}});
    key(resized_max_pixels, {"resized_max_pixels",
                             "maximum pixels of a resized image, for encoders of images of any "
                             "size; fewer pixels make fewer tokens; 0: the encoder family's",
                             {0, 1e10}});
    key(video_min_pixels,
        {"video_min_pixels",
         "minimum pixels of a resized video frame (in Qwen3-VL, Qwen3.5 and GLM: of all "
         "frames together); 0: the encoder family's",
         {0, 1e12}});
    key(video_max_pixels,
        {"video_max_pixels",
         "maximum pixels of a resized video frame (in Qwen3-VL, Qwen3.5 and GLM: of all "
         "frames together); 0: the encoder family's",
         {0, 1e12}});
    key(max_frames, {"max_frames",
                     "maximum frames of a video: a data set with a longer one is refused; 0: those "
                     "of the video processor, or 768 (in Gemma 4 32)",
                     {0, 1e6}});
    key(min_tiles, {"min_tiles",
                    "minimum tiles that an image is split into, for encoders of tiles; 0: the "
                    "encoder family's",
                    {0, 1024}});
    key(max_tiles, {"max_tiles",
                    "maximum tiles that an image is split into, besides the whole image; 1: images "
                    "are not split; 0: the encoder family's",
                    {0, 1024}});
    key(max_image_pixels, {"max_image_pixels",
                           "an image with more pixels, also while it is resized, is a bad item",
                           {1, 1e10}});
    key(max_clip_seconds,
        {"max_clip_seconds",
         "an audio clip or a video that is longer is a bad item; audio beyond the encoder's "
         "positions is cut off",
         {1, 1e6}});
    key(decoding_threads, {"decoding_threads",
                           "data loader workers: threads of a rank that decode images and audio; "
                           "0: the node's cores per rank minus run.threads, from 1 to 4",
                           {0, 256}});
    key(cache_features,
        {"cache_features",
         "folder for cached features of frozen encoders on data.train, computed before the first "
         "step and then read instead of running the encoders; empty: none"});
  }
};

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
  double router_bias_update_rate = 0;
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
    key(kind,
        {"kind",
         "optimizer: adamw has decoupled weight decay, adam and sgd (with momentum) add the "
         "decay to the gradient; muon orthogonalizes the updates of matrices inside blocks and "
         "projectors and is adamw for the rest; adamw_8bit keeps the moments of matrices in 8 "
         "bits"});
    key(lr, {"lr", "peak learning rate", {0, 1e3}});
    key(min_lr,
        {"min_lr",
         "minimum learning rate: cosine, linear and wsd would reach it one step after their last, "
         "as in transformers, so that no step has rate 0; inverse_sqrt never falls below it",
         {0, 1e3}});
    key(warmup_steps,
        {"warmup_steps",
         "warmup steps, in which the learning rate rises linearly to lr, from lr / "
         "warmup_steps at step 1; below 1: a fraction of the schedule's steps, rounded up "
         "(0.1: a tenth)",
         {0, 1e12}});
    key(decay, {"decay",
                "learning rate schedule from lr to min_lr: after the warmup (cosine, linear), "
                "linearly over the last decay_steps (wsd), by the inverse root of the step "
                "(inverse_sqrt), or none (constant)"});
    key(decay_steps,
        {"decay_steps", "decay steps of decay = \"wsd\", the last ones of the run", {0, 1e12}});
    key(decay_until,
        {"decay_until",
         "step at which the schedule ends; later steps keep its rate; 0: schedule.steps. With "
         "it, a resumed run with more steps keeps its old schedule",
         {0, 1e12}});
    key(betas, {"betas", "adam, adamw, muon: decay rates of the first and second moment", {0, 1}});
    key(eps, {"eps", "adam, adamw, muon: epsilon, added to the root of the second moment", {0, 1}});
    key(momentum,
        {"momentum",
         "momentum: sgd: of the sum of gradients; muon: of their average (0.95 is usual); 0: "
         "none",
         {0, 1}});
    key(muon_rate,
        {"muon_rate",
         "muon: factor of the learning rate of a matrix (a, b): 0.2 sqrt(max(a, b)), for rates "
         "and decays that suit AdamW, or the original sqrt(max(1, a / b))"});
    key(weight_decay, {"weight_decay", "weight decay of parameters of two or more dims", {0, 10}});
    key(lr_factors,
        {"lr_factors",
         "learning rate factors of some parameters: \"pattern = factor\", or \"pattern = factor "
         "from updates\" for a factor that applies after this number of updates; the last match "
         "counts; a pattern is a module (vision, llm) or a parameter's name with *"});
    key(weight_decays,
        {"weight_decays",
         "weight decay of some parameters: \"pattern = decay\", or \"pattern = decay from "
         "updates\", as in lr_factors"});
    key(frozen, {"frozen",
                 "frozen parameters: \"pattern\"; \"pattern = updates\": frozen for the first "
                 "updates; \"pattern from updates\": frozen after this number of updates; patterns "
                 "as in lr_factors, the last match counts"});
    key(router_bias_update_rate,
        {"router_bias_update_rate",
         "loss-free load balancing of experts with a selection bias (arXiv:2408.15664): each "
         "update raises by this rate the bias of experts that got fewer tokens than the mean of "
         "their layer, and lowers that of others; 0: biases do not change",
         {0, 1}});
    key(clip_norm,
        {"clip_norm", "gradient clipping: largest norm of the whole gradient; 0: none", {0, 1e12}});
    key(on_nonfinite,
        {"on_nonfinite",
         "if loss or gradient is not finite (NaN, infinity): stop, or skip the update"});
    key(spike_deviations,
        {"spike_deviations",
         "loss spikes: skip the update of a step whose loss or gradient norm is more than this "
         "number of standard deviations above the mean of the last accepted steps; 0: never",
         {0, 1e6}});
    key(spike_window,
        {"spike_window",
         "window of spike_deviations in accepted steps; no step is skipped before it is full",
         {2, 1e5}});
    key(max_skips, {"max_skips",
                    "maximum number of consecutive steps that on_nonfinite and spike_deviations "
                    "skip; the next one stops the run (exit code 5)",
                    {1, 1e9}});
  }
};

struct ScheduleOptions {
  int64_t steps = 100;
  int64_t global_batch = 32;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(steps, {"steps", "number of optimizer steps of the whole run", {0, 1e12}});
    key(global_batch, {"global_batch",
                       "global batch size: samples per optimizer step, over all ranks",
                       {1, 1e9}});
  }
};

}  // namespace zea
