// SPDX-License-Identifier: Apache-2.0
// Decoding of good audio files and, above all, of bad ones: any bytes either decode or throw
// DataError.
#include "data/audio.hpp"

#include <FLAC/stream_encoder.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>

#include "core/error.hpp"

namespace zea::test_audio {
namespace {

using Bytes = std::vector<uint8_t>;

void append(Bytes& bytes, uint64_t number, int count) {
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<uint8_t>(number >> (8 * i)));
}

void append(Bytes& bytes, const Bytes& more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

Bytes chunk(const std::string& name, const Bytes& body) {
  Bytes bytes(name.begin(), name.end());
  append(bytes, body.size(), 4);
  append(bytes, body);
  if (body.size() % 2 == 1) bytes.push_back(0);
  return bytes;
}

Bytes riff(const std::vector<Bytes>& chunks) {
  Bytes bytes{'R', 'I', 'F', 'F', 0, 0, 0, 0, 'W', 'A', 'V', 'E'};
  for (const Bytes& part : chunks) append(bytes, part);
  return bytes;
}

struct Format {
  int tag = 1, channels = 1, rate = 16000, bits = 16;
  int frame_bytes = -1;  ///< -1: the right number
};

Bytes format_chunk(const Format& format, const Bytes& extension = {}) {
  const int frame_bytes =
      format.frame_bytes < 0 ? format.channels * format.bits / 8 : format.frame_bytes;
  Bytes body;
  append(body, static_cast<uint64_t>(format.tag), 2);
  append(body, static_cast<uint64_t>(format.channels), 2);
  append(body, static_cast<uint64_t>(format.rate), 4);
  append(body, static_cast<uint64_t>(format.rate * frame_bytes), 4);
  append(body, static_cast<uint64_t>(frame_bytes), 2);
  append(body, static_cast<uint64_t>(format.bits), 2);
  append(body, extension);
  return chunk("fmt ", body);
}

Bytes numbers(const std::vector<uint64_t>& values, int count) {
  Bytes bytes;
  for (uint64_t value : values) append(bytes, value, count);
  return bytes;
}

Bytes wav(const Format& format, const Bytes& data) {
  return riff({format_chunk(format), chunk("data", data)});
}

/// 16-bit PCM.
Bytes wav16(const std::vector<int32_t>& levels, Format format = {}) {
  Bytes data;
  for (int32_t level : levels) append(data, static_cast<uint64_t>(level), 2);
  return wav(format, data);
}

/// Levels of a few waves with noise, so that compressed data is spread over the whole file.
std::vector<int32_t> make_levels(size_t count, int bits = 16) {
  std::mt19937 random(5);
  const double full = std::ldexp(1.0, bits - 1);
  std::vector<int32_t> levels(count);
  for (size_t i = 0; i < count; ++i)
    levels[i] = static_cast<int32_t>(full * (0.5 * std::sin(0.03 * static_cast<double>(i)) +
                                             1e-2 * (static_cast<double>(random() % 64) / 64)));
  return levels;
}

FLAC__StreamEncoderWriteStatus append_encoded(const FLAC__StreamEncoder*, const FLAC__byte* bytes,
                                              size_t count, uint32_t, uint32_t, void* client) {
  auto& target = *static_cast<Bytes*>(client);
  target.insert(target.end(), bytes, bytes + count);
  return FLAC__STREAM_ENCODER_WRITE_STATUS_OK;
}

/// Channels interleaved. The encoder cannot seek here: the header says neither length nor MD5 sum.
Bytes flac(const std::vector<int32_t>& levels, const Format& format = {}) {
  FLAC__StreamEncoder* encoder = FLAC__stream_encoder_new();
  FLAC__stream_encoder_set_channels(encoder, static_cast<uint32_t>(format.channels));
  FLAC__stream_encoder_set_bits_per_sample(encoder, static_cast<uint32_t>(format.bits));
  FLAC__stream_encoder_set_sample_rate(encoder, static_cast<uint32_t>(format.rate));
  FLAC__stream_encoder_set_blocksize(encoder, 512);
  Bytes bytes;
  EXPECT_EQ(
      FLAC__stream_encoder_init_stream(encoder, append_encoded, nullptr, nullptr, nullptr, &bytes),
      FLAC__STREAM_ENCODER_INIT_STATUS_OK);
  EXPECT_TRUE(FLAC__stream_encoder_process_interleaved(
      encoder, levels.data(),
      static_cast<uint32_t>(levels.size() / static_cast<size_t>(format.channels))));
  EXPECT_TRUE(FLAC__stream_encoder_finish(encoder));
  FLAC__stream_encoder_delete(encoder);
  return bytes;
}

constexpr size_t kTotalPlace = 22;  ///< lower 32 bits of the number of samples in a FLAC header
constexpr size_t kSumPlace = 26;    ///< MD5

Bytes with_total(Bytes bytes, uint32_t samples) {
  for (size_t i = 0; i < 4; ++i)
    bytes[kTotalPlace + i] = static_cast<uint8_t>(samples >> (24 - 8 * i));
  return bytes;
}

Audio decode(const Bytes& bytes, int64_t max_seconds = 60) {
  return decode_audio(bytes, max_seconds);
}

/// Returns the message that decoding throws; empty: none.
std::string fault_of(const Bytes& bytes, int64_t max_seconds = 60) {
  try {
    decode(bytes, max_seconds);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(Wav, EveryKindOfPcmHasTheSameScale) {
  const std::vector<float> expected{-1, -0.5, 0, 0.5};
  const Bytes eight{0, 64, 128, 192};

  EXPECT_EQ(decode(wav({.bits = 8}, eight)).samples, expected);
  EXPECT_EQ(decode(wav16({-32768, -16384, 0, 16384})).samples, expected);
  EXPECT_EQ(decode(wav({.bits = 24}, numbers({0x800000, 0xc00000, 0, 0x400000}, 3))).samples,
            expected);
  EXPECT_EQ(decode(wav({.bits = 32}, numbers({0x80000000, 0xc0000000, 0, 0x40000000}, 4))).samples,
            expected);
}

TEST(Wav, FloatsAreTakenAsTheyAre) {
  const std::vector<float> values{-2.5f, 0, 1e-30f, 0.1f};
  Bytes single, twice;
  for (float value : values) append(single, std::bit_cast<uint32_t>(value), 4);
  for (double value : values) append(twice, std::bit_cast<uint64_t>(value), 8);

  EXPECT_EQ(decode(wav({.tag = 3, .bits = 32}, single)).samples, values);
  EXPECT_EQ(decode(wav({.tag = 3, .bits = 64}, twice)).samples, values);
}

TEST(Wav, AFloatThatIsNoSampleIsRefused) {
  for (float value : {NAN, INFINITY, -INFINITY, 3e38f}) {
    const Bytes data = numbers({std::bit_cast<uint32_t>(value)}, 4);
    EXPECT_CONTAINS(fault_of(wav({.tag = 3, .bits = 32}, data)), "WAV: a sample of ");
  }
}

TEST(Wav, ChannelsAreAveraged) {
  const Audio audio = decode(wav16({32767, -32767, 16384, 8192}, {.channels = 2, .rate = 44100}));

  EXPECT_EQ(audio.rate, 44100);
  EXPECT_EQ(audio.samples, (std::vector<float>{0, 0.375f}));
}

/// The rest of an extensible fmt chunk: sizes, speakers, and the identifier of the real format.
Bytes extension(int tag) {
  Bytes bytes = numbers({22, 16}, 2);
  append(bytes, numbers({0}, 4));
  append(bytes, numbers({static_cast<uint64_t>(tag)}, 2));
  append(bytes, {0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71});
  return bytes;
}

TEST(Wav, AnExtensibleFormatNamesTheRealOne) {
  const Format format{.tag = 0xfffe};
  const Bytes data = chunk("data", numbers({0x4000}, 2));
  Bytes foreign = extension(1);
  foreign.back() = 0;

  EXPECT_EQ(decode(riff({format_chunk(format, extension(1)), data})).samples,
            std::vector<float>{0.5f});
  EXPECT_CONTAINS(fault_of(riff({format_chunk(format, extension(7)), data})), "mu-law");
  EXPECT_CONTAINS(fault_of(riff({format_chunk(format, foreign), data})), "another kind");
  EXPECT_CONTAINS(fault_of(riff({format_chunk(format), data})), "fmt chunk of 16 bytes");
}

TEST(Wav, OtherChunksArePassedOver) {
  const Bytes data = chunk("data", numbers({0x4000}, 2));
  const Bytes odd = chunk("LIST", {1, 2, 3});

  EXPECT_EQ(decode(riff({odd, format_chunk({}), odd, data, odd})).samples,
            std::vector<float>{0.5f});
  EXPECT_CONTAINS(fault_of(riff({data, format_chunk({})})), "no fmt chunk before the data");
  EXPECT_CONTAINS(fault_of(riff({odd, format_chunk({})})), "no data chunk");
  EXPECT_CONTAINS(fault_of(riff({})), "no data chunk");
}

TEST(Wav, WhatCannotBeReadIsSaid) {
  const Bytes data(48);
  const auto fault = [&](const Format& format) { return fault_of(wav(format, data)); };

  EXPECT_CONTAINS(fault({.tag = 6}), "format 6 (A-law); allowed are 1 (PCM) and 3 (float)");
  EXPECT_CONTAINS(fault({.tag = 0x1234}), "format 4660; allowed");
  EXPECT_CONTAINS(fault({.bits = 12}), "12 bits of PCM; allowed are 8, 16, 24 and 32");
  EXPECT_CONTAINS(fault({.bits = 64}), "64 bits of PCM");
  EXPECT_CONTAINS(fault({.tag = 3, .bits = 16}), "16 bits of float; allowed are 32 and 64");
  EXPECT_CONTAINS(fault({.channels = 0}), "0 channels of 16 bits in frames of 0 bytes");
  EXPECT_CONTAINS(fault({.channels = 2, .frame_bytes = 2}), "2 channels of 16 bits in frames of 2");
  EXPECT_CONTAINS(fault({.rate = 0}), "sample rate of 0 Hz; allowed are 1000 to 768000");
  EXPECT_CONTAINS(fault({.rate = 999}), "sample rate of 999 Hz");
  EXPECT_CONTAINS(fault({.rate = 768001}), "sample rate of 768001 Hz");
  EXPECT_CONTAINS(fault({.channels = 5}), "48 bytes of data in frames of 10");
  EXPECT_CONTAINS(fault({.tag = 17}), "format 17 (IMA ADPCM)");
  EXPECT_CONTAINS(fault_of(wav({}, {})), "WAV: no samples");
  Bytes unfinished = riff({format_chunk({}), chunk("data", {}), data});
  EXPECT_CONTAINS(fault_of(unfinished), "its data chunk says 0 bytes, and 48 follow");
  EXPECT_CONTAINS(fault_of(riff({chunk("fmt ", Bytes(15))})), "a fmt chunk of 15 bytes");
}

TEST(Wav, AClipThatIsTooLongIsRefused) {
  const Bytes two_seconds = wav16(std::vector<int32_t>(4000), {.rate = 2000});

  EXPECT_EQ(fault_of(two_seconds, 2), "");
  EXPECT_CONTAINS(fault_of(two_seconds, 1),
                  "WAV: a clip of 4000 samples at 2000 Hz lasts longer than the 1 s");
}

TEST(Wav, DataOfUnknownSizeEndsWithTheBytes) {
  for (uint32_t size : {0x7ffff000u, 0xffffffffu}) {
    Bytes bytes = wav16({1, 2, 3});
    bytes.push_back(0);  // half a sample
    for (size_t i = 0; i < 4; ++i) bytes[40 + i] = static_cast<uint8_t>(size >> (8 * i));
    EXPECT_EQ(decode(bytes).samples.size(), 3u);
  }
}

TEST(Wav, ATruncatedFileIsRefused) {
  const Bytes bytes = wav16(make_levels(100));
  for (size_t size = 0; size < bytes.size(); ++size) {
    const Bytes part(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_NE(fault_of(part), "") << size;
  }
  EXPECT_CONTAINS(fault_of({bytes.begin(), bytes.end() - 1}), "199 of 200");
}

TEST(Wav, AFlippedByteDecodesOrIsRefused) {
  std::mt19937 random(7);
  const Bytes bytes = wav({.tag = 3, .bits = 32}, numbers(std::vector<uint64_t>(20), 4));
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    Bytes damaged = bytes;
    damaged[random() % damaged.size()] ^= static_cast<uint8_t>(1 + random() % 255);
    refused += fault_of(damaged).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 500);
}

TEST(Flac, HasTheSamplesOfWav) {
  const std::vector<int32_t> levels = make_levels(3000);
  const Format stereo{.channels = 2, .rate = 22050};

  const Audio mono = decode(flac(levels)), both = decode(flac(levels, stereo));

  EXPECT_EQ(mono.rate, 16000);
  EXPECT_EQ(mono.samples, decode(wav16(levels)).samples);
  EXPECT_EQ(both.rate, 22050);
  EXPECT_EQ(both.samples, decode(wav16(levels, stereo)).samples);
}

TEST(Flac, EveryWidthHasTheSameScale) {
  for (int bits : {8, 12, 20, 24, 32}) {
    const int32_t half = int32_t{1} << (bits - 2);
    EXPECT_EQ(decode(flac({-half - half, -half, 0, half}, {.bits = bits})).samples,
              (std::vector<float>{-1, -0.5, 0, 0.5}))
        << bits;
  }
}

TEST(Flac, ATruncatedFileIsRefused) {
  const Bytes bytes = with_total(flac(make_levels(1000)), 1000);
  ASSERT_EQ(fault_of(bytes), "");
  for (size_t size = 4; size < bytes.size(); ++size) {
    const Bytes part(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_CONTAINS(fault_of(part), "FLAC: ");
  }
}

TEST(Flac, AFlippedByteIsFoundOrHarmless) {
  std::mt19937 random(7);
  const Bytes bytes = with_total(flac(make_levels(1500)), 1500);
  const std::vector<float> samples = decode(bytes).samples;
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    Bytes damaged = bytes;
    damaged[random() % damaged.size()] ^= static_cast<uint8_t>(1 + random() % 255);
    if (fault_of(damaged).empty())
      EXPECT_EQ(decode(damaged).samples, samples);
    else
      ++refused;
  }
  EXPECT_GT(refused, 1800);
}

TEST(Flac, TheHeaderMustAgreeWithTheSamples) {
  const Bytes bytes = flac(make_levels(1000));
  Bytes wrong_sum = bytes;
  wrong_sum[kSumPlace] = 1;

  EXPECT_CONTAINS(fault_of(with_total(bytes, 1001)), "1000 samples; its header says 1001");
  EXPECT_CONTAINS(fault_of(with_total(bytes, 999)), "1000 samples; its header says 999");
  EXPECT_CONTAINS(fault_of(wrong_sum), "MD5");
}

TEST(Flac, BytesAfterTheLastSampleAreIgnored) {
  Bytes bytes = with_total(flac(make_levels(1000)), 1000);
  append(bytes, {'T', 'A', 'G', 0, 0, 0});

  EXPECT_EQ(decode(bytes).samples.size(), 1000u);
}

TEST(Flac, AClipThatIsTooLongIsRefused) {
  // An hour of silence in a few hundred bytes per minute.
  const Bytes hour = flac(std::vector<int32_t>(3600 * 1000), {.rate = 1000});
  const std::string found = "lasts longer than the 60 s";

  EXPECT_LT(hour.size(), 200000u);
  EXPECT_EQ(fault_of(hour, 3600), "");
  EXPECT_CONTAINS(fault_of(hour), "FLAC: a clip of 60416 samples at 1000 Hz " + found);
  EXPECT_CONTAINS(fault_of(with_total(hour, 3600000)), "a clip of 3600000 samples");
}

TEST(Flac, MetadataLiesInTheFile) {
  // STREAMINFO, the only block, then one of seek points: not one is there.
  Bytes bytes = flac(make_levels(100));
  bytes[4] &= 0x7F;
  const Bytes seek_points{0x83, 0xF0, 0, 0};
  bytes.insert(bytes.begin() + 42, seek_points.begin(), seek_points.end());
  EXPECT_CONTAINS(fault_of(bytes),
                  "FLAC: a block of metadata says that it has 15728640 bytes, of ");
}

TEST(Flac, RatesAreLimitedToo) {
  EXPECT_CONTAINS(fault_of(flac(make_levels(100), {.rate = 500})),
                  "FLAC: sample rate of 500 Hz; allowed are 1000 to 768000");
}

TEST(Audio, OtherFormatsAreNamed) {
  EXPECT_EQ(fault_of({}), "0 bytes that are neither WAV nor FLAC");
  EXPECT_EQ(fault_of({'O', 'g', 'g', 'S', 0}),
            "5 bytes that are neither WAV nor FLAC (they begin with \"OggS.\")");
  EXPECT_CONTAINS(fault_of({'R', 'I', 'F', 'F', 0, 0, 0, 0, 'A', 'V', 'I', ' '}), "RIFF....AVI ");
  EXPECT_CONTAINS(fault_of({'f', 'L', 'a', 'C'}), "FLAC: ");
}

}  // namespace
}  // namespace zea::test_audio
