// SPDX-License-Identifier: Apache-2.0
// Data sets (HDF5): samples of token ids with a loss mask, and items (images, videos, audio) whose
// features replace placeholder tokens. postprocess/README.md describes the format.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zea/error.hpp"

namespace zea {

struct DatasetItem {
  enum class Type { Image, Video, Audio };

  Type type = Type::Image;
  /// The bytes of a JPEG, PNG, WAV or FLAC file; if `raw`, pixels (uint8, height x width x
  /// channels) or audio samples (int16, little-endian, mono). For a video, its frames one after the
  /// other, each an image of this form.
  std::vector<uint8_t> bytes = {};
  bool raw = false;
  int64_t height = 0, width = 0;  ///< in pixels; 0: not known
  int64_t channels = 0;           ///< of raw images: 1 or 3
  /// Audio samples per second, or frames of a video per 1000 seconds; 0: not known.
  int64_t rate = 0;
  int64_t samples = 0;                   ///< number of audio samples; 0: not known
  std::vector<int64_t> frame_ends = {};  ///< of a video: the end of each frame in `bytes`
};

struct DatasetSample {
  std::vector<int32_t> tokens = {};
  std::vector<uint8_t> loss_mask = {};    ///< 1: the token is a target, predicted by the one before
  std::vector<DatasetItem> items = {};    ///< in the order of their placeholders
  int32_t label = -1;                     ///< index into DatasetTexts::classes; -1: none
  std::vector<std::string> answers = {};  ///< all correct answers, if there are several
  /// The entry that the sample was packed from, then a line with the file of each item; messages
  /// name them.
  std::string source = {};
};

/// Names of labels and texts of tokens; each may be empty.
struct DatasetTexts {
  std::vector<std::string> classes = {};      ///< by label
  std::vector<std::string> token_bytes = {};  ///< by token id
  /// The texts of special tokens, which have no bytes ("<|im_end|>"), by token id.
  std::vector<std::string> special_texts = {};
};

/// Token ids that are replaced by an item's features; -1: none.
struct Placeholders {
  int32_t image = -1, audio = -1, video = -1;
};

struct SampleCounts {
  int64_t tokens = 0, targets = 0;
  int64_t images = 0;  ///< videos count as images
  int64_t clips = 0;   ///< of audio
};

/// 8-bit RGB, height x width x 3.
struct Picture {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> pixels;
};

/// Whether `path` is a data set: a file, or a folder of data sets. Throws WeightsError if it cannot
/// be read.
bool is_dataset(const std::string& path);

/// An open data set: a file, or a folder of files.
class DatasetReader {
 public:
  /// Opens `path` and checks its structure, tokens and loss masks. Throws DataError. For 4 million
  /// tokens or more the result is stored in a file next to it (.checked), as by zea.
  explicit DatasetReader(const std::string& path);
  ~DatasetReader();
  DatasetReader(DatasetReader&&) noexcept;
  DatasetReader& operator=(DatasetReader&&) noexcept;

  const std::string& path() const;
  int64_t samples() const;
  SampleCounts counts(int64_t sample) const;
  Placeholders placeholders() const;
  /// Returns the largest token id of all samples.
  int32_t max_token() const;
  const DatasetTexts& texts() const;
  /// Returns "sample 3", with the entry that it was packed from if that is known.
  std::string words(int64_t sample) const;
  /// Reads a sample with its items. Several threads may read. Throws DataError naming sample and
  /// fault.
  DatasetSample read(int64_t sample) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Decodes an image, or a frame of a video. Throws DataError for a damaged image, or one of more
/// than `max_pixels`.
Picture decode_picture(const DatasetItem& item, int64_t frame = 0, int64_t max_pixels = 100000000);

/// Writes a data set sample by sample. The file gets the name `path` in finish(); without finish()
/// no file remains.
class DatasetWriter {
 public:
  /// Throws StorageError.
  explicit DatasetWriter(const std::string& path, const Placeholders& placeholders = {},
                         DatasetTexts texts = {});
  ~DatasetWriter();
  DatasetWriter(DatasetWriter&&) noexcept;
  DatasetWriter& operator=(DatasetWriter&&) noexcept;

  /// Adds a sample. Each item is decoded, so that runs can read every written sample. Throws
  /// DataError naming the sample by its number, and StorageError.
  void add(const DatasetSample& sample);
  /// Completes the file. Throws StorageError, and DataError for a data set without samples.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zea
