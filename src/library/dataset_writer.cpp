// SPDX-License-Identifier: Apache-2.0
// Writing a data set: arrays of offsets and tokens grow in memory, and items, which may not fit
// there, in a second file until the last one is known.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <optional>
#include <utility>

#include "data/audio.hpp"
#include "data/dataset.hpp"
#include "files/durable_file.hpp"
#include "h5/h5.hpp"
#include "zea/dataset.hpp"

namespace zea {
namespace {

constexpr int64_t kMaxSeconds = 3600;                ///< of a clip, as data.max_clip_seconds
constexpr int64_t kCopiedBytes = int64_t{16} << 20;  ///< at once

/// A ragged array of texts.
struct Texts {
  std::vector<int64_t> offsets{0};
  std::vector<uint8_t> values = {};

  void add(const std::string& text) {
    values.insert(values.end(), text.begin(), text.end());
    offsets.push_back(std::ssize(values));
  }
};

/// A file without a name in the folder of `path`.
class Spool {
 public:
  explicit Spool(const std::string& path) : path_(path + ".items.tmp") {
    file_ = std::fopen(path_.c_str(), "w+b");
    if (file_ == nullptr) throw_storage_error("open", path_, errno);
    std::remove(path_.c_str());
  }
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;
  ~Spool() { std::fclose(file_); }

  void write(const std::vector<uint8_t>& bytes) {
    if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size())
      throw_storage_error("write", path_, errno);
  }
  void rewind() {
    if (std::fseek(file_, 0, SEEK_SET) != 0) throw_storage_error("seek", path_, errno);
  }
  void read(void* target, size_t bytes) {
    if (std::fread(target, 1, bytes, file_) != bytes) throw_storage_error("read", path_, errno);
  }

 private:
  std::string path_;
  std::FILE* file_;
};

int32_t narrow(int64_t number, const char* what) {
  if (number < 0 || number > std::numeric_limits<int32_t>::max())
    throw DataError(std::string(what) + " is " + std::to_string(number) +
                    "; allowed are 0 to 2^31 - 1");
  return static_cast<int32_t>(number);
}

/// The image that is frame `number` of a video.
DatasetItem frame_of(const DatasetItem& video, size_t number) {
  const int64_t begin = number == 0 ? 0 : video.frame_ends[number - 1];
  const int64_t end = video.frame_ends[number];
  if (begin > end || end > std::ssize(video.bytes))
    throw DataError("a video's frame_ends do not ascend to its bytes");
  DatasetItem frame = video;
  frame.type = DatasetItem::Type::Image;
  frame.bytes = {video.bytes.begin() + begin, video.bytes.begin() + end};
  frame.frame_ends.clear();
  frame.rate = 0;
  return frame;
}

/// An image, a frame or a clip, as a row of the file's arrays.
struct ItemRow {
  std::vector<uint8_t> bytes;
  Modality modality;
  std::array<int32_t, 3> shape;
  int32_t rate, frames;
};

ItemRow row_of_image(DatasetItem image, int32_t rate, int32_t frames) {
  const Picture picture = decode_picture(image);
  const int32_t channels = image.raw ? narrow(image.channels, "channels") : 0;
  return {std::move(image.bytes),
          Modality::Image,
          {narrow(picture.height, "height"), narrow(picture.width, "width"), channels},
          rate,
          frames};
}

ItemRow row_of_sound(const DatasetItem& sound) {
  if (sound.raw) {
    if (sound.rate < 1 || sound.bytes.size() % sizeof(int16_t) != 0)
      throw DataError("raw sound of " + std::to_string(sound.bytes.size()) +
                      " bytes at a rate of " + std::to_string(sound.rate) +
                      "; it has 2 bytes per sample and a rate of 1 or more");
    return {sound.bytes, Modality::Audio, {}, narrow(sound.rate, "rate"), 0};
  }
  const Audio audio = decode_audio(sound.bytes, kMaxSeconds);
  return {sound.bytes,
          Modality::Audio,
          {narrow(std::ssize(audio.samples), "samples"), narrow(audio.rate, "rate"), 0},
          0,
          0};
}

void append_rows(const DatasetItem& item, const Placeholders& placeholders,
                 std::vector<ItemRow>& rows) {
  if (item.type == DatasetItem::Type::Audio) {
    rows.push_back(row_of_sound(item));
  } else if (item.type == DatasetItem::Type::Image) {
    rows.push_back(row_of_image(item, 0, 0));
  } else {
    if (item.frame_ends.empty()) throw DataError("a video has no frames");
    if (placeholders.video < 0) throw DataError("a video, but no placeholder token of videos");
    const int32_t rate = narrow(item.rate, "a video's rate");
    for (size_t i = 0; i < item.frame_ends.size(); ++i)
      rows.push_back(row_of_image(frame_of(item, i), rate,
                                  i == 0 ? narrow(std::ssize(item.frame_ends), "frames") : -1));
  }
}

}  // namespace

struct DatasetWriter::State {
  State(const std::string& path, const Placeholders& placeholders, DatasetTexts texts)
      : path(path), placeholders(placeholders), texts(std::move(texts)), spool(path) {}

  void add(const DatasetSample& sample);
  void add_rows(const std::vector<ItemRow>& rows);
  void finish();

  std::string path;
  Placeholders placeholders;
  DatasetTexts texts;
  Spool spool;
  std::vector<int64_t> token_offsets{0}, sample_item_offsets{0}, item_offsets{0};
  std::vector<int32_t> tokens = {}, item_shape = {}, item_rate = {}, item_frames = {}, labels = {};
  std::vector<uint8_t> loss_mask = {}, item_modality = {};
  std::vector<int64_t> sample_answer_offsets{0};
  Texts answers = {}, names = {};
  bool has_videos = false;

 private:
  template <class T>
  void write(H5File& file, const std::string& name, const std::vector<T>& values) const {
    constexpr DType dtype = sizeof(T) == 8   ? DType::Int64
                            : sizeof(T) == 4 ? DType::Int32
                                             : DType::UInt8;
    file.write(name, {std::ssize(values)}, dtype, values.data());
  }
  void write(H5File& file, const std::string& name, const Texts& texts) const {
    write(file, name + "_offsets", texts.offsets);
    write(file, name + "_values", texts.values);
  }
  void write(H5File& file, const std::string& name, const std::vector<std::string>& texts) const {
    Texts ragged;
    for (const std::string& text : texts) ragged.add(text);
    if (!texts.empty()) write(file, name, ragged);
  }
  void write_arrays(H5File& file) const;
  void write_items(H5File& file);
};

void DatasetWriter::State::add(const DatasetSample& sample) {
  if (sample.tokens.empty() || sample.tokens.size() != sample.loss_mask.size())
    throw DataError(std::to_string(sample.tokens.size()) + " tokens and a loss mask of " +
                    std::to_string(sample.loss_mask.size()) +
                    "; a sample has at least one token, and a mask for each");
  for (size_t i = 0; i < sample.tokens.size(); ++i)
    if (sample.tokens[i] < 0 || sample.loss_mask[i] > 1)
      throw DataError("token " + std::to_string(i) + " has id " + std::to_string(sample.tokens[i]) +
                      " and loss mask " + std::to_string(sample.loss_mask[i]) +
                      "; ids are 0 or more, masks 0 or 1");
  std::vector<ItemRow> rows;
  for (const DatasetItem& item : sample.items) append_rows(item, placeholders, rows);
  add_rows(rows);
  tokens.insert(tokens.end(), sample.tokens.begin(), sample.tokens.end());
  loss_mask.insert(loss_mask.end(), sample.loss_mask.begin(), sample.loss_mask.end());
  token_offsets.push_back(std::ssize(tokens));
  labels.push_back(sample.label);
  for (const std::string& answer : sample.answers) answers.add(answer);
  sample_answer_offsets.push_back(std::ssize(answers.offsets) - 1);
  names.add(sample.source);
}

void DatasetWriter::State::add_rows(const std::vector<ItemRow>& rows) {
  for (const ItemRow& row : rows) {
    spool.write(row.bytes);
    item_offsets.push_back(item_offsets.back() + std::ssize(row.bytes));
    item_modality.push_back(static_cast<uint8_t>(row.modality));
    item_shape.insert(item_shape.end(), row.shape.begin(), row.shape.end());
    item_rate.push_back(row.rate);
    item_frames.push_back(row.frames);
    has_videos |= row.frames > 0;
  }
  sample_item_offsets.push_back(std::ssize(item_offsets) - 1);
}

void DatasetWriter::State::write_arrays(H5File& file) const {
  const auto attribute = [&](const std::string& name, int32_t token) {
    file.write_text_attribute(name, std::to_string(token));
  };
  file.write_text_attribute("format", "zea.dataset");
  file.write_text_attribute("version", has_videos ? "3" : "2");
  attribute("image_token", placeholders.image);
  attribute("audio_token", placeholders.audio);
  if (has_videos) attribute("video_token", placeholders.video);
  if (has_videos) write(file, "item_frames", item_frames);
  write(file, "token_offsets", token_offsets);
  write(file, "sample_item_offsets", sample_item_offsets);
  write(file, "item_offsets", item_offsets);
  write(file, "tokens", tokens);
  write(file, "loss_mask", loss_mask);
  file.write("item_shape", {std::ssize(item_shape) / 3, 3}, DType::Int32, item_shape.data());
  write(file, "item_modality", item_modality);
  write(file, "item_rate", item_rate);
  write(file, "labels", labels);
  if (!texts.classes.empty()) file.write_strings("classes", texts.classes);
  write(file, "token_byte", texts.token_bytes);
  write(file, "special_text", texts.special_texts);
  if (answers.offsets.size() > 1) {
    write(file, "sample_answer_offsets", sample_answer_offsets);
    write(file, "answer", answers);
  }
  if (!names.values.empty()) write(file, "sample_name", names);
}

void DatasetWriter::State::write_items(H5File& file) {
  const int64_t bytes = item_offsets.back();
  file.create_dataset("item_bytes", {bytes}, DType::UInt8);
  spool.rewind();
  std::vector<uint8_t> part;
  for (int64_t begin = 0; begin < bytes; begin += std::ssize(part)) {
    part.resize(static_cast<size_t>(std::min(kCopiedBytes, bytes - begin)));
    spool.read(part.data(), part.size());
    file.write_range("item_bytes", begin, std::ssize(part), part.data());
  }
}

void DatasetWriter::State::finish() {
  if (labels.empty()) throw DataError(path + ": a data set has at least one sample");
  const std::string unfinished = path + ".tmp";
  remove_file(unfinished);
  try {
    H5File file = H5File::create(unfinished);
    write_arrays(file);
    write_items(file);
    file.close_and_sync();
  } catch (...) {
    std::remove(unfinished.c_str());
    throw;
  }
  rename_durably(unfinished, path);
}

DatasetWriter::DatasetWriter(const std::string& path, const Placeholders& placeholders,
                             DatasetTexts texts)
    : state_(std::make_unique<State>(path, placeholders, std::move(texts))) {}
DatasetWriter::~DatasetWriter() = default;
DatasetWriter::DatasetWriter(DatasetWriter&&) noexcept = default;
DatasetWriter& DatasetWriter::operator=(DatasetWriter&&) noexcept = default;

void DatasetWriter::add(const DatasetSample& sample) {
  try {
    state_->add(sample);
  } catch (const DataError& fault) {
    throw DataError(state_->path + ": sample " + std::to_string(state_->labels.size()) + ": " +
                    fault.what());
  }
}

void DatasetWriter::finish() {
  state_->finish();
}

}  // namespace zea
