// SPDX-License-Identifier: Apache-2.0
#include "data/content_scan.hpp"

#include <cstring>

#include "core/error.hpp"
#include "files/durable_file.hpp"
#include "io/manifest.hpp"

namespace zea::detail {
namespace {

constexpr const char* kFormat = "zea.checked 2";
constexpr size_t kHashDigits = 32;

std::string kept_path(const std::string& path) {
  return path + ".checked";
}

}  // namespace

std::string describe_contents(const FileFacts& facts, int64_t hash, size_t samples) {
  if (hash == 0) return "";
  return std::string(kFormat) + ": " + std::to_string(facts.bytes) + " bytes written at " +
         std::to_string(facts.written_at) + ", hash " + std::to_string(hash) + ", " +
         std::to_string(samples) + " samples\n";
}

std::optional<ContentScan> read_kept_scan(const std::string& path, const std::string& contents,
                                          size_t samples) {
  const size_t bytes = samples * sizeof(int64_t);
  const size_t size = contents.size() + sizeof(ContentScan::Facts) + bytes + kHashDigits;
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
  std::memcpy(&scan.facts, kept.data() + contents.size(), sizeof scan.facts);
  std::memcpy(scan.targets.data(), kept.data() + contents.size() + sizeof scan.facts, bytes);
  return scan;
}

void keep_scan(const std::string& path, const std::string& contents, const ContentScan& scan) {
  if (contents.empty()) return;
  std::string kept = contents;
  kept.append(reinterpret_cast<const char*>(&scan.facts), sizeof scan.facts);
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
