// SPDX-License-Identifier: Apache-2.0
// What becomes of an item: the size of an image, its patches, and the features of these.
#include "zea/plan/model/module_spec.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "zea/core/error.hpp"

namespace zea {

namespace {

/// Qwen2-VL's rule: whole steps nearest to the sides, or where these have too many or too few
/// pixels, below or above them in the same shape. A tie goes to the even number of steps. The
/// limits are of `frames` such images together, which become `made`.
ImageSize resized_within(const ImageSize& image, const PixelLimits& limits, int64_t step,
                         int64_t frames = 1, int64_t made = 1) {
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  const double pixels = static_cast<double>(frames) * height * width;
  const double unit = static_cast<double>(step);
  constexpr double kLargestRatio = 200;
  if (std::max(height, width) / std::min(height, width) > kLargestRatio)
    throw DataError("an image of " + std::to_string(image.height) + " x " +
                    std::to_string(image.width) +
                    " pixels; the longer side may be 200 times the shorter one");
  const auto steps = [&](double number) { return step * static_cast<int64_t>(number); };
  const ImageSize nearest{steps(std::nearbyint(height / unit)),
                          steps(std::nearbyint(width / unit))};
  const int64_t all = made * nearest.height * nearest.width;
  if (all > limits.most) {
    const double shrink = std::sqrt(pixels / static_cast<double>(limits.most));
    return {std::max(step, steps(std::floor(height / shrink / unit))),
            std::max(step, steps(std::floor(width / shrink / unit)))};
  }
  if (all >= limits.least) return nearest;
  const double stretch = std::sqrt(static_cast<double>(limits.least) / pixels);
  return {steps(std::ceil(height * stretch / unit)), steps(std::ceil(width * stretch / unit))};
}

/// Not less than a step a side, in the same shape.
ImageSize stretched_to(int64_t step, const ImageSize& image) {
  if (std::min(image.height, image.width) >= step) return image;
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  const double stretch = static_cast<double>(step) / std::min(height, width);
  return {static_cast<int64_t>(height * stretch), static_cast<int64_t>(width * stretch)};
}

/// Pixtral's rule: an image whose longer side is more than `most` shrinks to that, and to one pixel
/// at least; then its sides grow to whole steps.
ImageSize resized_below(const ImageSize& image, int64_t most, int64_t step) {
  const auto longer = static_cast<double>(std::max(image.height, image.width));
  const double shrink = std::max(1.0, longer / static_cast<double>(most));
  const auto whole_steps = [&](int64_t side) {
    const auto shrunk = static_cast<int64_t>(std::floor(static_cast<double>(side) / shrink));
    return (std::max<int64_t>(shrunk, 1) + step - 1) / step * step;
  };
  return {whole_steps(image.height), whole_steps(image.width)};
}

/// NaFlex's rule: sides grow to whole steps at the largest scale, searched by halves, at which
/// there are at most so many squares of a step.
ImageSize resized_to_fill(const ImageSize& image, int64_t most_squares, int64_t step) {
  constexpr double kCloseness = 1e-5;
  const auto steps_of = [step](int64_t side, double scale) {
    const double steps = std::ceil(static_cast<double>(side) * scale / static_cast<double>(step));
    return std::max<int64_t>(1, static_cast<int64_t>(steps));
  };
  double least = kCloseness / 10, most = 100;
  while (most - least >= kCloseness) {
    const double scale = (least + most) / 2;
    const bool fits = steps_of(image.height, scale) * steps_of(image.width, scale) <= most_squares;
    (fits ? least : most) = scale;
  }
  return {step * steps_of(image.height, least), step * steps_of(image.width, least)};
}

/// Of one side of a table, corner on corner with a side of an image.
std::vector<TableShare> between_corners(int64_t index, int64_t rows, int64_t patches) {
  const double at = static_cast<double>(index * (rows - 1)) /
                    static_cast<double>(std::max<int64_t>(1, patches - 1));
  const auto first = static_cast<int64_t>(at);
  const double share = at - static_cast<double>(first);
  return {{first, 1 - share}, {std::min(first + 1, rows - 1), share}};
}

/// The same, edge on edge.
std::vector<TableShare> between_edges(int64_t index, int64_t rows, int64_t patches) {
  const SourceWeights found = source_weights(index, rows, patches, Resampling::Bilinear);
  std::vector<TableShare> shares;
  for (const double weight : found.weights)
    shares.push_back({found.first + std::ssize(shares), weight});
  return shares;
}

/// As many whole tiles as a stretched image begins, its longer side first.
TileGrid grid_of_stretched(const ImageSize& image, int64_t tile) {
  const auto whole = [tile](int64_t side) { return (side + tile - 1) / tile * tile; };
  const double shape = static_cast<double>(image.width) / static_cast<double>(image.height);
  int64_t width = whole(image.width), height = whole(image.height);
  if (image.width >= image.height)
    height = whole(static_cast<int64_t>(static_cast<double>(width) / shape));
  else
    width = whole(static_cast<int64_t>(static_cast<double>(height) * shape));
  return {width / tile, height / tile};
}

}  // namespace

ImageSize stretched(const ImageSize& image, int64_t longest) {
  const double shape = static_cast<double>(image.width) / static_cast<double>(image.height);
  const auto even = [](double side) {
    const auto whole = static_cast<int64_t>(side);
    return std::max<int64_t>(1, whole + whole % 2);
  };
  const auto most = static_cast<double>(longest);
  if (image.width >= image.height) return {even(most / shape), longest};
  return {longest, even(most * shape)};
}

int64_t PatchInput::longest_side() const {
  constexpr int64_t kMost = 4096;  // of transformers' processor
  const auto along = static_cast<int64_t>(std::sqrt(tiles.most));
  return std::max<int64_t>(1, std::min(along, kMost / image_size)) * image_size;
}

void PatchInput::limit(const PixelLimits& to) {
  const int64_t step = patch_size * block;
  pixels = to;
  image_size = std::max(step, static_cast<int64_t>(std::sqrt(to.most)) / step * step);
}

ImageSize PatchInput::resized(const ImageSize& image) const {
  if (!any_size) return {image_size, image_size};
  ZEA_ASSERT(!class_token);
  const int64_t step = patch_size * block;
  if (fills_pixels) return resized_to_fill(image, pixels.most / (step * step), step);
  return pixels.most > 0 ? resized_within(image, pixels, step)
                         : resized_below(image, image_size, step);
}

ImageSize PatchInput::resized(const ImageSize& frame, int64_t frames) const {
  const int64_t step = patch_size * block;
  if (!video->limits_all) return resized_within(frame, video->pixels, step);
  const double moments = static_cast<double>(frames) / static_cast<double>(this->frames);
  const int64_t made = this->frames * static_cast<int64_t>(std::nearbyint(moments));
  return resized_within(stretched_to(step, frame), video->pixels, step, frames, made);
}

PatchPlace PatchInput::place(int64_t patch, const ItemShape& image) const {
  const PatchPlace square = image.square(patch / (block * block));
  const int64_t inside = patch % (block * block);
  return {square.row * block + inside / block, square.column * block + inside % block};
}

TileGrid PatchInput::grid(const ImageSize& image) const {
  if (stretches) return grid_of_stretched(stretched(image, longest_side()), image_size);
  const double shape = static_cast<double>(image.width) / static_cast<double>(image.height);
  const double pixels = static_cast<double>(image.height) * static_cast<double>(image.width);
  double nearest = std::numeric_limits<double>::infinity();
  TileGrid best;
  // By their number, and of equal numbers the narrow ones first.
  for (int64_t tiles = this->tiles.least; tiles <= this->tiles.most; ++tiles)
    for (int64_t wide = 1; wide <= tiles; ++wide) {
      if (tiles % wide != 0) continue;
      const TileGrid grid{wide, tiles / wide};
      const double away =
          std::abs(shape - static_cast<double>(grid.wide) / static_cast<double>(grid.high));
      const bool is_filled =
          pixels > 0.5 * static_cast<double>(image_size * image_size * grid.tiles());
      if (away < nearest || (away == nearest && is_filled)) best = grid;
      nearest = std::min(nearest, away);
    }
  return best;
}

ImageSize PatchInput::resolution(const ImageSize& image) const {
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  ImageSize best;
  int64_t most = 0, least_wasted = std::numeric_limits<int64_t>::max();
  for (const ImageSize& each : resolutions) {
    const double scale = std::min(static_cast<double>(each.width) / width,
                                  static_cast<double>(each.height) / height);
    const auto wide = static_cast<int64_t>(width * scale),
               high = static_cast<int64_t>(height * scale);
    const int64_t shown = std::min(wide * high, image.width * image.height);
    const int64_t wasted = each.width * each.height - shown;
    if (shown < most || (shown == most && wasted >= least_wasted)) continue;
    most = shown;
    least_wasted = wasted;
    best = each;
  }
  return best;
}

TileGrid PatchInput::crops_beside(const ImageSize& image) const {
  const bool is_wide = image.width >= image.height;
  const int64_t longer = std::max(image.height, image.width);
  const int64_t shorter = std::min(image.height, image.width);
  const double ratio = static_cast<double>(longer) / static_cast<double>(shorter);
  if (ratio < beside->least_ratio) return {};
  const int64_t nearest = std::min(static_cast<int64_t>(ratio + 0.5), longer / beside->least_side);
  const int64_t crops = std::clamp<int64_t>(nearest, 2, beside->most);
  const int64_t side = (longer + crops - 1) / crops;
  if (std::min(side, shorter) < beside->least_side) return {};
  if (side * (crops - 1) >= longer)
    throw DataError("an image of " + std::to_string(image.height) + " x " +
                    std::to_string(image.width) + " pixels, too few for " + std::to_string(crops) +
                    " crops; pan_and_scan_min_crop_size may be larger");
  return is_wide ? TileGrid{crops, 1} : TileGrid{1, crops};
}

TileGrid PatchInput::shrunk(const TileGrid& shown) const {
  constexpr double kTooMany = 1.1;
  if (shrunk_to_tiles == 0) return {0, 0};
  const double ratio = std::sqrt(static_cast<double>(shown.tiles()) /
                                 static_cast<double>(shrunk_to_tiles * side() * side()));
  if (ratio <= kTooMany) return {0, 0};
  const auto whole = [&](int64_t patches) {
    const auto side = static_cast<double>(patches);
    return std::llround((side - std::fmod(side, ratio)) / ratio);
  };
  return {whole(shown.wide), whole(shown.high)};
}

int64_t PatchInput::patches_of(const ItemShape& shape) const {
  const int64_t others = patches_first ? learned_tokens() + shape.apart : learned_tokens();
  return shape.tile_tokens() - others;
}

int64_t PatchInput::patch_of(int64_t token, int64_t patches) const {
  if (patches_first) return token < patches ? token : -1;
  const int64_t patch = token - learned_tokens();
  return patch < 0 || patch >= patches ? -1 : patch;
}

int64_t PatchInput::position(int64_t token, const ItemShape& shape) const {
  const int64_t patches = patches_of(shape), patch = patch_of(token, patches);
  if (patch >= 0) {
    const PatchPlace at = place(patch, shape);
    return class_tokens() + at.row * side() + at.column;
  }
  const int64_t learned = patches_first ? token - patches : token;
  if (learned < class_tokens() || learned >= learned_tokens()) return 0;
  return side() * side() + learned;
}

std::vector<TableShare> PatchInput::table_shares(int64_t patch, const ItemShape& image) const {
  const auto along = [this](int64_t index, int64_t patches) {
    return table_fit == TableFit::Edges ? between_edges(index, table_side, patches)
                                        : between_corners(index, table_side, patches);
  };
  const PatchPlace at = place(patch, image);
  const auto rows = along(at.row, image.tile_tokens() / image.width);
  const auto columns = along(at.column, image.width);
  std::vector<TableShare> shares;
  for (const TableShare& row : rows)
    for (const TableShare& column : columns)
      shares.push_back({row.row * table_side + column.row, row.share * column.share});
  return shares;
}

int64_t PatchInput::most_table_shares() const {
  static constexpr int64_t kBetween = 2;
  if (table_fit == TableFit::Corners) return kBetween * kBetween;
  // Of a side that has fewer patches than the table rows, twice as many as these go into one.
  const auto along = [this](int64_t patches) {
    const int64_t reached = (kBetween * table_side + patches - 1) / patches;
    return std::clamp(reached, kBetween, std::max(kBetween, table_side));
  };
  const int64_t patches = pixels.most / (patch_size * patch_size);
  int64_t most = 0;
  for (int64_t rows = 1; rows <= std::min(patches, table_side); ++rows)
    most = std::max(most, along(rows) * along(patches / rows));
  return most;
}

int64_t ItemShape::columns() const {
  return width / std::llround(std::sqrt(merge));
}

PatchPlace ItemShape::square(int64_t index) const {
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
  if (behind >= 0) return of_whole + shown_rows() * wide + behind;
  const int64_t tile = token / tile_tokens(), patch = token % tile_tokens() - first;
  if (patch < 0 || patch >= of_whole) return -1;
  if (tile == 0) return patch;
  const int64_t row = (tile - 1) / tiles_wide * side + patch / side - rows_around;
  const int64_t column = (tile - 1) % tiles_wide * side + patch % side - columns_around;
  const bool shows = row >= 0 && row < shown_rows() && column >= 0 && column < wide;
  return shows ? of_whole + row * wide + column : -1;
}

int64_t ItemShape::fitted_feature_of(int64_t token) const {
  const int64_t of_whole = width * width, source = fitted_source_of(token);
  if (source < of_whole) return source;
  const int64_t rows = sources > 0 ? shrunk_rows : shown_rows();
  const int64_t wide = sources > 0 ? shrunk_columns : shown_columns();
  const int64_t shown = source - of_whole, ends = shown_rows() * shown_columns();
  if (shown >= ends) return of_whole + (shown - ends + 1) * (wide + 1) - 1;
  if (shown >= rows * wide) return -1;
  return of_whole + shown / wide * (wide + 1) + shown % wide;
}

int64_t ItemShape::source_of(int64_t token) const {
  return sources > 0 ? fitted_source_of(token) : feature_of(token);
}

std::array<TableShare, 4> ItemShape::feature_shares(int64_t feature) const {
  struct Between {
    int64_t first, second;
    double share;  ///< of the second
  };
  const int64_t of_whole = width * width, shown = feature - of_whole;
  const int64_t row = shown / (shrunk_columns + 1), column = shown % (shrunk_columns + 1);
  if (sources == 0 || shown < 0) return {{{feature, 1}, {feature, 0}, {feature, 0}, {feature, 0}}};
  const int64_t high = shown_rows(), wide = shown_columns();
  const int64_t end = of_whole + high * wide + row;
  if (column == shrunk_columns) return {{{end, 1}, {end, 0}, {end, 0}, {end, 0}}};
  // Centres of squares on centres of squares, as transformers' interpolate has them.
  const auto between = [](int64_t index, int64_t from, int64_t to) -> Between {
    const double scale = static_cast<double>(from) / static_cast<double>(to);
    const double at = std::max(0.0, (static_cast<double>(index) + 0.5) * scale - 0.5);
    const auto first = static_cast<int64_t>(at);
    return {first, std::min(first + 1, from - 1), at - static_cast<double>(first)};
  };
  const Between y = between(row, high, shrunk_rows), x = between(column, wide, shrunk_columns);
  const auto source = [&](int64_t of_row, int64_t of_column) {
    return of_whole + of_row * wide + of_column;
  };
  return {{{source(y.first, x.first), (1 - y.share) * (1 - x.share)},
           {source(y.first, x.second), (1 - y.share) * x.share},
           {source(y.second, x.first), y.share * (1 - x.share)},
           {source(y.second, x.second), y.share * x.share}}};
}

int64_t ItemShape::feature_of(int64_t token) const {
  if (is_fitted) return fitted_feature_of(token);
  const int64_t inside = token % tile_tokens();
  const int64_t index = inside < first ? -1 : (inside - first) / merge;
  if (index < 0 || index >= tile_features()) return -1;
  const int64_t of_tile = token / tile_tokens() * tile_features();
  if (window == 0) return of_tile + index;
  const PatchPlace place = square(index);
  return of_tile + place.row * columns() + place.column;
}

std::vector<int64_t> ItemShape::windows() const {
  std::vector<int64_t> tokens_of;
  const int64_t wide = columns(), high = tile_features() / wide;
  for (int64_t row = 0; row < high; row += window)
    for (int64_t column = 0; column < wide; column += window)
      tokens_of.push_back(std::min(window, high - row) * std::min(window, wide - column) * merge);
  return tokens_of;
}

int64_t ItemShape::most_seen(int64_t of_window) const {
  return of_window == 0 ? tile_tokens() : std::min(tile_tokens(), of_window * of_window * merge);
}

bool DecoderSpec::limits_positions() const {
  const auto is_dynamic = [](const AttentionSpec& kind) { return kind.rope.type == "dynamic"; };
  return learned_positions || (block.rotary && std::ranges::any_of(block.attention, is_dynamic));
}

std::string DecoderSpec::limit_name() const {
  return learned_positions ? "learned positions (n_positions)"
                           : "positions (max_position_embeddings), beyond which dynamic rotary "
                             "scaling depends on the longest sample";
}

int64_t BlockSpec::widest_window() const {
  const auto width = [](const AttentionSpec& spec) {
    return spec.window == 0 ? std::numeric_limits<int64_t>::max() : spec.window;
  };
  return std::ranges::max(attention, {}, width).window;
}

ItemShape EncoderSpec::item_shape() const {
  if (modality() == Modality::Image && patches().tiles.most > 1)
    return tiled_shape(patches().tiles.most + 1, 1);
  if (modality() == Modality::Image && patches().has_crops_beside())
    return tiled_shape(patches().beside->most + 1, 1);
  if (modality() == Modality::Image && !patches().resolutions.empty())
    return shape_within(std::numeric_limits<int64_t>::max());
  if (modality() == Modality::Image)
    return item_shape(ImageSize{patches().image_size, patches().image_size});
  return clip_shape(mels().columns());
}

ItemShape EncoderSpec::clip_shape(int64_t columns) const {
  const int64_t positions = mels().positions, merge = projector.merge;
  const int64_t tokens = mels().own_length ? std::min(positions, (columns + 1) / 2) : positions;
  const int64_t apart = (merge - tokens % merge) % merge;
  return {.tokens = tokens + apart, .features = tokens / merge, .merge = merge, .apart = apart};
}

ItemShape EncoderSpec::item_shape(const ImageSize& image) const {
  const PatchInput& input = patches();
  if (!input.resolutions.empty()) return fitted_shape(image);
  if (input.tiles.most > 0 || input.has_crops_beside()) {
    const TileGrid grid = input.tiles.most > 0 ? input.grid(image) : input.crops_beside(image);
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
          .apart = apart,
          .window = std::ranges::max(block.attention, {}, &AttentionSpec::window).window};
}

ItemShape EncoderSpec::video_shape(const ImageSize& frame, int64_t frames, int64_t rate) const {
  const std::string what = "a video of " + std::to_string(frames) + " frames";
  if (modality() != Modality::Image || !patches().video)
    throw DataError(what + ", and the " + name + " encoder takes images only");
  const PatchInput& input = patches();
  const VideoInput& video = *input.video;
  if (frames > video.most_frames)
    throw DataError(what + ", more than data.max_frames = " + std::to_string(video.most_frames) +
                    "; raise it, or leave frames out");
  const int64_t moments = (frames + input.frames - 1) / input.frames;
  ItemShape shape = resized_shape(input.resized(frame, frames));
  const int64_t seconds = rate > 0 ? 1000 * input.frames / rate : 1;  // of a moment, whole ones
  const int64_t per_second = video.positions_per_second;
  shape.tokens *= moments;
  shape.features *= moments;
  shape.tiles = moments;
  shape.frames = moments * input.frames;
  shape.time_step = per_second > 0 ? per_second * seconds : 1;
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
          .apart = apart,
          .tiles = tiles,
          .tiles_wide = tiles_wide};
}

ItemShape EncoderSpec::fitted_shape(const ImageSize& image) const {
  const PatchInput& input = patches();
  const ImageSize to = input.resolution(image);
  const int64_t side = input.side(), size = input.image_size;
  const int64_t wide = to.width / size * side, high = to.height / size * side;
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  // Patches that the image takes of the longer way, which it does not fill.
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
  ItemShape shape{.first = input.learned_tokens(),
                  .width = side,
                  .tiles = tiles,
                  .tiles_wide = to.width / size,
                  .is_fitted = true,
                  .rows_around = rows,
                  .columns_around = columns,
                  .row_ends = shown_rows};
  int64_t made_columns = shown_columns;
  const TileGrid shrunk = input.shrunk({shown_columns, shown_rows});
  if (shrunk.tiles() > 0) {
    shape.row_ends = shape.shrunk_rows = shrunk.high;
    made_columns = shape.shrunk_columns = shrunk.wide;
    shape.sources = of_whole + shown_rows * shown_columns + shape.row_ends;
  }
  shape.tokens = tiles * (of_whole + input.learned_tokens()) + shape.row_ends;
  shape.features = of_whole + shape.row_ends * (made_columns + 1);
  return shape;
}

ItemShape EncoderSpec::padded_shape() const {
  const int64_t side = patches().side();
  return {.tokens = side * side + patches().learned_tokens() + 1,
          .features = side * side + 1,
          .first = patches().learned_tokens(),
          .width = side,
          .tiles_wide = 0,
          .is_fitted = true,
          .row_ends = 1};
}

ItemShape EncoderSpec::shape_within(int64_t features) const {
  if (modality() == Modality::Image && !patches().resolutions.empty()) {
    ItemShape best = fitted_shape(patches().resolutions.front());
    for (const ImageSize& each : patches().resolutions) {
      const ItemShape shape = fitted_shape(each);
      const bool fits = shape.features <= features, best_fits = best.features <= features;
      const bool shrinks = patches().shrunk_to_tiles > 0;  // many tiles have no more features
      const bool is_larger = shrinks ? shape.tokens > best.tokens : shape.features > best.features;
      if (fits != best_fits ? fits : is_larger == fits) best = shape;
    }
    return best;
  }
  const ItemShape usual = item_shape();
  if (!varies() || usual.features <= features) return usual;
  if (modality() == Modality::Image && has_tiles()) {
    const int64_t tiles = features / tiled_shape(1, 1).features;
    return tiled_shape(std::max<int64_t>(1, tiles == 2 ? 1 : tiles), 1);  // two are a grid of one
  }
  const int64_t fitting = std::max<int64_t>(1, features);
  return {.tokens = fitting * projector.merge, .features = fitting};
}

}  // namespace zea
