// SPDX-License-Identifier: Apache-2.0
// Log-mel features of USM: how many columns a clip has, silence, the band of a sine, clips that are
// too long or have another rate. reference_processors compares values with transformers.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "data/audio.hpp"

namespace zea::test_usm_mel {
namespace {

constexpr int64_t kBins = 16;

Audio sine(int64_t samples, double hertz, int64_t rate = kMelRate) {
  Audio audio{rate, {}};
  for (int64_t n = 0; n < samples; ++n)
    audio.samples.push_back(static_cast<float>(std::sin(
        2 * std::numbers::pi * hertz * static_cast<double>(n) / static_cast<double>(rate))));
  return audio;
}

std::vector<float> features_of(const Audio& audio, const AudioOptions& options) {
  std::vector<float> features(static_cast<size_t>(options.mel_bins * options.columns()), -9.0F);
  const LogMel log_mel(options);
  log_mel(audio, features.data(), options.columns());
  return features;
}

TEST(UsmMel, AColumnNeedsItsFrameAndOneSample) {
  for (const auto& [samples, columns] : {std::pair{160, 0}, {161, 1}, {320, 1}, {321, 2}, {481, 3}})
    EXPECT_EQ(mel_columns(samples, kMelRate, MelKind::Usm), columns) << samples;
  EXPECT_EQ(mel_columns(480000, kMelRate, MelKind::Usm), 2999);
  EXPECT_EQ(mel_columns(240000, 8000, MelKind::Usm), 2999);
}

TEST(UsmMel, ZerosFollowTheClipAndSilenceIsTheFloor) {
  const AudioOptions options{kBins, 3, MelKind::Usm};
  ASSERT_EQ(options.columns(), 12);
  const std::vector<float> features = features_of({kMelRate, std::vector<float>(900)}, options);
  for (int64_t i = 0; i < kBins * 12; ++i)
    EXPECT_FLOAT_EQ(features[static_cast<size_t>(i)],
                    i % 12 < 5 ? static_cast<float>(std::log(1e-3)) : 0.0F);
}

TEST(UsmMel, ASineIsLoudestInItsBand) {
  const AudioOptions options{kBins, 5, MelKind::Usm};
  const auto edge = [](int64_t i) {  // of HTK's scale, in Hz
    return 700 * (std::pow(10, std::log10(1 + 8000.0 / 700) * static_cast<double>(i) / 17) - 1);
  };
  const std::vector<float> features = features_of(sine(3200, edge(9)), options);
  for (int64_t band = 0; band < kBins; ++band)
    EXPECT_LE(features[static_cast<size_t>(band * 20 + 6)], features[8 * 20 + 6]) << band;
}

TEST(UsmMel, ClipsAreCutAndResampled) {
  const AudioOptions options{kBins, 5, MelKind::Usm};
  const Audio whole = sine(4000, 700);
  const Audio cut{kMelRate, {whole.samples.begin(), whole.samples.begin() + 3200}};
  EXPECT_EQ(features_of(whole, options), features_of(cut, options));
  const std::vector<float> other = features_of(sine(1600, 700, 8000), options);
  const std::vector<float> same = features_of(cut, options);
  for (int64_t band = 0; band < kBins; ++band)  // a column in the middle
    EXPECT_NEAR(other[static_cast<size_t>(band * 20 + 9)], same[static_cast<size_t>(band * 20 + 9)],
                0.02)
        << band;
}

}  // namespace
}  // namespace zea::test_usm_mel
