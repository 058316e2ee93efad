// SPDX-License-Identifier: Apache-2.0
// Reading, decoding and preprocessing of microbatches, in the calling thread or, with the plans of
// their steps, some steps ahead in one of its own.
#include "zea/data/loader.hpp"

#include <algorithm>
#include <utility>

#include "decode.hpp"
#include "zea/core/error.hpp"

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

/// All frames, and the last one again where the shape has more.
void decode_video(const Item& item, const LoaderOptions& options, float* target) {
  const ItemDecoding& decoding = options.encoders[static_cast<size_t>(item.kind)];
  if (item.rate > 0 && 1000 * item.frames > options.max_clip_seconds * item.rate)
    throw DataError(
        "lasts " + std::to_string(1000 * item.frames / item.rate) +
        " s, more than data.max_clip_seconds = " + std::to_string(options.max_clip_seconds));
  const ImageSize size = decoding.size_of(item.shape);
  const int64_t values = 3 * size.height * size.width;
  for (int64_t i = 0; i < item.shape.frames; ++i, target += values)
    if (i < item.frames)
      preprocess_image(decode_sized(frame_of(item, i), decoding.image.max_pixels), decoding.image,
                       size, target);
    else
      std::copy_n(target - values, values, target);
}

/// Puts an item into `target`.
void decode_item(const Item& item, const LoaderOptions& options, float* target) {
  const ItemDecoding& decoding = options.encoders[static_cast<size_t>(item.kind)];
  if (item.modality == Modality::Audio)
    return (*decoding.mel)(decode_clip(item, options.max_clip_seconds), target);
  if (item.frames > 0) return decode_video(item, options, target);
  const bool varies = decoding.image.patch_size > 0;
  const int64_t max_pixels = decoding.image.max_pixels;
  const Image image = varies ? decode_sized(item, max_pixels) : decode_image(item, max_pixels);
  if (!varies && decoding.image.crops) return preprocess_image(image, decoding.image, target);
  if (item.shape.is_fitted && item.shape.grid().tiles() == 0)
    preprocess_padded(image, decoding.image, target);
  else if (item.shape.is_fitted)
    preprocess_fitted(image, decoding.image, item.shape.grid(), target);
  else if (decoding.image.has_crops_beside)
    preprocess_crops(image, decoding.image, item.shape.grid(), target);
  else if (decoding.image.has_tiles)
    preprocess_tiles(image, decoding.image, item.shape.grid(), target);
  else
    preprocess_image(image, decoding.image, decoding.size_of(item.shape), target);
}

/// Puts item `number` of `sample` into `target`, which is zero before and stays so when the item is
/// bad.
void load_item(const Dataset& dataset, const LoaderOptions& options, Sample& sample, size_t number,
               float* target, std::vector<BadItem>& bad) {
  const Item& item = sample.items[number];
  try {
    decode_item(item, options, target);
  } catch (const DataError& fault) {
    if (!options.mask_bad_items)
      throw DataError(dataset.describe() + ": sample " + std::to_string(sample.id) + ": " +
                      item_name(item) + " " + std::to_string(number) + ": " + fault.what() +
                      "; repair the data set, or set data.bad_items = \"mask\"");
    std::fill(sample.loss_mask.begin(), sample.loss_mask.end(), uint8_t{0});
    bad.push_back({sample.id, static_cast<int64_t>(number), fault.what()});
  }
}

void check_encoders(const Dataset& dataset, const LoaderOptions& options,
                    const std::vector<Sample>& samples) {
  for (const Sample& sample : samples)
    for (const Item& item : sample.items)
      if (static_cast<size_t>(item.kind) >= options.encoders.size())
        throw DataError(dataset.describe() + " has " +
                        (item.modality == Modality::Audio
                             ? "clips of sound, but the model has no audio encoder"
                             : "images, but the model has no vision encoder"));
}

std::vector<std::vector<float>> zeros_for(const std::vector<Sample>& samples,
                                          const LoaderOptions& options) {
  std::vector<size_t> counts(options.encoders.size(), 0);
  for (const Sample& sample : samples)
    for (const Item& item : sample.items) {
      const auto kind = static_cast<size_t>(item.kind);
      const ItemDecoding& decoding = options.encoders[kind];
      if (decoding.is_wanted && !decoding.kept) counts[kind] += decoding.values(item.shape);
    }
  std::vector<std::vector<float>> values;
  for (const size_t count : counts) values.emplace_back(count, 0.0f);
  return values;
}

/// Room for the features of all items of each encoder that has them.
std::map<int, std::vector<uint8_t>> states_for(const LoaderOptions& options,
                                               const ItemList& items) {
  std::map<int, std::vector<uint8_t>> states;
  for (size_t kind = 0; kind < options.encoders.size(); ++kind) {
    const ItemDecoding& decoding = options.encoders[kind];
    if (!decoding.kept) continue;
    const auto encoder = static_cast<int>(kind);
    std::vector<uint8_t>& bytes = states[encoder];
    if (decoding.is_wanted) bytes.resize(static_cast<size_t>(decoding.kept->bytes_of(items)));
  }
  return states;
}

/// Puts the kept features of item `number` of `sample` where `target` points, if this rank wants
/// them. An item that did not decode when they were made is bad here, too.
void read_kept(const LoaderOptions& options, Sample& sample, size_t number, uint8_t*& target,
               std::vector<BadItem>& bad) {
  const Item& item = sample.items[number];
  const ItemDecoding& decoding = options.encoders[static_cast<size_t>(item.kind)];
  if (!decoding.is_wanted && !options.mask_bad_items) return;
  const KeptItem kept = decoding.kept->read(sample, number, decoding.is_wanted ? target : nullptr);
  if (decoding.is_wanted) target += kept.bytes;
  if (!kept.is_bad) return;
  std::fill(sample.loss_mask.begin(), sample.loss_mask.end(), uint8_t{0});
  bad.push_back(
      {sample.id, static_cast<int64_t>(number), "did not decode when its features were computed"});
}

LoadedMicrobatch load_until(const Dataset& dataset, const LoaderOptions& options,
                            const std::vector<int64_t>& ids, const std::stop_token& stop) {
  LoadedMicrobatch loaded;
  for (int64_t id : ids) {
    if (stop.stop_requested()) return loaded;
    loaded.samples.push_back(dataset.read(id));
    loaded.items += list_items(loaded.samples.back().items);
  }
  check_encoders(dataset, options, loaded.samples);
  loaded.values = zeros_for(loaded.samples, options);
  std::vector<float*> targets;
  for (std::vector<float>& values : loaded.values) targets.push_back(values.data());
  loaded.states = states_for(options, loaded.items);
  std::map<int, uint8_t*> kept;
  for (auto& [kind, bytes] : loaded.states) kept[kind] = bytes.data();
  for (Sample& sample : loaded.samples) {
    for (size_t number = 0; number < sample.items.size(); ++number) {
      if (stop.stop_requested()) return loaded;
      const auto kind = static_cast<size_t>(sample.items[number].kind);
      if (options.encoders[kind].kept) {
        read_kept(options, sample, number, kept.at(sample.items[number].kind), loaded.bad);
      } else if (options.encoders[kind].is_wanted) {
        load_item(dataset, options, sample, number, targets[kind], loaded.bad);
        targets[kind] += options.encoders[kind].values(sample.items[number].shape);
      }
      std::vector<uint8_t>().swap(sample.items[number].bytes);
    }
  }
  return loaded;
}

}  // namespace

ItemDecoding decoding_of(const EncoderSpec& encoder) {
  if (encoder.modality() == Modality::Audio)
    return {.mel = std::make_shared<const LogMel>(
                AudioOptions{.mel_bins = encoder.mels().mel_bins,
                             .max_source_positions = encoder.mels().positions})};
  const PatchInput& input = encoder.patches();
  return {.image = {.size = input.image_size,
                    .mean = input.colours.mean,
                    .std = input.colours.std,
                    .patch_size = encoder.varies() ? input.patch_size : 0,
                    .crops = input.crops,
                    .shortest_edge = input.shortest_edge,
                    .resampling = input.resampling,
                    .scale = input.colours.scale,
                    .has_crops_beside = input.has_crops_beside(),
                    .has_tiles = encoder.has_tiles(),
                    .longest_side = input.stretches ? input.longest_side() : 0}};
}

ImageSize ItemDecoding::size_of(const ItemShape& shape) const {
  if (shape.tokens == 0 || image.has_tiles) return {image.size, image.size};
  return {shape.tile_tokens() / shape.width * image.patch_size, shape.width * image.patch_size};
}

size_t ItemDecoding::values(const ItemShape& shape) const {
  if (mel) return static_cast<size_t>(mel->options().mel_bins * mel->options().columns());
  const auto [height, width] = size_of(shape);
  return static_cast<size_t>(3 * height * width * shape.pictures());
}

LoadedMicrobatch load_microbatch(const Dataset& dataset, const LoaderOptions& options,
                                 const std::vector<int64_t>& ids) {
  return load_until(dataset, options, ids, std::stop_token());
}

Loader::Loader(const Dataset& dataset, LoaderOptions options,
               std::function<RankStep(int64_t step)> plan_step, int64_t first_step,
               int64_t end_step, int64_t prefetch)
    : dataset_(dataset),
      options_(std::move(options)),
      plan_step_(std::move(plan_step)),
      first_step_(first_step),
      end_step_(end_step),
      prefetch_(static_cast<size_t>(std::max<int64_t>(prefetch, 1))),
      thread_([this](std::stop_token stop) { run(std::move(stop)); }) {}

Loader::~Loader() {
  thread_.request_stop();  // wakes the thread when it waits for room
  thread_.join();
}

LoadedStep Loader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !ready_.empty() || finished_; });
  if (ready_.empty() && error_) std::rethrow_exception(error_);
  ZEA_ASSERT(!ready_.empty());  // next() was called more than end_step - first_step times
  LoadedStep loaded = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  return loaded;
}

void Loader::run(std::stop_token stop) {
  std::exception_ptr error;
  try {
    for (int64_t step = first_step_; step < end_step_; ++step)
      if (!put(load_step(step, stop), stop)) break;
  } catch (...) {
    error = std::current_exception();
  }
  std::lock_guard lock(mutex_);
  error_ = error;
  finished_ = true;
  changed_.notify_all();
}

LoadedStep Loader::load_step(int64_t step, std::stop_token stop) const {
  LoadedStep loaded{.plan = plan_step_(step)};
  for (const MicrobatchPlan& microbatch : loaded.plan.microbatches)
    loaded.microbatches.push_back(load_until(dataset_, options_, microbatch.samples, stop));
  return loaded;
}

/// Waits for room; false when the loader is being destroyed.
bool Loader::put(LoadedStep loaded, std::stop_token stop) {
  std::unique_lock lock(mutex_);
  const bool room = changed_.wait(lock, stop, [this] { return ready_.size() < prefetch_; });
  if (!room || stop.stop_requested()) return false;
  ready_.push_back(std::move(loaded));
  changed_.notify_all();
  return true;
}

}  // namespace zea
