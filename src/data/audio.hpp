// SPDX-License-Identifier: Apache-2.0
// Sound from bytes to what an audio encoder takes, as transformers' WhisperFeatureExtractor does
// it: to mono samples at 16 kHz, padded or cut to the encoder's length, and the logarithm of the
// power in mel bands, clamped to 80 dB below the loudest and scaled. Gemma4AudioFeatureExtractor
// takes the logarithm of the magnitude in other bands, and no padding.
#pragma once

#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace zea {

/// The sample rate of every Whisper, and the samples from one column of features to the next.
constexpr int64_t kMelRate = 16000;
constexpr int64_t kMelHop = 160;

/// The kind of log-mel features.
enum class MelKind {
  Whisper,
  Unpadded,  ///< Whisper's without padding to 30 s; the clip is mirrored at its end (Qwen3-Omni)
  Usm,
};

struct AudioOptions {
  int64_t mel_bins = 80;  ///< the encoder's num_mel_bins; 128 for large-v3
  /// Positions of the encoder; each takes two columns of features, which is 20 ms of audio; four of
  /// MelKind::Usm.
  int64_t max_source_positions = 1500;
  MelKind kind = MelKind::Whisper;

  int64_t columns() const { return (kind == MelKind::Usm ? 4 : 2) * max_source_positions; }
  int64_t samples() const { return columns() * kMelHop; }
};

/// Returns the columns that begin within `samples` at `rate` (Hz); with MelKind::Usm the columns
/// that end within them, with MelKind::Unpadded samples / hop, rounded down.
int64_t mel_columns(int64_t samples, int64_t rate, MelKind kind = MelKind::Whisper);

int64_t usm_columns(int64_t samples_at_16_khz);

/// Mono; full scale is -1..1.
struct Audio {
  int64_t rate = 0;  ///< samples per second
  std::vector<float> samples;
};

/// Throws DataError unless the rate is one that sound has and 1 <= samples <= max_seconds * rate.
void check_clip(const std::string& format, int64_t rate, int64_t samples, int64_t max_seconds);

Audio decode_wav(std::span<const uint8_t> bytes, int64_t max_seconds);
Audio decode_flac(std::span<const uint8_t> bytes, int64_t max_seconds);

/// WAV (PCM of 8, 16, 24 or 32 bits, float of 32 or 64) or FLAC, told apart by their first bytes;
/// channels are averaged. Throws DataError with the fault, also when the clip lasts longer than
/// `max_seconds`; the caller knows which item it was.
Audio decode_audio(std::span<const uint8_t> bytes, int64_t max_seconds);

/// The first `max_samples` samples at `rate`: sample i is that at time i / rate, of
/// ceil(n * rate / audio.rate) in all. A sinc of 64 zero crossings on each side under a Kaiser
/// window (beta = 14.77) that is down by half at 0.9476 of the lower Nyquist frequency and by 140
/// dB from it on.
Audio resample(const Audio& audio, int64_t rate,
               int64_t max_samples = std::numeric_limits<int64_t>::max());

/// Log-mel features of USM (arXiv:2303.01037) with the defaults of Gemma4AudioFeatureExtractor.
class UsmMel {
 public:
  explicit UsmMel(int64_t mel_bins);
  ~UsmMel();

  /// Puts the columns of a clip at 16 kHz into `target` (mel_bins, columns), then zeros.
  void operator()(std::span<const float> samples, int64_t columns, float* target) const;

 private:
  struct Tables;

  const std::unique_ptr<const Tables> tables_;
};

/// Log-mel features of an encoder. Makes its tables once; thread-safe.
class LogMel {
 public:
  explicit LogMel(const AudioOptions& options);
  ~LogMel();
  LogMel(const LogMel&) = delete;
  LogMel& operator=(const LogMel&) = delete;

  const AudioOptions& options() const { return options_; }

  /// (mel_bins, columns) in `target`: the first samples() samples, resampled where the rate is
  /// another, silence after the last; with MelKind::Usm zeros after the last column of the clip;
  /// MelKind::Unpadded has only columns of the clip.
  /// `columns`: the first ones, of options().columns().
  void operator()(const Audio& audio, float* target, int64_t columns) const;

 private:
  struct Tables;

  double put_logarithms(std::span<const float> samples, float* target, int64_t columns) const;

  const AudioOptions options_;
  const std::unique_ptr<const Tables> tables_;
  const std::unique_ptr<const UsmMel> usm_;
};

// Squared magnitudes of the discrete Fourier transform of real frames, several frames at a time,
// one in each lane of a vector.

constexpr size_t kLanes = 8;
using Lanes = std::array<double, kLanes>;

constexpr size_t kFrame = 400;            ///< samples
constexpr size_t kBins = kFrame / 2 + 1;  ///< frequencies from 0 to the Nyquist frequency

class PowerSpectrum {
 public:
  PowerSpectrum();
  void operator()(const std::array<Lanes, kFrame>& frames, std::array<Lanes, kBins>& power) const;

 private:
  std::vector<std::complex<double>> roots_;  ///< exp(-2 pi i n / kFrame)
};

}  // namespace zea
