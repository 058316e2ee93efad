// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <map>

#include "inspect.hpp"

namespace zea {
namespace {

constexpr int kBarWidth = 40;

/// Counts by power of two: lengths of samples spread over orders of magnitude.
void print_lengths(const DatasetReader& dataset) {
  std::map<int, int64_t> counts;
  int64_t most = 1;
  for (int64_t id = 0; id < dataset.samples(); ++id)
    most =
        std::max(most, ++counts[std::bit_width(static_cast<uint64_t>(dataset.counts(id).tokens))]);
  print_line("tokens per sample:");
  for (const auto& [width, count] : counts) {
    const int64_t first = width == 0 ? 0 : int64_t{1} << (width - 1);
    const int64_t last = width == 0 ? 0 : (int64_t{1} << width) - 1;
    const auto bar = static_cast<size_t>((count * kBarWidth + most - 1) / most);
    print_line("  %8s - %-8s %10s  %s", grouped(first).c_str(), grouped(last).c_str(),
               grouped(count).c_str(), std::string(bar, '#').c_str());
  }
}

}  // namespace

void inspect_dataset(const InspectOptions& options) {
  const DatasetReader dataset(options.path);
  if (options.sample) inspect_sample(dataset, *options.sample);
  if (!options.picture.empty()) draw_sheet(dataset, options.picture);
  if (options.sample || !options.picture.empty()) return;
  SampleCounts all;
  for (int64_t id = 0; id < dataset.samples(); ++id) {
    const SampleCounts sample = dataset.counts(id);
    all.tokens += sample.tokens;
    all.targets += sample.targets;
    all.images += sample.images;
    all.clips += sample.clips;
  }
  print_line("data set %s", dataset.path().c_str());
  print_line("%s samples, %s tokens, %s target tokens, %s images, %s clips of sound",
             grouped(dataset.samples()).c_str(), grouped(all.tokens).c_str(),
             grouped(all.targets).c_str(), grouped(all.images).c_str(), grouped(all.clips).c_str());
  print_line("image token %d, audio token %d, largest token %d, %zu classes, %zu token texts",
             dataset.placeholders().image, dataset.placeholders().audio, dataset.max_token(),
             dataset.texts().classes.size(), dataset.texts().token_bytes.size());
  print_lengths(dataset);
  inspect_sample(dataset, 0);
}

}  // namespace zea
