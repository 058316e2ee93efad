// SPDX-License-Identifier: Apache-2.0
// A model as values: units in order with their inputs, and parameters with their names in files,
// their shapes and tp shards. It is a pure function of the config JSON, so a plan for 512 ranks
// needs neither torch nor weights. The model does not know its rank.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/extent.hpp"
#include "deck/by_module.hpp"
#include "spec/module_spec.hpp"
#include "spec/operations.hpp"

namespace zea {

/// The random initialization of a parameter.
enum class Init { Zeros, Ones, Normal, Uniform, Sinusoids, Constant, LogUniform };

/// The tensor parallelism of a parameter: it is sharded along one dim, between blocks that stay
/// whole.
struct TpSharding {
  int dim = -1;                ///< the sharded dim; -1: none, every tp rank has the whole parameter
  int64_t blocks = 0;          ///< equal blocks of a section: heads, or single rows
  bool replicates_kv = false;  ///< KV replication: ranks beyond the number of blocks hold the same
  bool pads = false;           ///< vocabulary padding: dim 0 is extended by rows that nothing reads
  /// Every tp rank has the whole parameter and uses it on its own heads: gradients are summed.
  bool of_heads = false;
  int64_t fused_sections =
      1;  ///< fused sections of the dim, each sharded alone: q, k, v of one matrix
};

/// Returns the shard of the transposed matrix.
inline TpSharding other_order(TpSharding cut) {
  if (cut.dim >= 0) cut.dim = 1 - cut.dim;
  return cut;
}

/// The part of a tensor of weights files that is a parameter: tensors may have several along a dim.
struct TensorPart {
  int dim = 0;
  int64_t begin = 0;
  int64_t length = 0;  ///< of the tensor's dim; 0: the parameter is the whole tensor
};

struct ParamSpec {
  std::string name;    ///< of its tensor in weights files; the parts of one tensor share it
  std::string module;  ///< one of ModelSpec::modules()
  Shape shape;
  Init init = Init::Normal;
  /// The deviation of Normal, the maximum of Uniform, the value of Constant; LogUniform takes
  /// logarithms of numbers between 0.01 and this.
  double std = 0.02;
  TpSharding tp_sharding = {};
  bool fused_with_next =
      false;  ///< adjacent to the next one in a flat buffer: q, k, v and gate, up
  bool trainable = true;
  bool used = true;  ///< false: no unit reads it (carried, never trained)
  /// A state of the model, not a weight: it has no gradient, every rank that reads it holds all of
  /// it, and it has the type of masters whatever the module computes in.
  bool is_state = false;
  TensorPart part = {};
  /// The matrices of all experts, as MlpSpec::stack says, or their biases (experts, out).
  bool stacks_experts = false;

  Shape tensor_shape() const;
  /// Returns whether this is the first part of its tensor, which stands for the tensor in loops.
  bool begins_tensor() const { return part.begin == 0; }
  /// AdamW decays matrices and not vectors (norms, biases).
  bool decays() const { return shape.size() >= (stacks_experts ? 3U : 2U); }
};

enum class UnitKind {
  PatchEmbed,  ///< pixels -> patches + positions, perhaps a class token and a norm
  AudioEmbed,  ///< log-mel columns -> two convolutions + positions, or a subsampling
  Keys,        ///< keys and values that several blocks share
  Block,       ///< a transformer block
  Projector,   ///< features of an encoder -> the language model's width
  TokenEmbed,
  Merge,  ///< text embeddings, with features in place of placeholders
  Head,   ///< final norm, vocabulary, loss
};

const char* unit_kind_name(UnitKind kind);

/// How a block uses an input.
enum class UnitReads {
  Rows,      ///< as its residual path, or as features that are added to it or merged
  Keys,      ///< as shared keys and values, from a unit of kind Keys
  Embedded,  ///< as the source of its per-layer input: the input of the first block
};

/// An input slot of a unit: the output of another unit.
struct UnitInput {
  int unit;       ///< index in ModelSpec::units
  bool optional;  ///< absent when that unit does not run: no item in the microbatch, or no training
  UnitReads reads = UnitReads::Rows;
};

/// LoRA adapter of one of a unit's linears (adapters.hpp): x (tokens, in) goes down to (tokens,
/// rank) and up to outputs that are added to the linear's, times `scale`.
struct Adapter {
  std::string role, down, up;  ///< of linears, without ".weight"
  int part = 0;                ///< index among the tensors that form the linear's weight
  /// Outputs of that tensor, and the linear's outputs from its first one on.
  int64_t outputs = 0, outputs_left = 0;
  double scale = 1;
  double alpha = 1;                        ///< scale is alpha / rank, or alpha / sqrt(rank)
  double dropout = 0;                      ///< probability of dropping an element of x in training
  WeightOrder order = WeightOrder::OutIn;  ///< of that weight
  int base = -1, a = -1, b = -1;           ///< indices in ModelSpec::params, the first of several
  /// The number of experts whose linears it adapts; 0: no linear of experts.
  int64_t experts = 0;
  /// A (experts, rank, in) and B (experts, out, rank) stack the experts' matrices; false: each
  /// expert has its own.
  bool stacks_experts = false;
};

struct UnitSpec {
  std::string name;    ///< in templates and logs: "vision.layers.0", "llm.head"
  std::string module;  ///< one of ModelSpec::modules()
  UnitKind kind;
  std::vector<int> params;  ///< indices in ModelSpec::params
  std::vector<UnitInput> inputs;
  int encoder = -1;  ///< index of its module in ModelSpec::encoders; -1: the decoder's
  /// The roles of its parameters in the unit's forward (unit_forward.cpp), in their order; fused
  /// parameters share one: "qkv.weight", "qkv.bias".
  std::vector<std::string> roles = {};
  int mixer = 0;        ///< of a block: index in BlockSpec::mixers
  int mlp = 0;          ///< of a block: index in BlockSpec::mlps
  bool is_mtp = false;  ///< a block for multi-token prediction, which runs in training alone
  std::vector<Adapter> adapters = {};
  UnitGraph graph = {};  ///< the operations of the forward

  /// Returns the index of a role in `roles`; -1: the unit has no such parameter.
  int index_of(const std::string& role) const;
  bool has(const std::string& role) const { return index_of(role) >= 0; }
  /// Returns the index of the first input that is read as `reads`; -1: there is none.
  int input_read_as(UnitReads reads) const;
  /// Returns whether the unit computes queries, and whether it computes keys and values.
  bool makes_queries() const { return kind == UnitKind::Block; }
  bool makes_keys() const { return input_read_as(UnitReads::Keys) < 0; }
  /// Returns whether a role belongs to a projector: the last norm or linear of an encoder is in
  /// its unit, too.
  bool is_of_projector(const std::string& role) const {
    return kind == UnitKind::Projector && !role.starts_with("encoder_");
  }
};

struct ModelSpec {
  std::string family;                 ///< the config's model_type
  std::vector<EncoderSpec> encoders;  ///< in the order of their items
  DecoderSpec decoder;
  std::vector<ParamSpec> params;
  std::vector<UnitSpec> units;  ///< in the order of a forward walk
  /// Notes for the user, such as settings of the config that training does not use.
  std::vector<std::string> notes;

  int64_t num_parameters() const;
  /// Returns the names of all modules, kDecoder last; and in words: "vision, llm".
  std::vector<std::string> modules() const;
  std::string module_names() const;
  bool has(const std::string& module) const;
  /// Returns the index in `encoders`; -1: the module is none.
  int encoder_index(const std::string& module) const;
  const BlockSpec& block(const std::string& module) const;
  /// Returns the kind of token mixer of a block.
  const MixerSpec& mixer(const UnitSpec& unit) const {
    return block(unit.module).mixers.at(unit.mixer);
  }
  /// Returns the attention of a block that has it.
  const AttentionSpec& attention(const UnitSpec& unit) const {
    return std::get<AttentionSpec>(mixer(unit));
  }
  /// Returns whether decoding keeps the latents of a block's tokens in place of keys and values:
  /// with adapters of what makes these of latents it does not.
  bool caches_latents(const UnitSpec& unit) const;
  /// Returns the unit that makes a block's keys and values; its name is their entry in the KV
  /// cache.
  const UnitSpec& keys_of(const UnitSpec& block) const {
    const int input = block.input_read_as(UnitReads::Keys);
    return input < 0 ? block : units[block.inputs[input].unit];
  }
  /// Returns the elements of a row of a unit's output on one of `tp` ranks. tp shards
  /// the columns, not the rows, of a unit of kind Keys.
  int64_t output_width(const UnitSpec& unit, int64_t tp) const;
  /// Returns the gated delta rule of a unit; null: it has none.
  const DeltaRuleSpec* delta_rule(const UnitSpec& unit) const {
    return unit.kind == UnitKind::Block ? std::get_if<DeltaRuleSpec>(&mixer(unit)) : nullptr;
  }
  /// Returns the window of a block's attention; 0: it has none, or the unit has no attention.
  int64_t window(const UnitSpec& unit) const;
  /// Returns the kind of MLP of a block.
  const MlpSpec& mlp(const UnitSpec& unit) const { return block(unit.module).mlps.at(unit.mlp); }
  int64_t hidden(const std::string& module) const { return block(module).hidden; }
  /// Returns the parameters of each linear of the unit's experts, of its bias and of its adapters'
  /// matrices: one per expert, or one that stacks them. Empty if the unit has no experts.
  std::vector<std::vector<int>> expert_params(const UnitSpec& unit) const;
  /// Returns those of all units.
  std::set<int> expert_params() const;
  /// Returns whether blocks of the language model have mixtures of experts.
  bool has_experts() const;
  /// Returns the parameters that a token is multiplied with: of experts those it chooses.
  int64_t num_active_parameters() const;
  /// Returns whether training drops elements of a module's rows or of its adapters' inputs.
  bool has_dropout(const std::string& module) const;
  /// Returns whether one of these parameters trains.
  bool trains(const std::vector<int>& some_params) const;
  /// Returns for each unit that runs whether its output has a gradient: it trains, or an input has
  /// one.
  std::vector<bool> units_with_gradient(const std::function<bool(const UnitSpec&)>& runs =
                                            [](const UnitSpec&) { return true; }) const;
  /// Returns whether a unit makes features of the language model's width.
  bool makes_features(int unit) const;
  /// Returns whether a unit does not run in training, since its outputs are cached
  /// (data.cache_features).
  bool is_cached(int unit) const;
  /// Returns the units of an encoder that its projectors read, ascending.
  std::vector<int> read_by_projectors(int encoder) const;
  /// Returns the elements of a token in the outputs of all of these.
  int64_t feature_width(int encoder) const;
  bool is_placeholder(int64_t token) const;
  /// Returns whether a token id is valid: an entry of the vocabulary, or a placeholder that
  /// features replace, whose embedding is not read unless blocks have per-layer inputs.
  bool has_token(int64_t token) const;
  /// Returns the parameters of a unit with `role`, several where they are fused; empty: none.
  std::vector<int> params_of(const UnitSpec& unit, const std::string& role) const;
  /// The same for an index in the unit's roles; -1: none.
  std::vector<int> params_of(const UnitSpec& unit, int role) const;
  /// Returns the index of the parameter `name`, the first of several; -1: there is none.
  int param_index(const std::string& name) const;
};

/// The parts of a model that train (the rest is frozen), and their dropout.
struct Trainable {
  struct Encoder {
    bool encoder = true, projector = true;
  };
  std::map<std::string, Encoder> encoders = {};  ///< by name; others train
  bool llm = true;
  bool all_frozen = false;  ///< overrides the others
  /// The probability for residual branches and embeddings; nullopt: the config's.
  std::optional<double> dropout = 0;
  double mtp_loss = 0;  ///< DecoderSpec::mtp_loss, of families that have the head

  Encoder of(const std::string& encoder) const {
    if (all_frozen) return {.encoder = false, .projector = false};
    const auto found = encoders.find(encoder);
    return found == encoders.end() ? Encoder{} : found->second;
  }
};

/// Keys that zea adds to a config: the texts of the files beside config.json that describe the
/// processing of images, of videos and of audio, and the end tokens of generation.
inline constexpr const char* kImageProcessor = "image_processor";
inline constexpr const char* kVideoProcessor = "video_processor";
inline constexpr const char* kFeatureExtractor = "feature_extractor";
inline constexpr const char* kGenerationConfig = "generation_config";
/// Facts about the weights files: {"carried": {name: shape}, "experts": a key of kExpertStacks,
/// "names": spelling_of() them}. No unit reads carried tensors: those of a head of multi-token
/// prediction ("mtp.") unless it trains, of layers after the last one, and of keys that a layer
/// does not use. Files of one family may have a tensor per expert (split) or per layer (stacked).
inline constexpr const char *kWeightsFiles = "weights_files", *kExperts = "experts";
inline constexpr std::array<std::pair<const char*, std::optional<WeightOrder>>, 3> kExpertStacks{
    {{"split", std::nullopt}, {"out_in", WeightOrder::OutIn}, {"in_out", WeightOrder::InOut}}};

/// Returns the config with the tensors of a head of multi-token prediction that trains among the
/// carried ones, so that models which do not train it have its tensors, too.
std::string with_carried_head(const std::string& config_json, const ModelSpec& model);

/// A config.json that makes no model. The plan knows its text only; its reader knows the file.
struct ConfigError : WeightsError {
  ConfigError(const std::string& key, const std::string& fault)
      : WeightsError("model config: " + key + fault), key(key), fault(fault) {}

  std::string key;    ///< from "config" on, or "image_processor" and the like
  std::string fault;  ///< the rest of the sentence
};

/// Returns the spec of a Hugging Face config.json. Throws ConfigError with the key, and the found
/// and allowed values, where a family or an option is not supported.
ModelSpec make_model_spec(const std::string& config_json, const Trainable& trainable = {});

/// Returns whether a tensor of weights files is a bias for the choice of experts
/// (RouterSpec::has_correction_bias), which files keep in fp32 where weights are narrower.
inline bool is_correction_bias(const std::string& name) {
  return name.ends_with(".e_score_correction_bias");
}

/// Returns the end of a refusal of a "model_type" that zea does not read: what such a model is, and
/// where to get one that zea reads; may be empty.
std::string type_advice(const std::string& model_type);

bool is_audio_family(const std::string& family);

/// An image encoder, as a part of a composed model.
struct ImageEncoderFacts {
  std::string select;  ///< the "vision_feature_select_strategy" that takes its patches alone
  bool has_pooler;     ///< its files hold one, unless its config has "add_pooling_layer": false
};

/// Reads them from a config.json (`path` in messages). Throws ConfigError where its family is not
/// supported.
ImageEncoderFacts image_encoder_facts(const std::string& config_json, const std::string& path);

}  // namespace zea
