// SPDX-License-Identifier: Apache-2.0
#include "io/file_rest.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>

#include "core/system.hpp"
#include "files/read_at.hpp"
#include "h5/call.hpp"
#include "io/manifest.hpp"

namespace zea {
namespace {

/// Read at once: the rest is short, but for a file that is not what it should be.
constexpr int64_t kPartBytes = 1 << 20;

/// Reads no more than it is asked for: what lies between may be large, and not in memory.
class Rest {
 public:
  explicit Rest(const H5Site& site)
      : site_(site), file_(::open(site.path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (!file_.is_open()) fail(std::strerror(errno));
    ::posix_fadvise(file_.number(), 0, 0, POSIX_FADV_RANDOM);
  }

  int64_t file_bytes() const {
    struct stat status {};
    if (::fstat(file_.number(), &status) != 0) fail(std::strerror(errno));
    return status.st_size;
  }
  const std::string& hash() const { return hash_; }

  void add(FileRange gap) {
    while (gap.begin < gap.end) {
      const size_t known = hash_.size();
      const int64_t wanted = std::min(kPartBytes, gap.end - gap.begin);
      hash_.resize(known + static_cast<size_t>(wanted));
      if (const char* fault = read_at(file_.number(), gap.begin, hash_.data() + known, wanted,
                                      "it was cut short meanwhile"))
        fail(fault);
      hash_ = hash_bytes(hash_.data(), static_cast<int64_t>(hash_.size()));
      gap.begin += wanted;
    }
  }

  [[noreturn]] void fail(const std::string& fault) const {
    throw_error(site_.code, site_.path + ": cannot be checked: " + fault);
  }

 private:
  const H5Site& site_;
  Descriptor file_;
  std::string hash_;  ///< of the parts so far
};

}  // namespace

std::string hash_rest(const std::string& path, std::vector<FileRange> data, ExitCode code) {
  std::sort(data.begin(), data.end(),
            [](const FileRange& a, const FileRange& b) { return a.begin < b.begin; });
  const H5Site site{path, code};
  Rest rest(site);
  const int64_t file_bytes = rest.file_bytes();
  int64_t end = 0;
  for (const FileRange& range : data) {
    if (range.begin < end || range.end > file_bytes)
      rest.fail("its tensors overlap or lie outside of it");
    rest.add({end, range.begin});
    end = range.end;
  }
  rest.add({end, file_bytes});
  return rest.hash();
}

}  // namespace zea
