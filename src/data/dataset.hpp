// SPDX-License-Identifier: Apache-2.0
// How ranks open a data set together: each looks through its part of the contents, and all of them
// find what one rank finds. One rank by default.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/audio.hpp"
#include "layout/sample_index.hpp"
#include "spec/model_spec.hpp"
#include "zea/dataset.hpp"

namespace zea {

struct SharedOpening {
  int rank = 0;
  int ranks = 1;
  /// Runs a part that may fail, and communicates nothing: returns on all ranks or throws on all.
  std::function<void(const std::function<void()>&)> agree = [](const auto& part) { part(); };
  /// Gives all ranks the largest of each value.
  std::function<void(std::vector<int64_t>&)> max = [](std::vector<int64_t>&) {};
  /// Is called now and then while a part takes long: slow is not hung.
  std::function<void()> moved = [] {};
  /// A scan of so many tokens is kept in a file next to the data set; shorter ones take no time.
  int64_t kept_from_tokens = int64_t{4} << 20;
};

// A data set: samples of token ids with a loss mask, and items (images, clips of sound) that stand
// at placeholder tokens. The index (counts per sample) is held in memory on every rank, since all
// plans are made from it; contents are read on demand.

/// Encoded or raw bytes of one item.
struct Item {
  std::vector<uint8_t> bytes;
  /// "encoded" (JPEG or PNG, WAV or FLAC, told apart by their first bytes) or "raw" (images: uint8,
  /// height x width x channels; sound: int16, little-endian, mono).
  bool raw = false;
  int64_t height = 0, width = 0;  ///< of raw images, and of encoded ones where it is known
  int64_t channels = 0;           ///< of raw images
  Modality modality = Modality::Image;
  /// Samples per second of sound, and their number; 0: not known. A video's rate is its frames in
  /// 1000 seconds.
  int64_t rate = 0, samples = 0;
  double frames_per_second = 0;  ///< of a video, not rounded as `rate` is; 0: not known
  /// Frames of a video, which are images of one size, one after the other in `bytes`; 0: no video.
  int64_t frames = 0;
  std::vector<int64_t> frame_ends = {};  ///< in `bytes`
  int kind = 0;                          ///< index in Dataset::kinds()
  ItemShape shape = {};                  ///< where items of that kind differ in it
};

/// Items that one encoder takes: those for which its placeholders stand.
struct ItemKind {
  Modality modality = Modality::Image;
  int32_t token = -1;                      ///< placeholder; -1: there are none
  int64_t features = 1;                    ///< placeholders of each item
  std::optional<EncoderSpec> varied = {};  ///< their encoder, where items differ in shape
  int32_t video_token = -1;                ///< placeholder of videos; -1: there are none

  int32_t token_of(const Item& item) const { return item.frames > 0 ? video_token : token; }
};

/// Adds one of a modality that none of `kinds` has.
void add_kind(std::vector<ItemKind>& kinds, const ItemKind& kind);

/// Returns the kinds of items of a model's encoders, in their order.
std::vector<ItemKind> item_kinds(const ModelSpec& model);

/// Returns an item's name in messages: "image", "video", "clip".
std::string item_name(const Item& item);

/// Returns the log-mel features that an audio encoder reads.
MelKind mel_kind(const MelInput& input);

/// The image that is a video's frame.
Item frame_of(const Item& video, int64_t frame);

/// Returns the shape of an item for the encoder; `is_alone`: it is the only image of its sample.
/// Throws DataError where the shape depends on a size or a length that is not known, or is too
/// short for a feature.
ItemShape shape_of(const Item& item, const EncoderSpec& encoder, bool is_alone = true);

/// Gives each of a sample's items its kind and its shape.
void assign_kinds(const std::vector<int32_t>& tokens, const std::vector<ItemKind>& kinds,
                  std::vector<Item>& items);

/// Lists a sample's items by kind.
ItemList list_items(const std::vector<Item>& items);

struct Sample {
  int64_t id = 0;  ///< position in the data set
  std::vector<int32_t> tokens = {};
  /// 1: this token is predicted (as the target of the one before).
  std::vector<uint8_t> loss_mask = {};
  std::vector<Item> items = {};  ///< in the order of their placeholders
  int32_t label = -1;            ///< index into DatasetTexts::classes, or -1
  std::vector<std::string> answers =
      {};  ///< that are as right as its own: all of them; empty: that
  /// The entry that it was packed from, and in further lines the file of each item; may be empty.
  std::string source = {};
};

/// "sample 3", with the entry that it was packed from where that is known.
std::string sample_words(const Sample& sample);
/// " (a.jpg)", the file of the item of that number; empty where it is not known.
std::string item_file(const Sample& sample, size_t number);

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::string describe() const = 0;
  virtual const SampleTable& index() const = 0;
  /// The sets that it joins, whose samples follow each other in the index, or itself.
  virtual std::vector<const Dataset*> sets() const { return {this}; }
  std::vector<int64_t> set_samples() const;
  std::vector<std::string> set_hashes() const;
  /// A hash of its contents, the same wherever its files lie: by it a resumed run knows its data.
  /// Empty: not known.
  virtual std::string hash() const { return ""; }
  /// A note for whoever opens it; empty: none.
  virtual std::string note() const { return ""; }
  /// Looks at the files again: what has changed since they were opened but costs this run nothing,
  /// as text; told once. Throws DataError where samples that are still to be read have changed.
  virtual std::string check_files() const { return ""; }
  virtual Sample read(
      int64_t id) const = 0;  ///< Thread-safe. Throws DataError naming sample and fault.
  /// A sample's alone, where items take long to read.
  virtual std::vector<int32_t> tokens(int64_t id) const { return read(id).tokens; }
  /// Sample::source of a sample alone.
  virtual std::string source(int64_t) const { return ""; }
  /// sample_words() of a sample that need not be read.
  std::string words(int64_t id) const { return sample_words({.id = id, .source = source(id)}); }
  /// Returns the kinds that the data set was opened with, then those of other modalities.
  virtual const std::vector<ItemKind>& kinds() const = 0;
  virtual int32_t max_token()
      const = 0;  ///< largest token id of all samples; the vocabulary must hold it
  virtual const DatasetTexts& texts() const = 0;
};

inline constexpr int64_t kHeldBytes = int64_t{256} << 20;

/// Opens a zea data set (jobs/dataset_writer.py describes its layout); checks every offset, length
/// and id against the others. Arrays of up to `held_bytes` stay in memory, larger ones are read
/// when needed. What the contents of a large one were found to be is kept next to it, in
/// `path`.checked, and holds as long as the file is the same. `kinds` are those of the model that
/// it is for. Throws DataError. Collective over the ranks of `opening`. A folder is the data set of
/// its files.
std::unique_ptr<Dataset> open_dataset(const std::string& path, int64_t held_bytes = kHeldBytes,
                                      const SharedOpening& opening = {},
                                      std::vector<ItemKind> kinds = {});

bool is_placeholder(const std::vector<ItemKind>& kinds, int32_t token);

/// Tokens of a sample before its answer, which starts at the first target after the last item, as
/// nothing can be generated after half of the items. All of them where there is no such target.
int64_t prompt_length(const Sample& sample, const std::vector<ItemKind>& kinds);

// Several data sets as one: their samples follow each other.

/// Joins one or more data sets that were opened for the same model. Class names and token bytes are
/// those of the first. The files of `folder` become one set, which has the folder's name.
std::unique_ptr<Dataset> join_datasets(std::vector<std::unique_ptr<Dataset>> sets,
                                       const std::string& folder = "");

}  // namespace zea
