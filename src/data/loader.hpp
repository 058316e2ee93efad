// SPDX-License-Identifier: Apache-2.0
// From sample ids to tensors' contents: reads, decodes and preprocesses a microbatch, and a
// background thread that does so some steps ahead, helped by others in decoding. Which samples
// belong to a step, and which of their items a rank takes, is the plan's business and comes in as
// functions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/threads.hpp"
#include "data/audio.hpp"
#include "data/dataset.hpp"
#include "data/feature_cache.hpp"
#include "data/image.hpp"
#include "schedule/schedule.hpp"

namespace zea {

/// An item that did not decode, in a data set whose bad items are masked.
struct BadItem {
  int64_t sample = 0;  ///< id in the data set
  int64_t item = 0;    ///< position among the sample's items
  std::string fault;
  std::string words = {};  ///< that name both
};

/// For the log, a line of each.
std::string describe(const std::vector<BadItem>& bad);

struct LoadedMicrobatch {
  std::vector<Sample>
      samples;  ///< in the order of their ids' list; their items' bytes are released
  /// Values of each encoder's items that this rank takes, in the order of samples, then items: (3,
  /// height, width) per image or frame, (mel_bins, columns) per clip.
  std::vector<std::vector<float>> values;
  /// Cached features in the blocks' compute type, in place of values, for encoders that have a
  /// cache.
  std::map<int, std::vector<uint8_t>> states = {};
  ItemList items;  ///< of all samples
  std::vector<BadItem> bad;
  std::vector<int64_t> expert_tokens = {};  ///< as in MicrobatchPlan
};

/// A step of one rank, planned and loaded.
struct LoadedStep {
  RankStep plan;
  std::vector<LoadedMicrobatch> microbatches = {};
};

/// Chooses among the items of a microbatch: those that a rank takes of one encoder, by number among
/// the encoder's, ascending. Called in the loader's thread.
using ItemsTaken = std::function<std::vector<int64_t>(const ItemList& items)>;

/// How the items of an encoder are decoded.
struct ItemDecoding {
  ImageOptions image = {};
  std::optional<ImagesPadded> padded_frame = {};  ///< ImageOptions::padded of a frame
  int64_t frame_side = 0;  ///< the longer one of a frame before it becomes a square; 0: as it is
  std::shared_ptr<const LogMel> mel = nullptr;  ///< of clips of sound; null: these are images
  /// Where features of these items were kept, which are read in their place; null: nowhere.
  std::shared_ptr<const FeatureCache> kept = nullptr;
  /// Chooses the items that this rank takes; null: all.
  ItemsTaken taken = nullptr;

  /// Returns the size that an image, or a tile, of that shape is resized to, the log-mel columns of
  /// a clip, and the values of an item.
  ImageSize size_of(const ItemShape& shape) const;
  int64_t columns(const ItemShape& shape) const;
  size_t values(const ItemShape& shape = {}) const;
};

/// As the encoder takes its items.
ItemDecoding decoding_of(const EncoderSpec& encoder);

struct LoaderOptions {
  std::vector<ItemDecoding> encoders;  ///< by the kind of their items
  /// A bad item becomes zeros, and all labels of its sample are masked; otherwise it is a
  /// DataError. To know of them all, a rank decodes also the items that it does not take.
  bool mask_bad_items = false;
  int64_t max_clip_seconds = 3600;  ///< a longer clip is bad
  int threads = 1;                  ///< that decode items at once
};

/// Loads the samples `ids`; the calling thread is one of those that decode. The result does not
/// depend on how many they are. Throws DataError naming data set, sample, item and fault, of
/// several bad items the first.
LoadedMicrobatch load_microbatch(const Dataset& dataset, const LoaderOptions& options,
                                 const std::vector<int64_t>& ids);

class Loader {
 public:
  /// Starts to prepare steps [first_step, end_step), at most `prefetch` ahead. `plan_step` is
  /// called once for each, in order, in the loader's own thread and must not share state with
  /// others; `dataset` must outlive the loader. Its end stops the threads after the items in work.
  Loader(const Dataset& dataset, LoaderOptions options,
         std::function<RankStep(int64_t step)> plan_step, int64_t first_step, int64_t end_step,
         int64_t prefetch);

  /// The next step; waits for it. Throws what the thread threw, when its step is reached and from
  /// then on.
  LoadedStep next() { return steps_.next(); }

 private:
  LoadedStep load_step(int64_t step, const std::stop_token& stop) const;

  const Dataset& dataset_;
  const LoaderOptions options_;
  const std::function<RankStep(int64_t)> plan_step_;
  Prefetcher<LoadedStep> steps_;  ///< last: its thread uses all of the above
};

}  // namespace zea
