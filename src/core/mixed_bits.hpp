// SPDX-License-Identifier: Apache-2.0
// Numbers drawn by counting: a pure function of what they are drawn for, so that every rank, every
// layout and a resumed run draw the same.
#pragma once

#include <cstdint>
#include <string>

namespace zea {

/// By which SplitMix64 counts.
inline constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15u;

/// Bijective mixing of 64 bits: a step of SplitMix64 (Steele, Lea, Flood 2014).
constexpr uint64_t mixed(uint64_t x) {
  x += kGoldenGamma;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Of a name: a stream of its own for each parameter.
constexpr uint64_t mixed_name(uint64_t seed, const std::string& name) {
  uint64_t key = mixed(seed);
  for (const char letter : name) key = mixed(key ^ static_cast<unsigned char>(letter));
  return key;
}

}  // namespace zea
