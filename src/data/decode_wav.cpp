// SPDX-License-Identifier: Apache-2.0
// WAV: a list of chunks, of which "fmt " says how the samples of "data" are written. Chunks of
// other kinds are passed over, and the size of the whole is not looked at, since programs that
// write to a pipe cannot know it. A data chunk that ends early is an error, unless its size says
// that it was not known either.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/error.hpp"
#include "data/audio.hpp"

namespace zea {
namespace {

constexpr int64_t kPcm = 1, kFloat = 3, kExtensible = 0xfffe;
constexpr int64_t kSizeUnknown = 0x7ffff000;  ///< and above, where programs write to a pipe
constexpr double kLoudest = 2147483648.0;     ///< of floats, for those on the scale of 32 bits
/// After the two bytes of the real format in the identifier of an extensible one.
constexpr std::array<uint8_t, 14> kIdentifierTail{0, 0, 0,    0, 0x10, 0,    0x80,
                                                  0, 0, 0xaa, 0, 0x38, 0x9b, 0x71};

struct WavFormat {
  int64_t tag = 0, channels = 0, rate = 0, frame_bytes = 0, bits = 0;
};

[[noreturn]] void refuse_wav(const std::string& fault) {
  throw DataError("WAV: " + fault);
}

/// The number in the first `count` bytes, lowest first.
uint64_t number_in(std::span<const uint8_t> bytes, size_t count) {
  uint64_t number = 0;
  for (size_t i = count; i-- > 0;) number = number << 8 | bytes[i];
  return number;
}

int64_t field(std::span<const uint8_t> chunk, size_t begin, size_t count) {
  return static_cast<int64_t>(number_in(chunk.subspan(begin, count), count));
}

std::string name_of(int64_t tag) {
  switch (tag) {
    case 2:
      return "format 2 (ADPCM)";
    case 6:
      return "format 6 (A-law)";
    case 7:
      return "format 7 (mu-law)";
    case 17:
      return "format 17 (IMA ADPCM)";
    case 0x55:
      return "format 85 (MP3)";
    default:
      return "format " + std::to_string(tag);
  }
}

void check_format(const WavFormat& format) {
  const bool pcm = format.tag == kPcm && (format.bits == 8 || format.bits == 16 ||
                                          format.bits == 24 || format.bits == 32);
  if (format.tag != kPcm && format.tag != kFloat)
    refuse_wav(name_of(format.tag) + "; allowed are 1 (PCM) and 3 (float)");
  if (!pcm && !(format.tag == kFloat && (format.bits == 32 || format.bits == 64)))
    refuse_wav(std::to_string(format.bits) + (format.tag == kPcm
                                                  ? " bits of PCM; allowed are 8, 16, 24 and 32"
                                                  : " bits of float; allowed are 32 and 64"));
  if (format.channels == 0 || format.frame_bytes != format.channels * format.bits / 8)
    refuse_wav(std::to_string(format.channels) + " channels of " + std::to_string(format.bits) +
               " bits in frames of " + std::to_string(format.frame_bytes) + " bytes");
}

WavFormat read_format(std::span<const uint8_t> chunk) {
  if (chunk.size() < 16) refuse_wav("a fmt chunk of " + std::to_string(chunk.size()) + " bytes");
  WavFormat format{field(chunk, 0, 2), field(chunk, 2, 2), field(chunk, 4, 4), field(chunk, 12, 2),
                   field(chunk, 14, 2)};
  if (format.tag == kExtensible) {
    if (chunk.size() < 40)
      refuse_wav("an extensible fmt chunk of " + std::to_string(chunk.size()) + " bytes");
    if (std::memcmp(&chunk[26], kIdentifierTail.data(), kIdentifierTail.size()) != 0)
      refuse_wav("an extensible format of another kind than PCM and float");
    format.tag = field(chunk, 24, 2);
  }
  check_format(format);
  return format;
}

double float_of(uint64_t pattern, int64_t bits) {
  const double value = bits == 64 ? std::bit_cast<double>(pattern)
                                  : std::bit_cast<float>(static_cast<uint32_t>(pattern));
  // Written so that what is no number is refused, too.
  if (!(std::abs(value) <= kLoudest)) refuse_wav("a sample of " + std::to_string(value));
  return value;
}

double value_of(std::span<const uint8_t> bytes, const WavFormat& format) {
  const uint64_t pattern = number_in(bytes, static_cast<size_t>(format.bits / 8));
  if (format.tag == kFloat) return float_of(pattern, format.bits);
  if (format.bits == 8) return (static_cast<double>(pattern) - 128) / 128;
  const auto highest_first = static_cast<uint32_t>(pattern << (32 - format.bits));
  return static_cast<int32_t>(highest_first) / 2147483648.0;
}

Audio read_samples(std::span<const uint8_t> data, const WavFormat& format, int64_t max_seconds) {
  const auto frame_bytes = static_cast<size_t>(format.frame_bytes);
  const auto value_bytes = static_cast<size_t>(format.bits / 8);
  check_clip("WAV", format.rate, static_cast<int64_t>(data.size() / frame_bytes), max_seconds);
  Audio audio{format.rate, std::vector<float>(data.size() / frame_bytes)};
  for (float& sample : audio.samples) {
    double sum = 0;
    for (size_t begin = 0; begin < frame_bytes; begin += value_bytes)
      sum += value_of(data.subspan(begin), format);
    sample = static_cast<float>(sum / static_cast<double>(format.channels));
    data = data.subspan(frame_bytes);
  }
  return audio;
}

/// The data chunk's part of `rest`, which begins after its head.
std::span<const uint8_t> data_in(std::span<const uint8_t> rest, int64_t size,
                                 const WavFormat& format) {
  const auto left = static_cast<int64_t>(rest.size());
  if (size > left && size >= kSizeUnknown) size = left - left % format.frame_bytes;
  if (size == 0 && left > 0)
    refuse_wav("its data chunk says 0 bytes, and " + std::to_string(left) +
               " follow: what wrote it did not finish");
  if (size > left)
    refuse_wav("bytes end before the sound does: " + std::to_string(left) + " of " +
               std::to_string(size));
  if (size % format.frame_bytes != 0)
    refuse_wav(std::to_string(size) + " bytes of data in frames of " +
               std::to_string(format.frame_bytes));
  return rest.first(static_cast<size_t>(size));
}

}  // namespace

Audio decode_wav(std::span<const uint8_t> bytes, int64_t max_seconds) {
  constexpr size_t kHead = 8;  // name and size
  WavFormat format;
  bytes = bytes.subspan(12);
  while (bytes.size() >= kHead) {
    const std::string name(bytes.begin(), bytes.begin() + 4);
    const int64_t size = field(bytes, 4, 4);
    bytes = bytes.subspan(kHead);
    if (name == "data") {
      if (format.tag == 0) refuse_wav("no fmt chunk before the data");
      return read_samples(data_in(bytes, size, format), format, max_seconds);
    }
    if (size > static_cast<int64_t>(bytes.size()))
      refuse_wav("a chunk of " + std::to_string(size) + " bytes with " +
                 std::to_string(bytes.size()) + " left");
    if (name == "fmt ") format = read_format(bytes.first(static_cast<size_t>(size)));
    // Chunks begin at even positions.
    bytes = bytes.subspan(std::min(bytes.size(), static_cast<size_t>(size + size % 2)));
  }
  refuse_wav("no data chunk");
}

}  // namespace zea
