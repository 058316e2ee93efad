// SPDX-License-Identifier: Apache-2.0
// Every deck key, declared once: one struct per section, one line per key with its name, default,
// unit, range and help. Parsing, `--help`, the echo of the resolved deck and the copy in
// checkpoints are all made from these lists (see deck.hpp), so a key cannot exist in one of them
// and not in another.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deck/auto_option.hpp"
#include "deck/by_module.hpp"
#include "deck/data_options.hpp"
#include "deck/key_info.hpp"
#include "deck/module_options.hpp"
#include "deck/named_values.hpp"
#include "deck/optim_options.hpp"

namespace zea {

struct RunOptions {
  Choice<RunMode> mode = RunMode::Train;
  std::string directory;
  Choice<DeviceKind> device = DeviceKind::Cpu;
  int64_t ranks_per_gpu = 1;
  bool deterministic = false;
  int64_t cuda_graphs = 0;
  int64_t threads = 1;
  int64_t seed = 1;
  double watchdog_seconds = 600;
  double peak_tflops = 0;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(mode,
        {"mode",
         "train; or evaluate the weights on data.eval, or generate behind its prompts, and stop",
         {}});
    key(directory, {"directory", "run directory; empty: runs/<deck's file name>", {}});
    key(device,
        {"device",
         "where tensors live and which collectives carry them: cuda is one rank per GPU, over NCCL",
         {}});
    key(ranks_per_gpu,
        {"ranks_per_gpu",
         "ranks that share a GPU, to try a layout of more ranks than there are GPUs: NCCL then "
         "sends between them as between nodes, so this is slow",
         {},
         1,
         64});
    key(deterministic,
        {"deterministic",
         "whether kernels of GPUs give the same bits each time, at some cost; those of CPUs do "
         "anyway",
         {}});
    key(cuda_graphs,
        {"cuda_graphs",
         "shapes of steps whose forward, backward and reductions a GPU keeps as graphs, launched "
         "by one call from a shape's second step on: for steps that repeat (rows that one sample "
         "fills, packing = false with samples of one length); activations take their memory again "
         "where other steps come between; 0: none",
         {},
         0,
         64});
    key(threads, {"threads", "compute threads per rank", {}, 1, 1024});
    key(seed, {"seed", "seed of the order of samples", {}, 0, 9.0e15});
    key(watchdog_seconds,
        {"watchdog_seconds",
         "seconds that a run may stand still, nothing beginning or ending on any rank, before it "
         "is ended with a report of what every rank did last; 0: any time, for the start, too, "
         "which otherwise has 30 minutes before ranks are watched",
         {},
         0,
         1e6});
    key(peak_tflops,
        {"peak_tflops",
         "TFLOP/s that a rank's device has at most in the type that modules compute in, of which "
         "the log and metrics.jsonl tell the share that a step takes (MFU); 0: by the data sheet "
         "of GPUs that are known",
         {},
         0,
         1e6});
  }
};

struct ModelOptions {
  std::string weights;
  std::string config;
  std::vector<std::string> load_modules =
      parts_beside({kShownEncoders.begin(), kShownEncoders.end()});
  bool strict = true;
  AutoOption activation_checkpointing = AutoOption::of_count(0);
  bool sync_module_states = false;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(weights, {"weights",
                  "what a new run starts from: weights file (.h5), safetensors file, Hugging Face "
                  "directory, "
                  "checkpoint or run directory; empty: initial values of model.config",
                  {}});
    key(config, {"config", "the model's config.json; empty: the one that the weights hold", {}});
    key(load_modules,
        {"load_modules",
         "modules to take from the weights: encoders by name, projector, llm; others keep initial "
         "values drawn with run.seed",
         {}});
    key(strict,
        {"strict",
         "whether the weights must be exactly the model's; false: what is missing or has another "
         "shape keeps initial values, and the log lists it",
         {}});
    key(sync_module_states,
        {"sync_module_states",
         "initial weights are read by one copy of each module and broadcast to the others; false: "
         "every rank reads its own part",
         {}});
    key(activation_checkpointing,
        {"activation_checkpointing",
         "0: none; 1: keep only the inputs of every unit (zea -n lists them: a block is one) and "
         "run "
         "it again in backward; k: of every k-th unit; auto: of those units that cost least for "
         "what they free, until mesh.rank_memory_mib is met; a unit as a whole or not at all",
         {},
         0,
         1e6});
  }
};

/// Small matrices that train beside a module's frozen linears: [model.llm.lora] and the like.
struct LoraOptions {
  std::vector<std::string> targets = {};
  int64_t rank = 8;
  double alpha = 16;
  std::vector<std::string> rank_pattern = {}, alpha_pattern = {};
  std::optional<double> dropout = {};
  bool rslora = false;
  std::string weights = {};

  bool operator==(const LoraOptions&) const = default;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(targets,
        {"targets",
         "linears of the module that get adapters, in place of training the module itself: names "
         "as in its weights without \".weight\", or their last words, with * for any characters; "
         "empty: none",
         {}});
    key(rank, {"rank", "numbers between an adapter's two matrices", {}, 1, 65536});
    key(alpha, {"alpha", "what adapters add is multiplied by alpha / rank", {}, 1e-6, 1e6});
    key(rank_pattern, {"rank_pattern",
                       "ranks of some adapters, in place of rank: \"pattern = rank\", patterns as "
                       "in targets; the "
                       "last that matches counts",
                       {}});
    key(alpha_pattern, {"alpha_pattern", "the same of alpha: \"pattern = alpha\"", {}});
    key(dropout,
        {"dropout",
         "share of the numbers that an adapter reads which training takes for 0, the others being "
         "divided by 1 - dropout; auto: as weights say, or 0",
         {},
         0,
         1});
    key(rslora, {"rslora", "multiply by alpha / sqrt(rank) in its place (rsLoRA)", {}});
    key(weights, {"weights",
                  "a directory as PEFT writes it, whose adapters of this module the run starts "
                  "from; it says the other keys of this section, too (dropout where that is "
                  "auto)",
                  {}});
  }
};

/// An encoder and its projector: [model.vision], [model.audio] and the like.
struct EncoderOptions {
  std::string weights = {};
  std::string placeholder = {};
  std::string projector = "mlp";
  int64_t feature_layer = -2;
  bool feature_norm = false;
  bool train = true;
  bool train_projector = true;
  LoraOptions lora = {};  ///< a section of its own

  bool operator==(const EncoderOptions&) const = default;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(weights, {"weights",
                  "a model whose encoder this is, beside model.llm.weights; its projector begins "
                  "with initial values drawn with run.seed",
                  {}});
    key(placeholder,
        {"placeholder",
         "of an encoder with weights: the token in whose places its features are put, an id or a "
         "text (empty: <image> or <audio>), which becomes the tokenizer's next token where that "
         "does not know it, and a new last row of the vocabulary where there is none left, or no "
         "tokenizer",
         {}});
    key(projector,
        {"projector",
         "of an encoder with weights: linear; mlp (linear, GELU, linear); pixel_shuffle_mlp (2 x 2 "
         "patches side by side, then an mlp); pool (the mean of 2 x 2 patches, then linear)",
         {"linear", "mlp", "pixel_shuffle_mlp", "pool"}});
    key(feature_layer,
        {"feature_layer",
         "of an encoder of images with weights: the hidden state that its projector reads; -1: "
         "after the last block",
         {},
         -1000,
         1000});
    key(feature_norm,
        {"feature_norm",
         "of an encoder of images with weights: whether features of its last layer go through the "
         "norm behind it",
         {}});
    key(train, {"train", "whether the encoder is trained; false freezes it", {}});
    key(train_projector, {"train_projector", "whether the encoder's projector is trained", {}});
  }
};

/// The decoder: [model.llm].
struct LlmOptions {
  std::string weights = {};
  bool train = true;
  Choice<ImageAttention> image_attention = ImageAttention::Auto;
  LoraOptions lora = {};  ///< a section of its own

  template <class Visitor>
  void visit(Visitor&& key) {
    key(weights, {"weights",
                  "in place of model.weights: a language model that encoders with weights of their "
                  "own are put together with",
                  {}});
    key(train, {"train", "whether the language model is trained; false freezes it", {}});
    key(image_attention,
        {"image_attention",
         "what the features of an image see of that image in the language model: what precedes "
         "them, or all of it; auto: as the family is trained, all of it in Gemma 3",
         {}});
  }
};

struct CheckpointOptions {
  int64_t every = 0;
  int64_t keep = 2;
  bool at_end = true;
  bool async = true;
  bool stage = false;
  double rate_limit_mib = 0;
  Choice<SaveFailure> on_failure = SaveFailure::Stop;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(every,
        {"every", "steps between checkpoints; 0: only on request and at the end", {}, 0, 1e12});
    key(keep, {"keep", "complete checkpoints to keep; 0: all", {}, 0, 1e9});
    key(at_end, {"at_end", "write a checkpoint after the last step", {}});
    key(async,
        {"async", "write checkpoints while training goes on; false: training waits for them", {}});
    key(stage, {"stage",
                "copy what is not written yet while training goes on, so that the next update need "
                "not wait for it: worth it where disks are slow and cores are idle",
                {}});
    key(rate_limit_mib, {"rate_limit_mib",
                         "MiB/s that a rank writes checkpoints with at most; 0: no limit",
                         {},
                         0,
                         1e9});
    key(on_failure, {"on_failure",
                     "when a checkpoint cannot be written: stop (exit code 7) or continue, and try "
                     "again when the next one is due, likewise with what an evaluation writes; the "
                     "checkpoint at the end must be written",
                     {}});
  }
};

struct EvalOptions {
  int64_t every = 0;
  int64_t samples = 0;
  int64_t generate_tokens = 0;
  double temperature = 0;
  double top_p = 1;
  std::vector<double> stop_tokens;
  std::vector<std::string> stop_texts;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(every,
        {"every", "steps between evaluations on data.eval; 0: never while training", {}, 0, 1e12});
    key(samples, {"samples", "samples of data.eval to use; 0: all", {}, 0, 1e12});
    key(generate_tokens,
        {"generate_tokens", "tokens to generate after each prompt; 0: only the loss", {}, 0, 4096});
    key(temperature,
        {"temperature",
         "that logits are divided by before a token is drawn, by run.seed; 0: the likeliest one",
         {},
         0,
         100});
    key(top_p,
        {"top_p",
         "only of the likeliest tokens that together have this share is one drawn; 1: of all",
         {},
         0,
         1});
    key(stop_tokens,
        {"stop_tokens", "ids of tokens that end a text; empty: the model's eos_token_id", {}});
    key(stop_texts, {"stop_texts", "texts that end a text in which one of them stands", {}});
  }
};

struct LogOptions {
  int64_t every = 1;
  bool tensorboard = true;
  int64_t trace_step = 0;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(every, {"every", "steps between lines of log.txt and metrics.jsonl", {}, 1, 1e9});
    key(tensorboard,
        {"tensorboard",
         "whether training writes its metrics to TensorBoard event files, too: tensorboard/ in the "
         "run directory, one file per start",
         {}});
    key(trace_step,
        {"trace_step",
         "the step whose actions every rank writes as a Chrome trace: trace/ in the run directory; "
         "0: none",
         {},
         0,
         1e12});
  }
};

/// All sections of a deck, resolved.
struct Options {
  RunOptions run;
  ModelOptions model;
  ByModule<EncoderOptions> encoders;
  LlmOptions llm;
  MeshOptions mesh;
  ByModule<ModuleMeshOptions> meshes{kDecoder};
  DataOptions data;
  OptimOptions optim;
  ScheduleOptions schedule;
  PrecisionOptions precision;
  ByModule<ModulePrecisionOptions> precisions{kDecoder};
  CheckpointOptions checkpoint;
  EvalOptions eval;
  LogOptions log;

  /// Calls `section(name, options)` for each section in the order of the documentation.
  template <class Visitor>
  void visit_sections(Visitor&& section) {
    const auto of_modules = [&](const std::string& prefix, auto& settings) {
      for (auto& [module, of_module] : settings) section((prefix + module).c_str(), of_module);
    };
    section("run", run);
    section("model", model);
    const auto of_model = [&](const std::string& module, auto& settings) {
      section(("model." + module).c_str(), settings);
      section(("model." + module + ".lora").c_str(), settings.lora);
    };
    for (auto& [encoder, of_encoder] : encoders) of_model(encoder, of_encoder);
    of_model(kDecoder, llm);
    section("mesh", mesh);
    of_modules("mesh.", meshes);
    section("data", data);
    section("optim", optim);
    section("schedule", schedule);
    section("precision", precision);
    of_modules("precision.", precisions);
    section("checkpoint", checkpoint);
    section("eval", eval);
    section("log", log);
  }
};

}  // namespace zea
