// SPDX-License-Identifier: Apache-2.0
// Resampling, spectra and properties of features that hold for any values.
// tests/reference/check_log_mel.py compares values with transformers'.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>
#include <random>

#include "data/audio.hpp"

namespace zea::test_log_mel {
namespace {

Audio sine(int64_t rate, double hertz, double seconds, double height = 0.5) {
  Audio audio{rate, std::vector<float>(static_cast<size_t>(seconds * static_cast<double>(rate)))};
  for (size_t i = 0; i < audio.samples.size(); ++i)
    audio.samples[i] = static_cast<float>(
        height * std::sin(2 * std::numbers::pi * hertz * static_cast<double>(i) / rate + 0.3));
  return audio;
}

Audio noise(int64_t rate, int64_t samples) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 0.1f);
  Audio audio{rate, std::vector<float>(static_cast<size_t>(samples))};
  for (float& sample : audio.samples) sample = normal(random);
  return audio;
}

std::vector<float> features_of(const Audio& audio, const AudioOptions& options) {
  std::vector<float> features(static_cast<size_t>(options.mel_bins * options.columns()));
  LogMel log_mel(options);
  log_mel(audio, features.data(), options.columns());
  return features;
}

/// The largest difference away from the ends, where the filter includes the silence outside.
double difference(const Audio& a, const Audio& b) {
  double largest = 0;
  const size_t count = std::min(a.samples.size(), b.samples.size()), end = count / 8;
  for (size_t i = end; i < count - end; ++i)
    largest = std::max<double>(largest, std::abs(a.samples[i] - b.samples[i]));
  return largest;
}

TEST(Resample, ASineKeepsItsPitchHeightAndPlace) {
  for (int64_t rate : {8000, 11025, 22050, 44100, 48000, 16001, 96000})
    for (double hertz : {50.0, 440.0, 3000.0, 7000.0}) {
      if (hertz > 0.43 * static_cast<double>(rate)) continue;
      EXPECT_LT(difference(resample(sine(rate, hertz, 0.2), 16000), sine(16000, hertz, 0.2)), 1e-6)
          << rate << " Hz, a sine of " << hertz;
    }
}

TEST(Resample, WhatTheNewRateCannotHoldIsSilent) {
  const Audio silence{16000, std::vector<float>(3200)};
  for (double hertz : {8200.0, 9000.0, 15000.0, 21000.0})
    EXPECT_LT(difference(resample(sine(44100, hertz, 0.2), 16000), silence), 1e-6) << hertz;
}

TEST(Resample, NothingStandsAboveTheOldNyquistFrequency) {
  // A sine of 7 kHz at 16 kHz would have its image at 9 kHz.
  EXPECT_LT(difference(resample(sine(16000, 7000, 0.2), 44100), sine(44100, 7000, 0.2)), 1e-6);
}

TEST(Resample, LengthIsThatOfTheTimeRoundedUp) {
  EXPECT_EQ(resample(noise(22050, 22050), 16000).samples.size(), 16000u);
  EXPECT_EQ(resample(noise(22050, 22051), 16000).samples.size(), 16001u);
  EXPECT_EQ(resample(noise(48000, 1), 16000).samples.size(), 1u);
  EXPECT_EQ(resample(noise(8000, 100), 16000).samples.size(), 200u);
  EXPECT_EQ(resample(noise(8000, 0), 16000).samples.size(), 0u);
}

TEST(Resample, APartIsTheBeginningOfTheWhole) {
  for (int64_t rate : {22050, 16000}) {
    const Audio audio = noise(rate, 5000);
    std::vector<float> whole = resample(audio, 16000).samples;
    whole.resize(777);
    EXPECT_EQ(resample(audio, 16000, 777).samples, whole) << rate;
  }
}

TEST(Resample, TheSameRateChangesNothing) {
  EXPECT_EQ(resample(noise(16000, 1000), 16000).samples, noise(16000, 1000).samples);
}

TEST(PowerSpectrum, EqualsTheDefinition) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  std::array<Lanes, kFrame> frames{};
  for (Lanes& lanes : frames)
    for (double& value : lanes) value = normal(random);
  std::array<Lanes, kBins> power{};

  PowerSpectrum spectrum;
  spectrum(frames, power);

  for (size_t lane : {size_t{0}, kLanes - 1})
    for (size_t k = 0; k < kBins; ++k) {
      std::complex<double> sum;
      for (size_t n = 0; n < kFrame; ++n)
        sum +=
            frames[n][lane] * std::polar(1.0, -2 * std::numbers::pi * static_cast<double>(n * k) /
                                                  static_cast<double>(kFrame));
      ASSERT_NEAR(power[k][lane], std::norm(sum), 1e-9) << k;
    }
}

TEST(LogMel, SilenceIsTheSmallestPowerEverywhere) {
  for (int64_t samples : {0, 1, 16000})
    for (float value : features_of({16000, std::vector<float>(samples)}, {80, 25}))
      ASSERT_FLOAT_EQ(value, (-10 + 4) / 4.0f);
}

TEST(LogMel, AClipIsPaddedWithSilence) {
  const AudioOptions options{80, 37};
  // Ends that lie at, before and after the frames that are left out.
  for (int64_t samples :
       {1, 159, 160, 161, 1080, 1081, 1120, 1200, 6000, 11639, 11641, 11839, 11840}) {
    Audio padded = noise(16000, samples);
    padded.samples.resize(static_cast<size_t>(options.samples()));
    EXPECT_EQ(features_of(noise(16000, samples), options), features_of(padded, options)) << samples;
  }
}

TEST(LogMel, OnePositionIsTheShortestClip) {
  const std::vector<float> one = features_of(noise(16000, 5000), {80, 1});

  ASSERT_EQ(one.size(), 160u);
  // The first column covers 200 samples and their mirror image, also of a longer clip.
  const std::vector<float> three = features_of(noise(16000, 5000), {80, 3});
  const size_t loudest =
      static_cast<size_t>(std::max_element(three.begin(), three.end()) - three.begin()) / 6;
  EXPECT_FLOAT_EQ(one[2 * loudest], three[6 * loudest]);
}

TEST(LogMel, WhatIsTooLongIsCut) {
  const AudioOptions options{80, 10};
  Audio cut = noise(16000, 10000);
  cut.samples.resize(static_cast<size_t>(options.samples()));

  EXPECT_EQ(features_of(noise(16000, 10000), options), features_of(cut, options));
}

TEST(LogMel, OtherRatesAreResampled) {
  const AudioOptions options{80, 25};
  const Audio audio = sine(22050, 700, 0.4);

  EXPECT_EQ(features_of(audio, options), features_of(resample(audio, 16000), options));
}

/// A clip at another rate may end between the last whole column of the limit and the next one.
TEST(LogMel, AnUnpaddedClipIsMirroredAtItsOwnEnd) {
  const AudioOptions options{80, 25, MelKind::Unpadded};
  const Audio audio = noise(8000, options.samples() / 2 + 79);
  ASSERT_EQ(mel_columns(std::ssize(audio.samples), 8000, options.kind), options.columns());

  EXPECT_EQ(features_of(audio, options), features_of(resample(audio, 16000), options));
}

TEST(LogMel, ASineIsLoudestInItsBand) {
  const AudioOptions options{80, 25};
  // 1000 Hz is mel 15 of 45.245, with 81 steps of 0.5586 from edge to edge: 26.85 steps, which is
  // nearest to the top of band 26.
  for (const auto& [hertz, band] : {std::pair{1000.0, 26}, {4000.0, 62}, {200.0, 4}}) {
    const std::vector<float> features = features_of(sine(16000, hertz, 0.5), options);
    int loudest = 0;
    for (int i = 1; i < 80; ++i)
      if (features[static_cast<size_t>(i * 50 + 25)] >
          features[static_cast<size_t>(loudest * 50 + 25)])
        loudest = i;
    EXPECT_EQ(loudest, band) << hertz;
  }
}

TEST(LogMel, NothingLiesMoreThanEightyDecibelsBelowTheMaximum) {
  const std::vector<float> features = features_of(sine(16000, 440, 0.1), {128, 25});
  const auto [lowest, highest] = std::minmax_element(features.begin(), features.end());

  EXPECT_FLOAT_EQ(*highest - *lowest, 2);
}

}  // namespace
}  // namespace zea::test_log_mel
