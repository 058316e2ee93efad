// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <map>

#include "data/dataset.hpp"
#include "inspect.hpp"

namespace zea {
namespace {

constexpr int kBarWidth = 40;

/// Counts by power of two: lengths of samples spread over orders of magnitude.
void print_lengths(const std::vector<SampleIndex>& index) {
  std::map<int, int64_t> counts;
  int64_t most = 1;
  for (const SampleIndex& sample : index)
    most = std::max(most, ++counts[std::bit_width(static_cast<uint64_t>(sample.tokens))]);
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
  const auto dataset = open_dataset(options.path);  // of images, then of sound
  if (options.sample) inspect_sample(*dataset, *options.sample);
  if (!options.picture.empty()) draw_sheet(*dataset, options.picture);
  if (options.sample || !options.picture.empty()) return;
  int64_t tokens = 0, targets = 0;
  ItemList items;
  for (const SampleIndex& sample : dataset->index()) {
    tokens += sample.tokens;
    targets += sample.targets;
    items += sample.items;
  }
  print_line("data set %s", dataset->describe().c_str());
  print_line("%s samples, %s tokens, %s target tokens, %s images, %s clips of sound",
             grouped(static_cast<int64_t>(dataset->index().size())).c_str(),
             grouped(tokens).c_str(), grouped(targets).c_str(), grouped(items.of(0)).c_str(),
             grouped(items.of(1)).c_str());
  print_line("image token %d, audio token %d, largest token %d, %zu classes, %zu token texts",
             dataset->kinds()[0].token, dataset->kinds()[1].token, dataset->max_token(),
             dataset->texts().classes.size(), dataset->texts().token_bytes.size());
  print_lengths(dataset->index());
  inspect_sample(*dataset, 0);
}

}  // namespace zea
