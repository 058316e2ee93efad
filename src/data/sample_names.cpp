// SPDX-License-Identifier: Apache-2.0
#include "data/sample_names.hpp"

#include <sstream>

#include "data/dataset.hpp"

namespace zea {
namespace {

/// In parentheses; nothing where the line is empty or there is none.
std::string line_of(const std::string& source, size_t number) {
  std::istringstream lines(source);
  std::string line;
  for (size_t i = 0; i <= number; ++i)
    if (!std::getline(lines, line)) return "";
  return line.empty() ? "" : " (" + line + ")";
}

}  // namespace

std::string sample_words(const Sample& sample) {
  return "sample " + std::to_string(sample.id) + line_of(sample.source, 0);
}

std::string item_file(const Sample& sample, size_t number) {
  return line_of(sample.source, 1 + number);
}

namespace detail {
namespace {

constexpr const char* kOffsets = "sample_name_offsets";
constexpr const char* kValues = "sample_name_values";

}  // namespace

SampleNames::SampleNames(const H5File& file, size_t samples, int64_t held_bytes) {
  if (!file.has(kOffsets)) return;
  offsets_.emplace(file, kOffsets, held_bytes);
  values_.emplace(file, kValues, held_bytes);
  if (offsets_->length() != static_cast<int64_t>(samples) + 1)
    throw DataError(file.path() + ": " + kOffsets + " has " + std::to_string(offsets_->length()) +
                    " entries for " + std::to_string(samples) +
                    " samples; it must have one more than there are samples");
}

std::string SampleNames::of(const H5File& file, size_t sample) const {
  if (!offsets_) return "";
  const auto first = static_cast<int64_t>(sample);
  const std::vector<int64_t> bounds = offsets_->read(file, first, first + 2);
  if (bounds[0] < 0 || bounds[1] < bounds[0] || bounds[1] > values_->length())
    throw DataError(file.path() + ": " + kOffsets + " of sample " + std::to_string(sample) +
                    " are " + std::to_string(bounds[0]) + " and " + std::to_string(bounds[1]) +
                    "; they must not fall, nor leave the " + std::to_string(values_->length()) +
                    " bytes of " + kValues);
  const std::vector<uint8_t> name = values_->read(file, bounds[0], bounds[1]);
  return {name.begin(), name.end()};
}

}  // namespace detail
}  // namespace zea
