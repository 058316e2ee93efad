// SPDX-License-Identifier: Apache-2.0
#include "content_scan.hpp"

#include <cstring>
#include <filesystem>
#include <fstream>

#include "zea/core/error.hpp"
#include "zea/io/durable_file.hpp"
#include "zea/io/manifest.hpp"

namespace zea::detail {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "zea.checked 1";
constexpr int64_t kHashedWhole = int64_t{16} << 20;  ///< bytes of a file that is hashed whole
constexpr int64_t kBlock = 4096;
constexpr int64_t kBlocks = 1024;  ///< of a larger one
constexpr size_t kHashDigits = 32;

std::string kept_path(const std::string& path) {
  return path + ".checked";
}

/// Of a file of `bytes`: all of it, or blocks at equal distances, the first and the last included.
std::string sampled_hash(std::ifstream& file, int64_t bytes) {
  const bool whole = bytes <= kHashedWhole;
  const int64_t block = whole ? bytes : kBlock, blocks = whole ? 1 : kBlocks;
  std::string sample(static_cast<size_t>(block * blocks), '\0');
  for (int64_t b = 0; b < blocks; ++b) {
    file.seekg(whole ? 0 : (bytes - block) * b / (blocks - 1));
    file.read(sample.data() + b * block, block);
  }
  return file ? hash_bytes(sample.data(), static_cast<int64_t>(sample.size())) : "";
}

}  // namespace

std::string describe_contents(const std::string& path, size_t samples) {
  std::error_code fault;
  const auto bytes = static_cast<int64_t>(fs::file_size(path, fault));
  const auto written = fs::last_write_time(path, fault).time_since_epoch().count();
  std::ifstream file(path, std::ios::binary);
  if (fault || !file) return "";
  const std::string hash = sampled_hash(file, bytes);
  if (hash.empty()) return "";
  return std::string(kFormat) + ": " + std::to_string(bytes) + " bytes written at " +
         std::to_string(written) + ", hash " + hash + ", " + std::to_string(samples) + " samples\n";
}

std::optional<ContentScan> read_kept_scan(const std::string& path, const std::string& contents,
                                          size_t samples) {
  const size_t values = samples + 1, bytes = values * sizeof(int64_t);
  const size_t size = contents.size() + bytes + kHashDigits;
  std::string kept;
  try {
    kept = read_text(kept_path(path), static_cast<int64_t>(size));
  } catch (const Error&) {
    return std::nullopt;
  }
  if (contents.empty() || kept.size() != size || !kept.starts_with(contents) ||
      !kept.ends_with(hash_bytes(kept.data(), static_cast<int64_t>(size - kHashDigits))))
    return std::nullopt;
  ContentScan scan;
  scan.targets.resize(samples);
  std::memcpy(&scan.max_token, kept.data() + contents.size(), sizeof scan.max_token);
  std::memcpy(scan.targets.data(), kept.data() + contents.size() + sizeof scan.max_token,
              bytes - sizeof scan.max_token);
  return scan;
}

void keep_scan(const std::string& path, const std::string& contents, const ContentScan& scan) {
  if (contents.empty()) return;
  std::string kept = contents;
  kept.append(reinterpret_cast<const char*>(&scan.max_token), sizeof scan.max_token);
  kept.append(reinterpret_cast<const char*>(scan.targets.data()),
              scan.targets.size() * sizeof(int64_t));
  kept += hash_bytes(kept.data(), static_cast<int64_t>(kept.size()));
  try {
    write_text_durably(kept_path(path), kept);
  } catch (const StorageError&) {
    // A place where nothing can be written, or another run that writes it at this moment.
  }
}

}  // namespace zea::detail
