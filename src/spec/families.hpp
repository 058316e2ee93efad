// SPDX-License-Identifier: Apache-2.0
// A family maps its config.json to the options of blocks, and the names of its parameters (as in
// the files of transformers' save_pretrained) to their roles. A new one is a file NAME_spec.cpp and
// a line in the tables of families.cpp.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/text.hpp"
#include "spec/config_reader.hpp"

namespace zea::detail {

/// Tp shards of a linear by outputs (dim 0) or by inputs (dim 1), and of a vocabulary.
inline TpSharding column_parallel(int64_t blocks) {
  return {.dim = 0, .blocks = blocks};
}
inline TpSharding row_parallel(int64_t blocks) {
  return {.dim = 1, .blocks = blocks};
}
inline TpSharding vocab_parallel() {
  return {.dim = 0, .pads = true};
}

/// A family's names of the parameters of a routed MLP, as below: an expert's number is between
/// `experts` and the names of its linears.
struct ExpertNames {
  std::string router, experts;
  std::string gate = {}, up = {}, down = {};  ///< of split experts, and of the shared one
  std::string stacked_up = "gate_up_proj", stacked_down = "down_proj";  ///< without numbers
  std::string shared = {};           ///< precedes gate, up and down of the shared expert
  std::string shared_gate = {};      ///< its sigmoid scales the shared expert's output; empty: none
  std::string correction_bias = {};  ///< whole name of RouterSpec::has_correction_bias; empty: none
  std::string router_norm = {};  ///< whole name: of the norm of what the router reads; empty: none
  std::string gate_scale = {};   ///< whole name: scales the gates of each expert; empty: none
  /// Norms before and after the experts, and after the MLP beside them; empty: there is none.
  std::string norm = {}, post_norm = {}, plain_post_norm = {};
};

/// A family's names of the parameters of a gated delta rule, as below. In-projections: `qkv`, gates
/// `z`, betas `b` and decays `a`, each of all heads; with DeltaRuleSpec::by_key_head `qkv` has
/// the gates, too, `b` has the decays, and the other names are empty.
struct DeltaNames {
  std::string qkv, z, b, a;
  std::string conv;
  std::string decay, step;  ///< whole names: A_log and dt_bias
  std::string norm, out;
};

/// A family's names of the linears and norms of multi-head latent attention, as below.
struct LatentNames {
  std::string q_a, q_norm;  ///< of a latent of queries
  std::string q_b;          ///< queries of this latent, or of the token
  std::string kv_a, kv_norm, kv_b;
};

/// A family's names of the parameters of per-layer inputs. gate, projection and post_norm are in
/// each block, with names as in BlockNames. All blocks share table, context and context_norm, whose
/// names follow `root`; table and context have a part for each block.
struct LayerInputNames {
  std::string gate, projection, post_norm;
  std::string table, context, context_norm;
  std::string root = {};
};

/// A family's names of the parameters of a transformer block, after the layer's name and without
/// ".weight" and ".bias"; empty: there is none.
struct BlockNames {
  std::string attention_norm;
  std::string q, k, v;
  std::string qkv = {};                  ///< replaces these: one matrix of all three
  std::string q_norm = {}, k_norm = {};  ///< of each head, or of all
  std::string out;
  std::string sinks = {};  ///< whole name: of AttentionSpec::has_sinks
  std::string attention_post_norm = {};
  std::string attention_scale = {};  ///< layer scale of attention; likewise mlp_scale
  std::string mlp_norm;
  std::string gate = {};  ///< of gated blocks
  std::string up, down;
  DeltaNames delta = {};
  LatentNames latent = {};
  ExpertNames experts = {};
  std::string mlp_post_norm = {};
  std::string mlp_scale = {};
  std::string output_scale = {};  ///< of a block's outputs, one element that never trains
  LayerInputNames layer_input = {};
};

/// The projections of a block that have biases.
struct BlockBiases {
  bool q = false, k = false, v = false, out = false, mlp = false;
  bool latents = false;  ///< of multi-head latent attention
  bool experts = false;  ///< stacked ones, and their router
};

/// Standard deviations of a block's initial matrices, and the initial values of layer scales.
struct BlockInit {
  double qkv, out, up, down, scale = 1;
};

/// The names, biases and initialization of a module's blocks, and the kinds of each.
struct BlockFamily {
  BlockNames names;
  BlockBiases biases;
  BlockInit init;
  std::vector<int> mixer = {};  ///< UnitSpec::mixer of each block; empty: all 0
  std::vector<int> mlp = {};    ///< UnitSpec::mlp of each block; empty: all 0
  /// For each block, the index of the block whose keys and values it reads, which may be itself;
  /// -1: its own, which no other block reads. Empty: all -1.
  std::vector<int> keys = {};
};

class SpecBuilder {
 public:
  explicit SpecBuilder(ModelSpec& model) : model_(model) {}

  /// Starts a unit, to which later calls add parameters.
  void start(const std::string& name, const std::string& module, UnitKind kind,
             std::vector<UnitInput> inputs);
  int last_unit() const { return static_cast<int>(model_.units.size()) - 1; }
  UnitSpec& unit() { return model_.units.back(); }

  /// Adds the parameter `name` with `role` in the unit's forward. Returns its index. Norms are
  /// initialized to 1, other vectors to 0, the rest to normal numbers of `std`.
  int add(const std::string& role, const std::string& name, Shape shape, bool trainable, double std,
          const TpSharding& cut = {});
  /// Adds adjacent parameters of one role. Parts of one name are the rows of one tensor in files.
  struct Part {
    std::string name;
    Shape shape;
    TpSharding cut;
  };
  void add_fused(const std::string& role, const std::vector<Part>& parts, bool trainable,
                 double std);
  /// Adds a norm. Returns the index of its weight.
  int add_norm(const std::string& role, const std::string& name, const NormSpec& norm,
               int64_t width, bool trainable, const TpSharding& cut = {});
  /// Adds a class token, initialized to normal numbers.
  void add_class_token(const std::string& name, const Shape& shape, bool trainable, double std);
  /// Adds a vector, initialized to normal numbers with a norm of about 1.
  void add_normal_vector(const std::string& role, const std::string& name, int64_t width,
                         bool trainable);
  /// Adds a table of sinusoidal positions, which is never trained.
  void add_sinusoids(const std::string& name, int64_t positions, int64_t width);
  /// Adds a parameter that never trains, initialized to ones.
  void add_ones(const std::string& role, const std::string& name, const Shape& shape);
  /// Adds a state of the model, zeros at first (ParamSpec::is_state).
  void add_state(const std::string& role, const std::string& name, const Shape& shape);
  /// Lets the unit read a parameter of an earlier one (tied weights).
  void use(const std::string& role, int param);
  /// Adds the parameters of a transformer block, whose names begin with `layer`.
  void add_block(const BlockSpec& block, const BlockFamily& family, const std::string& layer,
                 bool trainable);
  /// Adds blocks named "<module>.layers.0" and so on; each reads the unit before it. `layers`
  /// begins the names of their parameters. A separate unit before the first reader makes the keys
  /// and values that several blocks read: "<module>.layers.0.keys".
  void add_blocks(const std::string& module, int64_t count, const BlockSpec& block,
                  const BlockFamily& family, const std::string& layers, bool trainable);
  /// Likewise where `add` adds the parameters of the block of each number.
  void add_each(const std::string& module, int64_t count,
                const std::function<void(const std::string& number)>& add);
  /// Adds a linear of a block; a clipped one also has its bounds.
  void add_linear(const std::string& role, const std::string& name, const BlockSpec& block,
                  int64_t out, int64_t in, const TpSharding& cut, bool bias, bool trainable,
                  double std);

 private:
  /// Adds the norm before attention, or shares the one of the block's unit of keys.
  void add_attention_norm(const BlockSpec& block, const BlockFamily& family,
                          const std::string& layer, bool trainable);
  /// Adds the parameters of the per-layer input of block number `number` of `count`; `context_norm`
  /// is the norm that all blocks share, -1 before the first block.
  void add_layer_input(const BlockSpec& block, const BlockFamily& family, const std::string& layer,
                       int64_t number, int64_t count, int& context_norm, bool trainable);
  void add_attention(const BlockSpec& block, const BlockFamily& family, const std::string& layer,
                     bool trainable);
  void add_latent_heads(const BlockSpec& block, const BlockFamily& family, const std::string& layer,
                        bool trainable);
  void add_delta_rule(const BlockSpec& block, const DeltaRuleSpec& rule, const BlockFamily& family,
                      const std::string& layer, bool trainable);
  void add_feed_forward(const BlockSpec& block, const BlockFamily& family, const std::string& layer,
                        bool trainable);
  void add_experts(const BlockSpec& block, const BlockFamily& family, const std::string& layer,
                   bool trainable);
  void add_gate_parts(const BlockSpec& block, const ExpertNames& names, const std::string& layer,
                      bool trainable);

  ModelSpec& model_;
};

struct Decoder;
/// The defaults of a decoder with experts, and the key that says how wide they are.
struct MixtureDefaults {
  int64_t intermediate = 0;  ///< 0: that of the plain MLP
  int64_t experts, chosen;
  bool always_renormalizes = false;  ///< else "norm_topk_prob" says so
  bool norm_topk_prob = false;       ///< its default
  const char* intermediate_key = "moe_intermediate_size";
  int64_t shared_intermediate = 0;        ///< width of the shared expert; 0: none
  double aux_loss = 1e-3;                 ///< router_aux_loss_coef
  std::optional<WeightOrder> stack = {};  ///< in published files, see MlpSpec
};
/// The defaults of experts that are chosen by sigmoids of scores with a bias, in groups; the first
/// `dense` layers have none.
struct SigmoidDefaults {
  int64_t experts, chosen = 8, groups = 1, topk_groups = 1;
  int64_t intermediate, dense = 1;
  double factor = 1;
};
void add_sigmoid_mixture(const ConfigReader& config, Decoder& decoder,
                         const SigmoidDefaults& defaults);
/// Reads the number of experts of each of `layers` layers, and how many of them a token chooses.
int64_t read_experts(const ConfigReader& config, const char* key, int64_t usual, int64_t layers);
int64_t read_top_k(const ConfigReader& config, int64_t usual, int64_t experts);
/// Gives a mixture to the layers that are true in `sparse`; the others keep the plain MLP.
/// MlpSpec::stack is that of the weights files, or else that of `mixture`.
void set_mixture(const ConfigReader& config, Decoder& decoder, const std::vector<bool>& sparse,
                 const MlpSpec& mixture, const ExpertNames& names);
/// Reads the mixture of experts of a config and gives it to the layers that are true in `sparse`,
/// to all if it is empty; the others keep the plain MLP.
void add_mixture(const ConfigReader& config, Decoder& decoder, const std::vector<bool>& sparse,
                 const MixtureDefaults& defaults, const ExpertNames& names);
/// Returns the order in which the weights files stack experts (MlpSpec::stack), or `usual` if the
/// config does not say it.
std::optional<WeightOrder> read_stack(const ConfigReader& config, std::optional<WeightOrder> usual);
/// Returns Qwen's names of experts; `is_shared`: and of the shared expert and its gate.
ExpertNames qwen_expert_names(bool is_shared);
/// Returns the sparse layers of Qwen's configs: every "decoder_sparse_step"-th one, but those of
/// "mlp_only_layers".
std::vector<bool> sparse_layers(const ConfigReader& config, int64_t layers);

/// A language model, alone or in a composite.
struct Decoder {
  DecoderSpec spec;
  BlockFamily blocks;
  /// The names of parameters, after the prefix of all; `layers` precedes a block's number. The head
  /// is outside `root`; `positions` is empty where none are learned.
  struct Names {
    std::string root, embed, positions, layers, norm, head;
    std::string mtp = {};  ///< precedes those of multi-token prediction; empty: none is built
  } names;
  std::vector<std::string> notes = {};
};
/// Adds the names of the norms of its heads.
void add_head_norms(Decoder& decoder);
/// Adds the names of Gemma's norms before and after each half of a block.
void add_norms_after_halves(Decoder& decoder);
/// Reads a cap of scores or logits: 0 is none, as null is.
double read_cap(const ConfigReader& config, const char* key, double usual);
/// Returns the layers with a sliding window, by "layer_types" or else `usual`; none without
/// windows.
std::vector<bool> sliding_layers(const ConfigReader& config, std::vector<bool> usual,
                                 bool has_windows);
/// Reads the layers with a sliding window from the configs of Qwen2, Qwen2-VL and Qwen3: those from
/// "max_window_layers" on, or from `usual`.
void read_windows(const ConfigReader& config, Decoder& decoder, int64_t usual = 28);

/// Reads the M-RoPE sections of a head: "mrope_section", or `sections`. A family has the pairs of
/// an axis side by side, or interleaved.
std::vector<RotaryPair> read_mrope(const ConfigReader& config, int64_t pairs,
                                   std::vector<int64_t> sections, bool interleaved);

/// The defaults of a decoder with the keys and names of Llama.
struct LlamaDefaults {
  int64_t hidden = 4096, intermediate, layers = 32, heads = 32;
  int64_t key_value_heads = 0;  ///< 0: as many as heads
  int64_t head_dim = 0;         ///< 0: hidden / heads
  int64_t vocabulary, positions, end_token;
  const char* activation_key = "hidden_act";
  const char* activation = "silu";  ///< the only one
  bool tied = false;
  double eps = 1e-6, theta = 10000;
  double partial_rotary_factor = 1;  ///< "partial_rotary_factor"
  bool has_mrope = false;            ///< its configs may name M-RoPE
  bool rotates_all = true;           ///< RoPE rotates the whole head
  int64_t original_positions = 0;    ///< before RoPE scaling; 0: from the config
  bool names_longrope_yarn = false;  ///< older configs do, or name it "su"
  const char* rope_part = nullptr;   ///< part of rope_parameters for layers without a window
  bool has_own_rope = false;         ///< the family reads its rotary positions
};
Decoder read_llama_like(const ConfigReader& config, const LlamaDefaults& defaults,
                        const BlockBiases& biases);
/// Reads the text of GLM-4.5 and GLM-4.5V, whose configs have these defaults.
struct GlmDefaults {
  int64_t vocabulary, positions;
  bool has_biases = false, has_mrope = false;
};
Decoder read_glm_text(const ConfigReader& config, const GlmDefaults& defaults);
/// Gives the layers that are true in `narrow` a sliding window.
void add_windows(Decoder& decoder, const std::vector<bool>& narrow, int64_t window);

/// The decoder families, by the model_type of their configs.
using ReadDecoder = Decoder (*)(const ConfigReader&);
const std::map<std::string, ReadDecoder>& decoders();

/// Adds the units of a decoder, into whose text the outputs of the units `features` are merged.
void add_decoder(SpecBuilder& builder, const Decoder& decoder, const std::string& prefix,
                 const std::vector<int>& features, bool trainable);

/// A vision encoder.
struct VisionEncoder {
  EncoderSpec spec;
  std::vector<int64_t> taps = {};  ///< hidden states that the projector reads; 0: after embedding
  BlockFamily blocks;
  /// The names of parameters; empty: there is none.
  struct Names {
    std::string class_token, patch, positions, pre_norm, layers;
    std::string registers = {};
    std::string final_norm = {};  ///< after the last block, of all tokens
    std::string patch_norm = {};  ///< after patches, before positions are added
  } names;
  bool norms_features = false;  ///< features are normed by final_norm
  /// The shapes of learned tokens and positions begin with a 1.
  bool has_leading_one = false;
  bool has_square_table = false;  ///< the shape of positions is (side, side, hidden)
  /// A parameter that no feature depends on: it is carried, never trained.
  struct Carried {
    std::string name;
    Shape shape;
  };
  std::vector<Carried> carried;
  bool patch_bias = false;
  double class_std = 0, patch_std = 0.02, position_std = 0.02;
};
VisionEncoder read_siglip(const ConfigReader& config);
/// Reads the axial RoPE of an encoder: "rope_parameters", or `theta`.
RopeConfig read_axial_rope(const ConfigReader& config, std::vector<RotaryPair> turns, double theta);

/// Adds the output of each unit of `deep` as an input of one of the first decoder blocks, in order.
void add_deep_features(ModelSpec& model, const std::vector<int>& deep);

/// The families of encoders, by the model_type of their configs.
using ReadVisionEncoder = VisionEncoder (*)(const ConfigReader&);
const std::map<std::string, ReadVisionEncoder>& vision_encoders();
using ReadAudioEncoder = EncoderSpec (*)(const ConfigReader&);
const std::map<std::string, ReadAudioEncoder>& audio_encoders();

/// A family's defaults for the keys that transformers' vision encoders share.
struct ImageTransformerDefaults {
  int64_t patch;
  double eps;
  const char* activation;
  int64_t mlp_ratio = 0;  ///< default of the key "mlp_ratio"; 0: "intermediate_size" is the key
  int64_t hidden = 768, intermediate = 3072, layers = 12, heads = 12;
  int64_t image = 224;  ///< 0: images have any size
};
EncoderSpec read_image_transformer(const ConfigReader& config,
                                   const ImageTransformerDefaults& defaults);
/// Sets a class token, positions and attention with the names of ViT.
void set_learned_tokens(const ConfigReader& config, VisionEncoder& encoder);
BlockFamily image_transformer_blocks(const BlockInit& init);

/// Adds the encoder's units, whose parameters begin with `root`. Returns the unit of each hidden
/// state 0..layers.
std::vector<int> add_vision_encoder(SpecBuilder& builder, const VisionEncoder& encoder,
                                    const std::string& root, bool trainable);
void add_carried(SpecBuilder& builder, const VisionEncoder& encoder, const std::string& root);

/// The name of an encoder, and the prefixes of its parameters and of its projector's.
struct EncoderNames {
  std::string name = {}, root = {}, projector_root = {};
  std::string row_end = {};         ///< the learned end of rows of FittedTiles; empty: none
  std::string norm = "layer_norm";  ///< of an audio encoder, after its blocks
  /// Full names of the projector's linears; empty: the default names after `projector_root`.
  std::vector<std::string> linears = {};
  bool has_key_biases = false;  ///< in the attention of an audio encoder
};

EncoderSpec read_qwen2_audio_encoder(const ConfigReader& config);
EncoderSpec read_voxtral_encoder(const ConfigReader& config);
EncoderSpec read_omni_audio_encoder(const ConfigReader& config);
EncoderSpec read_qwen3_omni_audio_encoder(const ConfigReader& config);
/// Reads the feature extractor of a model whose clips are cut into chunks.
void read_audio_processor(const ConfigReader& config, EncoderSpec& encoder);
/// Adds Whisper's encoder, and its projector to the width `hidden`.
void add_audio_encoder(SpecBuilder& builder, const EncoderSpec& audio, const EncoderNames& names,
                       int64_t hidden, const Trainable& trainable);
/// Adds the linears of a projector from `width` to `hidden`, whose parameters begin with `root`.
void add_projector_linears(SpecBuilder& builder, const ProjectorSpec& projector,
                           const std::string& root, int64_t width, int64_t hidden, bool trainable);
/// Adds one of them, linear_1 or linear_2.
void add_projector_linear(SpecBuilder& builder, const std::string& role, const std::string& name,
                          const Shape& shape, bool bias, bool trainable);

/// A family's defaults for keys that configs of LLaVA's kind leave out.
struct ImageDefaults {
  const char* encoder = "clip_vision_model";
  int64_t token = 32000, layer = -2;
  const char* select = "default";  ///< vision_feature_select_strategy
  bool bias = true;
  bool merges = false;  ///< the projector merges squares of patches, as in Mistral 3
  std::vector<ImageSize> resolutions = {};  ///< of FittedTiles
  bool gives_shapes = false;  ///< supports encoders that need shapes, such as SigLIP 2
  bool text_ties = false;     ///< the text's config may tie the embeddings, too
};
/// Adds the image encoder, or the audio encoder, that a config of LLaVA describes, with its
/// projector, to a model whose decoder is set. Returns the unit that makes the features.
int add_image_encoder(SpecBuilder& builder, ModelSpec& model, const ConfigReader& config,
                      const EncoderNames& names, const Trainable& trainable,
                      const ImageDefaults& defaults = {});
int add_sound_encoder(SpecBuilder& builder, ModelSpec& model, const ConfigReader& config,
                      const EncoderNames& names, const Trainable& trainable);

/// Reads the image processor of a model's directory. Throws ConfigError for unsupported settings.
void read_image_processor(const ConfigReader& config, EncoderSpec& encoder);
/// Likewise for an encoder of a composed model, but squares keep the size of its table of
/// positions. Returns a note on the change of size; empty: there is none.
std::string read_part_processor(const ConfigReader& config, EncoderSpec& encoder);
/// Reads the video processor, or the limits of videos from the image processor.
void read_video_processor(const ConfigReader& config, EncoderSpec& encoder);
void read_video_limits(const ConfigReader& of_images, EncoderSpec& encoder);

/// Returns the hidden state of vision_feature_layer = `layer` in an encoder of `layers` blocks: the
/// number of blocks before it.
int64_t resolve_feature_layer(const ConfigReader& config, int64_t layer, int64_t layers);

/// Reads a decoder for merged features, of family `usual` where its config names none.
Decoder read_merging_decoder(const ConfigReader& config, const std::string& usual);
/// Makes a composite of such a decoder and one image encoder of LLaVA's kind.
ModelSpec make_with_images(const ConfigReader& config, const Trainable& trainable,
                           const EncoderNames& names, const ImageDefaults& defaults,
                           const std::string& usual);
/// Makes a composite of one vision encoder and a decoder, whose parameters have the prefixes
/// `tower` and `text`. `add_projector(builder, states)` adds the units from the hidden states (one
/// for each layer, and the embedding) to features. It returns the unit that makes them, and after
/// it those that are added behind the decoder's first blocks.
using AddProjector = std::function<std::vector<int>(SpecBuilder&, const std::vector<int>& states)>;
ModelSpec make_with_tower(const Decoder& decoder, const VisionEncoder& encoder,
                          const std::string& tower, const std::string& text,
                          const Trainable& trainable, const AddProjector& add_projector);
/// Removes units that no later unit reads; their parameters are carried, never trained.
void drop_unread_units(ModelSpec& model);

/// Returns whether a composite has tied embeddings: by its own key, or the text's; with `text_ties`
/// either may tie them.
bool ties_head(const ConfigReader& config, const Decoder& text, bool text_ties);

/// Returns type_advice() on the "model_type" of `config`.
std::string advice_on_type(const ConfigReader& config);

/// Reads `config` as the family that it names, `usual` where it names none.
template <class Families>
auto read_part(const Families& families, const ConfigReader& config, const std::string& usual) {
  const std::string type = config.text("model_type", usual);
  const auto found = families.find(type);
  if (found != families.end()) return found->second(config);
  const auto name = &Families::value_type::first;
  constexpr bool kIsDecoder = std::is_same_v<Families, std::map<std::string, ReadDecoder>>;
  config.refuse("model_type", type,
                join(families, ", ", name) + " (others are not built yet)" +
                    (kIsDecoder ? advice_on_type(config) : ""));
}

/// The composites of encoders, projectors and a decoder, by the model_type of their configs.
using MakeComposite = ModelSpec (*)(const ConfigReader&, const Trainable&);
const std::map<std::string, MakeComposite>& composites();
/// A composite of any number of encoders and a decoder, composed by a deck.
ModelSpec make_composed(const ConfigReader& config, const Trainable& trainable);

/// Adds the adapters (LoRA) that a config names to a model, and freezes the modules that have them;
/// adapters of a module that `trainable` freezes do not train. Throws PlanError where a pattern
/// matches no linear.
void add_adapters(ModelSpec& model, const ConfigReader& adapters, const Trainable& trainable);

}  // namespace zea::detail
