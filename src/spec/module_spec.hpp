// SPDX-License-Identifier: Apache-2.0
// The modules of a model: transformer blocks, encoders with their items and projectors, the
// decoder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/attention_slice.hpp"
#include "spec/item_spec.hpp"

namespace zea {

/// "gelu", "quick_gelu", "gelu_pytorch_tanh", "relu" or "silu".
enum class Activation { Gelu, QuickGelu, GeluTanh, Relu, Silu };

/// The layout of a weight in its file and buffer: (out, in), or (in, out) in GPT-2.
enum class WeightOrder { OutIn, InOut };

/// LayerNorm (arXiv:1607.06450) or RMSNorm (arXiv:1910.07467) over the last dim.
enum class NormKind { Layer, Rms };

struct NormSpec {
  NormKind kind = NormKind::Layer;
  double eps = 1e-5;
  double offset = 0;     ///< added to the weight: 1 in Gemma, whose weights start as zeros
  bool has_bias = true;  ///< of NormKind::Layer
};

/// The heads of attention, and the coordinates of each.
struct HeadShape {
  int64_t query = 0, key_value = 0, dim = 0;
};

/// RoPE scaling beyond the positions of pre-training: none, linear, Llama 3's (arXiv:2407.21783),
/// dynamic by the longest sample, YaRN (arXiv:2309.00071) or LongRoPE (arXiv:2402.13753); in the
/// order of their names in llama_spec.cpp. Or Gemma 4's: the first pairs of the whole head rotate
/// at its frequencies, the others do not rotate.
enum class RopeType { Default, Linear, Llama3, Dynamic, Yarn, LongRope, Proportional };

/// The position that rotates a pair of a head's coordinates, and its frequency. Each way to rotate
/// heads by several positions is a list of such pairs.
struct RotaryPair {
  int64_t axis = 0;       ///< 0: time, 1: row, 2: column
  int64_t frequency = 0;  ///< index in the frequencies of all pairs

  bool operator==(const RotaryPair&) const = default;
};

/// Returns neighboring pairs, `sections` of them for each axis, each at its own frequency (M-RoPE,
/// arXiv:2409.12191).
std::vector<RotaryPair> chunked_pairs(const std::vector<int64_t>& sections);
/// Likewise, with axes in turn; the pairs left over rotate by time (Qwen3-VL).
std::vector<RotaryPair> interleaved_pairs(const std::vector<int64_t>& sections);
/// Returns a first half that rotates by row, at every other frequency from the first, and a second
/// half that rotates by column, at every other frequency from `first_of_columns`: 0 or 1.
std::vector<RotaryPair> axial_pairs(int64_t pairs, int64_t first_of_columns);

/// Rotary position embedding (RoFormer, arXiv:2104.09864) and its scaling.
struct RopeConfig {
  double theta = 10000;
  double share = 1;  ///< of a head's coordinates that rotate: the first ones, or of Proportional's
                     ///< pairs the first ones
  RopeType type = RopeType::Default;
  double factor = 1;
  double attention_factor = 1;  ///< of cosines and sines
  double original_max_positions = 8192;
  /// M-RoPE sections or axial positions, for each pair of a head's coordinates; empty: each pair
  /// rotates by a token's position in the sample, at its own frequency.
  std::vector<RotaryPair> rotary_pairs = {};
  /// Equal parts of a head that rotate separately, each with its halves as pairs; `rotary_pairs`
  /// lists the pairs of the parts in order.
  int64_t parts = 1;
  bool of_neighbors = false;  ///< neighboring coordinates are the pairs (GPT-J), not the halves
  double low_freq_factor = 1, high_freq_factor = 4;  ///< of llama3
  double beta_fast = 32, beta_slow = 1;              ///< of yarn
  bool truncate = true;                              ///< of yarn
  /// LongRoPE's factors of each pair: in samples of at most original_max_positions tokens, and in
  /// longer ones.
  std::vector<double> short_factors = {}, long_factors = {};

  bool operator==(const RopeConfig&) const = default;
  /// Returns the pairs of coordinates that rotate.
  int64_t rotating_pairs(int64_t head_dim) const {
    return static_cast<int64_t>(share * static_cast<double>(head_dim)) / 2;
  }
  /// Returns the pairs of coordinates with an angle: those that rotate, or all.
  int64_t pairs(int64_t head_dim) const {
    return type == RopeType::Proportional ? head_dim / 2 : rotating_pairs(head_dim);
  }
};

/// Multi-head latent attention (arXiv:2405.04434): keys and values of all heads are made of one
/// normed latent of each token, and queries of another one, or of the token. Some coordinates of a
/// head's queries and keys rotate; those of keys are shared by all heads.
struct LatentSpec {
  int64_t query_rank = 0;   ///< coordinates of the queries' latent; 0: there is none
  int64_t rank = 0;         ///< of the latent of keys and values
  int64_t plain = 0;        ///< of a head's queries and keys, those that do not rotate
  int64_t rotary = 0;       ///< and those that do
  int64_t value = 0;        ///< of a head's values
  bool interleaved = true;  ///< neighbors rotate together, not halves
  NormSpec norm = {NormKind::Rms, 1e-6};  ///< of latents
};

/// Local attention with relative positions (arXiv:1901.02860): a row attends to the `left` rows
/// before it, itself, and the `right` rows after it. A score has a term of the query and a key of
/// the distance, made by a linear from the sinusoid of a position, which is `first` for the
/// leftmost row and decreases by 1 from row to row. Positions below 0 have no term.
struct RelativeSpec {
  int64_t left = 0, right = 0, first = 0;

  int64_t rows() const { return left + 1 + right; }
};

/// Softmax attention, a kind of token mixer.
struct AttentionSpec {
  HeadShape heads = {};  ///< as many queries in all kinds of attention of a module
  /// Sliding window: the tokens of text that a token attends to, with itself; in images the side,
  /// in features, of the squares whose patches attend to each other. 0: no window.
  int64_t window = 0;
  ScoreSpec scores = {};
  RopeConfig rope = {};  ///< of rotary blocks
  /// Gated attention (arXiv:2505.06708): the linear of queries makes a gate behind each query head,
  /// whose sigmoid scales the head's output.
  bool gates_output = false;
  bool norms_values = false;  ///< values of each head are normed, without a weight
  bool keys_are_values =
      false;  ///< the linear of keys makes the values, too, before norms and RoPE
  /// Attention sinks: each query head has a learned score, whose exponential is added to the
  /// denominator of its softmax (gpt-oss, arXiv:2508.10925).
  bool has_sinks = false;
  /// Heads have the coordinates of queries or of values, whichever are more; the others are zeros.
  std::optional<LatentSpec> latent = {};
  /// Each coordinate of a query has a learned factor, too; scores.scale is of queries alone.
  std::optional<RelativeSpec> relative = {};

  /// Returns the coordinates of a head's values.
  int64_t value_dim() const { return latent ? latent->value : heads.dim; }
};

/// The gated delta rule (arXiv:2412.06464), a kind of token mixer. Each value head carries a state
/// S (key_dim, value_dim) along the tokens of a sample, which begins with zeros. A token with decay
/// g, beta b, query q, key k and value v (of its head, after a causal convolution with SiLU;
/// q and k have norm 1, and q is scaled by key_dim^-1/2) changes S to exp(g) S and then adds
/// k (b (v - S^T k))^T. Its output is S^T q, normed by RMSNorm and gated by SiLU.
struct DeltaRuleSpec {
  int64_t key_heads = 0;               ///< of queries and keys
  int64_t value_heads = 0;             ///< a multiple of key_heads; neighbors share a key head
  int64_t key_dim = 0, value_dim = 0;  ///< of a head
  int64_t taps = 4;   ///< tokens that the convolution reads, the last is the token itself
  double eps = 1e-6;  ///< of the norm of outputs
  /// The order of the in-projection's rows. True: the queries, keys, values and gates of each key
  /// head, then its betas and decays, as in Qwen3-Next; false: those of all heads.
  bool by_key_head = false;

  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }
  /// Returns the channels of the convolution: queries, keys, values.
  int64_t channels() const { return 2 * keys() + values(); }
  /// Returns the columns of the in-projection: channels, gates of outputs, betas, decays.
  int64_t columns() const { return channels() + values() + 2 * value_heads; }
  /// Returns the multiplications of a token with states: S^T k, the change of S, and S^T q.
  int64_t multiplications() const { return 3 * value_heads * key_dim * value_dim; }
  /// Returns the part of one of `parts` ranks that share the heads evenly.
  DeltaRuleSpec share(int64_t parts) const;
};

/// A kind of token mixer: each block of a module has one of the module's kinds.
using MixerSpec = std::variant<AttentionSpec, DeltaRuleSpec>;

/// The function that makes the scores of experts from the outputs of the router's linear.
enum class RouterScores { Softmax, Sigmoid };

/// The choice of experts for each token (arXiv:1701.06538): each expert has a score, and those with
/// the best scores are chosen. Their scores are their gates. Ties go to the lower index.
struct RouterSpec {
  int64_t experts = 0;
  int64_t chosen = 0;           ///< experts of a token (top-k)
  bool norm_topk_prob = false;  ///< the gates of a token are divided by their sum
  RouterScores scores = RouterScores::Softmax;
  /// A bias is added to scores when experts are chosen, and not to gates (arXiv:2408.15664). It is
  /// a state of the model (ParamSpec::is_state).
  bool has_correction_bias = false;
  /// Group-limited routing (arXiv:2412.19437): a token chooses among the experts of its best
  /// `topk_groups` of `groups` equal groups; a group is as good as its two best experts together.
  int64_t groups = 1, topk_groups = 1;
  double min_sum = 0;             ///< added to the sum that gates are divided by
  double factor = 1;              ///< of gates, at last
  bool has_wide_outputs = false;  ///< in bf16 the outputs are fp32
};

/// The gate of gpt-oss (arXiv:2508.10925) between the columns gate, up, gate, up, and so on of one
/// linear: g sigmoid(alpha g) (u + 1) of g = min(gate, limit) and u, which is up between -limit and
/// limit.
struct ClampedGate {
  double alpha = 1.702, limit = 7;
};

/// A kind of MLP: each block of a module has one of the module's kinds. With a router it is a
/// mixture of experts: each expert is such an MLP, and a token gets the sum of the outputs of its
/// chosen experts, each times its gate.
struct MlpSpec {
  int64_t intermediate = 0;  ///< columns between its two linears
  bool gated = false;        ///< activation(gate) * up, not activation(up); SiLU or a GELU
  Activation activation = Activation::Gelu;
  std::optional<RouterSpec> router = {};
  /// The order of the matrices in a tensor that stacks those of all experts: (experts, out, in) or
  /// (experts, in, out); none: each expert has tensors of its own, (out, in).
  std::optional<WeightOrder> stack = {};
  std::optional<ClampedGate> clamped_gate = {};  ///< in place of `activation`, of stacked experts
  int64_t shared_intermediate = 0;               ///< width of the shared expert; 0: none
  /// Width of an MLP beside the experts (Gemma 4): both read the residual path by norms of their
  /// own, and their outputs, normed each, are added; 0: none.
  int64_t plain_intermediate = 0;
};

/// Per-layer inputs (Gemma 3n, arXiv:2507.06261, section 1; Gemma 4 E2B and E4B). Each block
/// computes a vector per token, (norm(P t) + T[id]) / sqrt(2), from the token's embedding t and id.
/// The vector times a gate of the block's output is projected and added to the output.
struct LayerInputSpec {
  int64_t width = 0;           ///< of a per-layer input; 0: blocks have none
  int64_t vocabulary = 0;      ///< rows of the table T
  int64_t placeholder_id = 0;  ///< row of T for placeholders of features
};

/// The block of a conformer (arXiv:2005.08100) as in USM: a feed-forward part, attention with
/// relative positions, a convolution part, a second feed-forward part, and a norm. The convolution
/// is causal and depthwise, after a gated linear unit.
struct ConformerSpec {
  int64_t taps = 5;             ///< rows that the convolution reads, the last is the row itself
  double feed_forward = 0.5;    ///< factor of what a feed-forward part adds
  double bound = 1e10;          ///< rows are clamped to it before norms
  NormSpec convolution_norm{};  ///< of the convolution part; the others have the block's
};

/// A transformer block: norm, token mixer, norm, MLP, with a residual path around each half. A
/// linear has a bias where the unit has a parameter for it.
struct BlockSpec {
  int64_t hidden = 0;
  /// The kinds of token mixer in the module; UnitSpec::mixer is the index of a block's.
  std::vector<MixerSpec> mixers = std::vector<MixerSpec>(1);
  /// The kinds of MLP in the module; UnitSpec::mlp is the index of a block's.
  std::vector<MlpSpec> mlps = std::vector<MlpSpec>(1);
  NormSpec norm;
  /// The norm of all queries, and all keys, of a token; without it, norms are per head.
  std::optional<NormSpec> query_key_norm = {};
  bool rotary = false;  ///< RoPE on queries and keys
  LayerInputSpec layer_input = {};
  WeightOrder order = WeightOrder::OutIn;
  double dropout = 0;  ///< probability of dropping a residual branch's output while training
  /// Clipped linears (Gemma 4): inputs and outputs are clamped to bounds that never train.
  bool clips_linears = false;
  std::optional<ConformerSpec> conformer = {};  ///< blocks are those of a conformer

  /// The first kind of attention, which families with one kind have.
  AttentionSpec& attention() { return std::get<AttentionSpec>(mixers.front()); }
  const AttentionSpec& attention() const { return std::get<AttentionSpec>(mixers.front()); }
  /// Returns the kinds of attention among the mixers.
  std::vector<AttentionSpec> attentions() const;
  /// Returns the fewest KV heads of a kind of attention.
  int64_t fewest_key_heads() const;
  /// Returns the kinds of gated delta rules among the mixers.
  std::vector<DeltaRuleSpec> delta_rules() const;
  /// Returns the most tokens that the convolution of a gated delta rule reads; 0: no mixer is one.
  int64_t most_taps() const;
  /// Returns whether a kind of mixer carries a state along the tokens of a sample.
  bool carries_state() const { return most_taps() > 0; }
  /// The first kind of MLP, which families with one kind have.
  MlpSpec& mlp() { return mlps.front(); }
  const MlpSpec& mlp() const { return mlps.front(); }
  /// Returns the kind of attention with the widest window, or without one.
  AttentionSpec widest_attention() const;
};

/// The projector from features of an encoder to the language model's width: one linear, or an MLP.
/// Before them there may be a norm, and a linear of merged features.
struct ProjectorSpec {
  NormSpec norm = {};  ///< of features, of tokens before they are merged, or of merged ones
  int64_t merge = 1;   ///< neighboring tokens that are concatenated to one feature
  bool space_to_depth = false;  ///< ... channel by channel (space-to-depth)
  bool pools = false;           ///< ... or averaged
  bool pools_first = false;     ///< ... before the norm
  double mean_scale = 1;        ///< factor of the averages of `pools_first`
  bool has_bare_norm = false;   ///< averages are normed without a weight
  bool shrinks = false;         ///< features of images with too many tiles are interpolated
  bool is_linear = false;
  Activation activation = Activation::Gelu;
  bool bias = true;
  WeightOrder order = WeightOrder::OutIn;  ///< of a projector of one linear
};

/// An encoder with its projector.
struct EncoderSpec {
  std::string name;                ///< in decks, logs and units: "vision"
  int64_t placeholder = -1;        ///< the token that a feature replaces
  int64_t video_placeholder = -1;  ///< likewise for videos; -1: it takes none
  BlockSpec block = {};
  int64_t layers = 0;
  std::variant<PatchInput, MelInput> input = {};
  bool drops_first_token = true;  ///< before the projector
  bool drops_registers = false;   ///< before the projector
  ProjectorSpec projector = {};
  /// Training reads the outputs of its blocks with the samples (data.cache_features), so the blocks
  /// run in evaluations only.
  bool is_cached = false;

  /// Returns whether features of videos are means over frames (VideoInput::averages).
  bool averages_frames() const {
    const auto* patches = std::get_if<PatchInput>(&input);
    return patches && patches->video && patches->video->averages;
  }
  bool is_placeholder(int64_t token) const {
    return token >= 0 && (token == placeholder || token == video_placeholder);
  }
  Modality modality() const {
    return std::holds_alternative<PatchInput>(input) ? Modality::Image : Modality::Audio;
  }
  const PatchInput& patches() const { return std::get<PatchInput>(input); }
  const MelInput& mels() const { return std::get<MelInput>(input); }
  PatchInput& patches() { return std::get<PatchInput>(input); }
  /// Returns whether images or clips differ in their shapes.
  bool varies() const {
    return modality() == Modality::Audio ? mels().own_length
                                         : patches().any_size() || patches().has_tiles();
  }
  /// Returns the shape of each item where they do not differ, else that of the largest.
  ItemShape item_shape() const;
  ItemShape item_shape(const ImageSize& image) const;
  /// Returns the shape of a video; `per_second`: its frames per second (0: not known). Throws
  /// DataError if the video has too many frames, or if the encoder takes no videos.
  ItemShape video_shape(const ImageSize& frame, int64_t frames, double per_second) const;
  /// Returns the shape of a clip of so many log-mel columns.
  ItemShape clip_shape(int64_t columns) const;
  /// Returns item_shape() or, where items differ, the largest shape of at most so many features,
  /// one at least.
  ItemShape shape_within(int64_t features) const;
  /// Returns the shape of one of several images in a sample, where FittedTiles::fits_alone.
  ItemShape padded_shape() const;

 private:
  ItemShape resized_shape(
      const ImageSize& image) const;  ///< of an image, or a frame, resized to it
  ItemShape tiled_shape(int64_t tiles, int64_t tiles_wide) const;
  ItemShape fitted_shape(const ImageSize& image) const;
  /// Every frame is one tile, whose features are interpolated to half as many a side; one end of a
  /// row follows the last frame.
  ItemShape fitted_video_shape(int64_t frames) const;
};

/// The blocks of the language model with bidirectional attention inside images: none, blocks with
/// a sliding window (which still hides tokens before it), or all.
enum class BidirectionalLayers { None, InWindows, All };

/// Returns whether blocks with a window of `window` tokens (0: none) are among them.
inline bool is_bidirectional(BidirectionalLayers where, int64_t window) {
  return where == BidirectionalLayers::All ||
         (where == BidirectionalLayers::InWindows && window > 0);
}

/// The language model.
struct DecoderSpec {
  BlockSpec block;
  int64_t layers = 0;
  int64_t vocabulary = 0, max_positions = 0;
  bool tied_embeddings = false;
  double embedding_scale = 1;    ///< factor of embedded rows of the vocabulary
  double embedding_dropout = 0;  ///< probability of dropping an embedding (with its position)
  BidirectionalLayers bidirectional_images =
      BidirectionalLayers::None;   ///< unless model.llm.image_attention says it
  double logit_softcap = 0;        ///< c: logits become c tanh(logit / c); 0: none
  bool learned_positions = false;  ///< a table of max_positions rows, not RoPE
  double router_aux_loss = 0;      ///< the config's coefficient of the loss that balances experts
  /// Coefficient of the loss of multi-token prediction (arXiv:2412.19437): its head, a block, reads
  /// the last states and the embeddings of next tokens, and predicts the tokens after these. 0: the
  /// model has no such unit.
  double mtp_loss = 0;
  double init_std = 0.02;           ///< of initial matrices
  std::vector<int64_t> end_tokens;  ///< that end a generated text

  /// Returns whether samples may have at most max_positions tokens: a table of positions has no
  /// more rows, and dynamic RoPE scaling depends on the longest sample of a batch.
  bool limits_positions() const;
  /// Returns the limit's name for messages, after the number: "learned positions (n_positions)".
  std::string limit_name() const;
};

}  // namespace zea
