// SPDX-License-Identifier: Apache-2.0
// Reading, decoding and preprocessing of microbatches, in the calling thread and its helpers or,
// with the plans of their steps, some steps ahead in one of its own.
#include "data/loader.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/threads.hpp"
#include "data/audio.hpp"
#include "data/image.hpp"

namespace zea {
namespace {

Audio decode_file(const Item& item, int64_t max_seconds) {
  Audio audio = decode_audio(item.bytes, max_seconds);
  const auto samples = static_cast<int64_t>(audio.samples.size());
  if (item.shape.tokens > 0 && (samples != item.samples || audio.rate != item.rate))
    throw DataError("has " + std::to_string(samples) + " samples at " + std::to_string(audio.rate) +
                    " Hz, and by its item_shape " + std::to_string(item.samples) + " at " +
                    std::to_string(item.rate));
  return audio;
}

Audio decode_clip(const Item& item, int64_t max_seconds) {
  if (!item.raw) return decode_file(item, max_seconds);
  check_clip("raw clip", item.rate, static_cast<int64_t>(item.bytes.size() / 2), max_seconds);
  Audio audio{.rate = item.rate, .samples = std::vector<float>(item.bytes.size() / 2)};
  for (size_t i = 0; i < audio.samples.size(); ++i) {
    const auto word = static_cast<uint16_t>(item.bytes[2 * i] | item.bytes[2 * i + 1] << 8);
    audio.samples[i] = static_cast<float>(static_cast<int16_t>(word)) / 32768.0f;
  }
  return audio;
}

Image decode_sized(const Item& item, int64_t max_pixels) {
  Image image = decode_image(item, max_pixels);
  if (image.height != item.height || image.width != item.width)
    throw DataError("is " + std::to_string(image.height) + " x " + std::to_string(image.width) +
                    ", and by its item_shape " + std::to_string(item.height) + " x " +
                    std::to_string(item.width));
  return image;
}

/// All frames, and the last one again where the shape has more. Processors of videos are
/// torchvision's alone.
void decode_video(const Item& item, const LoaderOptions& options, float* target) {
  const ItemDecoding& decoding = options.encoders[static_cast<size_t>(item.kind)];
  if (item.rate > 0 && 1000 * item.frames > options.max_clip_seconds * item.rate)
    throw DataError(
        "lasts " + std::to_string(1000 * item.frames / item.rate) +
        " s, more than data.max_clip_seconds = " + std::to_string(options.max_clip_seconds));
  ImageOptions image = decoding.image;
  image.by_torchvision = true;
  image.longest_side = decoding.frame_side;
  image.padded = decoding.padded_frame;
  // torchvision has had Lanczos' kernel since version 0.27; before, transformers takes this one.
  if (image.resampling == Resampling::Lanczos) image.resampling = Resampling::Bicubic;
  const ImageSize size = decoding.size_of(item.shape);
  const int64_t values = 3 * size.height * size.width;
  for (int64_t i = 0; i < item.shape.frames; ++i, target += values)
    if (i < item.frames && image.longest_side > 0)
      preprocess_tiles(decode_sized(frame_of(item, i), image.max_pixels), image, {1, 1}, target);
    else if (i < item.frames)
      preprocess_image(decode_sized(frame_of(item, i), image.max_pixels), image, size, target);
    else
      std::copy_n(target - values, values, target);
}

/// Puts an item into `target`.
void decode_item(const Item& item, const LoaderOptions& options, float* target) {
  const ItemDecoding& decoding = options.encoders[static_cast<size_t>(item.kind)];
  if (item.modality == Modality::Audio)
    return (*decoding.mel)(decode_clip(item, options.max_clip_seconds), target,
                           decoding.columns(item.shape));
  if (item.frames > 0) return decode_video(item, options, target);
  const bool varies = decoding.image.patch_size > 0 || decoding.image.has_tiles;
  const int64_t max_pixels = decoding.image.max_pixels;
  const Image image = varies ? decode_sized(item, max_pixels) : decode_image(item, max_pixels);
  if (!varies && decoding.image.crops) return preprocess_image(image, decoding.image, target);
  if (item.shape.fitted && item.shape.grid().tiles() == 0)
    preprocess_padded(image, decoding.image, target);
  else if (item.shape.fitted)
    preprocess_fitted(image, decoding.image, item.shape.grid(), target);
  else if (decoding.image.has_crops_beside)
    preprocess_crops(image, decoding.image, item.shape.grid(), target);
  else if (decoding.image.has_tiles || decoding.image.longest_side > 0)
    preprocess_tiles(image, decoding.image, item.shape.grid(), target);
  else
    preprocess_image(image, decoding.image, decoding.size_of(item.shape), target);
}

void check_encoders(const Dataset& dataset, const LoaderOptions& options,
                    const std::vector<Sample>& samples) {
  for (const Sample& sample : samples)
    for (const Item& item : sample.items)
      if (static_cast<size_t>(item.kind) >= options.encoders.size())
        throw DataError(dataset.describe() + " has " +
                        (item.modality == Modality::Audio
                             ? "clips of sound, but the model has no encoder of sound"
                             : "images, but the model has no encoder of images"));
}

void release_bytes(Item& item) {
  std::vector<uint8_t>().swap(item.bytes);
}

/// An item that this rank takes, or of which it must know whether it is bad.
struct ItemWork {
  LoadedMicrobatch* in;
  size_t sample, number;
  std::optional<size_t> begin;  ///< where it goes among its encoder's values, or bytes of states
  std::optional<std::string> fault = {};

  Sample& of() const { return in->samples[sample]; }
  Item& item() const { return of().items[number]; }
};

/// Lists items of a microbatch in the order of samples, and makes room for what this rank takes.
void list_work(LoadedMicrobatch& loaded, const LoaderOptions& options,
               std::vector<ItemWork>& work) {
  const size_t encoders = options.encoders.size();
  std::vector<std::vector<int64_t>> taken(encoders);
  std::vector<int64_t> seen(encoders, 0);
  std::vector<size_t> room(encoders, 0);
  for (size_t kind = 0; kind < encoders; ++kind)
    if (options.encoders[kind].taken) taken[kind] = options.encoders[kind].taken(loaded.items);
  for (size_t s = 0; s < loaded.samples.size(); ++s)
    for (size_t number = 0; number < loaded.samples[s].items.size(); ++number) {
      ItemWork item{&loaded, s, number, {}};
      const auto kind = static_cast<size_t>(item.item().kind);
      const ItemDecoding& decoding = options.encoders[kind];
      const int64_t index = seen[kind]++;
      if (!decoding.taken || std::ranges::binary_search(taken[kind], index)) {
        item.begin = room[kind];
        room[kind] += decoding.kept ? static_cast<size_t>(decoding.kept->bytes_of(item.item()))
                                    : decoding.values(item.item().shape);
      }
      if (item.begin || options.mask_bad_items)
        work.push_back(item);
      else
        release_bytes(item.item());
    }
  for (size_t kind = 0; kind < encoders; ++kind) {
    const bool is_kept = options.encoders[kind].kept != nullptr;
    loaded.values.emplace_back(is_kept ? 0 : room[kind], 0.0f);
    if (is_kept) loaded.states[static_cast<int>(kind)].resize(room[kind]);
  }
}

/// Puts an item into its place, which is zero where it is bad.
void load_decoded(const Dataset& dataset, const LoaderOptions& options, ItemWork& work) {
  const Item& item = work.item();
  const ItemDecoding& decoding = options.encoders[static_cast<size_t>(item.kind)];
  const size_t size = decoding.values(item.shape);
  std::vector<float> unused(work.begin ? 0 : size);
  float* const target = work.begin
                            ? work.in->values[static_cast<size_t>(item.kind)].data() + *work.begin
                            : unused.data();
  try {
    decode_item(item, options, target);
  } catch (const DataError& fault) {
    if (!options.mask_bad_items)
      throw DataError(dataset.describe() + ": " + sample_words(work.of()) + ": " + item_name(item) +
                      " " + std::to_string(work.number) + item_file(work.of(), work.number) + ": " +
                      fault.what() + "; repair the data set, or set data.bad_items = \"mask\"");
    std::fill_n(target, size, 0.0f);
    work.fault = fault.what();
  }
}

/// Reads what was kept of an item. One that did not decode when that was made is bad here, too.
void read_kept(const FeatureCache& kept, ItemWork& work) {
  const Sample& sample = work.in->samples[work.sample];
  uint8_t* const target =
      work.begin ? work.in->states.at(work.item().kind).data() + *work.begin : nullptr;
  if (kept.read(sample, work.number, target).is_bad)
    work.fault = "did not decode when its features were computed";
}

/// Reads these microbatches, and decodes the items of all of them together. What it returns is of
/// no use once `stop` was requested.
std::vector<LoadedMicrobatch> load_until(const Dataset& dataset, const LoaderOptions& options,
                                         const std::vector<MicrobatchPlan>& plans,
                                         const std::stop_token& stop) {
  std::vector<LoadedMicrobatch> all(plans.size());
  std::vector<ItemWork> works;
  for (size_t m = 0; m < plans.size(); ++m) {
    for (const int64_t id : plans[m].samples) {
      if (stop.stop_requested()) return all;
      all[m].samples.push_back(dataset.read(id));
      all[m].items += list_items(all[m].samples.back().items);
    }
    all[m].expert_tokens = plans[m].expert_tokens;
    check_encoders(dataset, options, all[m].samples);
    list_work(all[m], options, works);
  }
  parallel_for(options.threads, works.size(), [&](int, size_t number) {
    if (stop.stop_requested()) return;
    ItemWork& work = works[number];
    const auto& kept = options.encoders[static_cast<size_t>(work.item().kind)].kept;
    if (kept)
      read_kept(*kept, work);
    else
      load_decoded(dataset, options, work);
    release_bytes(work.item());
  });
  for (const ItemWork& work : works) {
    if (!work.fault) continue;
    Sample& sample = work.of();
    std::ranges::fill(sample.loss_mask, uint8_t{0});
    work.in->bad.push_back({sample.id, static_cast<int64_t>(work.number), *work.fault,
                            sample_words(sample) + ", item " + std::to_string(work.number) +
                                item_file(sample, work.number)});
  }
  return all;
}

}  // namespace

ItemDecoding decoding_of(const EncoderSpec& encoder) {
  if (encoder.modality() == Modality::Audio) {
    const MelKind kind = mel_kind(encoder.mels());
    const int64_t columns = encoder.mels().columns();
    return {.mel = std::make_shared<const LogMel>(
                AudioOptions{.mel_bins = encoder.mels().mel_bins,
                             .max_source_positions = columns / (kind == MelKind::Usm ? 4 : 2),
                             .kind = kind})};
  }
  const PatchInput& input = encoder.patches();
  const auto* square = input.as<SquareImages>();
  const auto* padded = input.as<ImagesPadded>();
  return {.image = {.size = input.image_size,
                    .mean = input.colours.mean,
                    .std = input.colours.std,
                    .patch_size = input.any_size() ? input.patch_size : 0,
                    .crops = square && square->crops,
                    .shortest_edge = square ? square->shortest_edge : 0,
                    .resampling = input.resampling,
                    .by_torchvision = input.by_torchvision,
                    .scale = input.colours.scale,
                    .has_crops_beside = square && input.has_tiles(),
                    .has_tiles = input.has_tiles(),
                    .longest_side = input.longest_side(),
                    .padded = padded ? std::optional(*padded) : std::nullopt},
          .padded_frame = padded && input.video ? std::optional(ImagesPadded{
                                                      input.video->pixels, input.video->most_side})
                                                : std::nullopt,
          .frame_side = input.video ? input.video->longest_side : 0};
}

ImageSize ItemDecoding::size_of(const ItemShape& shape) const {
  if (shape.tokens == 0 || image.patch_size == 0) return {image.size, image.size};
  return {shape.picture_tokens() / shape.width * image.patch_size, shape.width * image.patch_size};
}

int64_t ItemDecoding::columns(const ItemShape& shape) const {
  return shape.mel_columns > 0 ? shape.mel_columns : mel->options().columns();
}

size_t ItemDecoding::values(const ItemShape& shape) const {
  if (mel) return static_cast<size_t>(mel->options().mel_bins * columns(shape));
  const auto [height, width] = size_of(shape);
  return static_cast<size_t>(3 * height * width * shape.pictures());
}

std::string describe(const std::vector<BadItem>& bad) {
  std::string lines;
  for (const BadItem& item : bad) lines += item.words + " is masked: " + item.fault + "\n";
  return lines;
}

LoadedMicrobatch load_microbatch(const Dataset& dataset, const LoaderOptions& options,
                                 const std::vector<int64_t>& ids) {
  MicrobatchPlan plan;
  plan.samples = ids;
  return std::move(load_until(dataset, options, {plan}, std::stop_token()).front());
}

Loader::Loader(const Dataset& dataset, LoaderOptions options,
               std::function<RankStep(int64_t step)> plan_step, int64_t first_step,
               int64_t end_step, int64_t prefetch)
    : dataset_(dataset),
      options_(std::move(options)),
      plan_step_(std::move(plan_step)),
      steps_([this](int64_t step, const std::stop_token& stop) { return load_step(step, stop); },
             first_step, end_step, prefetch) {}

LoadedStep Loader::load_step(int64_t step, const std::stop_token& stop) const {
  LoadedStep loaded{.plan = plan_step_(step)};
  loaded.microbatches = load_until(dataset_, options_, loaded.plan.microbatches, stop);
  return loaded;
}

}  // namespace zea
