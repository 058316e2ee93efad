// SPDX-License-Identifier: Apache-2.0
// The parts of a data set's file that a file and a folder of files share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "data/dataset.hpp"
#include "h5/h5.hpp"

namespace zea::detail {

/// Making an index reports progress after so many samples; those with videos read their tokens.
inline constexpr size_t kSamplesOfAMove = 1024;

/// A file whose structure is checked, but not the contents: neither targets nor the largest token
/// are known, nor, unless `reads_names`, texts of tokens and classes, of which there may be many.
/// Throws DataError.
std::unique_ptr<Dataset> open_unscanned(const std::string& path, std::vector<ItemKind> kinds,
                                        bool reads_names);

/// Gives items their kinds; asks for the tokens of their sample only where the kinds depend on
/// them.
void assign_kinds(const std::vector<ItemKind>& kinds, std::vector<Item>& items,
                  const std::function<std::vector<int32_t>()>& tokens);

/// Whether a sample that was read from the disk is the one that its index tells of, with no larger
/// tokens than `max_token`: the file may have changed since it was looked through.
bool is_as_indexed(const Sample& sample, const SampleIndex& index, int32_t max_token);

// By what a data set's file is known again without reading all of it: at the next start, by a
// resumed run, and by the run that has it open.

/// Zeros where the file cannot be looked at.
struct FileFacts {
  uint64_t device = 0, inode = 0;
  int64_t bytes = 0, written_at = 0;  ///< nanoseconds since 1970

  bool operator==(const FileFacts&) const = default;
};

FileFacts facts_of(const std::string& path);

/// How much of a file is hashed: all of one of at most `whole` bytes, of a larger one so many
/// blocks at equal distances, the first and the last included.
struct HashedPart {
  int64_t whole = int64_t{16} << 20;
  int64_t blocks = 1024;
};

/// Above 0; 0 where the file cannot be read.
int64_t hash_of_file(const std::string& path, int64_t bytes, const HashedPart& part = {});

/// 60 bits of hash_bytes().
int64_t short_hash(const std::string& bytes);

/// A file while a run reads it.
class WatchedFile {
 public:
  WatchedFile(std::string path, const FileFacts& facts, int64_t hash, const HashedPart& part = {})
      : path_(std::move(path)), opened_(facts), seen_(facts), hash_(hash), part_(part) {}

  int64_t hash() const { return hash_; }
  /// As Dataset::check_files(). `is_read`: parts of it are still read from the disk. Not for
  /// several threads at once.
  std::string check(bool is_read) const;
  /// For one that was closed and is opened again: throws DataError unless it is the same.
  void check_before_opening() const;

 private:
  bool has_same_hash(const FileFacts& now) const;
  [[noreturn]] void refuse(const FileFacts& now) const;

  std::string path_;
  mutable FileFacts opened_;
  mutable FileFacts seen_;  ///< by the last check
  int64_t hash_;
  HashedPart part_;
};

// The result of scanning all tokens and loss masks of a data set. It is kept in a file next to the
// data set, so that only the first run has to scan, and is valid for a file of the same size, time
// and hash.

struct ContentScan {
  /// One number's kind.
  struct Facts {
    int64_t max_token = -1;
    /// The first target that is a placeholder, counted as those below.
    int64_t learnt_placeholder = 0;
    /// Sum of a hash of each token with its place and mask: of parts the sum of theirs.
    uint64_t hash = 0;
  } facts = {};
  /// The first token whose mask, and the first that itself, cannot be, counted from the end of all
  /// (1: the last one); 0: there is none. So the first fault of all parts is the largest.
  int64_t bad_mask = 0, bad_token = 0;
  std::vector<int64_t> targets;  ///< of each sample; 0 of those that were not looked at
};

/// The name of a data set's file at this moment, and of how many samples it has, as text: its size,
/// when it was written, and its hash. Empty where it cannot be read.
std::string describe_contents(const FileFacts& facts, int64_t hash, size_t samples);

/// Returns the kept scan of `contents` next to `path`; nullopt where it is missing, damaged, or
/// another file's.
std::optional<ContentScan> read_kept_scan(const std::string& path, const std::string& contents,
                                          size_t samples);

/// Nothing happens where it cannot be written: it is looked at again the next time.
void keep_scan(const std::string& path, const std::string& contents, const ContentScan& scan);

// One long array of a data set's file: in memory, or read from the file piece by piece.

template <class T>
class Contents {
 public:
  Contents(const H5File& file, std::string name, int64_t held_bytes) : name_(std::move(name)) {
    const H5DatasetInfo info = file.info(name_);
    if (info.shape.size() != 1)
      throw DataError(file.path() + ": " + name_ + " has " + std::to_string(info.shape.size()) +
                      " dims, must have 1");
    length_ = info.shape[0];
    if (length_ > 0 && length_ * static_cast<int64_t>(sizeof(T)) <= held_bytes) {
      held_ = file.read_all<T>(name_);
    } else if (length_ > 0) {
      check_readable(file, info);
    }
  }

  int64_t length() const { return length_; }
  /// Whether it is read from the file whenever it is asked for.
  bool is_on_disk() const { return length_ > 0 && held_.empty(); }

  std::vector<T> read(const H5File& file, int64_t begin, int64_t end) const {
    if (!held_.empty()) return {held_.begin() + begin, held_.begin() + end};
    std::vector<T> values(static_cast<size_t>(end - begin));
    if (end > begin) file.read_range(name_, begin, end - begin, values.data());
    return values;
  }

 private:
  /// Checks what read_range would find out in the middle of a run.
  static void check_readable(const H5File& file, const H5DatasetInfo& info) {
    constexpr DType expected = sizeof(T) == 8   ? DType::Int64
                               : sizeof(T) == 4 ? DType::Int32
                                                : DType::UInt8;
    if (info.dtype != expected)
      throw DataError(file.path() + ": " + info.name + " is " + dtype_name(info.dtype) +
                      ", must be " + dtype_name(expected));
    file.data_offset(info.name);  // throws unless it is contiguous
  }

  std::string name_;
  int64_t length_ = 0;
  std::vector<T> held_;
};

}  // namespace zea::detail

// Ragged arrays are kept as one long array and offsets of n + 1 entries: entry i to i + 1 is
// element i.

namespace zea {

/// Throws DataError naming `where` and `name` unless offsets start at 0, never fall, and end at
/// `end`.
void check_offsets(const std::string& where, const std::string& name,
                   const std::vector<int64_t>& offsets, int64_t end);

/// The elements of a ragged array of bytes as strings.
std::vector<std::string> ragged_strings(const std::vector<int64_t>& offsets,
                                        const std::vector<uint8_t>& values);

}  // namespace zea

// The table of items in a data set's file: their samples, kinds, shapes and bytes.

namespace zea::detail {

/// A dataset that may be absent or have no elements.
template <class T>
std::vector<T> read_optional(const H5File& file, const std::string& name) {
  if (!file.has(name) || num_elements(file.info(name).shape) == 0) return {};
  return file.read_all<T>(name);
}

class ItemTable {
 public:
  explicit ItemTable(const H5File& file);
  /// Throws DataError naming the item whose entries contradict each other, or leave `bytes`.
  void check(int64_t bytes) const;
  /// The same where the bytes lie in other files.
  void check() const { check(offsets_.empty() ? 0 : offsets_.back()); }
  size_t samples() const { return samples_.size() - 1; }
  /// Without their bytes; a video is one item.
  std::vector<Item> heads(size_t sample) const;
  /// Where the bytes of each of them begin, and after them where those of the last one end.
  std::vector<int64_t> byte_offsets(size_t sample) const;

 private:
  Item head(size_t item) const;
  void check_modalities() const;
  void check_image_shape(size_t item) const;
  void check_clip(size_t item) const;
  void check_frames() const;
  void check_video(size_t first, size_t end) const;
  Modality modality(size_t item) const {
    return modality_.empty() ? Modality::Image : static_cast<Modality>(modality_[item]);
  }
  bool is_clip(size_t item) const { return modality(item) == Modality::Audio; }
  int64_t frames(size_t item) const { return frames_.empty() ? 0 : frames_[item]; }
  [[noreturn]] void refuse(const std::string& fault) const;

  std::string where_, version_;
  std::vector<int64_t> samples_;           ///< (samples + 1): the first item of each
  std::vector<int64_t> offsets_;           ///< (items + 1): of their bytes
  std::vector<int32_t> shape_;             ///< (items, 3)
  std::vector<uint8_t> modality_;          ///< (items); empty in version 1: all are images
  std::vector<int32_t> rate_;              ///< (items); empty in version 1
  std::vector<int32_t> frames_;            ///< (items); empty before version 3
  std::vector<double> frames_per_second_;  ///< (items); empty: rate_ is exact
};

// The entries that samples were packed from, where a data set's file names them.

class SampleNames {
 public:
  /// Throws DataError unless there is a name for each sample, or none at all.
  SampleNames(const H5File& file, size_t samples, int64_t held_bytes);
  /// Sample::source of a sample; throws DataError where its offsets cannot be.
  std::string of(const H5File& file, size_t sample) const;

 private:
  std::optional<Contents<int64_t>> offsets_;
  std::optional<Contents<uint8_t>> values_;
};

}  // namespace zea::detail
