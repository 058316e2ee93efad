// SPDX-License-Identifier: Apache-2.0
// Reads an audio file, prepares it for an encoder as training does, and writes the floats to
// standard output: extract_log_mel FILE MEL_BINS MAX_SOURCE_POSITIONS; with MEL_BINS 0 the samples
// at 16 kHz instead. Exit code 3 with the fault on standard error when the file is refused.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "core/error.hpp"
#include "data/audio.hpp"

namespace {

std::vector<float> values_of(const zea::Audio& audio, const zea::AudioOptions& options) {
  if (options.mel_bins == 0) return zea::resample(audio, zea::kMelRate).samples;
  std::vector<float> features(static_cast<size_t>(options.mel_bins * options.columns()));
  zea::LogMel log_mel(options);
  log_mel(audio, features.data(), options.columns());
  return features;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  std::ifstream file(argv[1], std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file),
                                std::istreambuf_iterator<char>()};
  const std::span view(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  std::vector<float> values;
  try {
    values = values_of(zea::decode_audio(view, 600), {std::stoll(argv[2]), std::stoll(argv[3])});
  } catch (const zea::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  return std::fwrite(values.data(), sizeof(float), values.size(), stdout) == values.size() ? 0 : 7;
}
