// SPDX-License-Identifier: Apache-2.0
// A data set in an HDF5 file. Everything is checked once, when it is opened, tokens and loss masks
// in chunks of bounded memory by the ranks together; after that read() only copies. Small contents
// stay in memory, large ones are read sample by sample.
#include "data/dataset.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "core/error.hpp"
#include "core/mixed_bits.hpp"
#include "data/file_parts.hpp"
#include "data/folder_dataset.hpp"
#include "h5/h5.hpp"
#include "io/manifest.hpp"

namespace zea {
namespace {

constexpr int64_t kScannedTokens = int64_t{4} << 20;  ///< at once, when opened
/// A scan reports progress after so many tokens, which a slow disk reads in a second.
constexpr int64_t kTokensOfAMove = int64_t{1} << 20;

H5File open_checked(const std::string& path) {
  H5File file = H5File::open(path, ExitCode::Data);
  const std::string format = file.text_attribute("format").value_or("none");
  if (format != "zea.dataset")
    throw DataError(path + ": its format is \"" + format + "\", must be \"zea.dataset\"");
  const std::string version = file.text_attribute("version").value_or("none");
  if (version != "1" && version != "2" && version != "3")
    throw DataError(path + ": its version is \"" + version +
                    "\"; this zea reads versions \"1\" to \"3\"");
  return file;
}

/// Reads the placeholder in attribute `name`, which files have from version `since` on; -1: none.
int32_t read_placeholder(const H5File& file, const std::string& name, const char* since) {
  if (file.text_attribute("version") < since) return -1;
  const std::string text = file.text_attribute(name).value_or("");
  int32_t token = -1;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), token);
  if (fault != std::errc() || end != text.data() + text.size() || token < -1)
    throw DataError(file.path() + ": attribute " + name + " is \"" + text +
                    "\", must be a token id, or -1 for none");
  return token;
}

class FileDataset : public Dataset {
 public:
  FileDataset(const std::string& path, int64_t held_bytes, std::vector<ItemKind> kinds,
              const std::function<void()>& moved, bool reads_names = true)
      : file_(open_checked(path)),
        image_token_(read_placeholder(file_, "image_token", "1")),
        audio_token_(read_placeholder(file_, "audio_token", "2")),
        video_token_(read_placeholder(file_, "video_token", "3")),
        kinds_(std::move(kinds)),
        token_offsets_(file_.read_all<int64_t>("token_offsets")),
        items_(file_),
        labels_(detail::read_optional<int32_t>(file_, "labels")),
        tokens_(file_, "tokens", held_bytes),
        loss_mask_(file_, "loss_mask", held_bytes),
        item_bytes_(file_, "item_bytes", held_bytes),
        names_(file_, token_offsets_.empty() ? 0 : token_offsets_.size() - 1, held_bytes) {
    add_kind(kinds_, {Modality::Image, image_token_, 1, {}, video_token_});
    add_kind(kinds_, {Modality::Audio, audio_token_});
    check_structure();
    if (reads_names) read_names();
    read_answers();
    make_index(moved);
  }

  /// Scans the tokens of this rank's samples, about as many as each other rank's. Calls `moved` now
  /// and then.
  detail::ContentScan scan(int rank, int ranks, const std::function<void()>& moved) const;
  /// Takes what all ranks have found. Throws what is wrong with the contents, the first fault.
  void accept(const detail::ContentScan& found, detail::WatchedFile watched);
  int64_t num_tokens() const { return tokens_.length(); }

  std::string describe() const override { return file_.path(); }
  const SampleTable& index() const override { return index_; }
  std::string hash() const override { return hash_; }
  std::string note() const override { return note_; }
  std::string check_files() const override { return watched_ ? watched_->check(is_on_disk()) : ""; }
  Sample read(int64_t id) const override;
  std::string source(int64_t id) const override {
    return names_.of(file_, static_cast<size_t>(id));
  }
  std::vector<int32_t> tokens(int64_t id) const override {
    const auto sample = static_cast<size_t>(id);
    return tokens_.read(file_, token_offsets_[sample], token_offsets_[sample + 1]);
  }
  const std::vector<ItemKind>& kinds() const override { return kinds_; }
  int32_t max_token() const override { return max_token_; }
  const DatasetTexts& texts() const override { return texts_; }

 private:
  void check_structure() const;
  /// Without their bytes.
  std::vector<Item> items_of(size_t sample) const;
  void look_at(int64_t position, int32_t token, uint8_t mask, size_t sample,
               detail::ContentScan& found) const;
  void check_contents(const detail::ContentScan& found) const;
  void check_placeholder_ids() const;
  void check_labels() const;
  std::string placeholder_note(int64_t position) const;
  bool is_on_disk() const {
    return tokens_.is_on_disk() || loss_mask_.is_on_disk() || item_bytes_.is_on_disk();
  }
  int64_t vocabulary() const { return static_cast<int64_t>(texts_.token_bytes.size()); }
  void read_names();
  /// NAME_offsets and NAME_values as texts; empty where the file has none.
  std::vector<std::string> read_texts(const std::string& name) const;
  void read_answers();
  void make_index(const std::function<void()>& moved);
  int64_t sample_of(int64_t token_position) const;
  [[noreturn]] void refuse(const std::string& fault) const {
    throw DataError(describe() + ": " + fault);
  }

  H5File file_;  ///< read_range may be called by several threads
  int32_t image_token_, audio_token_, video_token_;
  std::vector<ItemKind> kinds_;
  int32_t max_token_ = -1;
  std::vector<int64_t> token_offsets_;
  detail::ItemTable items_;
  std::vector<int32_t> labels_;  ///< empty, or (samples)
  detail::Contents<int32_t> tokens_;
  detail::Contents<uint8_t> loss_mask_;
  detail::Contents<uint8_t> item_bytes_;
  detail::SampleNames names_;
  DatasetTexts texts_;
  std::vector<int64_t> sample_answers_;  ///< which of `answers_` are a sample's; may be empty
  std::vector<std::string> answers_;
  SampleTable index_;
  std::optional<detail::WatchedFile> watched_;  ///< once the contents are accepted
  std::string hash_, note_;
};

void FileDataset::check_structure() const {
  check_offsets(describe(), "token_offsets", token_offsets_, tokens_.length());
  items_.check(item_bytes_.length());
  if (token_offsets_.size() == 1) refuse("it holds no samples");
  if (items_.samples() + 1 != token_offsets_.size())
    refuse("token_offsets has " + std::to_string(token_offsets_.size()) +
           " entries, sample_item_offsets has " + std::to_string(items_.samples() + 1) +
           "; both must have one more than there are samples");
  if (loss_mask_.length() != tokens_.length())
    refuse("loss_mask has " + std::to_string(loss_mask_.length()) + " entries for " +
           std::to_string(tokens_.length()) + " tokens");
  if (audio_token_ >= 0 && audio_token_ == image_token_)
    refuse("image_token and audio_token are both " + std::to_string(image_token_));
  if (video_token_ >= 0 && video_token_ == audio_token_)
    refuse("video_token and audio_token are both " + std::to_string(video_token_));
}

void FileDataset::read_names() {
  if (file_.has("classes")) texts_.classes = file_.read_strings("classes");
  texts_.token_bytes = read_texts("token_byte");
  texts_.special_texts = read_texts("special_text");
}

std::vector<std::string> FileDataset::read_texts(const std::string& name) const {
  if (!file_.has(name + "_offsets")) return {};
  const auto offsets = file_.read_all<int64_t>(name + "_offsets");
  const auto values = detail::read_optional<uint8_t>(file_, name + "_values");
  check_offsets(describe(), name + "_offsets", offsets, static_cast<int64_t>(values.size()));
  return ragged_strings(offsets, values);
}

void FileDataset::read_answers() {
  if (!file_.has("sample_answer_offsets")) return;
  answers_ = read_texts("answer");
  sample_answers_ = file_.read_all<int64_t>("sample_answer_offsets");
  check_offsets(describe(), "sample_answer_offsets", sample_answers_, std::ssize(answers_));
  if (sample_answers_.size() != token_offsets_.size())
    refuse("sample_answer_offsets has " + std::to_string(sample_answers_.size()) +
           " entries, token_offsets has " + std::to_string(token_offsets_.size()) +
           "; both must have one more than there are samples");
}

void FileDataset::make_index(const std::function<void()>& moved) {
  const size_t samples = token_offsets_.size() - 1;
  index_.reserve(samples);
  for (size_t i = 0; i < samples; ++i) {
    if (i % detail::kSamplesOfAMove == 0) moved();
    const int64_t tokens = token_offsets_[i + 1] - token_offsets_[i];
    if (tokens == 0) refuse("sample " + std::to_string(i) + " has no tokens");
    index_.add({.tokens = tokens, .items = list_items(items_of(i))});
  }
}

detail::ContentScan FileDataset::scan(int rank, int ranks,
                                      const std::function<void()>& moved) const {
  const auto first_of = [&](int number) {
    const int64_t token = tokens_.length() * number / ranks;
    return static_cast<size_t>(std::ranges::lower_bound(token_offsets_, token) -
                               token_offsets_.begin());
  };
  const size_t first = first_of(rank), last = first_of(rank + 1);
  detail::ContentScan found;
  found.targets.assign(index_.size(), 0);
  size_t sample = first;
  const int64_t end = token_offsets_[last];
  for (int64_t begin = token_offsets_[first]; begin < end; begin += kScannedTokens) {
    const int64_t stop = std::min(end, begin + kScannedTokens);
    const std::vector<int32_t> tokens = tokens_.read(file_, begin, stop);
    const std::vector<uint8_t> masks = loss_mask_.read(file_, begin, stop);
    for (int64_t position = begin; position < stop; ++position) {
      if (position % kTokensOfAMove == 0) moved();
      if (position == token_offsets_[sample + 1]) ++sample;
      const auto i = static_cast<size_t>(position - begin);
      look_at(position, tokens[i], masks[i], sample, found);
    }
  }
  return found;
}

/// A sample's first token is no target.
void FileDataset::look_at(int64_t position, int32_t token, uint8_t mask, size_t sample,
                          detail::ContentScan& found) const {
  const int64_t to_end = tokens_.length() - position, known = vocabulary();
  const bool is_target = mask == 1 && position != token_offsets_[sample];
  found.facts.max_token = std::max<int64_t>(found.facts.max_token, token);
  found.facts.hash += mixed(mixed(static_cast<uint64_t>(position)) +
                            (static_cast<uint64_t>(static_cast<uint32_t>(token)) << 8 | mask));
  found.targets[sample] += is_target;
  if (mask > 1) found.bad_mask = std::max(found.bad_mask, to_end);
  if (token < 0 || (known > 0 && token >= known))
    found.bad_token = std::max(found.bad_token, to_end);
  if (is_target && (token == image_token_ || token == audio_token_ || token == video_token_))
    found.facts.learnt_placeholder = std::max(found.facts.learnt_placeholder, to_end);
}

void FileDataset::accept(const detail::ContentScan& found, detail::WatchedFile watched) {
  check_contents(found);
  max_token_ = static_cast<int32_t>(found.facts.max_token);
  for (size_t i = 0; i < index_.size(); ++i) index_.set_targets(i, found.targets[i]);
  check_placeholder_ids();
  check_labels();
  // Tokens and masks are known whole, whatever the file's size; items of a large file by samples.
  std::string all(reinterpret_cast<const char*>(token_offsets_.data()),
                  token_offsets_.size() * sizeof(int64_t));
  all += std::to_string(found.facts.hash) + " " + std::to_string(watched.hash());
  hash_ = hash_bytes(all.data(), std::ssize(all));
  if (found.facts.learnt_placeholder > 0)
    note_ = placeholder_note(tokens_.length() - found.facts.learnt_placeholder);
  watched_ = std::move(watched);
}

std::string FileDataset::placeholder_note(int64_t position) const {
  const int64_t sample = sample_of(position);
  return describe() + ": the loss mask covers placeholders of items, first in " + words(sample) +
         " at token " + std::to_string(position - token_offsets_[static_cast<size_t>(sample)]) +
         ", so the model is trained to say them; give placeholders a loss_mask of 0 when packing";
}

void FileDataset::check_contents(const detail::ContentScan& found) const {
  const int64_t mask = tokens_.length() - found.bad_mask,
                token = tokens_.length() - found.bad_token;
  if (found.bad_mask > 0) {
    const int64_t sample = sample_of(mask);
    refuse("loss_mask of " + words(sample) + " is " +
           std::to_string(loss_mask_.read(file_, mask, mask + 1)[0]) + " at token " +
           std::to_string(mask - token_offsets_[static_cast<size_t>(sample)]) + ", must be 0 or 1");
  }
  if (found.bad_token > 0)
    refuse(words(sample_of(token)) + " holds token id " +
           std::to_string(tokens_.read(file_, token, token + 1)[0]) + "; allowed are 0 to " +
           (vocabulary() > 0 ? std::to_string(vocabulary() - 1) : "2^31 - 1"));
}

void FileDataset::check_placeholder_ids() const {
  for (const auto& [name, token] :
       {std::pair("image_token", image_token_), std::pair("audio_token", audio_token_),
        std::pair("video_token", video_token_)})
    if (vocabulary() > 0 && token >= vocabulary())
      refuse(std::string(name) + " is " + std::to_string(token) + ", outside its vocabulary of " +
             std::to_string(vocabulary()));
}

void FileDataset::check_labels() const {
  if (labels_.empty()) return;
  if (labels_.size() != index_.size())
    refuse("labels has " + std::to_string(labels_.size()) + " entries for " +
           std::to_string(index_.size()) + " samples");
  for (size_t i = 0; i < labels_.size(); ++i)
    if (labels_[i] < -1 ||
        (!texts_.classes.empty() && labels_[i] >= static_cast<int32_t>(texts_.classes.size())))
      refuse("sample " + std::to_string(i) + " has label " + std::to_string(labels_[i]) +
             "; allowed are -1 (none) to " +
             std::to_string(static_cast<int64_t>(texts_.classes.size()) - 1));
}

std::vector<Item> FileDataset::items_of(size_t i) const {
  std::vector<Item> items = items_.heads(i);
  try {
    detail::assign_kinds(kinds_, items, [&] {
      return tokens_.read(file_, token_offsets_[i], token_offsets_[i + 1]);
    });
  } catch (const DataError& fault) {
    refuse(words(static_cast<int64_t>(i)) + " has " + fault.what());
  }
  return items;
}

int64_t FileDataset::sample_of(int64_t token_position) const {
  const auto after = std::upper_bound(token_offsets_.begin(), token_offsets_.end(), token_position);
  return after - token_offsets_.begin() - 1;
}

Sample FileDataset::read(int64_t id) const {
  if (id < 0 || id >= static_cast<int64_t>(index_.size()))
    refuse("there is no sample " + std::to_string(id) + "; it holds " +
           std::to_string(index_.size()));
  const auto i = static_cast<size_t>(id);
  Sample sample;
  sample.id = id;
  sample.source = names_.of(file_, i);
  sample.tokens = tokens_.read(file_, token_offsets_[i], token_offsets_[i + 1]);
  sample.loss_mask = loss_mask_.read(file_, token_offsets_[i], token_offsets_[i + 1]);
  sample.items = items_of(i);
  const std::vector<int64_t> offsets = items_.byte_offsets(i);
  for (size_t item = 0; item < sample.items.size(); ++item)
    sample.items[item].bytes = item_bytes_.read(file_, offsets[item], offsets[item + 1]);
  if (!labels_.empty()) sample.label = labels_[i];
  if (!sample_answers_.empty())
    sample.answers = {answers_.begin() + sample_answers_[i],
                      answers_.begin() + sample_answers_[i + 1]};
  if (watched_ && is_on_disk() && !detail::is_as_indexed(sample, index_[i], max_token_))
    refuse(sample_words(sample) +
           " is no longer what it was when the run opened the file, which was changed since then; "
           "restore it and resume, or start a new run");
  return sample;
}

/// Joins what all ranks have found: the largest of each value, since a rank has 0 or -1 for samples
/// that it did not scan.
void join(detail::ContentScan& found, size_t samples, const SharedOpening& opening) {
  std::vector<int64_t> values = std::move(found.targets);
  values.resize(samples);
  values.insert(values.end(), {found.facts.max_token, found.facts.learnt_placeholder,
                               found.bad_mask, found.bad_token});
  opening.max(values);
  found.facts.max_token = values[samples];
  found.facts.learnt_placeholder = values[samples + 1];
  found.bad_mask = values[samples + 2];
  found.bad_token = values[samples + 3];
  values.resize(samples);
  found.targets = std::move(values);
  // A sum of what each rank has found: halves are no less than 0, as what others put there.
  std::vector<int64_t> halves(2 * static_cast<size_t>(opening.ranks), 0);
  const size_t own = 2 * static_cast<size_t>(opening.rank);
  halves[own] = static_cast<int64_t>(found.facts.hash >> 32);
  halves[own + 1] = static_cast<int64_t>(found.facts.hash & 0xffffffffu);
  opening.max(halves);
  found.facts.hash = 0;
  for (size_t rank = 0; rank < halves.size(); rank += 2)
    found.facts.hash +=
        (static_cast<uint64_t>(halves[rank]) << 32) + static_cast<uint64_t>(halves[rank + 1]);
}

}  // namespace

std::unique_ptr<Dataset> detail::open_unscanned(const std::string& path,
                                                std::vector<ItemKind> kinds, bool reads_names) {
  return std::make_unique<FileDataset>(
      path, 0, std::move(kinds), [] {}, reads_names);
}

std::unique_ptr<Dataset> open_dataset(const std::string& path, int64_t held_bytes,
                                      const SharedOpening& opening, std::vector<ItemKind> kinds) {
  if (std::filesystem::is_directory(path))
    return detail::open_folder(path, held_bytes, opening, std::move(kinds));
  std::unique_ptr<FileDataset> dataset;
  const detail::FileFacts facts = detail::facts_of(path);
  opening.agree([&] {
    dataset = std::make_unique<FileDataset>(path, held_bytes, std::move(kinds), opening.moved);
  });
  std::vector<int64_t> hash{opening.rank == 0 ? detail::hash_of_file(path, facts.bytes) : 0};
  opening.max(hash);
  const size_t samples = dataset->index().size();
  const bool keeps = dataset->num_tokens() >= opening.kept_from_tokens;
  const std::string contents =
      keeps ? detail::describe_contents(facts, hash[0], samples) : std::string();
  std::optional<detail::ContentScan> kept = detail::read_kept_scan(path, contents, samples);
  std::vector<int64_t> is_missing{!kept};
  opening.max(is_missing);
  detail::ContentScan found = std::move(kept).value_or(detail::ContentScan{});
  if (is_missing[0] != 0) {
    opening.agree([&] { found = dataset->scan(opening.rank, opening.ranks, opening.moved); });
    join(found, samples, opening);
  }
  opening.agree([&] { dataset->accept(found, {path, facts, hash[0]}); });
  if (is_missing[0] != 0 && opening.rank == 0) detail::keep_scan(path, contents, found);
  return dataset;
}

bool detail::is_as_indexed(const Sample& sample, const SampleIndex& index, int32_t max_token) {
  const auto [least, most] = std::ranges::minmax(sample.tokens);
  const auto targets = std::count(sample.loss_mask.begin() + 1, sample.loss_mask.end(), uint8_t{1});
  return std::ssize(sample.tokens) == index.tokens && least >= 0 && most <= max_token &&
         targets == index.targets && std::ranges::max(sample.loss_mask) <= 1;
}

std::vector<int64_t> Dataset::set_samples() const {
  std::vector<int64_t> samples;
  for (const Dataset* set : sets()) samples.push_back(std::ssize(set->index()));
  return samples;
}

std::vector<std::string> Dataset::set_hashes() const {
  std::vector<std::string> hashes;
  for (const Dataset* set : sets()) hashes.push_back(set->hash());
  return hashes;
}

bool is_placeholder(const std::vector<ItemKind>& kinds, int32_t token) {
  return std::ranges::any_of(kinds, [&](const ItemKind& kind) {
    return kind.token == token || kind.video_token == token;
  });
}

int64_t prompt_length(const Sample& sample, const std::vector<ItemKind>& kinds) {
  const auto last = std::find_if(sample.tokens.rbegin(), sample.tokens.rend(),
                                 [&](int32_t token) { return is_placeholder(kinds, token); });
  const int64_t behind_items = sample.tokens.rend() - last;
  const std::vector<uint8_t>& mask = sample.loss_mask;
  // The first token of all is predicted by none.
  const int64_t begin = std::min(std::max<int64_t>(1, behind_items), std::ssize(mask));
  return std::find(mask.begin() + begin, mask.end(), uint8_t{1}) - mask.begin();
}

}  // namespace zea
