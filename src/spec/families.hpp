// SPDX-License-Identifier: Apache-2.0
// A family maps its config.json to the options of blocks, and the names of its parameters (as in
// the files of transformers' save_pretrained) to their roles. A new one is a file NAME_spec.cpp and
// a line in the tables of families.cpp.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "core/text.hpp"
#include "spec/config_reader.hpp"

namespace zea::detail {

/// Cut by outputs (dim 0), by inputs (dim 1), and a vocabulary.
inline TpCut cut_outputs(int64_t blocks) {
  return {.dim = 0, .blocks = blocks};
}
inline TpCut cut_inputs(int64_t blocks) {
  return {.dim = 1, .blocks = blocks};
}
inline TpCut cut_vocabulary() {
  return {.dim = 0, .pads = true};
}

/// What a family calls the parameters of a transformer block after the layer's name, without
/// ".weight" and ".bias"; empty: it has none of the kind.
struct BlockNames {
  std::string attention_norm;
  std::string q, k, v;
  std::string qkv = {};                  ///< in place of these: one matrix of all three
  std::string q_norm = {}, k_norm = {};  ///< of each head, or of all
  std::string out;
  std::string attention_post_norm = {};
  std::string attention_scale = {};  ///< of what attention gives, whole; and so mlp_scale
  std::string mlp_norm;
  std::string gate = {};  ///< of gated blocks
  std::string up, down;
  std::string mlp_post_norm = {};
  std::string mlp_scale = {};
};

/// Which projections of a block have biases.
struct BlockBiases {
  bool q = false, k = false, v = false, out = false, mlp = false;
};

/// Standard deviations of a block's initial matrices, and the initial numbers of layer scales.
struct BlockInit {
  double qkv, out, up, down, scale = 1;
};

/// What the blocks of a module have in common, and how each of them attends.
struct BlockFamily {
  BlockNames names;
  BlockBiases biases;
  BlockInit init;
  std::vector<int> attention = {};  ///< of each block: UnitSpec::attention; empty: all 0
};

class SpecBuilder {
 public:
  explicit SpecBuilder(ModelSpec& model) : model_(model) {}

  /// Starts a unit; what is added from now on is its.
  void start(const std::string& name, const std::string& module, UnitKind kind,
             std::vector<UnitInput> inputs);
  int last_unit() const { return static_cast<int>(model_.units.size()) - 1; }

  /// Adds the parameter `name`, which the unit's forward calls `role`. Returns its index. Weights
  /// of norms start as what makes them 1, other vectors as zeros, the rest as normal numbers of
  /// `std`.
  int add(const std::string& role, const std::string& name, Shape shape, bool trainable, double std,
          const TpCut& cut = {});
  /// Adds parameters that lie one after the other and have one role. Those of one name are the rows
  /// of one tensor in files.
  struct Part {
    std::string name;
    Shape shape;
    TpCut cut;
  };
  void add_fused(const std::string& role, const std::vector<Part>& parts, bool trainable,
                 double std);
  void add_norm(const std::string& role, const std::string& name, const NormSpec& norm,
                int64_t width, bool trainable, const TpCut& cut = {});
  /// Normal numbers, also where they are a vector.
  void add_class_token(const std::string& name, const Shape& shape, bool trainable, double std);
  /// Normal numbers of a deviation that makes the vector about as long as 1.
  void add_normal_vector(const std::string& role, const std::string& name, int64_t width,
                         bool trainable);
  /// A table of sines and cosines, which is never trained.
  void add_sinusoids(const std::string& name, int64_t positions, int64_t width);
  /// The unit reads a parameter that an earlier one has, too.
  void use(const std::string& role, int param);
  /// The parameters of a transformer block whose names begin with `layer`.
  void add_block(const BlockSpec& block, const BlockFamily& family, const std::string& layer,
                 bool trainable);
  /// Blocks called "<module>.layers.0" and so on, each reading the one before, the first one the
  /// last unit. `layers` begins the names of their parameters.
  void add_blocks(const std::string& module, int64_t count, const BlockSpec& block,
                  const BlockFamily& family, const std::string& layers, bool trainable);

 private:
  void add_attention(const BlockSpec& block, const BlockFamily& family, const std::string& layer,
                     bool trainable);
  void add_feed_forward(const BlockSpec& block, const BlockFamily& family, const std::string& layer,
                        bool trainable);
  void add_linear(const std::string& role, const std::string& name, const BlockSpec& block,
                  int64_t out, int64_t in, const TpCut& cut, bool bias, bool trainable, double std);

  ModelSpec& model_;
};

/// A language model, alone or in another family.
struct Decoder {
  DecoderSpec spec;
  BlockFamily blocks;
  /// Of parameters, after what stands before all of them; `layers` goes before a block's number.
  /// The head is outside `root`; `positions` is empty where none are learned.
  struct Names {
    std::string root, embed, positions, layers, norm, head;
  } names;
  std::vector<std::string> notes = {};
};
/// The names of the norms of its heads.
void add_head_norms(Decoder& decoder);
/// The layers that "layer_types" calls sliding, or else `usual` says; none without windows.
std::vector<bool> narrow_layers(const ConfigReader& config, std::vector<bool> usual,
                                bool has_windows);
/// Which layers see a window, as the configs of Qwen2, Qwen2-VL and Qwen3 say that: those from
/// "max_window_layers" on, `usual` where that is left out.
void read_windows(const ConfigReader& config, Decoder& decoder, int64_t usual = 28);

/// What turns the pairs of a head by three positions (M-RoPE): "mrope_section", `sections` where
/// that is left out. A family has its pairs of an axis side by side, or interleaved.
std::vector<RotaryPair> read_mrope(const ConfigReader& config, int64_t pairs,
                                   std::vector<int64_t> sections, bool interleaved);

/// Decoders with the keys and names of Llama's, each with its own defaults and biases.
struct LlamaDefaults {
  int64_t hidden = 4096, intermediate, layers = 32, heads = 32;
  int64_t key_value_heads = 0;  ///< 0: as many as heads
  int64_t head_dim = 0;         ///< 0: hidden / heads
  int64_t vocabulary, positions, end_token;
  const char* activation_key = "hidden_act";
  const char* activation = "silu";  ///< the only one
  bool tied = false;
  double eps = 1e-6, theta = 10000;
  bool has_mrope = false;            ///< its configs may name rotary positions of three numbers
  bool turns_all = true;             ///< rotary positions turn all of a head
  int64_t original_positions = 0;    ///< before longer ones were learnt; 0: as rope's keys say
  bool names_longrope_yarn = false;  ///< older configs do, or "su"
  const char* rope_part = nullptr;   ///< of rope_parameters: that of layers without a window
};
Decoder read_llama_like(const ConfigReader& config, const LlamaDefaults& defaults,
                        const BlockBiases& biases);
/// The layers that are true in `narrow` see a window; the others what `decoder` says.
void add_windows(Decoder& decoder, const std::vector<bool>& narrow, int64_t window);

/// The decoder families, by the model_type of their configs.
using ReadDecoder = Decoder (*)(const ConfigReader&);
const std::map<std::string, ReadDecoder>& decoders();

/// The units of the decoder. `features` are the units that make what is merged into its text.
void add_decoder(SpecBuilder& builder, const Decoder& decoder, const std::string& prefix,
                 const std::vector<int>& features, bool trainable);

/// A vision encoder.
struct VisionEncoder {
  EncoderSpec spec;
  std::vector<int64_t> taps = {};  ///< hidden states that the projector reads; 0: after embedding
  BlockFamily blocks;
  /// Empty ones are not there.
  struct Names {
    std::string class_token, patch, positions, pre_norm, layers;
    std::string registers = {};
    std::string final_norm = {};  ///< behind the last block, of all tokens
  } names;
  bool norms_features = false;  ///< by this one
  /// Shapes of learned tokens and positions begin with a 1.
  bool has_leading_one = false;
  /// What features do not come of: it is carried, never trained.
  struct Carried {
    std::string name;
    Shape shape;
  };
  std::vector<Carried> carried;
  bool patch_bias = false;
  double class_std = 0, patch_std = 0.02, position_std = 0.02;
};
VisionEncoder read_siglip(const ConfigReader& config);
/// How an encoder's rows and columns turn heads, by "rope_parameters"; `theta` where it has none.
RopeConfig read_axial_rope(const ConfigReader& config, std::vector<RotaryPair> turns, double theta);

/// The tower that the Qwen-VL families have in common: patches of frame pairs of images of any
/// size, turned by rows and columns, merged as squares, with blocks whose width is the config's
/// `width_key`.
struct TurnedDefaults {
  int64_t layers, patch;
  PixelLimits pixels;        ///< of the family's processor
  PixelLimits frame_pixels;  ///< likewise, of videos
};
VisionEncoder read_turned_tower(const ConfigReader& config, const BlockSpec& of_family,
                                const char* width_key, const TurnedDefaults& defaults);
/// Throws unless the features have the width of the text, `hidden`.
void require_width(const ConfigReader& of_vision, const char* key, int64_t hidden);
/// A projector of `merge` tokens side by side, whose parameters are called `root` and the names.
struct MergerNames {
  const char *norm, *linear_1, *linear_2;
};
void add_merger(SpecBuilder& builder, const EncoderSpec& vision, const std::string& root,
                const MergerNames& names, int64_t hidden, bool trainable);

/// The families of encoders, by the model_type of their configs.
using ReadVisionEncoder = VisionEncoder (*)(const ConfigReader&);
const std::map<std::string, ReadVisionEncoder>& vision_encoders();
using ReadAudioEncoder = EncoderSpec (*)(const ConfigReader&);
const std::map<std::string, ReadAudioEncoder>& audio_encoders();

/// What transformers' vision encoders have in common: the keys of their configs, with a family's
/// defaults, and the names of a block's parameters.
struct ImageTransformerDefaults {
  int64_t patch;
  double eps;
  const char* activation;
  int64_t mlp_ratio = 0;  ///< key "mlp_ratio" in place of "intermediate_size"; 0: not so
  int64_t hidden = 768, intermediate = 3072, layers = 12, heads = 12;
  int64_t image = 224;  ///< 0: images have any size
};
EncoderSpec read_image_transformer(const ConfigReader& config,
                                   const ImageTransformerDefaults& defaults);
/// A class token, its positions and attention as ViT has and names them.
void set_learned_tokens(const ConfigReader& config, VisionEncoder& encoder);
BlockFamily image_transformer_blocks(const BlockInit& init);

/// The encoder's units, of parameters called `root`. Returns the unit that makes hidden state i for
/// each i of 0..layers.
std::vector<int> add_vision_encoder(SpecBuilder& builder, const VisionEncoder& encoder,
                                    const std::string& root, bool trainable);
void add_carried(SpecBuilder& builder, const VisionEncoder& encoder, const std::string& root);

/// What an encoder is called, and what the names of its parameters and of its projector's begin
/// with.
struct EncoderNames {
  std::string name, root, projector_root;
  std::string row_end = {};  ///< of images that are fitted into tiles; empty: they are not
};

EncoderSpec read_qwen2_audio_encoder(const ConfigReader& config);
EncoderSpec read_voxtral_encoder(const ConfigReader& config);
/// Whisper's encoder and its projector to rows of `hidden`.
void add_audio_encoder(SpecBuilder& builder, const EncoderSpec& audio, const EncoderNames& names,
                       int64_t hidden, const Trainable& trainable);
/// The linears of a projector from rows of `width` to rows of `hidden`, of parameters called
/// `root`.
void add_projector_linears(SpecBuilder& builder, const ProjectorSpec& projector,
                           const std::string& root, int64_t width, int64_t hidden, bool trainable);
/// One of them, linear_1 or linear_2.
void add_projector_linear(SpecBuilder& builder, const std::string& role, const std::string& name,
                          const Shape& shape, bool bias, bool trainable);

/// What configs of LLaVA's kind say of images where they leave it out.
struct ImageDefaults {
  const char* encoder = "clip_vision_model";
  int64_t token = 32000, layer = -2;
  const char* select = "default";  ///< vision_feature_select_strategy
  bool bias = true;
  bool merges = false;  ///< the projector merges squares of patches, as Mistral 3's
  std::vector<ImageSize> resolutions = {};  ///< that images are fitted into
  bool gives_shapes = false;  ///< of images, to encoders that ask for them, as SigLIP 2's
  bool text_ties = false;     ///< the text's config may tie the head, too
};
/// The encoder of images, or of sound, that a config of LLaVA describes, with its projector, for a
/// model whose decoder is known. Returns the unit that makes the features.
int add_image_encoder(SpecBuilder& builder, ModelSpec& model, const ConfigReader& config,
                      const EncoderNames& names, const Trainable& trainable,
                      const ImageDefaults& defaults = {});
int add_sound_encoder(SpecBuilder& builder, ModelSpec& model, const ConfigReader& config,
                      const EncoderNames& names, const Trainable& trainable);

/// What a directory's image processor says of the images of an encoder. Throws WeightsError naming
/// what zea can not do.
void read_image_processor(const ConfigReader& config, EncoderSpec& encoder);
/// The same of an encoder that is put together with others, but for the size of squares, which then
/// is that of its table of positions. Returns what becomes of them; empty: they have that size.
std::string read_part_processor(const ConfigReader& config, EncoderSpec& encoder);
/// Likewise what its video processor says, and where it has none of videos what that of images
/// does.
void read_video_processor(const ConfigReader& config, EncoderSpec& encoder);
void read_video_limits(const ConfigReader& of_images, EncoderSpec& encoder);

/// The hidden state that vision_feature_layer = `layer` names of an encoder of `layers` blocks: the
/// blocks that run before it.
int64_t resolve_tap(const ConfigReader& config, int64_t layer, int64_t layers);

/// A decoder into whose text features are merged, of family `usual` where its config names none.
Decoder read_merging_decoder(const ConfigReader& config, const std::string& usual);
/// Such a decoder with the features of one encoder of images.
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
/// Units that no later unit reads are not walked; their parameters are carried, never trained.
void drop_unread_units(ModelSpec& model);

/// Whether the head of a composite is its embedding: its own key decides where there is one, or,
/// where `text_ties`, that of its text may tie it as well.
bool ties_head(const ConfigReader& config, const Decoder& text, bool text_ties);

/// type_advice() on the "model_type" of `config`.
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

/// Encoders, their projectors and a decoder of the families above, by the model_type of configs.
using MakeComposite = ModelSpec (*)(const ConfigReader&, const Trainable&);
const std::map<std::string, MakeComposite>& composites();
/// A composite of any number of encoders and a decoder, put together by a deck.
ModelSpec make_composed(const ConfigReader& config, const Trainable& trainable);

/// Adds the adapters (LoRA) that a config names to a model, and freezes the modules that have them;
/// adapters of a module that `trainable` freezes do not train. Throws PlanError where a pattern
/// matches no linear.
void add_adapters(ModelSpec& model, const ConfigReader& adapters, const Trainable& trainable);

}  // namespace zea::detail
