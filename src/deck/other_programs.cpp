// SPDX-License-Identifier: Apache-2.0
// Options of other programs with zea's keys: the table of inputs/from_other_programs.md, with the
// words of transformers, PEFT, DeepSpeed and Megatron.
#include <algorithm>
#include <cctype>

#include "deck/key_table.hpp"

namespace zea {
namespace {

constexpr const char* kBf16 = R"(here it is precision.preset = "bf16" (fp32 is the default))";
constexpr const char* kNoFp16 =
    R"(fp16 is not built, since it needs loss scaling; use precision.preset = "bf16")";
constexpr const char* kFsdp =
    R"(here it is mesh.llm.strategy: "full_shard" (ZeRO-3), "shard_grad_op" (ZeRO-2), "no_shard" (DDP))";
constexpr const char* kTp = "here it is mesh.llm.tp, and mesh.vision.tp of an encoder";
constexpr const char* kCp = "here it is mesh.llm.cp, with mesh.llm.cp_mode";
constexpr const char* kPp = "here it is mesh.llm.pp, or a template in mesh.llm.stages";
constexpr const char* kDp = "here they are mesh.dp_shard and mesh.dp_replicate";
constexpr const char* kWrapping =
    "every block is wrapped; mesh.llm.wrap_units wraps more of them together";
constexpr const char* kMicrobatch =
    "here they are data.row_tokens and data.rows_per_microbatch: rows are packed with samples";
constexpr const char* kBatch =
    "here it is schedule.global_batch, in samples; microbatches follow from data.row_tokens";
constexpr const char* kSteps =
    "here it is schedule.steps: samples times epochs / schedule.global_batch";
constexpr const char* kRecompute =
    "here it is model.activation_checkpointing: a number of blocks, or \"selective\"";
constexpr const char* kWarmup = "here it is optim.warmup_steps";
constexpr const char* kBetas = "here it is optim.betas";
constexpr const char* kClip = "here it is optim.clip_norm";
constexpr const char* kRank = "here it is model.llm.lora.rank";
constexpr const char* kDropout =
    "here it is model.llm.dropout, a number or \"auto\": the config's rates";
constexpr const char* kNoAttentionDropout =
    "attention probabilities are never dropped: fused kernels do not hold them; leave it out";
constexpr const char* kTargets = "here it is model.llm.lora.targets";
constexpr const char* kFreeze = "here it is model.vision.train = false, or model.llm.train = false";
constexpr const char* kRowTokens = "here it is data.row_tokens, and --max-tokens of jobs/pack.py";
constexpr const char* kResume = "here it is the option -r of the command line";
constexpr const char* kAttention = "attention is always computed in tiles; leave it out";
constexpr const char* kQuantized = "quantized weights are not trained; use bf16 ones";
constexpr const char* kWorld = "here it is the number of ranks: mpirun -n, or zea -n --ranks";
constexpr const char* kWeights = "here it is model.weights, or model.llm.weights with encoders";

constexpr OtherProgramOption kTable[] = {
    // How parameters lie on ranks.
    {"use_fsdp", kFsdp},
    {"fsdp", kFsdp},
    {"fsdp_config", kFsdp},
    {"fsdp_sharding_strategy", kFsdp},
    {"sharding_strategy", kFsdp},
    {"ddp", kFsdp},
    {"distributed_data_parallel", kFsdp},
    {"deepspeed", kFsdp},
    {"zero_stage", kFsdp},
    {"zero_optimization", kFsdp},
    {"use_hybrid_sharding", R"(here it is mesh.llm.strategy = "hybrid_shard" with mesh.dp_shard)"},
    {"auto_wrap_policy", kWrapping},
    {"fsdp_auto_wrap_policy", kWrapping},
    {"fsdp_transformer_layer_cls_to_wrap", kWrapping},
    {"wrap_layer_cls", kWrapping},
    {"fully_shard", kWrapping},
    {"use_orig_params",
     "settings of single parameters need nothing of that: optim.lr_factors, optim.weight_decays"},
    {"dp_size", kDp},
    {"data_parallel_size", kDp},
    {"world_size", kWorld},
    {"nproc_per_node", kWorld},
    {"num_processes", kWorld},
    // When they travel.
    {"find_unused_parameters", "zea always allows unused parameters, at no cost; leave it out"},
    {"ddp_find_unused_parameters", "zea always allows unused parameters, at no cost; leave it out"},
    {"static_graph", "zea always plans its buckets; leave it out"},
    {"gradient_as_bucket_view", "gradients are always views of their buckets; leave it out"},
    {"bucket_cap_mb", "here it is mesh.llm.bucket_mib"},
    {"broadcast_buffers", "no model here has buffers that training changes; leave it out"},
    {"limit_all_gathers", "here it is mesh.llm.prefetch_depth"},
    {"no_sync", "here it is mesh.llm.sync_grad_accum = false"},
    {"offload_params", "here it is mesh.llm.cpu_offload"},
    {"fsdp_offload_params", "here it is mesh.llm.cpu_offload"},
    {"offload_optimizer", "here it is mesh.llm.cpu_offload"},
    {"offload", "here it is mesh.llm.cpu_offload"},
    {"master_only", "a checkpoint always has masters, moments and layout; leave it out"},
    // Element types.
    {"bf16", kBf16},
    {"bfloat16", kBf16},
    {"fp32", kBf16},
    {"float32", kBf16},
    {"dtype", kBf16},
    {"torch_dtype", kBf16},
    {"mixed_precision", kBf16},
    {"amp", kBf16},
    {"autocast", kBf16},
    {"fp16", kNoFp16},
    {"float16", kNoFp16},
    {"half", kNoFp16},
    {"loss_scale", kNoFp16},
    {"tf32", "products in fp32 are exact; use precision.preset = \"bf16\" for speed"},
    {"load_in_4bit", kQuantized},
    {"load_in_8bit", kQuantized},
    {"quantization_bit", kQuantized},
    // Layouts of modules.
    {"tp_size", kTp},
    {"tensor_parallel_size", kTp},
    {"tensor_model_parallel_size", kTp},
    {"sp_size", kCp},
    {"cp_size", kCp},
    {"sequence_parallel_size", kCp},
    {"context_parallel_size", kCp},
    {"ulysses_degree", kCp},
    {"sequence_parallelism_mode",
     R"(here it is mesh.llm.cp_mode: all_to_all is "ulysses", ring_attn "allgather_kv" or "ring")"},
    {"context_parallel_distribution_mode", "here it is mesh.llm.cp_distribution"},
    {"pp_size", kPp},
    {"pipeline_parallel_size", kPp},
    {"pipeline_model_parallel_size", kPp},
    {"pipeline_template", kPp},
    {"num_stages", kPp},
    {"num_microbatches", kMicrobatch},
    {"microbatch_size", kMicrobatch},
    {"micro_batch_size", kMicrobatch},
    {"use_spmd", "one program runs on every rank; leave it out"},
    {"mark_step", "steps run eagerly; leave it out"},
    {"shard_output_callable", "outputs stay on the rank of their samples; leave it out"},
    // Data and the schedule.
    {"per_device_train_batch_size", kMicrobatch},
    {"train_micro_batch_size_per_gpu", kMicrobatch},
    {"batch_size", kBatch},
    {"global_batch_size", kBatch},
    {"train_batch_size", kBatch},
    {"gradient_accumulation_steps", kBatch},
    {"max_steps", kSteps},
    {"num_train_epochs", kSteps},
    {"epochs", kSteps},
    {"cutoff_len", kRowTokens},
    {"max_seq_length", kRowTokens},
    {"max_seq_len", kRowTokens},
    {"model_max_length", kRowTokens},
    {"dataloader_num_workers", "here it is data.decoding_threads"},
    {"num_workers", "here it is data.decoding_threads"},
    // Optimizers.
    {"learning_rate", "here it is optim.lr"},
    {"lr_scheduler_type", "here it is optim.decay"},
    {"lr_scheduler", "here it is optim.decay"},
    {"warmup_ratio", kWarmup},
    {"warmup_epochs", kWarmup},
    {"adam_beta1", kBetas},
    {"adam_beta2", kBetas},
    {"adam_epsilon", "here it is optim.eps"},
    {"max_grad_norm", kClip},
    {"gradient_clipping", kClip},
    {"gradient_clip_val", kClip},
    {"clip_grad_norm", kClip},
    {"optimizer", "here it is optim.kind"},
    // Models, adapters and memory.
    {"model_name_or_path", kWeights},
    {"model_path", kWeights},
    {"pretrained_model_name_or_path", kWeights},
    {"vision_tower", "here it is model.vision.weights"},
    {"mm_projector_type", "here it is model.vision.projector"},
    {"mm_vision_select_layer", "here it is model.vision.feature_layer"},
    {"freeze_vision_tower", kFreeze},
    {"freeze_backbone", kFreeze},
    {"freeze", kFreeze},
    {"requires_grad", kFreeze},
    {"tune_mm_mlp_adapter", "here it is model.llm.train = false with model.vision.train = false"},
    {"gradient_checkpointing", kRecompute},
    {"enable_gradient_checkpointing", kRecompute},
    {"gc", kRecompute},
    {"recompute_granularity", kRecompute},
    {"attn_implementation", kAttention},
    {"use_flash_attention", kAttention},
    {"flash_attention", kAttention},
    {"flash_attn", kAttention},
    {"lora_r", kRank},
    {"lora_rank", kRank},
    {"lora_alpha", "here it is model.llm.lora.alpha"},
    {"lora_dropout", "here it is model.llm.lora.dropout"},
    {"resid_pdrop", kDropout},
    {"embd_pdrop", kDropout},
    {"hidden_dropout", kDropout},
    {"attn_pdrop", kNoAttentionDropout},
    {"attention_dropout", kNoAttentionDropout},
    {"use_rslora", "here it is model.llm.lora.rslora"},
    {"target_modules", kTargets},
    {"lora_target", kTargets},
    {"lora_target_modules", kTargets},
    // Files.
    {"output_dir", "here it is run.directory, or the option -d"},
    {"resume_from_checkpoint", kResume},
    {"resume", kResume},
    {"save_steps", "here it is checkpoint.every"},
    {"save_interval", "here it is checkpoint.every"},
    {"save_total_limit", "here it is checkpoint.keep"},
    {"logging_steps", "here it is log.every"},
    {"log_interval", "here it is log.every"},
    {"eval_steps", "here it is eval.every"},
    {"report_to", "here it is log.tensorboard; metrics.jsonl is always written"},
};

}  // namespace

std::span<const OtherProgramOption> other_program_options() {
  return kTable;
}

std::string other_program_advice(const std::string& path) {
  std::string name = path.substr(path.rfind('.') + 1);
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return c == '-' ? '_' : std::tolower(c); });
  const auto found = std::ranges::find(kTable, name, &OtherProgramOption::name);
  return found == std::end(kTable) ? "" : found->advice;
}

}  // namespace zea
