// SPDX-License-Identifier: Apache-2.0
// Untrusted inputs and zea's readers of them: one target for each kind of input, fed with any bytes
// by libFuzzer (libfuzzer.cpp) and by test_corpus. Reading may end in a zea::Error; nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zea::fuzz {

using Bytes = std::vector<uint8_t>;

struct Input {
  const Bytes& bytes;
  std::string path;  ///< of a file that holds them; empty unless the target reads_file
};

struct Target {
  const char* name;
  void (*take)(const Input& input);
  bool reads_file = false;
  /// Repairs lengths and sums in changed input, so that the rest of it is read.
  void (*mend)(Bytes& bytes) = nullptr;
  /// How many bytes of memory each byte of the input may take, beyond kFixedBytes.
  int64_t memory_factor = 1024;
};

/// Memory that does not grow with the input: tables, caches of libraries, a row of an image.
constexpr int64_t kFixedBytes = int64_t{16} << 20;
constexpr double kMaxSeconds = 10;  ///< of processor time for one input

const std::vector<Target>& targets();
/// Throws std::out_of_range.
const Target& target_of(const std::string& name);

/// Reads `bytes`. Returns the fault; empty when they were read or refused within their time and
/// memory, and no file but theirs was opened.
std::string feed(const Target& target, const Bytes& bytes);
/// Returns the refusal of `bytes`, or of their first part that cannot be read; empty: all was read.
std::string refusal_of(const Target& target, const Bytes& bytes);

}  // namespace zea::fuzz
