// SPDX-License-Identifier: Apache-2.0
#include "data/folder_dataset.hpp"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <list>
#include <mutex>

#include "core/error.hpp"
#include "data/dataset.hpp"
#include "data/file_parts.hpp"
#include "io/manifest.hpp"

namespace zea::detail {
namespace {

/// The only element of a dataset of the index.
int64_t read_number(const H5File& file, const std::string& name) {
  const auto values = file.read_all<int64_t>(name);
  if (values.size() != 1)
    throw DataError(file.path() + ": " + name + " has " + std::to_string(values.size()) +
                    " elements, must have 1; pack the folder again");
  return values[0];
}

}  // namespace

H5File FolderIndex::open(const std::string& where) {
  H5File file = H5File::open(where, ExitCode::Data);
  const std::string format = file.text_attribute("format").value_or("none");
  if (format != "zea.dataset.index")
    throw DataError(where + ": its format is \"" + format + "\", must be \"zea.dataset.index\"");
  return file;
}

FolderIndex::FolderIndex(const H5File& file)
    : path(file.path()),
      names(file.read_strings("names")),
      bytes(file.read_all<int64_t>("bytes")),
      firsts(file.read_all<int64_t>("first_samples")),
      token_offsets(file.read_all<int64_t>("token_offsets")),
      targets(file.read_all<int64_t>("targets")),
      items(file) {
  const int64_t largest = read_number(file, "max_token");
  if (largest < 0 || largest > std::numeric_limits<int32_t>::max())
    refuse("max_token is " + std::to_string(largest));
  max_token = static_cast<int32_t>(largest);
  if (file.has("learnt_placeholders"))
    learnt_placeholders = read_number(file, "learnt_placeholders");
  check();
}

void FolderIndex::refuse(const std::string& fault) const {
  throw DataError(path + ": " + fault +
                  "; remove it, and all files are looked through at every start, or pack again");
}

void FolderIndex::check() const {
  check_offsets(path, "first_samples", firsts, static_cast<int64_t>(samples()));
  check_offsets(path, "token_offsets", token_offsets,
                token_offsets.empty() ? 0 : token_offsets.back());
  items.check();
  if (names.empty() || firsts.size() != names.size() + 1 || bytes.size() != names.size() ||
      token_offsets.size() != samples() + 1 || items.samples() != samples())
    refuse("its parts contradict each other");
  for (const std::string& name : names)
    if (std::filesystem::path(name).filename() != name || name == "." || name == "..")
      refuse("it names a file elsewhere");
  for (size_t i = 0; i < samples(); ++i) {
    const int64_t tokens = token_offsets[i + 1] - token_offsets[i];
    if (tokens == 0 || targets[i] < 0 || targets[i] >= tokens)
      refuse("sample " + std::to_string(i) + " has " + std::to_string(tokens) + " tokens and " +
             std::to_string(targets[i]) + " targets");
  }
}

namespace {

namespace fs = std::filesystem;

constexpr size_t kMostOpen = 32;  ///< files at once
/// The same for the files of a folder together.
constexpr int64_t kHashedWhole = int64_t{64} << 20, kHashedBlocks = 1024, kFewestBlocks = 16;

class FolderDataset : public Dataset {
 public:
  FolderDataset(std::string folder, std::vector<ItemKind> kinds, const std::function<void()>& moved)
      : folder_(std::move(folder)),
        asked_kinds_(std::move(kinds)),
        file_((fs::path(folder_) / kIndexName).string()) {
    look_at_files();
    kinds_ = opened(0)->kinds();
    index_.reserve(file_.samples());
    for (size_t i = 0; i < file_.samples(); ++i) {
      if (i % kSamplesOfAMove == 0) moved();
      index_.add({.tokens = file_.token_offsets[i + 1] - file_.token_offsets[i],
                  .items = list_items(items_of(i)),
                  .targets = file_.targets[i]});
    }
  }

  /// Each rank reads a part of the files. Collective over the ranks of `opening`.
  void hash_files(const SharedOpening& opening) {
    const auto files = std::ssize(file_.names);
    const HashedPart part{.whole = kHashedWhole / files,
                          .blocks = std::max(kFewestBlocks, kHashedBlocks / files)};
    std::vector<int64_t> hashes(static_cast<size_t>(files), 0);
    for (auto i = static_cast<size_t>(opening.rank); i < hashes.size();
         i += static_cast<size_t>(opening.ranks)) {
      opening.moved();
      hashes[i] = hash_of_file(path_of(i), facts_[i].bytes, part);
    }
    opening.max(hashes);
    for (size_t i = 0; i < hashes.size(); ++i)
      watched_.emplace_back(path_of(i), facts_[i], hashes[i], part);
    for (const auto* numbers : {&file_.token_offsets, &file_.targets})
      hashes.insert(hashes.end(), numbers->begin(), numbers->end());
    hash_ = hash_bytes(hashes.data(), std::ssize(hashes) * int64_t{sizeof(int64_t)});
  }

  std::string describe() const override { return folder_; }
  const SampleTable& index() const override { return index_; }
  const std::vector<ItemKind>& kinds() const override { return kinds_; }
  int32_t max_token() const override { return file_.max_token; }
  const DatasetTexts& texts() const override { return first_->texts(); }
  std::string hash() const override { return hash_; }
  std::string note() const override {
    if (file_.learnt_placeholders == 0) return "";
    return folder_ + ": the loss mask covers " + std::to_string(file_.learnt_placeholders) +
           " placeholders of items, so the model is trained to say them; give placeholders a "
           "loss_mask of 0 when packing";
  }
  /// Checks the files that are open; others are looked at when they are opened.
  std::string check_files() const override {
    const std::scoped_lock lock(mutex_);
    for (const Open& open : open_)
      if (std::string note = watched_[open.number].check(true); !note.empty()) return note;
    return "";
  }
  std::vector<int32_t> tokens(int64_t id) const override {
    return opened(file_of(id))->tokens(id - first_of(id));
  }
  std::string source(int64_t id) const override {
    return opened(file_of(id))->source(id - first_of(id));
  }

  Sample read(int64_t id) const override {
    if (id < 0 || id >= static_cast<int64_t>(index_.size()))
      throw DataError(folder_ + ": there is no sample " + std::to_string(id) + "; it holds " +
                      std::to_string(index_.size()));
    const size_t file = file_of(id);
    Sample sample = opened(file)->read(id - file_.firsts[file]);
    sample.id = id;
    check(sample, file);
    return sample;
  }

 private:
  [[noreturn]] void refuse(const std::string& fault) const {
    throw DataError(file_.path + ": " + fault +
                    "; remove it, and all files are looked through at every start, or pack again");
  }

  std::string path_of(size_t file) const {
    return (fs::path(folder_) / file_.names[file]).string();
  }

  /// At their sizes: without opening them.
  void look_at_files() {
    for (size_t i = 0; i < file_.names.size(); ++i) {
      facts_.push_back(facts_of(path_of(i)));
      if (facts_[i] == FileFacts()) refuse("it names " + file_.names[i] + ", which is not there");
      if (facts_[i].bytes != file_.bytes[i])
        refuse(file_.names[i] + " has " + std::to_string(facts_[i].bytes) + " bytes, and had " +
               std::to_string(file_.bytes[i]) + " when it was written");
    }
  }

  size_t file_of(int64_t id) const {
    return static_cast<size_t>(std::ranges::upper_bound(file_.firsts, id) - file_.firsts.begin()) -
           1;
  }
  int64_t first_of(int64_t id) const { return file_.firsts[file_of(id)]; }

  std::vector<Item> items_of(size_t sample) const {
    const auto id = static_cast<int64_t>(sample);
    std::vector<Item> items = file_.items.heads(sample);
    try {
      assign_kinds(kinds_, items, [&] { return tokens(id); });
    } catch (const DataError& fault) {
      throw DataError(folder_ + ": " + words(id) + " has " + fault.what());
    }
    return items;
  }

  /// Refuses a sample for which its file would have been refused if it had been scanned at the
  /// start.
  void check(const Sample& sample, size_t file) const {
    if (!is_as_indexed(sample, index_[static_cast<size_t>(sample.id)], file_.max_token))
      refuse("sample " + std::to_string(sample.id - file_.firsts[file]) + " of " +
             file_.names[file] + " is not what it says");
  }

  /// Opens a file; the last used ones stay open. Several threads may call this.
  std::shared_ptr<const Dataset> opened(size_t number) const {
    const std::scoped_lock lock(mutex_);
    const auto known = std::ranges::find(open_, number, &Open::number);
    if (known != open_.end()) {
      open_.splice(open_.begin(), open_, known);
      return known->dataset;
    }
    if (!watched_.empty()) watched_[number].check_before_opening();
    const bool is_first = number == 0 && !first_;  // whose names others point to
    std::shared_ptr<const Dataset> dataset =
        open_unscanned(path_of(number), asked_kinds_, is_first);
    if (is_first) first_ = dataset;
    if (static_cast<int64_t>(dataset->index().size()) !=
        file_.firsts[number + 1] - file_.firsts[number])
      refuse(file_.names[number] + " has " + std::to_string(dataset->index().size()) + " samples");
    for (size_t kind = 0; kind < kinds_.size(); ++kind)
      if (dataset->kinds()[kind].token != kinds_[kind].token)
        refuse(file_.names[number] + " has other placeholders than " + file_.names[0]);
    open_.push_front({number, dataset});
    if (open_.size() > kMostOpen) open_.pop_back();
    return dataset;
  }

  struct Open {
    size_t number;
    std::shared_ptr<const Dataset> dataset;
  };

  std::string folder_;
  std::vector<ItemKind> asked_kinds_, kinds_;
  FolderIndex file_;
  std::vector<FileFacts> facts_;      ///< of each file, when it was looked at first
  std::vector<WatchedFile> watched_;  ///< of each, once they are hashed; under mutex_
  SampleTable index_;
  std::string hash_;
  mutable std::mutex mutex_;
  mutable std::list<Open> open_;
  mutable std::shared_ptr<const Dataset> first_;  ///< for names of classes and bytes of tokens
};

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".h5" && entry.path().filename() != kIndexName)
      files.push_back(entry.path().string());
  std::ranges::sort(files);
  if (files.empty()) throw DataError(folder + ": holds no data set (.h5)");
  return files;
}

}  // namespace

std::unique_ptr<Dataset> open_folder(const std::string& folder, int64_t held_bytes,
                                     const SharedOpening& opening, std::vector<ItemKind> kinds) {
  std::unique_ptr<FolderDataset> dataset;
  std::vector<std::string> files;
  opening.agree([&] {
    if (fs::exists(fs::path(folder) / kIndexName))
      dataset = std::make_unique<FolderDataset>(folder, kinds, opening.moved);
    else
      files = files_of(folder);
  });
  if (dataset) {
    dataset->hash_files(opening);
    return dataset;
  }
  std::vector<std::unique_ptr<Dataset>> sets;
  for (const std::string& file : files)
    sets.push_back(
        open_dataset(file, held_bytes / static_cast<int64_t>(files.size()), opening, kinds));
  return join_datasets(std::move(sets), folder);
}

}  // namespace zea::detail
