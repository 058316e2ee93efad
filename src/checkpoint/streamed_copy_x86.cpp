// SPDX-License-Identifier: Apache-2.0
// SSE2, which every 64-bit x86 has: wider stores are no faster here, memory is the limit.
#include <emmintrin.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/streamed_copy.hpp"

namespace zea::detail {
namespace {

constexpr int64_t kLineBytes = 64;

/// `target` starts at a line.
void copy_line(char* target, const char* source) {
  const auto* from = reinterpret_cast<const __m128i*>(source);
  auto* to = reinterpret_cast<__m128i*>(target);
  const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
  const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
  _mm_stream_si128(to, a);
  _mm_stream_si128(to + 1, b);
  _mm_stream_si128(to + 2, c);
  _mm_stream_si128(to + 3, d);
}

}  // namespace

void copy_streamed(char* target, const char* source, int64_t bytes) {
  const auto past_line = static_cast<int64_t>(reinterpret_cast<uintptr_t>(target) % kLineBytes);
  const int64_t head = std::min(bytes, (kLineBytes - past_line) % kLineBytes);
  std::memcpy(target, source, static_cast<size_t>(head));
  int64_t done = head;
  for (; done + kLineBytes <= bytes; done += kLineBytes) copy_line(target + done, source + done);
  std::memcpy(target + done, source + done, static_cast<size_t>(bytes - done));
  _mm_sfence();  // stores past the caches are ordered by nothing else
}

}  // namespace zea::detail
