// SPDX-License-Identifier: Apache-2.0
// Chooses the decoder of a clip by its first bytes, and holds the limits that all clips share.
#include "data/audio.hpp"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "core/error.hpp"

namespace zea {
namespace {

constexpr int64_t kMinRate = 1000;
constexpr int64_t kMaxRate = 768000;

bool has_at(std::span<const uint8_t> bytes, size_t place, std::string_view text) {
  return bytes.size() >= place + text.size() &&
         std::equal(text.begin(), text.end(), bytes.begin() + static_cast<ptrdiff_t>(place));
}

/// The first bytes as text, for a file of another kind often says its name there.
std::string first_bytes(std::span<const uint8_t> bytes) {
  std::string text;
  for (uint8_t byte : bytes.first(std::min<size_t>(bytes.size(), 12)))
    text += std::isprint(byte) ? static_cast<char>(byte) : '.';
  return text;
}

}  // namespace

void check_clip(const std::string& format, int64_t rate, int64_t samples, int64_t max_seconds) {
  if (rate < kMinRate || rate > kMaxRate)
    throw DataError(format + ": sample rate of " + std::to_string(rate) + " Hz; allowed are " +
                    std::to_string(kMinRate) + " to " + std::to_string(kMaxRate));
  if (samples <= 0) throw DataError(format + ": no samples");
  if (samples > max_seconds * rate)
    throw DataError(format + ": a clip of " + std::to_string(samples) + " samples at " +
                    std::to_string(rate) + " Hz lasts longer than the " +
                    std::to_string(max_seconds) + " s that are allowed");
}

Audio decode_audio(std::span<const uint8_t> bytes, int64_t max_seconds) {
  if (has_at(bytes, 0, "RIFF") && has_at(bytes, 8, "WAVE")) return decode_wav(bytes, max_seconds);
  if (has_at(bytes, 0, "fLaC")) return decode_flac(bytes, max_seconds);
  std::string found = std::to_string(bytes.size()) + " bytes that are neither WAV nor FLAC";
  if (!bytes.empty()) found += " (they begin with \"" + first_bytes(bytes) + "\")";
  throw DataError(found);
}

}  // namespace zea
