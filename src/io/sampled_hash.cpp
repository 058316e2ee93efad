// SPDX-License-Identifier: Apache-2.0
#include "io/sampled_hash.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "core/error.hpp"
#include "core/system.hpp"
#include "files/durable_file.hpp"
#include "io/manifest.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path, const std::string& fault) {
  throw WeightsError("cannot hash " + path + ": " + fault);
}

std::string hash_of_file(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) fail(path, std::strerror(errno));
  std::error_code error;
  const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
  if (error) fail(path, error.message());
  std::string sampled = std::to_string(bytes) + ":";
  const auto add = [&](int64_t offset, int64_t length) {
    const size_t begin = sampled.size();
    sampled.resize(begin + static_cast<size_t>(length));
    const char* fault =
        read_at(file.number(), offset, sampled.data() + begin, length, "it ends too early");
    if (fault != nullptr) fail(path, fault);
  };
  if (bytes <= kWholeBytes) {
    add(0, bytes);
  } else {
    add(0, kHeadBytes);
    const int64_t room = bytes - kHeadBytes - kSampleBytes;
    for (int sample = 1; sample <= kSamples; ++sample)
      add(kHeadBytes + room / kSamples * sample + room % kSamples * sample / kSamples,
          kSampleBytes);
  }
  return hash_text(sampled);
}

}  // namespace

std::string sampled_hash(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return hash_of_file(path);
  const std::string manifest = path + "/" + kManifestFile;
  if (fs::is_regular_file(manifest, error)) return hash_of_file(manifest);
  std::vector<std::string> names;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code broken;  // a link to nothing
    if (fs::is_regular_file(entry->path(), broken)) names.push_back(entry->path().filename());
  }
  if (error) fail(path, error.message());
  std::ranges::sort(names);
  std::string all;
  for (const std::string& name : names) all += name + '\0' + hash_of_file(path + "/" + name);
  return hash_text(all);
}

}  // namespace zea
