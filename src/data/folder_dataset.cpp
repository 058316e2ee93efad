// SPDX-License-Identifier: Apache-2.0
#include "folder_dataset.hpp"

#include <algorithm>
#include <filesystem>
#include <list>
#include <mutex>

#include "file_dataset.hpp"
#include "item_table.hpp"
#include "offsets.hpp"
#include "zea/core/error.hpp"
#include "zea/data/joined_dataset.hpp"

namespace zea::detail {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexName = "index.h5";
constexpr size_t kMostOpen = 32;  ///< files at once

H5File open_index(const std::string& path) {
  H5File file = H5File::open(path, ExitCode::Data);
  const std::string format = file.text_attribute("format").value_or("none");
  if (format != "zea.dataset.index")
    throw DataError(path + ": its format is \"" + format + "\", must be \"zea.dataset.index\"");
  return file;
}

class FolderDataset : public Dataset {
 public:
  FolderDataset(std::string folder, std::vector<ItemKind> kinds, const std::function<void()>& moved)
      : folder_(std::move(folder)), asked_kinds_(std::move(kinds)) {
    const H5File file = open_index((fs::path(folder_) / kIndexName).string());
    names_ = file.read_strings("names");
    firsts_ = file.read_all<int64_t>("first_samples");
    const auto token_offsets = file.read_all<int64_t>("token_offsets");
    const auto targets = file.read_all<int64_t>("targets");
    const auto largest = file.read_all<int64_t>("max_token");
    check_offsets(file.path(), "first_samples", firsts_, static_cast<int64_t>(targets.size()));
    if (names_.empty() || firsts_.size() != names_.size() + 1 || largest.size() != 1 ||
        token_offsets.size() != targets.size() + 1)
      refuse("its parts contradict each other");
    check_files(file.read_all<int64_t>("bytes"));
    max_token_ = static_cast<int32_t>(largest[0]);
    kinds_ = opened(0)->kinds();
    const ItemTable items(file);
    items.check(file.read_all<int64_t>("item_offsets").back());
    if (items.samples() != targets.size()) refuse("its parts contradict each other");
    index_.resize(targets.size());
    for (size_t i = 0; i < index_.size(); ++i) {
      if (i % kSamplesOfAMove == 0) moved();
      index_[i].tokens = token_offsets[i + 1] - token_offsets[i];
      index_[i].targets = targets[i];
      index_[i].items = list_items(items_of(items, i));
    }
  }

  std::string describe() const override { return folder_; }
  const std::vector<SampleIndex>& index() const override { return index_; }
  const std::vector<ItemKind>& kinds() const override { return kinds_; }
  int32_t max_token() const override { return max_token_; }
  const DatasetTexts& texts() const override { return first_->texts(); }

  Sample read(int64_t id) const override {
    if (id < 0 || id >= static_cast<int64_t>(index_.size()))
      throw DataError(folder_ + ": there is no sample " + std::to_string(id) + "; it holds " +
                      std::to_string(index_.size()));
    const size_t file = file_of(id);
    Sample sample = opened(file)->read(id - firsts_[file]);
    sample.id = id;
    check(sample, file);
    return sample;
  }

 private:
  [[noreturn]] void refuse(const std::string& fault) const {
    throw DataError((fs::path(folder_) / kIndexName).string() + ": " + fault +
                    "; remove it, and all files are looked through at every start, or pack again");
  }

  /// By their size: without opening them.
  void check_files(const std::vector<int64_t>& bytes) const {
    if (bytes.size() != names_.size()) refuse("its parts contradict each other");
    for (size_t i = 0; i < names_.size(); ++i) {
      std::error_code fault;
      const fs::path path = fs::path(folder_) / names_[i];
      const auto found = static_cast<int64_t>(fs::file_size(path, fault));
      if (fs::path(names_[i]).filename() != names_[i]) refuse("it names a file elsewhere");
      if (fault) refuse("it names " + names_[i] + ", which is not there");
      if (found != bytes[i])
        refuse(names_[i] + " has " + std::to_string(found) + " bytes, and had " +
               std::to_string(bytes[i]) + " when it was written");
    }
  }

  size_t file_of(int64_t id) const {
    return static_cast<size_t>(std::ranges::upper_bound(firsts_, id) - firsts_.begin()) - 1;
  }

  std::vector<Item> items_of(const ItemTable& table, size_t sample) const {
    std::vector<Item> items = table.heads(sample);
    try {
      assign_kinds(kinds_, items, [&] {
        const auto id = static_cast<int64_t>(sample);
        return opened(file_of(id))->tokens(id - firsts_[file_of(id)]);
      });
    } catch (const DataError& fault) {
      throw DataError(folder_ + ": sample " + std::to_string(sample) + " has " + fault.what());
    }
    return items;
  }

  /// What a file that was looked through at the start would have been refused for.
  void check(const Sample& sample, size_t file) const {
    const SampleIndex& expected = index_[static_cast<size_t>(sample.id)];
    const auto [least, most] = std::ranges::minmax(sample.tokens);
    const auto targets =
        std::count(sample.loss_mask.begin() + 1, sample.loss_mask.end(), uint8_t{1});
    if (static_cast<int64_t>(sample.tokens.size()) != expected.tokens || least < 0 ||
        most > max_token_ || targets != expected.targets || std::ranges::max(sample.loss_mask) > 1)
      refuse("sample " + std::to_string(sample.id - firsts_[file]) + " of " + names_[file] +
             " is not what it says");
  }

  /// Those that were used last stay open. May be called by several threads.
  std::shared_ptr<const Dataset> opened(size_t number) const {
    const std::scoped_lock lock(mutex_);
    const auto known = std::ranges::find(open_, number, &Open::number);
    if (known != open_.end()) {
      open_.splice(open_.begin(), open_, known);
      return known->dataset;
    }
    const std::string path = (fs::path(folder_) / names_[number]).string();
    const bool is_first = number == 0 && !first_;  // whose names others point to
    std::shared_ptr<const Dataset> dataset = open_unscanned(path, asked_kinds_, is_first);
    if (is_first) first_ = dataset;
    if (static_cast<int64_t>(dataset->index().size()) != firsts_[number + 1] - firsts_[number])
      refuse(names_[number] + " has " + std::to_string(dataset->index().size()) + " samples");
    for (size_t kind = 0; kind < kinds_.size(); ++kind)
      if (dataset->kinds()[kind].token != kinds_[kind].token)
        refuse(names_[number] + " has other placeholders than " + names_[0]);
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
  std::vector<std::string> names_;
  std::vector<int64_t> firsts_;  ///< (files + 1): samples
  std::vector<SampleIndex> index_;
  int32_t max_token_ = -1;
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
  std::unique_ptr<Dataset> dataset;
  std::vector<std::string> files;
  opening.agree([&] {
    if (fs::exists(fs::path(folder) / kIndexName))
      dataset = std::make_unique<FolderDataset>(folder, kinds, opening.moved);
    else
      files = files_of(folder);
  });
  if (dataset) return dataset;
  std::vector<std::unique_ptr<Dataset>> sets;
  for (const std::string& file : files)
    sets.push_back(
        open_dataset(file, held_bytes / static_cast<int64_t>(files.size()), opening, kinds));
  return join_datasets(std::move(sets), folder);
}

}  // namespace zea::detail
