// SPDX-License-Identifier: Apache-2.0
// Every deck key, declared once: one struct per section, one line per key with its name, default,
// unit, range and help. Parsing, `--help`, the echo of the resolved deck and the copy in
// checkpoints walk these lists (see deck.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "deck/by_module.hpp"
#include "deck/key_types.hpp"
#include "deck/module_options.hpp"
#include "deck/training_options.hpp"

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
  bool collective_checksums = false;
  int64_t replay_every = 0;
  double peak_tflops = 0;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(mode, {"mode",
               "train the model; evaluate it on data.eval; or generate text after the prompts of "
               "data.eval"});
    key(directory, {"directory", "run directory; empty: runs/<deck's file name>"});
    key(device,
        {"device",
         "device of tensors and of collectives: cpu, or cuda with one rank per GPU and NCCL"});
    key(ranks_per_gpu, {"ranks_per_gpu",
                        "ranks that share a GPU, to try a layout with more ranks than GPUs; slow, "
                        "because NCCL sends between them as between nodes",
                        {1, 64}});
    key(deterministic, {"deterministic",
                        "deterministic GPU kernels, which give the same bits each time but are "
                        "slower; CPU kernels "
                        "always are"});
    key(cuda_graphs,
        {"cuda_graphs",
         "CUDA graphs: number of step shapes whose forward, backward and reductions a GPU captures "
         "in the shape's second step and then launches by one call; for shapes that recur (rows "
         "that one sample fills, or packing = false with samples of one length); each graph keeps "
         "the memory of its activations; 0: none",
         {0, 64}});
    key(threads, {"threads", "compute threads of each rank", {1, 1024}});
    key(seed,
        {"seed",
         "random seed of the run: order of samples, random initialization, dropout and sampling",
         {0, 9.0e15}});
    key(watchdog_seconds, {"watchdog_seconds",
                           "watchdog timeout in seconds: a run in which no rank begins or ends an "
                           "action for this time is aborted with a report of each rank's last "
                           "actions; the start has 30 minutes; 0: no watchdog",
                           {0, 1e6}});
    key(collective_checksums,
        {"collective_checksums",
         "check what collectives carry by checksums, to find a node or a cable that changes bits: "
         "the run ends with exit code 8 and names both ranks; on CPUs; an all-reduce takes memory "
         "for the buffers of all its ranks"});
    key(replay_every,
        {"replay_every",
         "replay every k-th step to find silent data corruption (CPUs, GPUs or memory that compute "
         "wrong bits): other data-parallel ranks recompute forward and backward, and hashes of "
         "outputs and gradients are compared; after a transient error training continues with the "
         "correct gradients, other errors end the run with exit code 8 and name the rank; a replay "
         "costs about a forward and backward, copies of outputs and gradients to the host, and "
         "memory for a second set of microbatches; 0: never",
         {0, 1e9}});
    key(peak_tflops,
        {"peak_tflops",
         "peak TFLOP/s of a rank's device in the type of the computation, for the model FLOPs "
         "utilization (MFU) in the log and metrics.jsonl; 0: from the data sheets of known GPUs",
         {0, 1e6}});
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
    key(weights,
        {"weights",
         "initial weights of a new run: weights file (.h5), safetensors file, Hugging Face "
         "directory, checkpoint or run directory; empty: random initialization of "
         "model.config"});
    key(config, {"config", "config.json of the model; empty: the one in the weights"});
    key(load_modules,
        {"load_modules",
         "modules to load from the weights: encoders by name, projector, llm; others keep their "
         "random initialization, by run.seed"});
    key(strict,
        {"strict",
         "require that the weights match the model exactly; false: parameters that are missing or "
         "have another shape keep their random initialization, and the log lists them"});
    key(sync_module_states,
        {"sync_module_states",
         "one replica of each module reads the initial weights and broadcasts them to the others; "
         "false: every rank reads its own part"});
    key(activation_checkpointing,
        {"activation_checkpointing",
         "activation checkpointing (recomputation): 0: none; 1: every unit (a block, for example; "
         "zea -n lists them) keeps only its inputs and recomputes its forward in backward; "
         "k: every k-th unit; selective: backward recomputes only outputs of norms and of MLP "
         "activations that linears read; auto: the choices that cost the least time per freed "
         "byte, until mesh.rank_memory_mib is met",
         {0, 1e6},
         {"selective"}});
  }
};

/// LoRA adapters of a module: [model.llm.lora] and the like.
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
         "LoRA target modules: linear layers that get adapters, while the module's own weights "
         "stay "
         "frozen; names as in its weights without \".weight\", or their last words, with * for any "
         "characters; empty: none"});
    key(rank, {"rank", "LoRA rank: columns of A, rows of B", {1, 65536}});
    key(alpha,
        {"alpha", "LoRA alpha: the output of an adapter is scaled by alpha / rank", {1e-6, 1e6}});
    key(rank_pattern,
        {"rank_pattern",
         "LoRA rank of some adapters: \"pattern = rank\", patterns as in targets; the "
         "last match counts"});
    key(alpha_pattern,
        {"alpha_pattern", "LoRA alpha of some adapters: \"pattern = alpha\", as rank_pattern"});
    key(dropout, {"dropout",
                  "LoRA dropout probability, of elements of an adapter's input in training; auto: "
                  "that of the directory in weights, or 0",
                  {0, 1}});
    key(rslora,
        {"rslora", "rank-stabilized LoRA (rsLoRA): scale by alpha / sqrt(rank), not alpha / rank"});
    key(weights, {"weights",
                  "initial adapters: directory in PEFT's format, which also sets the other keys of "
                  "this section (dropout if that is auto)"});
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
                  "weights of a pretrained encoder, to be combined with model.llm.weights; its "
                  "projector has a random initialization, by run.seed"});
    key(placeholder,
        {"placeholder",
         "for an encoder with weights: the placeholder token that its features replace, an id or a "
         "text (empty: <image> or <audio>); a text that the tokenizer lacks becomes a new token: "
         "an unused row of the vocabulary, or a new last row if there is none or no tokenizer"});
    key(projector,
        {"projector",
         "projector of an encoder with weights: linear; mlp (linear, GELU, linear); "
         "pixel_shuffle_mlp (2 x 2 patches concatenated, then an mlp); pool (the mean of 2 x 2 "
         "patches, then linear)",
         {},
         {"linear", "mlp", "pixel_shuffle_mlp", "pool"}});
    key(feature_layer,
        {"feature_layer",
         "for an image encoder with weights: the hidden state that its projector reads; -1: the "
         "output of the last block",
         {-1000, 1000}});
    key(feature_norm, {"feature_norm",
                       "for an image encoder with weights: apply its final norm to the features of "
                       "its last layer"});
    key(train, {"train", "train the encoder; false: it is frozen"});
    key(train_projector, {"train_projector", "train the encoder's projector; false: it is frozen"});
  }
};

/// The decoder: [model.llm].
struct LlmOptions {
  std::string weights = {};
  bool train = true;
  std::optional<double> dropout = 0;
  Choice<ImageAttention> image_attention = ImageAttention::Auto;
  std::optional<double> router_aux_loss_coef = {};
  Choice<RouterLossScope> router_aux_loss_scope = RouterLossScope::Pooled;
  double router_z_loss_coef = 0;
  double mtp_loss_coef = 0;
  LoraOptions lora = {};  ///< a section of its own

  template <class Visitor>
  void visit(Visitor&& key) {
    key(weights, {"weights",
                  "weights of a pretrained language model, to be combined with encoders that have "
                  "weights of their own; replaces model.weights"});
    key(train, {"train", "train the language model; false: it is frozen"});
    key(dropout,
        {"dropout",
         "dropout probability of residual branches and embeddings in training; auto: the config's "
         "resid_pdrop and embd_pdrop; attention probabilities are never dropped",
         {0, 1}});
    key(image_attention,
        {"image_attention",
         "attention among the features of images in the language model: causal, or "
         "bidirectional; auto: as the family was trained (bidirectional in Gemma 3, and in the "
         "layers of Gemma 4 that have a window)"});
    key(router_aux_loss_coef,
        {"router_aux_loss_coef",
         "coefficient of the auxiliary loss that balances experts (arXiv:2101.03961), over the "
         "global batch; steps run their forward twice, first to count tokens; auto: "
         "router_aux_loss_coef of a config whose output_router_logits is true, else 0",
         {0, 1e3}});
    key(router_aux_loss_scope,
        {"router_aux_loss_scope",
         "what router_aux_loss_coef balances: experts of all layers together, pooled by their "
         "index (pooled, as in transformers), or those of each layer, summed over layers (layer)"});
    key(router_z_loss_coef, {"router_z_loss_coef",
                             "coefficient of the router z-loss (arXiv:2202.08906): the mean square "
                             "of the logsumexp of a token's scores, summed over layers",
                             {0, 1e3}});
    key(mtp_loss_coef,
        {"mtp_loss_coef",
         "coefficient of the loss of multi-token prediction (arXiv:2412.19437), which trains the "
         "model's head for the token after the next (mtp.*); 0: the head is not trained",
         {0, 1e3}});
  }
};

struct CheckpointOptions {
  AutoOption every = AutoOption::of_count(0);
  double mtbf_hours = 24;
  int64_t keep = 2;
  bool at_end = true;
  bool async = true;
  double rate_limit_mib = 0;
  Choice<SaveFailure> on_failure = SaveFailure::Stop;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(every,
        {"every",
         "steps between checkpoints; 0: only on request and at the end; auto: the interval that "
         "loses least time (Young/Daly), from the measured time of a checkpoint and mtbf_hours",
         {0, 1e12}});
    key(mtbf_hours, {"mtbf_hours",
                     "mean time between failures of the whole job in hours, for every = \"auto\"",
                     {1e-3, 1e6}});
    key(keep, {"keep", "number of complete checkpoints to keep; 0: all", {0, 1e9}});
    key(at_end, {"at_end", "write a checkpoint after the last step"});
    key(async, {"async",
                "asynchronous checkpoints, written while training continues; false: training waits "
                "for them"});
    key(rate_limit_mib,
        {"rate_limit_mib", "limit of MiB/s at which a rank writes checkpoints; 0: none", {0, 1e9}});
    key(on_failure, {"on_failure",
                     "if a checkpoint or a file of an evaluation cannot be written: stop (exit "
                     "code 7), or continue and try again when the next one is due; a failure of "
                     "the last checkpoint always stops"});
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
        {"every", "steps between evaluations on data.eval; 0: never while training", {0, 1e12}});
    key(samples, {"samples", "number of samples of data.eval to use; 0: all", {0, 1e12}});
    key(generate_tokens, {"generate_tokens",
                          "number of tokens to generate after each prompt; 0: only the loss",
                          {0, 4096}});
    key(temperature, {"temperature",
                      "sampling temperature, with random numbers by run.seed; 0: greedy decoding",
                      {0, 100}});
    key(top_p, {"top_p",
                "nucleus (top-p) sampling: sample from the likeliest tokens with this total "
                "probability; 1: from all",
                {0, 1}});
    key(stop_tokens,
        {"stop_tokens",
         "ids of the tokens that end a generated text; empty: the model's eos_token_id"});
    key(stop_texts,
        {"stop_texts", "stop strings: a generated text ends where it contains one of them"});
  }
};

struct LogOptions {
  int64_t every = 1;
  bool tensorboard = true;
  int64_t trace_step = 0;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(every, {"every", "steps between lines of log.txt and metrics.jsonl", {1, 1e9}});
    key(tensorboard, {"tensorboard",
                      "also write metrics as TensorBoard event files: tensorboard/ in the run "
                      "directory, one file per start"});
    key(trace_step,
        {"trace_step",
         "step to profile: every rank writes its actions as a Chrome trace to trace/ in the run "
         "directory; 0: none",
         {0, 1e12}});
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
  std::vector<std::string> notes = {};  ///< on former keys that the deck has
  std::set<std::string> given = {};     ///< paths of the keys that the deck sets

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
