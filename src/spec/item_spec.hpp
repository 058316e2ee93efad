// SPDX-License-Identifier: Apache-2.0
// The items of an encoder: how an image, a video or a clip becomes patches or columns, and the
// tokens and features that the encoder makes of it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

namespace zea {

/// The kind of an encoder's items; also its number in data sets.
enum class Modality : uint8_t { Image = 0, Audio = 1 };

/// Returns "image" or "audio".
const char* modality_name(Modality modality);

/// The kernel with which images, and tables of positions, are resized.
enum class Resampling { Bicubic, Bilinear, Lanczos };

/// Values [first, first + weights.size()) of a row with their weights, whose sum is 1.
struct SourceWeights {
  int64_t first = 0;
  std::vector<double> weights;
};

/// Returns the weights of the values of a row of `source_size` in value `target` of the row of
/// `target_size` that it is resized to. Values lie at the centers of equal shares of the row. A row
/// that shrinks has a wider kernel (antialiasing).
SourceWeights source_weights(int64_t target, int64_t source_size, int64_t target_size,
                             Resampling resampling);

/// In pixels; zeros where an item is no image or its size is not known.
struct ImageSize {
  int64_t height = 0, width = 0;

  bool operator==(const ImageSize&) const = default;
};

/// The normalization of pixels.
struct ImageColours {
  std::vector<double> mean{0.48145466, 0.4578275, 0.40821073};  ///< of each channel, pixels in 0..1
  std::vector<double> std{0.26862954, 0.26130258, 0.27577711};
  double scale = 1.0 / 255;  ///< factor of a pixel's 8 bits

  bool operator==(const ImageColours&) const = default;
};

/// Limits of the pixels of a resized image.
struct PixelLimits {
  int64_t least = 0, most = 0;

  bool operator==(const PixelLimits&) const = default;
};

/// Limits of the number of tiles that an image is cut into.
struct TileLimits {
  int64_t least = 1, most = 0;
};

/// The size of a grid, such as that of tiles.
struct TileGrid {
  int64_t wide = 1, high = 1;

  int64_t tiles() const { return wide * high; }
};

// The tiling policies: each says how an image becomes one or several images for the encoder.

/// Pan and scan (Gemma 3): an image that is longer one way has crops along it besides the whole.
struct PanAndScan {
  int64_t most = 0;          ///< crops; 0: none
  int64_t least_side = 256;  ///< of a crop, in pixels
  double least_ratio = 1.2;  ///< of the longer side to the shorter one
};

/// Each image becomes image_size x image_size (CLIP, SigLIP, ViT, DINOv2).
struct SquareImages {
  bool crops = true;          ///< takes the center of the image; false: all of it
  int64_t shortest_edge = 0;  ///< length of the shorter side before that; 0: image_size
  std::optional<PanAndScan> pan_and_scan = {};  ///< set where the family's processor knows it
};

/// Images keep about their shape, within limits of their pixels (Qwen2-VL's smart resize).
struct ImagesWithin {
  PixelLimits pixels = {};
  /// The processor counts an image's pixels once per frame of a temporal patch, and enlarges images
  /// that are smaller than a square of patches (GLM-4.5V).
  bool counts_frames = false;
};

/// Images keep about their shape; the longer side has at most image_size pixels (Pixtral).
struct ImagesBelow {};

/// Images become as large as the limit of pixels allows and about keep their aspect ratio: sides
/// are rounded up to whole squares of patches (NaFlex of SigLIP 2, arXiv:2502.14786), or down
/// (Gemma 4).
struct ImagesFilling {
  PixelLimits pixels = {};
  bool shrinks_sides = false;
};

/// Images shrink to limits of their pixels and of a side; black on the right and below fills whole
/// squares of patches (MoonViT).
struct ImagesPadded {
  PixelLimits pixels = {};  ///< before they are filled; none is the least
  int64_t side = 0;         ///< most patches of a side

  bool operator==(const ImagesPadded&) const = default;
  /// Returns the size of a shrunk image, without what fills squares. `patch`: side of a patch.
  ImageSize shrunk(const ImageSize& image, int64_t patch) const;
};

/// An image is cut into tiles of image_size x image_size, in a grid whose shape is nearest to the
/// image's, besides one tile of the whole image (InternVL, arXiv:2404.16821).
struct NearestTiles {
  TileLimits tiles = {};
};

/// The longer side of an image first becomes as many tiles as the root of `most_tiles`; the whole
/// image is one more tile (Idefics 3).
struct SplitTiles {
  int64_t most_tiles = 0;
};

/// An image is fitted into one of several resolutions of whole tiles, with black around it; the
/// whole image is the first tile (LLaVA-NeXT, LLaVA-OneVision: "anyres").
struct FittedTiles {
  std::vector<ImageSize> resolutions;
  /// Features of tiles are interpolated to those of so many tiles where the image covers more than
  /// 1.21 times as many (LLaVA-OneVision); 0: never.
  int64_t most_tiles = 0;
  /// Only the image of a sample with one image is fitted; others become one tile, padded to a
  /// square.
  bool fits_alone = false;
};

using TilingPolicy = std::variant<SquareImages, ImagesWithin, ImagesBelow, ImagesFilling,
                                  ImagesPadded, NearestTiles, SplitTiles, FittedTiles>;

/// The position of a patch in an image, in patches from the upper left corner.
struct PatchCell {
  int64_t row = 0, column = 0;
};

/// A row of a table of positions, and its weight in an interpolated position.
struct TableShare {
  int64_t row = 0;
  double share = 0;
};

/// The lookup of an image's positions in a table. Corners: bilinear interpolation, corners aligned.
/// Edges: bilinear with antialiasing, as pixels are resized. Cubic: cubic convolution of 4 x 4 rows
/// with a = -0.75, edges aligned, without antialiasing. Sum: the sum of a column and a row
/// position, from a table for each (Gemma 4).
enum class TableFit { Corners, Edges, Cubic, Sum };

/// Returns the size of an image whose longer side becomes `longest` pixels, as Idefics 3 resizes it
/// before it becomes whole tiles: the other side is rounded up to even numbers.
ImageSize stretched(const ImageSize& image, int64_t longest);

struct ItemShape;

/// How temporal patches get positions in time.
enum class VideoTime {
  WholeSeconds,  ///< each lasts whole seconds, or takes one position
  Rounded,       ///< fractions of a second, rounded down to whole positions (Qwen2.5-Omni)
  Exact,         ///< fractions of a second, fractional positions (Qwen3-Omni)
};

/// How an image encoder processes videos: as temporal patches of a few frames, which do not attend
/// to each other, or as items that are chunks of frames (`averages`).
struct VideoInput {
  PixelLimits pixels = {};  ///< of a resized frame
  bool limits_all = false;  ///< `pixels` limits all frames together
  int64_t most_frames = 768;
  /// Positions in time that a second takes in the language model; 0: a temporal patch takes one.
  int64_t positions_per_second = 0;
  /// With Rounded and Exact, the token after a video takes the position after its last one in time.
  VideoTime time = VideoTime::WholeSeconds;
  bool has_text_between = false;  ///< text separates the features of temporal patches
  bool has_own_limits = false;    ///< the family's processor sets `pixels`, no file
  /// Kimi-K2.5: an item is a chunk of at most `most_frames` frames, which attend to each other, and
  /// features are means over these frames. Patches get sinusoidal temporal embeddings of their
  /// frame index, up to `time_positions`; a chunk of one frame gets none.
  bool averages = false;
  int64_t time_positions = 0;
  int64_t most_side = 0;  ///< ImagesPadded::side of frames
  /// The longer side of a frame before it is resized to a square (stretched()); 0: unchanged.
  int64_t longest_side = 0;
};

/// Images as square patches, in rows of squares of block x block patches; those of a square lie in
/// rows, too.
struct PatchInput {
  int64_t image_size = 0;  ///< of a square or a tile; else about the largest side of an image
  int64_t patch_size = 0, channels = 3;
  int64_t frames = 1;  ///< of a temporal patch; an image is that many equal ones
  std::optional<VideoInput> video = {};
  bool class_token = false;  ///< precedes the patches
  int64_t registers = 0;     ///< more learned tokens after it, without positions
  /// Learned tokens follow the patches, and padding follows them, so that squares of patches become
  /// features.
  bool patches_first = false;
  int64_t block = 1;
  TilingPolicy tiling = {};
  Resampling resampling = Resampling::Bicubic;
  bool by_torchvision = false;  ///< resizes images like torchvision, not PIL; videos always do
  bool by_pixel = false;        ///< a patch's values are ordered by pixel, then channel
  /// Side of a square table of positions that is interpolated to every image, or with TableFit::Sum
  /// the number of rows of each table; 0: position() is the row of a patch.
  int64_t table_side = 0;
  TableFit table_fit = TableFit::Corners;
  ImageColours colours = {};
  bool doubles_pixels =
      false;  ///< the model maps processed pixels from 0..1 to -1..1; `colours` include it

  /// Returns the policy if it is a `Policy`, else null.
  template <class Policy>
  const Policy* as() const {
    return std::get_if<Policy>(&tiling);
  }
  template <class Policy>
  Policy* as() {
    return std::get_if<Policy>(&tiling);
  }
  /// Returns whether images keep about their shape.
  bool any_size() const {
    return as<ImagesWithin>() || as<ImagesBelow>() || as<ImagesFilling>() || as<ImagesPadded>();
  }
  /// Returns whether an image may become several tiles.
  bool has_tiles() const { return tile_limits().most > 1 || as<FittedTiles>(); }
  /// Returns the limits of a resized image's pixels; nullopt where the policy has none.
  std::optional<PixelLimits> pixel_limits() const;
  /// Sets pixel_limits(), and image_size to the side of the largest square.
  void limit(const PixelLimits& to);
  /// Returns the limits of the tiles, or crops, of an image, without the one of the whole image;
  /// most = 0 where the policy makes none.
  TileLimits tile_limits() const;
  /// Sets the limits of a policy whose tile_limits() are not those of crops.
  void limit_tiles(const TileLimits& to);

  int64_t side() const { return image_size / patch_size; }  ///< of the largest image, in patches
  int64_t class_tokens() const { return class_token ? 1 : 0; }
  int64_t learned_tokens() const { return class_tokens() + registers; }
  int64_t pixels_of_patch() const { return channels * patch_size * patch_size; }
  int64_t values() const { return frames * pixels_of_patch(); }  ///< of a patch
  /// Returns the size of a resized image: whole blocks of patches. Throws DataError where the
  /// limits of pixels allow no such shape.
  ImageSize resized(const ImageSize& image) const;
  /// Likewise for each frame of a video of `frames`.
  ImageSize resized(const ImageSize& frame, int64_t frames) const;
  /// Returns the grid of tiles, or of crops, of an image; 1 x 1: there are none besides the whole.
  /// Throws DataError where crops leave nothing for the last one.
  TileGrid grid(const ImageSize& image) const;
  /// Returns the longer side of an image that SplitTiles enlarges; 0 with other policies.
  int64_t longest_side() const;
  /// Returns the one of FittedTiles' resolutions that shows most of the image's pixels and wastes
  /// fewest of its own.
  ImageSize resolution(const ImageSize& image) const;
  /// Returns the size that a grid of features of a fitted image is interpolated to; 0 x 0: none.
  TileGrid shrunk(const TileGrid& shown) const;
  /// Returns the patches of a tile, or of an image that is not cut.
  int64_t patches_of(const ItemShape& shape) const;
  /// Returns the patch of a token of a tile; -1: the token is none.
  int64_t patch_of(int64_t token, int64_t patches) const;
  /// Returns the position of the patch-th patch of an image or tile.
  PatchCell cell(int64_t patch, const ItemShape& image) const;
  /// Returns the row in the table of positions, which has the class token, side() x side() patches
  /// and the registers, for a token of an image or tile; padding has the first. If the frames of a
  /// video are averaged, returns 1 + the token's frame index, or 0 without a temporal embedding.
  int64_t position(int64_t token, const ItemShape& image) const;
  /// Returns the rows of the tables of positions that are summed for a patch, with their weights.
  std::vector<TableShare> table_shares(int64_t patch, const ItemShape& image) const;
  /// Returns the most rows that table_shares() may have within the limits of pixels.
  int64_t most_table_shares() const;

 private:
  ImageSize filled(const ImageSize& image, const PixelLimits& limits) const;  ///< ImagesFilling
};

/// 2-D convolutions: kernel 3 x 3 (columns x bins), stride 2, zero padding at the ends of a clip or
/// of a chunk.
struct Subsampling {
  static constexpr int64_t kSide = 3, kTaps = kSide * kSide;
  std::vector<int64_t> channels = {};  ///< output channels of each convolution
  /// Each convolution is followed by a layer norm over channels and ReLU (USM, arXiv:2303.01037);
  /// false: by a bias and GELU (Qwen3-Omni).
  bool has_norms = true;
  /// Kernels are (bin, column) and flattened outputs (channel, bin); false: kernels are (column,
  /// bin) and flattened outputs (bin, channel).
  bool bins_first = false;

  int64_t convolutions() const { return static_cast<int64_t>(channels.size()); }
  /// Returns the number of columns (or bins) after `convolutions` convolutions of `count` ones.
  static int64_t halved(int64_t count, int64_t convolutions = 1) {
    for (int64_t i = 0; i < convolutions; ++i) count = (count + 1) / 2;
    return count;
  }
};

/// Audio clips as columns of log-mel features (Whisper, arXiv:2212.04356; USM).
struct MelInput {
  int64_t mel_bins = 80;
  int64_t positions = 1500;  ///< output columns of the convolutions for the longest clip
  bool own_length = false;  ///< a clip has the tokens of its own length; false: padded with silence
  /// Log-mel columns of a chunk: chunks of a clip are convolved separately, and sinusoidal
  /// positions restart in each (Qwen-Omni). 0: a clip is not cut.
  int64_t chunk = 0;
  std::optional<Subsampling> subsampling = {};  ///< none: Whisper's convolutions, and its features
  /// Log-mel columns of the longest clip; 0: those that make `positions`.
  int64_t most_columns = 0;

  /// Returns the convolutions with stride 2.
  int64_t halvings() const { return subsampling ? subsampling->convolutions() : 1; }
  /// Returns the log-mel columns of the longest clip.
  int64_t columns() const { return most_columns > 0 ? most_columns : columns_of(positions); }
  /// Returns the log-mel columns of `positions` output columns.
  int64_t columns_of(int64_t positions) const;
  /// Return the output columns of `columns` log-mel columns, and of a whole chunk.
  int64_t positions_of(int64_t columns) const;
  int64_t chunk_positions() const { return Subsampling::halved(chunk, halvings()); }
  /// Returns the log-mel columns of a padded chunk, for a clip of `columns`: the last chunk of a
  /// clip is padded with zeros, unless it is the only one.
  int64_t chunk_columns(int64_t columns) const;
  /// Return the mel bins after `convolutions` convolutions of a subsampling, after all of them, and
  /// the most columns at that depth that become `positions`.
  int64_t bins_after(int64_t convolutions) const {
    return Subsampling::halved(mel_bins, convolutions);
  }
  int64_t subsampled_bins() const { return bins_after(halvings()); }
  int64_t columns_after(int64_t convolutions, int64_t positions) const;
};

/// The grid of a fitted image (FittedTiles): the first tile is the whole image; the features of
/// the others lie in rows of the grid, and each row ends with a learned vector. In a video every
/// tile is a frame with a grid of its own, and one such vector follows them.
struct FittedGrid {
  int64_t rows_around = 0, columns_around = 0;  ///< padding at each side of the image, in patches
  int64_t row_ends = 0;                         ///< the item's last tokens: the ends of rows
  /// The interpolated rows and columns of features, where there were too many; 0: none.
  int64_t shrunk_rows = 0, shrunk_columns = 0;
  int64_t sources = 0;  ///< rows of the projector before interpolation; 0: as many as features

  bool operator==(const FittedGrid&) const = default;
};

/// The tokens of an item, and the features that become of them.
struct ItemShape {
  int64_t tokens = 0, features = 0;
  int64_t first = 0;           ///< token of the first feature
  int64_t merge = 1;           ///< neighboring tokens that become one feature
  int64_t width = 0;           ///< of an image, in patches
  int64_t padding_tokens = 0;  ///< the last ones, which attend to nothing
  /// Number of equal tiles, which do not attend to each other; width and padding are of each.
  int64_t tiles = 1;
  int64_t tiles_wide = 1;  ///< width of the grid of tiles
  std::optional<FittedGrid> fitted = {};
  /// Side, in features, of the windows of an image, whose tokens lie window by window; 0: none.
  int64_t window = 0;
  /// Frames of a video, whose last one repeats to fill a temporal patch; tiles are these patches.
  int64_t frames = 0;
  int64_t time_step = 0;  ///< positions in time between temporal patches
  /// Seconds of a temporal patch, where it need not take whole ones; `time_step` is then that of a
  /// second. 0: it is that of a temporal patch.
  float seconds = 0;
  VideoTime time = VideoTime::WholeSeconds;
  bool has_text_between = false;  ///< as of VideoInput
  /// Number of frames that each feature averages. The tokens of a feature are contiguous: frame by
  /// frame, `merge` patches each.
  int64_t averaged = 1;
  int64_t mel_columns = 0;  ///< log-mel columns of a clip
  int64_t chunk = 0;        ///< tokens of a clip that attend to each other; 0: all

  /// Returns the features of an image that lie side by side, each of a square of patches.
  int64_t columns() const;
  /// Returns the position of the index-th square of patches along the tokens, in squares.
  PatchCell square(int64_t index) const;
  /// Returns the feature, counted by rows of the item, that a token is a part of; -1: none.
  int64_t feature_of(int64_t token) const;
  /// Returns the row of the projector that a token is a part of; -1: none. It differs from
  /// feature_of() where features are interpolated.
  int64_t source_of(int64_t token) const;
  /// Returns the rows of the projector, with bilinear weights, that make a feature.
  std::array<TableShare, 4> feature_shares(int64_t feature) const;
  bool is_interpolated() const { return fitted && fitted->sources > 0; }
  int64_t projected() const { return is_interpolated() ? fitted->sources : features * merge; }
  int64_t row_ends() const { return fitted ? fitted->row_ends : 0; }
  /// Returns the position in time of a temporal patch, from the first one on.
  float time_of(int64_t moment) const;
  /// Returns whether blocks with windows see only parts of an item.
  bool has_windows() const { return window > 0 || chunk > 0; }
  /// Returns the tokens of each window of an image or tile, or of a clip.
  std::vector<int64_t> windows() const;
  /// Returns the most tokens that one attends to in windows of that side (0: the whole item).
  int64_t most_seen(int64_t of_window) const;
  int64_t tile_tokens() const { return (tokens - row_ends()) / tiles; }
  int64_t tile_features() const { return features / tiles; }  ///< of equal tiles
  int64_t picture_tokens() const { return tile_tokens() / averaged; }
  int64_t feature_tokens() const { return averaged * merge; }  ///< tokens per feature
  /// Returns the frame index of a token, if features are means over frames.
  int64_t frame_of(int64_t token) const { return token / merge % averaged; }
  int64_t pictures() const { return frames > 0 ? frames : tiles; }  ///< that it is decoded to
  bool is_row_end(int64_t token) const { return token >= tokens - row_ends(); }
  TileGrid grid() const { return {tiles_wide, tiles == 1 ? 1 : (tiles - 1) / tiles_wide}; }
  bool operator==(const ItemShape&) const = default;

 private:
  int64_t fitted_feature_of(int64_t token) const;
  int64_t fitted_source_of(int64_t token) const;
  int64_t shown_rows() const { return grid().high * width - 2 * fitted->rows_around; }
  int64_t shown_columns() const { return tiles_wide * width - 2 * fitted->columns_around; }
};

}  // namespace zea
