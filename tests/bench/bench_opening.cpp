// SPDX-License-Identifier: Apache-2.0
// Measures the time that one rank takes to open a large data set: the first time it checks all
// tokens and stores the result next to the file, then it reads that. Makes the data set, of samples
// of 512 tokens, in FOLDER, and leaves it there.
//
// usage: bench_opening FOLDER MILLION_TOKENS
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <vector>

#include "core/system.hpp"
#include "data/dataset.hpp"
#include "h5/h5.hpp"

namespace zea {
namespace {

constexpr int64_t kSample = 512, kSamplesAtOnce = 1 << 14, kVocabulary = 32000;

void write_dataset(const std::string& path, int64_t samples) {
  H5File file = H5File::create(path);
  file.write_text_attribute("format", "zea.dataset");
  file.write_text_attribute("version", "1");
  file.write_text_attribute("image_token", std::to_string(kVocabulary));
  std::vector<int64_t> offsets, no_items(samples + 1, 0);
  for (int64_t sample = 0; sample <= samples; ++sample) offsets.push_back(sample * kSample);
  file.write("token_offsets", {samples + 1}, DType::Int64, offsets.data());
  file.write("sample_item_offsets", {samples + 1}, DType::Int64, no_items.data());
  file.write("item_offsets", {1}, DType::Int64, no_items.data());
  file.write("item_bytes", {0}, DType::UInt8, nullptr);
  file.write("item_shape", {0, 3}, DType::Int32, nullptr);
  file.create_dataset("tokens", {samples * kSample}, DType::Int32);
  file.create_dataset("loss_mask", {samples * kSample}, DType::UInt8);
  std::vector<int32_t> tokens(kSamplesAtOnce * kSample);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(i * 7919 % kVocabulary);
  const std::vector<uint8_t> mask(tokens.size(), 1);
  for (int64_t sample = 0; sample < samples; sample += kSamplesAtOnce) {
    const int64_t count = std::min(kSamplesAtOnce, samples - sample) * kSample;
    file.write_range("tokens", sample * kSample, count, tokens.data());
    file.write_range("loss_mask", sample * kSample, count, mask.data());
  }
}

void open_timed(const char* what, const std::string& path) {
  const Stopwatch all;
  const std::clock_t begin = std::clock();
  const auto samples = open_dataset(path)->index().size();
  const double processor = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  std::printf("%s: %.2f s, of a processor %.2f s, %zu samples\n", what, all.seconds(), processor,
              samples);
}

}  // namespace
}  // namespace zea

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string path = std::string(argv[1]) + "/opened.h5";
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".checked");
  zea::write_dataset(path, std::atoll(argv[2]) * 1000000 / zea::kSample);
  zea::open_timed("first", path);
  zea::open_timed("again", path);
}
