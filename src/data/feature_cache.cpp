// SPDX-License-Identifier: Apache-2.0
#include "data/feature_cache.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "core/error.hpp"
#include "core/text.hpp"
#include "files/durable_file.hpp"
#include "h5/h5.hpp"
#include "io/manifest.hpp"

namespace zea {
namespace {

constexpr const char* kFeatures = "features";
constexpr const char* kItemHashes = "item_hashes";
constexpr const char* kFeatureHashes = "feature_hashes";
constexpr const char* kBad = "bad";
constexpr const char* kFingerprint = "fingerprint";

/// Ends the name of a part that is being written: besides the process's number, so that no other
/// process takes it for whole.
constexpr const char* kUnfinished = ".tmp";

/// Begins a part's name.
constexpr const char* kPart = "part-";

/// A part has a 1024th of all features, within these bounds: many enough for all ranks to have
/// some, few enough for a folder.
constexpr int64_t kParts = 1024;
constexpr int64_t kLeastBytes = int64_t{1} << 20, kMostBytes = int64_t{256} << 20;
constexpr size_t kMostOpen = 128;

int64_t hash_number(const void* data, int64_t bytes) {
  return static_cast<int64_t>(std::stoull(hash_bytes(data, bytes).substr(0, 16), nullptr, 16));
}

/// Hashes all that an item's pixels or sound depend on.
int64_t hash_of(const Item& item) {
  std::vector<int64_t> numbers{
      item.raw,  item.height,  item.width,  item.channels,
      item.rate, item.samples, item.frames, hash_number(item.bytes.data(), std::ssize(item.bytes))};
  numbers.insert(numbers.end(), item.frame_ends.begin(), item.frame_ends.end());
  return hash_number(numbers.data(), std::ssize(numbers) * static_cast<int64_t>(sizeof(int64_t)));
}

int64_t row_bytes(const FeatureFormat& format) {
  return format.width * static_cast<int64_t>(element_bytes(format.dtype));
}

int64_t tokens_of(const std::vector<ItemShape>& shapes) {
  int64_t tokens = 0;
  for (const ItemShape& shape : shapes) tokens += shape.tokens;
  return tokens;
}

}  // namespace

/// A file, and where in it the items of each sample begin.
struct FeatureCache::OpenPart {
  H5File file;
  std::vector<int64_t> first_items;  ///< of each sample, among the items
  std::vector<int64_t> first_rows;   ///< of each item, and after the last
  std::vector<int64_t> item_hashes, feature_hashes;
  std::vector<uint8_t> bad;
};

FeatureCache::FeatureCache(FeatureFormat format, const SampleTable& index)
    : format_(std::move(format)), index_(index) {
  int64_t all = 0;
  for (const SampleIndex& sample : index_) all += bytes_of(sample.items);
  const int64_t least = std::clamp(all / kParts, kLeastBytes, kMostBytes);
  Part part;
  for (int64_t s = 0; s < std::ssize(index_); ++s) {
    const std::vector<ItemShape> items = shapes(s);
    part.items += std::ssize(items);
    part.tokens += tokens_of(items);
    part.end = s + 1;
    if (part.tokens * row_bytes(format_) < least && part.end < std::ssize(index_)) continue;
    parts_.push_back(part);
    part = {.first = part.end};
  }
}

FeatureCache::~FeatureCache() = default;

std::string FeatureCache::path(size_t part) const {
  return format_.folder + formatted("/%s%06zu.h5", kPart, part);
}

std::vector<ItemShape> FeatureCache::shapes(int64_t sample) const {
  return index_[static_cast<size_t>(sample)].items.shapes(format_.encoder, format_.spec);
}

int64_t FeatureCache::bytes() const {
  int64_t tokens = 0;
  for (const Part& part : parts_) tokens += part.tokens;
  return tokens * row_bytes(format_);
}

int64_t FeatureCache::bytes_of(const ItemList& items) const {
  return tokens_of(items.shapes(format_.encoder, format_.spec)) * row_bytes(format_);
}

int64_t FeatureCache::bytes_of(const Item& item) const {
  const int64_t tokens =
      item.shape.tokens > 0 ? item.shape.tokens : format_.spec.item_shape().tokens;
  return tokens * row_bytes(format_);
}

bool FeatureCache::has(size_t part) const {
  if (parts_[part].items == 0) return true;
  if (!std::filesystem::exists(path(part))) return false;
  try {
    const std::lock_guard lock(mutex_);
    open(part);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

const FeatureCache::OpenPart& FeatureCache::open(size_t number) const {
  const auto found = open_.find(number);
  if (found != open_.end()) return *found->second;
  const Part& part = parts_[number];
  OpenPart opened{H5File::open(path(number), ExitCode::Data), {}, {0}, {}, {}, {}};
  const H5File& file = opened.file;
  const auto refuse = [&](const std::string& fault) {
    throw DataError(path(number) + ": " + fault + "; remove it, and it is recomputed");
  };
  if (file.text_attribute(kFingerprint).value_or("") != format_.fingerprint)
    refuse("its features were made with other weights or settings");
  const H5DatasetInfo info = file.info(kFeatures);
  if (info.shape != Shape{part.tokens, format_.width} || info.dtype != format_.dtype)
    refuse("it does not hold the features of samples " + std::to_string(part.first) + " to " +
           std::to_string(part.end - 1));
  opened.item_hashes = file.read_all<int64_t>(kItemHashes);
  opened.feature_hashes = file.read_all<int64_t>(kFeatureHashes);
  opened.bad = file.read_all<uint8_t>(kBad);
  for (const size_t items :
       {opened.item_hashes.size(), opened.feature_hashes.size(), opened.bad.size()})
    if (static_cast<int64_t>(items) != part.items) refuse("it does not hold all items");
  for (int64_t sample = part.first; sample < part.end; ++sample) {
    opened.first_items.push_back(std::ssize(opened.first_rows) - 1);
    for (const ItemShape& shape : shapes(sample))
      opened.first_rows.push_back(opened.first_rows.back() + shape.tokens);
  }
  if (open_.size() == kMostOpen) open_.erase(open_.begin());
  return *open_.emplace(number, std::make_unique<OpenPart>(std::move(opened))).first->second;
}

KeptItem FeatureCache::read(const Sample& sample, size_t number, uint8_t* target) const {
  const auto part = std::ranges::upper_bound(parts_, sample.id, {}, &Part::end);
  const auto before =
      std::ranges::count(sample.items.begin(), sample.items.begin() + static_cast<int64_t>(number),
                         format_.encoder, &Item::kind);
  const std::lock_guard lock(mutex_);
  const auto where = static_cast<size_t>(part - parts_.begin());
  const OpenPart& there = open(where);
  const auto item =
      static_cast<size_t>(there.first_items[static_cast<size_t>(sample.id - part->first)] + before);
  const auto refuse = [&](const std::string& fault) {
    throw DataError(path(where) + ": " + item_name(sample.items[number]) + " " +
                    std::to_string(number) + item_file(sample, number) + " of " +
                    sample_words(sample) + " " + fault);
  };
  if (there.item_hashes[item] != hash_of(sample.items[number]))
    refuse(
        "is not the one whose features are kept: the data set has changed; name another folder in "
        "data.cache_features, or remove that one");
  const int64_t first = there.first_rows[item], rows = there.first_rows[item + 1] - first;
  const KeptItem kept{rows * row_bytes(format_), there.bad[item] != 0};
  if (target == nullptr) return kept;
  there.file.read_range(kFeatures, first * format_.width, rows * format_.width, target);
  if (there.feature_hashes[item] != hash_number(target, kept.bytes))
    refuse("has damaged features; remove the file, and they are recomputed");
  return kept;
}

void remove_unfinished_parts(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == kUnfinished &&
        entry.path().filename().string().starts_with(kPart))
      remove_file(entry.path().string());
}

struct FeatureWriter::Target {
  const FeatureCache& cache;
  size_t part;
  std::string temporary;
  std::optional<H5File> file = {};
  int64_t rows = 0;
  std::vector<int64_t> item_hashes = {}, feature_hashes = {};
  std::vector<uint8_t> bad = {};
};

FeatureWriter::FeatureWriter(const FeatureCache& cache, size_t part)
    : target_(new Target{cache, part,
                         cache.path(part) + "." + std::to_string(::getpid()) + kUnfinished}) {
  remove_file(target_->temporary);
  target_->file = H5File::create(target_->temporary);
  target_->file->write_text_attribute(kFingerprint, cache.format().fingerprint);
  target_->file->create_dataset(kFeatures, {cache.parts()[part].tokens, cache.format().width},
                                cache.format().dtype);
}

FeatureWriter::~FeatureWriter() = default;

void FeatureWriter::add(const Sample& sample, const std::vector<int64_t>& bad,
                        const uint8_t* features) {
  const FeatureFormat& format = target_->cache.format();
  for (size_t number = 0; number < sample.items.size(); ++number) {
    const Item& item = sample.items[number];
    if (item.kind != format.encoder) continue;
    const int64_t bytes = target_->cache.bytes_of(item), rows = bytes / row_bytes(format);
    target_->item_hashes.push_back(hash_of(item));
    target_->feature_hashes.push_back(hash_number(features, bytes));
    target_->bad.push_back(std::ranges::count(bad, static_cast<int64_t>(number)) > 0);
    target_->file->write_range(kFeatures, target_->rows * format.width, rows * format.width,
                               features);
    target_->rows += rows;
    features += bytes;
  }
}

void FeatureWriter::finish() {
  ZEA_ASSERT(target_->rows == target_->cache.parts()[target_->part].tokens);
  H5File& file = *target_->file;
  const Shape items{std::ssize(target_->item_hashes)};
  file.write(kItemHashes, items, DType::Int64, target_->item_hashes.data());
  file.write(kFeatureHashes, items, DType::Int64, target_->feature_hashes.data());
  file.write(kBad, items, DType::UInt8, target_->bad.data());
  file.close_and_sync();
  rename_durably(target_->temporary, target_->cache.path(target_->part));
}

}  // namespace zea
