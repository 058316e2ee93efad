// SPDX-License-Identifier: Apache-2.0
// What modules are made of: blocks by their options, encoders with what they read and what becomes
// of it, the decoder.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "zea/core/attention_slice.hpp"
#include "zea/plan/model/modality.hpp"
#include "zea/plan/model/resampling.hpp"
#include "zea/plan/model/rotary_pairs.hpp"

namespace zea {

/// "gelu", "quick_gelu", "gelu_pytorch_tanh", "relu" or "silu".
enum class Activation { Gelu, QuickGelu, GeluTanh, Relu, Silu };

/// How a weight lies in its file and buffer: (out, in), or (in, out) as GPT-2's.
enum class WeightOrder { OutIn, InOut };

/// Over the last dim: with mean and bias (arXiv:1607.06450), or by the root mean square
/// (arXiv:1910.07467).
enum class NormKind { Layer, Rms };

struct NormSpec {
  NormKind kind = NormKind::Layer;
  double eps = 1e-5;
  double offset = 0;  ///< added to the weight: 1 of Gemma's, whose weights start as zeros
};

/// Heads of attention in a module.
struct HeadShape {
  int64_t query = 0, key_value = 0, dim = 0;
};

/// How frequencies are stretched beyond the positions that a model was first trained on: not,
/// evenly, or by arXiv:2407.21783 (Llama 3), the longest sample, arXiv:2309.00071 (YaRN) or
/// arXiv:2402.13753 (LongRoPE); in the order of their names in llama_spec.cpp.
enum class RopeType { Default, Linear, Llama3, Dynamic, Yarn, LongRope };

/// Rotary position embedding (RoFormer, arXiv:2104.09864) and the ways to stretch it.
struct RopeConfig {
  double theta = 10000;
  double share = 1;  ///< of a head's coordinates turn, the first ones
  RopeType type = RopeType::Default;
  double factor = 1;
  double attention_factor = 1;  ///< of cosines and sines
  double original_max_positions = 8192;
  /// What turns each pair of a head's coordinates; empty: all by a token's place in the sample,
  /// each at its own frequency.
  std::vector<RotaryPair> turns = {};
  double low_freq_factor = 1, high_freq_factor = 4;  ///< of llama3
  double beta_fast = 32, beta_slow = 1;              ///< of yarn
  bool truncate = true;                              ///< of yarn
  /// Of longrope, for each pair: in samples of at most original_max_positions tokens, and in longer
  /// ones.
  std::vector<double> short_factors = {}, long_factors = {};

  bool operator==(const RopeConfig&) const = default;
  /// Pairs of coordinates that turn.
  int64_t pairs(int64_t head_dim) const {
    return static_cast<int64_t>(share * static_cast<double>(head_dim)) / 2;
  }
};

/// A way in which blocks attend: a module has one, or several of which each block has one.
struct AttentionSpec {
  /// Of text: tokens that a token sees, itself among them. Of images: features a side of the
  /// squares inside which patches see each other. 0: it sees all (of text: all before it).
  int64_t window = 0;
  ScoreSpec scores = {};
  RopeConfig rope = {};  ///< of blocks whose positions turn queries and keys
};

/// A transformer block: norm, attention, norm, feed-forward, with a residual path around each half.
/// Biases are where the unit has parameters for them.
struct BlockSpec {
  int64_t hidden = 0, intermediate = 0;
  HeadShape heads;
  /// The ways in which blocks of the module attend; UnitSpec::attention says which is a block's.
  std::vector<AttentionSpec> attention = std::vector<AttentionSpec>(1);
  NormSpec norm;
  /// Of all queries of a token and of all its keys, whose norms are of each head without it.
  std::optional<NormSpec> query_key_norm = {};
  bool rotary = false;  ///< positions turn queries and keys
  bool gated = false;   ///< activation(gate) * up in place of activation(up); Silu or a GELU
  Activation activation = Activation::Gelu;
  WeightOrder order = WeightOrder::OutIn;
  double dropout = 0;  ///< training drops that share of what each half adds to its residual path

  /// The widest of the windows that its blocks see; 0: one sees all.
  int64_t widest_window() const;
};

/// In pixels; of an item that is no image, or of which it is not known: zeros.
struct ImageSize {
  int64_t height = 0, width = 0;
};

/// How images are made ready for an encoder, where the deck does not say.
struct ImageColours {
  std::vector<double> mean{0.48145466, 0.4578275, 0.40821073};  ///< of each channel, pixels in 0..1
  std::vector<double> std{0.26862954, 0.26130258, 0.27577711};
  double scale = 1.0 / 255;  ///< times a pixel's 8 bits

  bool operator==(const ImageColours&) const = default;
};

/// Of an image that is resized; most = 0: none.
struct PixelLimits {
  int64_t least = 0, most = 0;
};

/// Into how many square tiles an image is cut, at least and at most; most = 0: into none.
struct TileLimits {
  int64_t least = 1, most = 0;
};

/// Of an image that is longer one way: crops along it that stand beside the whole image (pan and
/// scan of Gemma 3).
struct CropLimits {
  int64_t most = 0;          ///< crops; 0: none
  int64_t least_side = 256;  ///< of a crop, in pixels
  double least_ratio = 1.2;  ///< of the longer side to the other
};

/// Tiles side by side and above each other.
struct TileGrid {
  int64_t wide = 1, high = 1;

  int64_t tiles() const { return wide * high; }
};

/// Where a patch of an image stands, in patches from the upper left corner.
struct PatchCell {
  int64_t row = 0, column = 0;
};

/// A row of a table of positions, and how much of it goes into a position.
struct TableShare {
  int64_t row = 0;
  double share = 0;
};

/// How a table of positions is laid over an image: corner on corner, each patch between four rows;
/// or edge on edge, resized as pixels are.
enum class TableFit { Corners, Edges };

/// An image in its shape with a longer side of `longest` pixels, as Idefics 3 resizes it before
/// that becomes whole tiles: the other side is rounded up to even numbers.
ImageSize stretched(const ImageSize& image, int64_t longest);

struct ItemShape;

/// How an encoder of images takes videos: as moments of some frames each, which do not see each
/// other.
struct VideoInput {
  PixelLimits pixels = {};  ///< of a frame when it is resized
  bool limits_all = false;  ///< ... of all frames together
  int64_t most_frames = 768;
  /// Positions in time that a second is in the language model; 0: a moment is one, however long.
  int64_t positions_per_second = 0;
  bool has_text_between = false;  ///< the features of moments stand apart, each like an image's
};

/// Images as square patches: squares of block x block of them in rows, those of a square in rows.
struct PatchInput {
  int64_t image_size = 0, patch_size = 0, channels = 3;
  int64_t frames = 1;  ///< of a patch; an image is that many equal ones
  std::optional<VideoInput> video = {};
  bool class_token = false;  ///< stands before the patches
  int64_t registers = 0;     ///< more such tokens behind it, without positions
  /// These stand behind the patches, and padding behind them: squares of patches become features.
  bool patches_first = false;
  int64_t block = 1;
  /// Images keep about their shape, and those that are not too large their size; false: each
  /// becomes image_size x image_size.
  bool any_size = false;
  /// Of an image of any size; without them image_size is the most of its sides, before these become
  /// whole blocks, with them that of the largest square (limit()).
  PixelLimits pixels = {};
  /// Of an image of any size: in about its shape it becomes as large as these allow, however small
  /// it is (NaFlex, arXiv:2502.14786).
  bool fills_pixels = false;
  /// Whole tiles: into one of these an image is fitted, black around it, which then is cut into
  /// tiles, and the whole image is one before them (LLaVA-NeXT); empty: it is not.
  std::vector<ImageSize> resolutions = {};
  /// Of these features, where the tiles that show the image have more than 1.21 times those of so
  /// many tiles: they are resampled to as many (LLaVA-OneVision); 0: they are not.
  int64_t shrunk_to_tiles = 0;
  /// Only the image of a sample that has one is fitted; others become one tile, padded to a square.
  bool fits_alone = false;
  /// Of an image that is cut into tiles of image_size x image_size, beside which the whole image is
  /// one more; and tiles do not see each other.
  TileLimits tiles = {};
  /// Of images that are cut so: the longer side first becomes as many tiles as the root of their
  /// most has whole ones, however short it is, and the whole image is made of these (Idefics 3).
  bool stretches = false;
  std::optional<CropLimits> beside = {};  ///< of families whose processors know crops beside images
  bool crops = true;                      ///< the middle of an image becomes that; false: all of it
  int64_t shortest_edge = 0;              ///< of an image before its middle is taken; 0: image_size
  Resampling resampling = Resampling::Bicubic;
  /// Images are resized as torchvision does it; false: as PIL does. Videos always are.
  bool by_torchvision = false;
  /// A patch's values lie pixel by pixel, not channel by channel: its weights are those of a
  /// linear.
  bool by_pixel = false;
  /// Of a square table of positions that every image is laid over; 0: position() says which row is
  /// a patch's.
  int64_t table_side = 0;
  TableFit table_fit = TableFit::Corners;
  ImageColours colours = {};

  int64_t side() const { return image_size / patch_size; }  ///< of the largest image, in patches
  int64_t class_tokens() const { return class_token ? 1 : 0; }
  int64_t learned_tokens() const { return class_tokens() + registers; }  ///< that are no patches
  void limit(const PixelLimits& to);
  int64_t pixels_of_patch() const { return channels * patch_size * patch_size; }
  int64_t values() const { return frames * pixels_of_patch(); }  ///< of a patch
  /// What an image becomes: sides of whole blocks of patches. Throws DataError where the limits of
  /// pixels allow no such shape.
  ImageSize resized(const ImageSize& image) const;
  /// Likewise of each of the frames of a video.
  ImageSize resized(const ImageSize& frame, int64_t frames) const;
  /// The grid of tiles whose shape is nearest to the image's; of equal ones the largest that is not
  /// more than twice as large as the image (InternVL, arXiv:2404.16821).
  TileGrid grid(const ImageSize& image) const;
  /// Of the longer side where `stretches`.
  int64_t longest_side() const;
  /// Crops of an image that stand beside it, side by side or above each other; 1 x 1: none. Throws
  /// DataError where there is nothing left for one.
  TileGrid crops_beside(const ImageSize& image) const;
  bool has_crops_beside() const { return beside && beside->most > 0; }
  /// The resolution in which most of the image's pixels are shown, and fewest show nothing.
  ImageSize resolution(const ImageSize& image) const;
  /// What the features of a fitted image, so many wide and high, are resampled to; 0 x 0: they
  /// stay.
  TileGrid shrunk(const TileGrid& shown) const;
  /// Patches of a tile, which an image that is not cut is, too.
  int64_t patches_of(const ItemShape& shape) const;
  /// The patch that a token of a tile is; -1: it is none.
  int64_t patch_of(int64_t token, int64_t patches) const;
  /// Where the patch lies that is the patch-th of an image or tile.
  PatchCell cell(int64_t patch, const ItemShape& image) const;
  /// The row of the table of positions, which has side() x side() patches after the class token and
  /// registers after these, for a token of an image or tile; padding has the first.
  int64_t position(int64_t token, const ItemShape& image) const;
  /// The rows of a table that is laid over images which a patch lies between, and their shares in
  /// it: bilinear.
  std::vector<TableShare> table_shares(int64_t patch, const ItemShape& image) const;
  /// How many rows there are at most, of images with about as many patches as the limits allow.
  int64_t most_table_shares() const;
};

/// Clips of sound as columns of log-mel features (Whisper, arXiv:2212.04356).
struct MelInput {
  int64_t mel_bins = 80;
  int64_t positions = 1500;  ///< of a clip, each of 20 ms
  /// A clip has the tokens of its own sound, at most so many; false: each is filled up with
  /// silence.
  bool own_length = false;

  /// Of log-mel features in a clip: the second convolution makes one position of two.
  int64_t columns() const { return 2 * positions; }
};

/// What an encoder makes of an item: so many tokens, of which some become features.
struct ItemShape {
  int64_t tokens = 0, features = 0;
  int64_t first = 0;  ///< token that the first feature is made of
  int64_t merge = 1;  ///< neighbouring tokens that become one feature
  int64_t width = 0;  ///< of an image, in patches
  int64_t apart = 0;  ///< last tokens that fill up a merge: no other sees them, nor they another
  /// An item is so many alike, none of which sees another's tokens; width and apart are of each.
  int64_t tiles = 1;
  int64_t tiles_wide = 1;  ///< of the grid that they are cut from
  /// The first tile is all of an image that is fitted into the grid of the others: by rows of this
  /// its patches become features, and each row ends with one that is learned.
  bool is_fitted = false;
  /// Rows of patches above and below the image in the grid, and columns beside it.
  int64_t rows_around = 0, columns_around = 0;
  int64_t row_ends = 0;  ///< last tokens of a fitted item, which stand apart: the ends of rows
  /// Of a fitted item whose grid has too many features: the rows and columns that these are
  /// resampled to, and all rows that the projector makes of the item; 0: as many as features.
  int64_t shrunk_rows = 0, shrunk_columns = 0, sources = 0;
  /// Of an image: features a side of the windows, squares that its tokens lie in one after the
  /// other, by rows, as do features in each; 0: all by rows.
  int64_t window = 0;
  /// Of a video, whose last one is there again where patches need more; its tiles are its moments.
  int64_t frames = 0;
  int64_t time_step = 0;          ///< positions in time from a moment to the next
  bool has_text_between = false;  ///< moments' features are apart, and their positions images'

  /// Features of an image that lie side by side, each of a square of patches.
  int64_t columns() const;
  /// Where the square of patches lies that is the index-th along the tokens, in such squares.
  PatchCell square(int64_t index) const;
  /// The feature, by number in the item (by rows), that a token is a part of; -1: of none.
  int64_t feature_of(int64_t token) const;
  /// Which of the projector's rows for this item is made of a token; -1: none. Where features are
  /// resampled feature_of() only says where they are counted.
  int64_t source_of(int64_t token) const;
  /// The projector's rows that a feature is put together of, bilinear.
  std::array<TableShare, 4> feature_shares(int64_t feature) const;
  int64_t projected() const { return sources > 0 ? sources : features * merge; }
  /// Tokens of each window of an image or tile.
  std::vector<int64_t> windows() const;
  /// How many tokens one sees at most where it sees windows of that side (0: the item).
  int64_t most_seen(int64_t of_window) const;
  int64_t tile_tokens() const { return (tokens - row_ends) / tiles; }
  int64_t tile_features() const { return features / tiles; }        ///< where the tiles are alike
  int64_t pictures() const { return frames > 0 ? frames : tiles; }  ///< that it is decoded to
  bool is_row_end(int64_t token) const { return token >= tokens - row_ends; }
  TileGrid grid() const { return {tiles_wide, tiles == 1 ? 1 : (tiles - 1) / tiles_wide}; }
  bool operator==(const ItemShape&) const = default;

 private:
  int64_t fitted_feature_of(int64_t token) const;
  int64_t fitted_source_of(int64_t token) const;
  int64_t shown_rows() const { return grid().high * width - 2 * rows_around; }
  int64_t shown_columns() const { return tiles_wide * width - 2 * columns_around; }
};

/// From features of an encoder to rows of the language model's width: linear, or linear, activation
/// and linear. Before them there may be a norm, and a linear of merged features.
struct ProjectorSpec {
  NormSpec norm = {};        ///< of features, of tokens before they are merged, or of all of these
  int64_t merge = 1;         ///< neighbouring tokens that become one feature: side by side
  bool by_channel = false;   ///< ... their first numbers, their second ones, and so on
  bool pools = false;        ///< ... or their mean
  bool pools_first = false;  ///< ... taken before the norm
  bool shrinks = false;      ///< features of images in too many tiles are resampled
  bool is_linear = false;
  Activation activation = Activation::Gelu;
  bool bias = true;
  WeightOrder order = WeightOrder::OutIn;  ///< where it is linear
};

/// An encoder with its projector.
struct EncoderSpec {
  std::string name;                ///< in decks, logs and units: "vision"
  int64_t placeholder = -1;        ///< the token in whose place a feature is put
  int64_t video_placeholder = -1;  ///< likewise of videos, where it takes them
  BlockSpec block = {};
  int64_t layers = 0;
  std::variant<PatchInput, MelInput> input = {};
  bool drops_first_token = true;  ///< before the projector
  bool drops_registers = false;   ///< likewise
  ProjectorSpec projector = {};
  /// What its blocks make is read with the samples that train (data.cache_features), so they run
  /// in evaluations alone.
  bool is_cached = false;

  bool is_placeholder(int64_t token) const {
    return token >= 0 && (token == placeholder || token == video_placeholder);
  }
  Modality modality() const {
    return std::holds_alternative<PatchInput>(input) ? Modality::Image : Modality::Audio;
  }
  const PatchInput& patches() const { return std::get<PatchInput>(input); }
  const MelInput& mels() const { return std::get<MelInput>(input); }
  /// Whether items differ in their shapes.
  bool varies() const {
    return modality() == Modality::Audio ? mels().own_length : patches().any_size || has_tiles();
  }
  /// Whether an image becomes several tiles.
  bool has_tiles() const {
    const PatchInput& images = patches();
    return images.tiles.most > 1 || !images.resolutions.empty() || images.has_crops_beside();
  }
  /// Of every item, where they do not differ; else of the largest.
  ItemShape item_shape() const;
  /// Of an image of that size.
  ItemShape item_shape(const ImageSize& image) const;
  /// Of a video of so many frames of that size, `rate` of which are 1000 seconds (0: not known).
  /// Throws DataError where these are too many, or the encoder takes none.
  ItemShape video_shape(const ImageSize& frame, int64_t frames, int64_t rate) const;
  /// Of a clip whose sound has so many log-mel columns.
  ItemShape clip_shape(int64_t columns) const;
  /// The usual one, or where items differ the largest of at most so many features, one at least.
  ItemShape shape_within(int64_t features) const;
  /// Of an image, or a frame, that was resized to that.
  ItemShape resized_shape(const ImageSize& image) const;
  /// Of an image of so many tiles.
  ItemShape tiled_shape(int64_t tiles, int64_t tiles_wide) const;
  /// Of an image that is fitted into one of the resolutions.
  ItemShape fitted_shape(const ImageSize& image) const;
  /// Of one of several images in a sample, where only a single one is fitted.
  ItemShape padded_shape() const;
};

/// The language model.
struct DecoderSpec {
  BlockSpec block;
  int64_t layers = 0;
  int64_t vocabulary = 0, max_positions = 0;
  bool tied_embeddings = false;
  double embedding_scale = 1;       ///< on rows of the vocabulary, where they are embedded
  double embedding_dropout = 0;     ///< training drops that share of embeddings with positions
  bool images_both_ways = false;    ///< features of an image see all of it, where no deck says else
  double logit_softcap = 0;         ///< c: logits are c tanh(logit / c); 0: as they are
  bool learned_positions = false;   ///< a table of max_positions rows in place of rotation
  double init_std = 0.02;           ///< of initial matrices
  std::vector<int64_t> end_tokens;  ///< that end a generated text

  /// Whether samples have at most max_positions tokens: a table of positions has no more, and
  /// dynamic rotation would become another for all samples beside a longer one.
  bool limits_positions() const;
  /// For messages, after the number: "learned positions (n_positions)".
  std::string limit_name() const;
};

}  // namespace zea
