// SPDX-License-Identifier: Apache-2.0
// The tokens and features of items.
#include "spec/item_spec.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.hpp"
#include "spec/module_spec.hpp"

namespace zea {

const char* modality_name(Modality modality) {
  return modality == Modality::Audio ? "audio" : "image";
}

int64_t ItemShape::columns() const {
  return width / std::llround(std::sqrt(merge));
}

PatchCell ItemShape::square(int64_t index) const {
  const int64_t wide = columns();
  if (window == 0) return {index / wide, index % wide};
  const int64_t row = index / (window * wide) * window;
  const int64_t rows = std::min(window, tile_features() / wide - row);
  const int64_t in_row = index - row * wide;
  const int64_t column = in_row / (rows * window) * window;
  const int64_t in_window = in_row - rows * column, across = std::min(window, wide - column);
  return {row + in_window / across, column + in_window % across};
}

int64_t ItemShape::fitted_source_of(int64_t token) const {
  const int64_t side = width, of_whole = side * side, wide = shown_columns();
  const int64_t behind = token - tiles * tile_tokens();
  if (behind >= 0) return projected() - row_ends() + behind;
  const int64_t tile = token / tile_tokens(), patch = token % tile_tokens() - first;
  if (patch < 0 || patch >= of_whole) return -1;
  if (tile == 0 || frames > 0) return tile * of_whole + patch;
  const int64_t row = (tile - 1) / tiles_wide * side + patch / side - fitted->rows_around;
  const int64_t column = (tile - 1) % tiles_wide * side + patch % side - fitted->columns_around;
  const bool shows = row >= 0 && row < shown_rows() && column >= 0 && column < wide;
  return shows ? of_whole + row * wide + column : -1;
}

int64_t ItemShape::fitted_feature_of(int64_t token) const {
  const int64_t of_whole = width * width, source = fitted_source_of(token);
  if (frames > 0) {
    if (is_row_end(token)) return features - 1;
    return source < features - 1 ? source : -1;
  }
  if (source < of_whole) return source;
  const int64_t rows = is_interpolated() ? fitted->shrunk_rows : shown_rows();
  const int64_t wide = is_interpolated() ? fitted->shrunk_columns : shown_columns();
  const int64_t shown = source - of_whole, ends = shown_rows() * shown_columns();
  if (shown >= ends) return of_whole + (shown - ends + 1) * (wide + 1) - 1;
  if (shown >= rows * wide) return -1;
  return of_whole + shown / wide * (wide + 1) + shown % wide;
}

int64_t ItemShape::source_of(int64_t token) const {
  return is_interpolated() ? fitted_source_of(token) : feature_of(token);
}

namespace {

struct Between {
  int64_t first, second;
  double share;  ///< of the second
};

/// The centers of squares are aligned, as in transformers' interpolate.
Between between(int64_t index, int64_t from, int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double at = std::max(0.0, (static_cast<double>(index) + 0.5) * scale - 0.5);
  const auto first = static_cast<int64_t>(at);
  return {first, std::min(first + 1, from - 1), at - static_cast<double>(first)};
}

/// Returns the shares of a feature of a grid whose first row of the projector is `begin`.
std::array<TableShare, 4> shares_of_grid(int64_t begin, int64_t wide, const Between& y,
                                         const Between& x) {
  const auto source = [&](int64_t row, int64_t column) { return begin + row * wide + column; };
  return {{{source(y.first, x.first), (1 - y.share) * (1 - x.share)},
           {source(y.first, x.second), (1 - y.share) * x.share},
           {source(y.second, x.first), y.share * (1 - x.share)},
           {source(y.second, x.second), y.share * x.share}}};
}

std::array<TableShare, 4> one_share(int64_t source) {
  return {{{source, 1}, {source, 0}, {source, 0}, {source, 0}}};
}

}  // namespace

std::array<TableShare, 4> ItemShape::feature_shares(int64_t feature) const {
  const int64_t of_whole = width * width;
  if (!is_interpolated() || (frames == 0 && feature < of_whole)) return one_share(feature);
  const int64_t shrunk_rows = fitted->shrunk_rows, shrunk_columns = fitted->shrunk_columns;
  if (frames > 0) {
    const int64_t of_frame = shrunk_rows * shrunk_columns, inside = feature % of_frame;
    if (feature == features - 1) return one_share(projected() - 1);
    return shares_of_grid(feature / of_frame * of_whole, width,
                          between(inside / shrunk_columns, width, shrunk_rows),
                          between(inside % shrunk_columns, width, shrunk_columns));
  }
  const int64_t shown = feature - of_whole;
  const int64_t row = shown / (shrunk_columns + 1), column = shown % (shrunk_columns + 1);
  const int64_t high = shown_rows(), wide = shown_columns();
  if (column == shrunk_columns) return one_share(of_whole + high * wide + row);
  return shares_of_grid(of_whole, wide, between(row, high, shrunk_rows),
                        between(column, wide, shrunk_columns));
}

int64_t ItemShape::feature_of(int64_t token) const {
  if (fitted) return fitted_feature_of(token);
  const int64_t inside = token % tile_tokens();
  const int64_t index = inside < first ? -1 : (inside - first) / feature_tokens();
  if (index < 0 || index >= tile_features()) return -1;
  const int64_t of_tile = token / tile_tokens() * tile_features();
  if (window == 0) return of_tile + index;
  const PatchCell cell = square(index);
  return of_tile + cell.row * columns() + cell.column;
}

float ItemShape::time_of(int64_t moment) const {
  if (time == VideoTime::WholeSeconds) return static_cast<float>(moment * time_step);
  // In single precision, whose rounding decides where a product is nearly whole.
  const float exact = static_cast<float>(moment) * seconds * static_cast<float>(time_step);
  return time == VideoTime::Exact ? exact : std::trunc(exact);
}

std::vector<int64_t> ItemShape::windows() const {
  std::vector<int64_t> tokens_of;
  if (chunk > 0) {
    const int64_t inside = tile_tokens() - padding_tokens;
    for (int64_t begin = 0; begin < inside; begin += chunk)
      tokens_of.push_back(std::min(chunk, inside - begin));
    return tokens_of;
  }
  const int64_t wide = columns(), high = tile_features() / wide;
  for (int64_t row = 0; row < high; row += window)
    for (int64_t column = 0; column < wide; column += window)
      tokens_of.push_back(std::min(window, high - row) * std::min(window, wide - column) * merge);
  return tokens_of;
}

int64_t ItemShape::most_seen(int64_t of_window) const {
  if (of_window == 0) return tile_tokens();
  return std::min(tile_tokens(), chunk > 0 ? chunk : of_window * of_window * merge);
}

int64_t MelInput::columns_of(int64_t positions) const {
  if (chunk == 0) return positions << halvings();
  const int64_t whole = positions / chunk_positions(), rest = positions % chunk_positions();
  return whole * chunk + std::min(chunk, rest << halvings());
}

int64_t MelInput::positions_of(int64_t columns) const {
  if (chunk == 0) return Subsampling::halved(columns, halvings());
  return columns / chunk * chunk_positions() + Subsampling::halved(columns % chunk, halvings());
}

int64_t MelInput::chunk_columns(int64_t columns) const {
  return chunk == 0 ? columns : std::min(chunk, columns);
}

int64_t MelInput::columns_after(int64_t convolutions, int64_t positions) const {
  if (chunk == 0) return positions << (halvings() - convolutions);
  const int64_t whole = positions / chunk_positions(), rest = positions % chunk_positions();
  const int64_t of_chunk = Subsampling::halved(chunk, convolutions);
  return whole * of_chunk + std::min(of_chunk, rest << (halvings() - convolutions));
}

ItemShape EncoderSpec::item_shape() const {
  if (modality() == Modality::Audio) return clip_shape(mels().columns());
  if (patches().as<FittedTiles>()) return shape_within(std::numeric_limits<int64_t>::max());
  if (patches().has_tiles()) return tiled_shape(patches().tile_limits().most + 1, 1);
  return item_shape(ImageSize{patches().image_size, patches().image_size});
}

ItemShape EncoderSpec::clip_shape(int64_t columns) const {
  const MelInput& input = mels();
  const int64_t positions = input.positions, merge = projector.merge;
  const int64_t tokens =
      input.own_length ? std::min(positions, input.positions_of(columns)) : positions;
  const int64_t apart = (merge - tokens % merge) % merge;
  return {.tokens = tokens + apart,
          .features = tokens / merge,
          .merge = merge,
          .padding_tokens = apart,
          .mel_columns = input.chunk > 0 || input.subsampling ? std::min(columns, input.columns())
                                                              : input.columns(),
          .chunk = input.chunk > 0 ? block.attention().window : 0};
}

ItemShape EncoderSpec::item_shape(const ImageSize& image) const {
  const PatchInput& input = patches();
  if (input.as<FittedTiles>()) return fitted_shape(image);
  if (input.tile_limits().most > 0) {
    const TileGrid grid = input.grid(image);
    return tiled_shape(grid.tiles() > 1 ? grid.tiles() + 1 : 1, grid.wide);
  }
  return resized_shape(input.resized(image));
}

ItemShape EncoderSpec::resized_shape(const ImageSize& image) const {
  const PatchInput& input = patches();
  const int64_t patch = input.patch_size;
  const int64_t merge = projector.merge,
                patches_of_image = image.height / patch * (image.width / patch);
  const int64_t first = (drops_first_token ? 1 : 0) + (drops_registers ? input.registers : 0);
  const int64_t tokens = input.learned_tokens() + patches_of_image;
  const int64_t apart = input.patches_first ? (merge - tokens % merge) % merge : 0;
  return {.tokens = tokens + apart,
          .features = (input.patches_first ? patches_of_image : tokens - first) / merge,
          .first = first,
          .merge = merge,
          .width = image.width / patch,
          .padding_tokens = apart,
          .window = std::ranges::max(block.attentions(), {}, &AttentionSpec::window).window};
}

ItemShape EncoderSpec::video_shape(const ImageSize& frame, int64_t frames,
                                   double per_second) const {
  const std::string what = "a video of " + std::to_string(frames) + " frames";
  if (modality() != Modality::Image || !patches().video)
    throw DataError(what + ", and the " + name + " encoder takes images only");
  const PatchInput& input = patches();
  const VideoInput& video = *input.video;
  if (frames > video.most_frames && video.averages)
    throw DataError(what + " as one item, but items of the " + name +
                    " encoder are chunks of at most " + std::to_string(video.most_frames) +
                    " frames; pack the data set with jobs/pack.py and --model");
  if (frames > video.most_frames)
    throw DataError(what + ", more than data.max_frames = " + std::to_string(video.most_frames) +
                    "; raise it, or leave frames out");
  const int64_t moments = (frames + input.frames - 1) / input.frames;
  if (input.as<FittedTiles>()) return fitted_video_shape(frames);
  ItemShape shape = resized_shape(input.resized(frame, frames));
  if (video.averages) {
    shape.tokens *= frames;
    shape.frames = shape.averaged = frames;
    return shape;
  }
  const double seconds =
      per_second > 0 ? static_cast<double>(input.frames) / per_second : 1;  // of a temporal patch
  const int64_t positions = video.positions_per_second;
  shape.tokens *= moments;
  shape.features *= moments;
  shape.tiles = moments;
  shape.frames = moments * input.frames;
  shape.time_step = 1;
  shape.time = video.time;
  const bool is_whole = video.time == VideoTime::WholeSeconds;
  if (positions > 0)
    shape.time_step = is_whole ? positions * static_cast<int64_t>(seconds) : positions;
  if (!is_whole) shape.seconds = static_cast<float>(seconds);
  shape.has_text_between = video.has_text_between;
  return shape;
}

ItemShape EncoderSpec::tiled_shape(int64_t tiles, int64_t tiles_wide) const {
  const int64_t side = patches().side(), merge = projector.merge;
  const int64_t tokens = side * side + patches().learned_tokens();
  const int64_t apart = (merge - tokens % merge) % merge;
  return {.tokens = tiles * (tokens + apart),
          .features = tiles * side * side / merge,
          .merge = merge,
          .width = side,
          .padding_tokens = apart,
          .tiles = tiles,
          .tiles_wide = tiles_wide};
}

ItemShape EncoderSpec::fitted_shape(const ImageSize& image) const {
  const PatchInput& input = patches();
  const ImageSize to = input.resolution(image);
  const int64_t side = input.side(), size = input.image_size;
  const int64_t wide = to.width / size * side, high = to.height / size * side;
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  // The patches that the image covers along the side that it does not fill.
  const auto taken = [](double patches) {
    return static_cast<int64_t>(std::round(patches * 1e7) / 1e7);
  };
  const bool fills_rows = width / height > static_cast<double>(wide) / static_cast<double>(high);
  const int64_t rows =
      fills_rows ? (high - taken(height * (static_cast<double>(wide) / width))) / 2 : 0;
  const int64_t columns =
      fills_rows ? 0 : (wide - taken(width * (static_cast<double>(high) / height))) / 2;
  const int64_t shown_rows = high - 2 * rows, shown_columns = wide - 2 * columns;
  const int64_t tiles = 1 + to.width / size * (to.height / size), of_whole = side * side;
  FittedGrid grid{.rows_around = rows, .columns_around = columns, .row_ends = shown_rows};
  int64_t made_columns = shown_columns;
  const TileGrid shrunk = input.shrunk({shown_columns, shown_rows});
  if (shrunk.tiles() > 0) {
    grid.row_ends = grid.shrunk_rows = shrunk.high;
    made_columns = grid.shrunk_columns = shrunk.wide;
    grid.sources = of_whole + shown_rows * shown_columns + grid.row_ends;
  }
  return {.tokens = tiles * (of_whole + input.learned_tokens()) + grid.row_ends,
          .features = of_whole + grid.row_ends * (made_columns + 1),
          .first = input.learned_tokens(),
          .width = side,
          .tiles = tiles,
          .tiles_wide = to.width / size,
          .fitted = grid};
}

ItemShape EncoderSpec::fitted_video_shape(int64_t frames) const {
  const int64_t side = patches().side(), shrunk = (side + 1) / 2, of_frame = side * side;
  return {.tokens = frames * (of_frame + patches().learned_tokens()) + 1,
          .features = frames * shrunk * shrunk + 1,
          .first = patches().learned_tokens(),
          .width = side,
          .tiles = frames,
          .fitted = FittedGrid{.row_ends = 1,
                               .shrunk_rows = shrunk,
                               .shrunk_columns = shrunk,
                               .sources = frames * of_frame + 1},
          .frames = frames};
}

ItemShape EncoderSpec::padded_shape() const {
  const int64_t side = patches().side();
  return {.tokens = side * side + patches().learned_tokens() + 1,
          .features = side * side + 1,
          .first = patches().learned_tokens(),
          .width = side,
          .tiles_wide = 0,
          .fitted = FittedGrid{.row_ends = 1}};
}

ItemShape EncoderSpec::shape_within(int64_t features) const {
  const FittedTiles* fitting =
      modality() == Modality::Image ? patches().as<FittedTiles>() : nullptr;
  if (fitting) {
    ItemShape best = fitted_shape(fitting->resolutions.front());
    for (const ImageSize& each : fitting->resolutions) {
      const ItemShape shape = fitted_shape(each);
      const bool fits = shape.features <= features, best_fits = best.features <= features;
      const bool shrinks = fitting->most_tiles > 0;  // many tiles have no more features
      const bool is_larger = shrinks ? shape.tokens > best.tokens : shape.features > best.features;
      if (fits != best_fits ? fits : is_larger == fits) best = shape;
    }
    if (!patches().video) return best;
    const int64_t shrunk = (patches().side() + 1) / 2;
    const int64_t frames =
        std::min(patches().video->most_frames, (features - 1) / (shrunk * shrunk));
    if (frames < 1) return best;
    const ItemShape video = fitted_video_shape(frames);
    return video.tokens > best.tokens ? video : best;
  }
  const ItemShape usual = item_shape();
  if (!varies() || usual.features <= features) return usual;
  if (modality() == Modality::Image && patches().has_tiles()) {
    const int64_t tiles = features / tiled_shape(1, 1).features;
    return tiled_shape(std::max<int64_t>(1, tiles == 2 ? 1 : tiles), 1);  // two are a grid of one
  }
  const int64_t most = std::max<int64_t>(1, features);
  if (modality() == Modality::Audio) return clip_shape(mels().columns_of(most * projector.merge));
  return {.tokens = most * projector.merge, .features = most};
}

}  // namespace zea
