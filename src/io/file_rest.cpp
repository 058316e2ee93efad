// SPDX-License-Identifier: Apache-2.0
#include "file_rest.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "h5_call.hpp"
#include "zea/io/manifest.hpp"

namespace zea {
namespace {

/// Read at once: the rest is short, but for a file that is not what it should be.
constexpr int64_t kPartBytes = 1 << 20;

/// Reads no more than it is asked for: what lies between may be large, and not in memory.
class Rest {
 public:
  explicit Rest(const H5Site& site)
      : site_(site), descriptor_(::open(site.path.c_str(), O_RDONLY | O_CLOEXEC)) {
    struct stat status {};
    if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) fail(std::strerror(errno));
    ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_RANDOM);
    file_bytes_ = status.st_size;
  }
  Rest(const Rest&) = delete;
  Rest& operator=(const Rest&) = delete;
  ~Rest() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  int64_t file_bytes() const { return file_bytes_; }
  const std::string& hash() const { return hash_; }

  void add(FileRange gap) {
    while (gap.begin < gap.end) {
      const size_t known = hash_.size();
      const auto wanted = static_cast<size_t>(std::min(kPartBytes, gap.end - gap.begin));
      hash_.resize(known + wanted);
      read_at(gap.begin, hash_.data() + known, wanted);
      hash_ = hash_bytes(hash_.data(), static_cast<int64_t>(hash_.size()));
      gap.begin += static_cast<int64_t>(wanted);
    }
  }

  [[noreturn]] void fail(const std::string& fault) const {
    throw_error(site_.code, site_.path + ": cannot be checked: " + fault);
  }

 private:
  void read_at(int64_t offset, char* target, size_t bytes) const {
    while (bytes > 0) {
      const ssize_t got = ::pread(descriptor_, target, bytes, offset);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) fail(got < 0 ? std::strerror(errno) : "it was cut short meanwhile");
      target += got;
      offset += got;
      bytes -= static_cast<size_t>(got);
    }
  }

  const H5Site& site_;
  int descriptor_;
  int64_t file_bytes_ = 0;
  std::string hash_;  ///< of the parts so far
};

}  // namespace

std::string hash_rest(const std::string& path, std::vector<FileRange> data, ExitCode code) {
  std::sort(data.begin(), data.end(),
            [](const FileRange& a, const FileRange& b) { return a.begin < b.begin; });
  const H5Site site{path, code};
  Rest rest(site);
  int64_t end = 0;
  for (const FileRange& range : data) {
    if (range.begin < end || range.end > rest.file_bytes())
      rest.fail("its tensors overlap or lie outside of it");
    rest.add({end, range.begin});
    end = range.end;
  }
  rest.add({end, rest.file_bytes()});
  return rest.hash();
}

}  // namespace zea
