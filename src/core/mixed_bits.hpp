// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: a number depends only on its seed and its index, so every rank,
// every layout and a resumed run draw the same.
#pragma once

#include <cstdint>
#include <string>

namespace zea {

/// The increment of SplitMix64.
inline constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15u;

/// Mixes 64 bits bijectively: a step of SplitMix64 (Steele, Lea, Flood 2014).
constexpr uint64_t mixed(uint64_t x) {
  x += kGoldenGamma;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Returns the key of a random stream for a name, such as that of a parameter.
constexpr uint64_t mixed_name(uint64_t seed, const std::string& name) {
  uint64_t key = mixed(seed);
  for (const char letter : name) key = mixed(key ^ static_cast<unsigned char>(letter));
  return key;
}

}  // namespace zea
