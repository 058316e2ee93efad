// SPDX-License-Identifier: Apache-2.0
// Reads an image file, prepares it for an encoder as training does, and writes the floats to
// standard output: preprocess_image FILE SIZE [whole or bilinear]; or, of any size as Pixtral's
// are, with the most of the longer side: preprocess_image FILE MOST PATCH BLOCK; or as Qwen2-VL's,
// with two limits of pixels: preprocess_image FILE LEAST MOST PATCH BLOCK; or as SigLIP 2's, as
// large as the second of them allows: with "fills" behind these; or as the model of a directory
// takes it: preprocess_image FILE of CONFIG_JSON, and a video, with all of its frames' files:
// preprocess_image FILE of CONFIG_JSON FILES. Exit code 3 with the fault on standard error when
// the file is refused.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "zea/core/error.hpp"
#include "zea/data/loader.hpp"
#include "zea/io/model_config.hpp"

namespace {

class OneItem : public zea::Dataset {
 public:
  explicit OneItem(zea::Item item) { sample_.items = {std::move(item)}; }

  std::string describe() const override { return "one item"; }
  const std::vector<zea::SampleIndex>& index() const override { return index_; }
  zea::Sample read(int64_t) const override { return sample_; }
  const std::vector<zea::ItemKind>& kinds() const override { return kinds_; }
  int32_t max_token() const override { return 0; }
  const zea::DatasetTexts& texts() const override { return texts_; }

 private:
  zea::Sample sample_;
  std::vector<zea::SampleIndex> index_;
  std::vector<zea::ItemKind> kinds_;
  zea::DatasetTexts texts_;
};

/// Of a sample that has this item alone.
std::vector<float> prepared(zea::Item item, const std::string& config) {
  const zea::ModelSpec model = zea::make_model_spec(zea::read_model_config(config));
  const zea::EncoderSpec& encoder = model.encoders.at(0);
  const zea::Image image = zea::decode_image(item.frames > 0 ? zea::frame_of(item, 0) : item,
                                             zea::ImageOptions().max_pixels);
  item.height = image.height;
  item.width = image.width;
  if (encoder.varies()) item.shape = zea::shape_of(item, encoder);
  zea::LoaderOptions loading{.encoders = {zea::decoding_of(encoder)}};
  return zea::load_microbatch(OneItem(std::move(item)), loading, {0}).values.at(0);
}

void append(const char* path, std::vector<uint8_t>& bytes) {
  std::ifstream file(path, std::ios::binary);
  bytes.insert(bytes.end(), std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

/// Of the image that it is, a video.
void add_frames(zea::Item& item, int files, char** paths) {
  item.frame_ends = {std::ssize(item.bytes)};
  for (int i = 0; i < files; ++i) {
    append(paths[i], item.bytes);
    item.frame_ends.push_back(std::ssize(item.bytes));
  }
  item.frames = std::ssize(item.frame_ends);
  item.rate = 1000;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  zea::Item item;
  append(argv[1], item.bytes);
  zea::ImageOptions options;
  std::vector<float> pixels;
  const auto write = [&] {
    const size_t written = std::fwrite(pixels.data(), sizeof(float), pixels.size(), stdout);
    return written == pixels.size() ? 0 : 7;
  };
  try {
    if (std::string(argv[2]) == "of") {
      if (argc > 4) add_frames(item, argc - 4, argv + 4);
      pixels = prepared(item, argv[3]);
      return write();
    }
    options.size = std::stoll(argv[2]);
    const zea::Image image = zea::decode_image(item, options.max_pixels);
    zea::ImageSize size{options.size, options.size};
    zea::TileGrid grid;
    const bool has_tiles = argc == 6 && std::string(argv[3]) == "tiles";
    const bool stretches = argc == 6 && std::string(argv[3]) == "stretched";
    const bool is_fitted = argc == 6 && std::string(argv[3]) == "fitted";
    if (is_fitted) {
      grid = {std::stoll(argv[4]), std::stoll(argv[5])};
    } else if (has_tiles || stretches) {
      const zea::PatchInput input{
          .image_size = options.size,
          .tiles = {.least = std::stoll(argv[4]), .most = std::stoll(argv[5])},
          .stretches = stretches};
      grid = input.grid({image.height, image.width});
      options.mean = options.std = {0.5, 0.5, 0.5};
      if (stretches) options.longest_side = input.longest_side();
      if (stretches) options.resampling = zea::Resampling::Lanczos;
    } else if (argc >= 5) {
      const bool fills = argc == 7;
      const int last = fills ? 5 : argc - 1;
      zea::PatchInput input{.image_size = options.size,
                            .patch_size = std::stoll(argv[last - 1]),
                            .block = std::stoll(argv[last]),
                            .any_size = true,
                            .fills_pixels = fills};
      if (last == 5) input.limit({.least = options.size, .most = std::stoll(argv[3])});
      if (fills) options.resampling = zea::Resampling::Bilinear;
      size = input.resized({image.height, image.width});
    }
    if (argc == 4 && std::string(argv[3]) == "bilinear")
      options.resampling = zea::Resampling::Bilinear;
    const int64_t images = is_fitted || grid.tiles() > 1 ? grid.tiles() + 1 : 1;
    pixels.resize(static_cast<size_t>(images * 3 * size.height * size.width));
    if (is_fitted)
      zea::preprocess_fitted(image, options, grid, pixels.data());
    else if (has_tiles || stretches)
      zea::preprocess_tiles(image, options, grid, pixels.data());
    else if (argc == 3)
      zea::preprocess_image(image, options, pixels.data());
    else
      zea::preprocess_image(image, options, size, pixels.data());
  } catch (const zea::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  return write();
}
