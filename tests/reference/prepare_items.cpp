// SPDX-License-Identifier: Apache-2.0
// Prepares items for the encoder of a model as training does: prepare_items CONFIG_JSON. Each line
// of standard input is a sample: "image FILES", "audio FILE", or "video FILES" with a file for each
// frame, of which one is a second. For each, standard output gets as int64 the number of items, the
// features of each and the number of values, and then these as fp32; or, of a sample that is
// refused, -1, the length of the fault and its text. Exit code 3 or so with the fault on standard
// error when the config is refused.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>

#include "core/error.hpp"
#include "data/audio.hpp"
#include "data/loader.hpp"
#include "io/model_files.hpp"

namespace {

class OneSample : public zea::Dataset {
 public:
  explicit OneSample(std::vector<zea::Item> items) { sample_.items = std::move(items); }

  std::string describe() const override { return "one sample"; }
  const zea::SampleTable& index() const override { return index_; }
  zea::Sample read(int64_t) const override { return sample_; }
  const std::vector<zea::ItemKind>& kinds() const override { return kinds_; }
  int32_t max_token() const override { return 0; }
  const zea::DatasetTexts& texts() const override { return texts_; }

 private:
  zea::Sample sample_;
  zea::SampleTable index_;
  std::vector<zea::ItemKind> kinds_;
  zea::DatasetTexts texts_;
};

std::vector<uint8_t> bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

zea::Item clip_of(const std::string& path) {
  zea::Item item;
  item.bytes = bytes_of(path);
  item.modality = zea::Modality::Audio;
  const zea::Audio audio = zea::decode_audio(item.bytes, zea::LoaderOptions().max_clip_seconds);
  item.rate = audio.rate;
  item.samples = std::ssize(audio.samples);
  return item;
}

void set_size(zea::Item& item, const zea::Item& first) {
  const zea::Image image = zea::decode_image(first, zea::ImageOptions().max_pixels);
  item.height = image.height;
  item.width = image.width;
}

zea::Item image_of(const std::string& path) {
  zea::Item item;
  item.bytes = bytes_of(path);
  set_size(item, item);
  return item;
}

zea::Item video_of(const std::vector<std::string>& paths) {
  zea::Item item;
  item.rate = 1000;
  item.frames_per_second = 1;
  item.frames = std::ssize(paths);
  for (const std::string& path : paths) {
    const std::vector<uint8_t> frame = bytes_of(path);
    item.bytes.insert(item.bytes.end(), frame.begin(), frame.end());
    item.frame_ends.push_back(std::ssize(item.bytes));
  }
  set_size(item, zea::frame_of(item, 0));
  return item;
}

std::vector<zea::Item> items_of(const std::string& kind, const std::vector<std::string>& paths,
                                const zea::EncoderSpec& encoder) {
  std::vector<zea::Item> items;
  if (kind == "video") {  // whole, or in chunks
    const int64_t frames = std::ssize(paths);
    const int64_t each = encoder.averages_frames() ? encoder.patches().video->most_frames : frames;
    for (int64_t frame = 0; frame < frames; frame += each)
      items.push_back(
          video_of({paths.begin() + frame, paths.begin() + std::min(frame + each, frames)}));
    return items;
  }
  for (const std::string& path : paths)
    items.push_back(kind == "audio" ? clip_of(path) : image_of(path));
  return items;
}

void write(const void* values, size_t size, size_t count) {
  if (std::fwrite(values, size, count, stdout) != count) std::exit(7);
}

void write_numbers(const std::vector<int64_t>& numbers) {
  write(numbers.data(), sizeof(int64_t), numbers.size());
}

void prepare(const zea::EncoderSpec& encoder, std::vector<zea::Item> items) {
  std::vector<int64_t> head{std::ssize(items)};
  const bool is_alone = items.size() == 1;
  for (zea::Item& item : items) {
    item.shape = zea::shape_of(item, encoder, is_alone);
    head.push_back(item.shape.features);
    if (!encoder.varies() && item.frames == 0) item.shape = {};
  }
  zea::LoaderOptions loading{.encoders = {zea::decoding_of(encoder)}};
  const auto loaded = zea::load_microbatch(OneSample(std::move(items)), loading, {0});
  const std::vector<float>& values = loaded.values.at(0);
  head.push_back(std::ssize(values));
  write_numbers(head);
  write(values.data(), sizeof(float), values.size());
}

/// Returns the first encoder of such items.
const zea::EncoderSpec& encoder_of(const zea::ModelSpec& model, const std::string& kind) {
  const auto modality = kind == "audio" ? zea::Modality::Audio : zea::Modality::Image;
  return *std::ranges::find(model.encoders, modality, &zea::EncoderSpec::modality);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const zea::ModelSpec model = zea::make_model_spec(zea::read_model_config(argv[1]));
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream words(line);
      std::string kind;
      words >> kind;
      const std::vector<std::string> paths{std::istream_iterator<std::string>(words), {}};
      try {
        const zea::EncoderSpec& encoder = encoder_of(model, kind);
        prepare(encoder, items_of(kind, paths, encoder));
      } catch (const zea::DataError& fault) {
        const std::string text = fault.what();
        write_numbers({-1, std::ssize(text)});
        write(text.data(), 1, text.size());
      }
    }
  } catch (const zea::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
