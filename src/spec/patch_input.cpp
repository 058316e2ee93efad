// SPDX-License-Identifier: Apache-2.0
// The tiling policies of images, and the positions of patches.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/error.hpp"
#include "spec/item_spec.hpp"

namespace zea {

namespace {

/// Qwen2-VL's smart resize: sides become the nearest whole steps or, where these have too many or
/// too few pixels, whole steps below or above in the same shape. A tie goes to the even number of
/// steps. The limits are of `frames` such images together, which become `made`.
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

/// Returns the size with a step a side at least, in the same shape.
ImageSize stretched_to(int64_t step, const ImageSize& image) {
  if (std::min(image.height, image.width) >= step) return image;
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  const double stretch = static_cast<double>(step) / std::min(height, width);
  return {static_cast<int64_t>(height * stretch), static_cast<int64_t>(width * stretch)};
}

/// Pixtral's rule: an image whose longer side exceeds `most` shrinks to that, to one pixel at
/// least; then its sides grow to whole steps.
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

/// Resizes like Gemma 4: scales the image to the area of `most_squares` squares and rounds sides
/// down to whole steps. A side below one step becomes one step, and the other side the aspect ratio
/// in steps, `most_squares` at most.
ImageSize resized_into(const ImageSize& image, int64_t most_squares, int64_t step) {
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  const double scale =
      std::sqrt(static_cast<double>(most_squares * step * step) / (height * width));
  const auto steps_of = [&](double side) {
    return static_cast<int64_t>(std::floor(scale * side / static_cast<double>(step)));
  };
  int64_t rows = steps_of(height), columns = steps_of(width);
  if (rows == 0) columns = std::min(image.width / image.height, most_squares);
  if (columns == 0) rows = std::min(image.height / image.width, most_squares);
  return {step * std::max<int64_t>(1, rows), step * std::max<int64_t>(1, columns)};
}

/// Returns the weights along one side of a table whose corners are aligned with an image's.
std::vector<TableShare> between_corners(int64_t index, int64_t rows, int64_t patches) {
  const double at = static_cast<double>(index * (rows - 1)) /
                    static_cast<double>(std::max<int64_t>(1, patches - 1));
  const auto first = static_cast<int64_t>(at);
  const double share = at - static_cast<double>(first);
  return {{first, 1 - share}, {std::min(first + 1, rows - 1), share}};
}

/// Likewise with edges aligned.
std::vector<TableShare> between_edges(int64_t index, int64_t rows, int64_t patches) {
  const SourceWeights found = source_weights(index, rows, patches, Resampling::Bilinear);
  std::vector<TableShare> shares;
  for (const double weight : found.weights)
    shares.push_back({found.first + std::ssize(shares), weight});
  return shares;
}

/// Likewise with edges aligned, by Keys' cubic convolution with a = -0.75; rows beyond an edge
/// repeat it.
std::vector<TableShare> between_four(int64_t index, int64_t rows, int64_t patches) {
  constexpr double kA = -0.75;
  const double at = (static_cast<double>(index) + 0.5) * static_cast<double>(rows) /
                        static_cast<double>(patches) -
                    0.5;
  const double first = std::floor(at), share = at - first;
  const auto near = [](double x) { return ((kA + 2) * x - (kA + 3)) * x * x + 1; };
  const auto far = [](double x) { return ((kA * x - 5 * kA) * x + 8 * kA) * x - 4 * kA; };
  const std::array weights{far(share + 1), near(share), near(1 - share), far(2 - share)};
  std::vector<TableShare> shares;
  for (const double weight : weights) {
    const int64_t row = static_cast<int64_t>(first) - 1 + std::ssize(shares);
    shares.push_back({std::clamp<int64_t>(row, 0, rows - 1), weight});
  }
  return shares;
}

/// Returns the whole tiles that a stretched image begins, its longer side first.
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

/// Returns the grid whose shape is nearest to the image's; among equal ones the largest that has at
/// most twice the image's pixels.
TileGrid nearest_grid(const ImageSize& image, const TileLimits& limits, int64_t tile) {
  const double shape = static_cast<double>(image.width) / static_cast<double>(image.height);
  const double pixels = static_cast<double>(image.height) * static_cast<double>(image.width);
  double nearest = std::numeric_limits<double>::infinity();
  TileGrid best;
  // Grids in the order of their tiles, narrow ones first.
  for (int64_t tiles = limits.least; tiles <= limits.most; ++tiles)
    for (int64_t wide = 1; wide <= tiles; ++wide) {
      if (tiles % wide != 0) continue;
      const TileGrid grid{wide, tiles / wide};
      const double away =
          std::abs(shape - static_cast<double>(grid.wide) / static_cast<double>(grid.high));
      const bool is_filled = pixels > 0.5 * static_cast<double>(tile * tile * grid.tiles());
      if (away < nearest || (away == nearest && is_filled)) best = grid;
      nearest = std::min(nearest, away);
    }
  return best;
}

/// Returns the crops of an image by pan and scan, side by side or above each other; 1 x 1: none.
TileGrid grid_of_crops(const ImageSize& image, const PanAndScan& limits) {
  const bool is_wide = image.width >= image.height;
  const int64_t longer = std::max(image.height, image.width);
  const int64_t shorter = std::min(image.height, image.width);
  const double ratio = static_cast<double>(longer) / static_cast<double>(shorter);
  if (ratio < limits.least_ratio) return {};
  const int64_t nearest =
      std::min(static_cast<int64_t>(std::floor(ratio + 0.5)), longer / limits.least_side);
  const int64_t crops = std::clamp<int64_t>(nearest, 2, limits.most);
  const int64_t side = (longer + crops - 1) / crops;
  if (std::min(side, shorter) < limits.least_side) return {};
  if (side * (crops - 1) >= longer)
    throw DataError("an image of " + std::to_string(image.height) + " x " +
                    std::to_string(image.width) + " pixels, too few for " + std::to_string(crops) +
                    " crops; pan_and_scan_min_crop_size may be larger");
  return is_wide ? TileGrid{crops, 1} : TileGrid{1, crops};
}

/// Returns the size with both sides rounded up to multiples of `step` pixels.
ImageSize whole_steps(const ImageSize& image, int64_t step) {
  const auto whole = [step](int64_t side) { return (side + step - 1) / step * step; };
  return {whole(image.height), whole(image.width)};
}

}  // namespace

ImageSize ImagesPadded::shrunk(const ImageSize& image, int64_t patch) const {
  const auto patches = [patch](int64_t edge) { return std::max<int64_t>(1, edge / patch); };
  const auto edges_of = [](int64_t pixels, int64_t edge) {
    return static_cast<double>(pixels) / static_cast<double>(edge);
  };
  const int64_t longest = side * patch;
  const double scale = std::min({1.0,
                                 std::sqrt(edges_of(pixels.most / (patch * patch),
                                                    patches(image.height) * patches(image.width))),
                                 edges_of(longest, image.height), edges_of(longest, image.width)});
  const auto scaled = [&](int64_t edge) {
    const auto whole = static_cast<int64_t>(static_cast<double>(edge) * scale);
    return std::min(std::max<int64_t>(1, whole), longest);
  };
  return {scaled(image.height), scaled(image.width)};
}

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
  if (!as<SplitTiles>()) return 0;
  const auto along = static_cast<int64_t>(std::sqrt(as<SplitTiles>()->most_tiles));
  return std::max<int64_t>(1, std::min(along, kMost / image_size)) * image_size;
}

std::optional<PixelLimits> PatchInput::pixel_limits() const {
  if (const auto* within = as<ImagesWithin>()) return within->pixels;
  if (const auto* filling = as<ImagesFilling>()) return filling->pixels;
  if (const auto* padded = as<ImagesPadded>()) return padded->pixels;
  return std::nullopt;
}

void PatchInput::limit(const PixelLimits& to) {
  const int64_t step = patch_size * block;
  if (auto* within = as<ImagesWithin>()) within->pixels = to;
  if (auto* filling = as<ImagesFilling>()) filling->pixels = to;
  if (auto* padded = as<ImagesPadded>()) padded->pixels = to;
  image_size = std::max(step, static_cast<int64_t>(std::sqrt(to.most)) / step * step);
}

TileLimits PatchInput::tile_limits() const {
  if (const auto* nearest = as<NearestTiles>()) return nearest->tiles;
  if (const auto* split = as<SplitTiles>()) return {.most = split->most_tiles};
  const auto* square = as<SquareImages>();
  return square && square->pan_and_scan ? TileLimits{.most = square->pan_and_scan->most}
                                        : TileLimits{};
}

void PatchInput::limit_tiles(const TileLimits& to) {
  if (auto* nearest = as<NearestTiles>()) nearest->tiles = to;
  if (auto* split = as<SplitTiles>()) split->most_tiles = to.most;
}

ImageSize PatchInput::resized(const ImageSize& image) const {
  if (!any_size()) return {image_size, image_size};
  ZEA_ASSERT(!class_token);
  const int64_t step = patch_size * block;
  if (const auto* within = as<ImagesWithin>())
    return resized_within(within->counts_frames ? stretched_to(step, image) : image, within->pixels,
                          step);
  if (as<ImagesBelow>()) return resized_below(image, image_size, step);
  if (const auto* padded = as<ImagesPadded>())
    return whole_steps(padded->shrunk(image, patch_size), step);
  return filled(image, as<ImagesFilling>()->pixels);
}

ImageSize PatchInput::filled(const ImageSize& image, const PixelLimits& limits) const {
  const int64_t step = patch_size * block, most = limits.most / (step * step);
  if (!as<ImagesFilling>()->shrinks_sides) return resized_to_fill(image, most, step);
  if (most < 1)
    throw DataError("an image may have " + std::to_string(limits.most) +
                    " pixels, but one feature takes " + std::to_string(step) + " x " +
                    std::to_string(step) +
                    "; raise data.resized_max_pixels or data.video_max_pixels");
  const ImageSize made = resized_into(image, most, step);
  const int64_t longer = std::max(made.height, made.width) / patch_size;
  if (table_fit == TableFit::Sum && longer > table_side)
    throw DataError("an image of " + std::to_string(image.height) + " x " +
                    std::to_string(image.width) + " pixels becomes " + std::to_string(longer) +
                    " patches long, more than the encoder's " + std::to_string(table_side) +
                    " positions; lower data.resized_max_pixels or data.video_max_pixels, or leave "
                    "the image out");
  return made;
}

ImageSize PatchInput::resized(const ImageSize& frame, int64_t frames) const {
  if (!any_size()) return {image_size, image_size};
  if (as<ImagesFilling>()) return filled(frame, video->pixels);
  const int64_t step = patch_size * block;
  if (as<ImagesPadded>())
    return whole_steps(ImagesPadded{video->pixels, video->most_side}.shrunk(frame, patch_size),
                       step);
  if (!video->limits_all) return resized_within(frame, video->pixels, step);
  const double moments = static_cast<double>(frames) / static_cast<double>(this->frames);
  const int64_t made = this->frames * static_cast<int64_t>(std::nearbyint(moments));
  return resized_within(stretched_to(step, frame), video->pixels, step, frames, made);
}

PatchCell PatchInput::cell(int64_t patch, const ItemShape& image) const {
  const PatchCell square = image.square(patch / (block * block * image.averaged));
  const int64_t inside = patch % (block * block);
  return {square.row * block + inside / block, square.column * block + inside % block};
}

TileGrid PatchInput::grid(const ImageSize& image) const {
  if (const auto* nearest = as<NearestTiles>())
    return nearest_grid(image, nearest->tiles, image_size);
  if (as<SplitTiles>()) return grid_of_stretched(stretched(image, longest_side()), image_size);
  const auto* square = as<SquareImages>();
  const bool scans = square && square->pan_and_scan && square->pan_and_scan->most > 0;
  return scans ? grid_of_crops(image, *square->pan_and_scan) : TileGrid{};
}

ImageSize PatchInput::resolution(const ImageSize& image) const {
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  ImageSize best;
  int64_t most = 0, least_wasted = std::numeric_limits<int64_t>::max();
  for (const ImageSize& each : as<FittedTiles>()->resolutions) {
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

TileGrid PatchInput::shrunk(const TileGrid& shown) const {
  constexpr double kTooMany = 1.1;
  const int64_t most_tiles = as<FittedTiles>()->most_tiles;
  if (most_tiles == 0) return {0, 0};
  const double ratio = std::sqrt(static_cast<double>(shown.tiles()) /
                                 static_cast<double>(most_tiles * side() * side()));
  if (ratio <= kTooMany) return {0, 0};
  const auto whole = [&](int64_t patches) {
    const auto side = static_cast<double>(patches);
    return std::llround((side - std::fmod(side, ratio)) / ratio);
  };
  return {whole(shown.wide), whole(shown.high)};
}

int64_t PatchInput::patches_of(const ItemShape& shape) const {
  const int64_t others = patches_first ? learned_tokens() + shape.padding_tokens : learned_tokens();
  return shape.tile_tokens() - others;
}

int64_t PatchInput::patch_of(int64_t token, int64_t patches) const {
  if (patches_first) return token < patches ? token : -1;
  const int64_t patch = token - learned_tokens();
  return patch < 0 || patch >= patches ? -1 : patch;
}

int64_t PatchInput::position(int64_t token, const ItemShape& shape) const {
  if (video && video->averages) return shape.averaged > 1 ? 1 + shape.frame_of(token) : 0;
  const int64_t patches = patches_of(shape), patch = patch_of(token, patches);
  if (patch >= 0) {
    const PatchCell at = cell(patch, shape);
    return class_tokens() + at.row * side() + at.column;
  }
  const int64_t learned = patches_first ? token - patches : token;
  if (learned < class_tokens() || learned >= learned_tokens()) return 0;
  return side() * side() + learned;
}

std::vector<TableShare> PatchInput::table_shares(int64_t patch, const ItemShape& image) const {
  if (table_fit == TableFit::Sum) {
    const PatchCell of_sum = cell(patch, image);
    return {{of_sum.column, 1}, {table_side + of_sum.row, 1}};
  }
  const auto along = [this](int64_t index, int64_t patches) {
    if (table_fit == TableFit::Cubic) return between_four(index, table_side, patches);
    return table_fit == TableFit::Edges ? between_edges(index, table_side, patches)
                                        : between_corners(index, table_side, patches);
  };
  const PatchCell at = cell(patch, image);
  const auto rows = along(at.row, image.picture_tokens() / image.width);
  const auto columns = along(at.column, image.width);
  std::vector<TableShare> shares;
  for (const TableShare& row : rows)
    for (const TableShare& column : columns)
      shares.push_back({row.row * table_side + column.row, row.share * column.share});
  return shares;
}

int64_t PatchInput::most_table_shares() const {
  static constexpr int64_t kBetween = 2, kCubic = 4;
  if (table_fit == TableFit::Cubic) return kCubic * kCubic;
  if (table_fit == TableFit::Sum) return kBetween;
  if (table_fit == TableFit::Corners) return kBetween * kBetween;
  // A side with fewer patches than the table has rows takes twice their ratio into each patch.
  const auto along = [this](int64_t patches) {
    const int64_t reached = (kBetween * table_side + patches - 1) / patches;
    return std::clamp(reached, kBetween, std::max(kBetween, table_side));
  };
  const int64_t patches = pixel_limits()->most / (patch_size * patch_size);
  int64_t most = 0;
  for (int64_t rows = 1; rows <= std::min(patches, table_side); ++rows)
    most = std::max(most, along(rows) * along(patches / rows));
  return most;
}

}  // namespace zea
