// SPDX-License-Identifier: Apache-2.0
// JPEGs of 640 x 480, read from memory, decoded and resized to 336 x 336, by 1 thread and by more
// in turn. Prints images per second of each, medians and best.
//
// usage: bench_decoding [THREADS [ROUNDS]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "data/loader.hpp"
#include "support/jpeg_picture.hpp"
#include "support/memory_dataset.hpp"

namespace zea {
namespace {

constexpr int kImages = 64;

MemoryDataset make_pictures() {
  std::vector<Sample> samples;
  for (unsigned i = 0; i < kImages; ++i)
    samples.push_back(
        {0, {9, 1}, {0, 1}, {Item{testing::encode_jpeg(testing::make_picture(480, 640, i))}}});
  return MemoryDataset(samples, 9);
}

double images_per_second(const Dataset& data, int threads) {
  LoaderOptions options;
  options.encoders.push_back({.image = {336, {0.5, 0.5, 0.5}, {0.25, 0.25, 0.25}, 1000000}});
  options.threads = threads;
  std::vector<int64_t> ids(kImages);
  std::iota(ids.begin(), ids.end(), int64_t{0});
  const auto start = std::chrono::steady_clock::now();
  load_microbatch(data, options, ids);
  return kImages / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void measure(int threads, int rounds) {
  const MemoryDataset data = make_pictures();
  std::vector<double> one, several;
  for (int round = 0; round < rounds; ++round) {
    one.push_back(images_per_second(data, 1));
    several.push_back(images_per_second(data, threads));
  }
  for (std::vector<double>* rates : {&one, &several}) std::ranges::sort(*rates);
  for (const auto& [count, rates] : {std::pair(1, one), std::pair(threads, several)})
    std::printf("%d threads: %.0f images per second (best %.0f)\n", count, rates[rates.size() / 2],
                rates.back());
}

}  // namespace
}  // namespace zea

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2,
            rounds = argc > 2 ? std::atoi(argv[2]) : 11;
  if (threads < 1 || rounds < 1 || argc > 3) {
    std::fprintf(stderr, "usage: bench_decoding [THREADS [ROUNDS]]\n");
    return 2;
  }
  zea::measure(threads, rounds);
}
