// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <utility>

#include "data/dataset.hpp"
#include "data/folder_dataset.hpp"
#include "data/image.hpp"
#include "h5/h5.hpp"
#include "zea/dataset.hpp"

namespace zea {
namespace {

DatasetItem item_of(Item item) {
  using Type = DatasetItem::Type;
  const Type type = item.modality == Modality::Audio ? Type::Audio
                    : item.frames > 0                ? Type::Video
                                                     : Type::Image;
  return {.type = type,
          .bytes = std::move(item.bytes),
          .raw = item.raw,
          .height = item.height,
          .width = item.width,
          .channels = item.channels,
          .rate = item.rate,
          .samples = item.samples,
          .frame_ends = std::move(item.frame_ends)};
}

}  // namespace

bool is_dataset(const std::string& path) {
  namespace fs = std::filesystem;
  const auto format_of = [](const fs::path& file) {
    return H5File::open(file.string()).text_attribute("format").value_or("");
  };
  if (!fs::is_directory(path))
    return !path.ends_with(".safetensors") && format_of(path) == "zea.dataset";
  const fs::path index = fs::path(path) / detail::kIndexName;
  if (fs::exists(index)) return format_of(index) == "zea.dataset.index";
  for (const auto& entry : fs::directory_iterator(path))
    if (entry.path().extension() == ".h5") return format_of(entry.path()) == "zea.dataset";
  return false;
}

struct DatasetReader::State {
  std::unique_ptr<Dataset> dataset;
  std::string path = dataset->describe();

  SampleIndex index(int64_t sample) const {
    const SampleTable& all = dataset->index();
    if (sample < 0 || sample >= std::ssize(all))
      throw DataError(path + ": there is no sample " + std::to_string(sample) + "; it holds " +
                      std::to_string(all.size()));
    return all[static_cast<size_t>(sample)];
  }
};

DatasetReader::DatasetReader(const std::string& path)
    : state_(std::make_unique<State>(State{open_dataset(path)})) {}
DatasetReader::~DatasetReader() = default;
DatasetReader::DatasetReader(DatasetReader&&) noexcept = default;
DatasetReader& DatasetReader::operator=(DatasetReader&&) noexcept = default;

const std::string& DatasetReader::path() const {
  return state_->path;
}

int64_t DatasetReader::samples() const {
  return std::ssize(state_->dataset->index());
}

SampleCounts DatasetReader::counts(int64_t sample) const {
  const SampleIndex index = state_->index(sample);
  return {.tokens = index.tokens,
          .targets = index.targets,
          .images = index.items.of(0),
          .clips = index.items.of(1)};
}

// A data set that is opened for no model has two kinds of items: images with videos, then sound.
Placeholders DatasetReader::placeholders() const {
  const std::vector<ItemKind>& kinds = state_->dataset->kinds();
  return {.image = kinds[0].token, .audio = kinds[1].token, .video = kinds[0].video_token};
}

int32_t DatasetReader::max_token() const {
  return state_->dataset->max_token();
}

const DatasetTexts& DatasetReader::texts() const {
  return state_->dataset->texts();
}

std::string DatasetReader::words(int64_t sample) const {
  state_->index(sample);
  return state_->dataset->words(sample);
}

DatasetSample DatasetReader::read(int64_t sample) const {
  Sample found = state_->dataset->read(sample);
  DatasetSample result{.tokens = std::move(found.tokens),
                       .loss_mask = std::move(found.loss_mask),
                       .label = found.label,
                       .answers = std::move(found.answers),
                       .source = std::move(found.source)};
  for (Item& item : found.items) result.items.push_back(item_of(std::move(item)));
  return result;
}

Picture decode_picture(const DatasetItem& item, int64_t frame, int64_t max_pixels) {
  if (item.type == DatasetItem::Type::Audio) throw DataError("an item of sound is no picture");
  Item found{.bytes = item.bytes,
             .raw = item.raw,
             .height = item.height,
             .width = item.width,
             .channels = item.channels};
  if (item.type == DatasetItem::Type::Video) {
    if (frame < 0 || frame >= std::ssize(item.frame_ends))
      throw DataError("a video of " + std::to_string(item.frame_ends.size()) +
                      " frames has no frame " + std::to_string(frame));
    found.frames = std::ssize(item.frame_ends);
    found.frame_ends = item.frame_ends;
    found = frame_of(found, frame);
  }
  Image image = decode_image(found, max_pixels);
  return {image.height, image.width, std::move(image.pixels)};
}

}  // namespace zea
