// SPDX-License-Identifier: Apache-2.0
#include "node/handover.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <random>

#include "node/socket_handover.hpp"
#include "zea/core/error.hpp"

namespace zea {
namespace {

/// Looks into the folders of the owners' processes. A process of that number may be another one
/// where ranks number them differently, so nothing but a file of the right size is opened.
class ProcessHandover : public Handover {
 public:
  explicit ProcessHandover(const HandoverRanks& ranks) : ranks_(ranks) {}

  int num_steps() const override { return 1; }
  void take_step(int) override {
    for (int r = 0; r < ranks_.size(); ++r)
      if (r != ranks_.rank) ranks_.accept(r, open_file_of(ranks_.offers[r]));
  }

 private:
  static Descriptor open_file_of(const SegmentOffer& offer) {
    const std::string path =
        "/proc/" + std::to_string(offer.process) + "/fd/" + std::to_string(offer.file);
    struct stat status {};
    if (stat(path.c_str(), &status) != 0) throw_system_error("opening " + path, errno);
    if (!S_ISREG(status.st_mode) || status.st_size != segment_file_bytes(offer.bytes))
      throw CommError(path + " is something else");
    Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!file.is_open()) throw_system_error("opening " + path, errno);
    return file;
  }

  const HandoverRanks& ranks_;
};

/// Names this rank's file until all have opened it.
class NameHandover : public Handover {
 public:
  explicit NameHandover(const HandoverRanks& ranks) : ranks_(ranks) {}
  NameHandover(const NameHandover&) = delete;
  NameHandover& operator=(const NameHandover&) = delete;
  ~NameHandover() override {
    if (is_named_) shm_unlink(own().name);
  }

  int num_steps() const override { return 2; }
  void take_step(int step) override {
    if (step == 0) return publish();
    for (int r = 0; r < ranks_.size(); ++r)
      if (r != ranks_.rank) ranks_.accept(r, open_file_of(ranks_.offers[r]));
  }

 private:
  const SegmentOffer& own() const { return ranks_.offers[ranks_.rank]; }

  void publish() {
    const std::string unnamed = "/proc/self/fd/" + std::to_string(ranks_.file);
    const std::string named = std::string("/dev/shm/") + own().name;
    if (linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, named.c_str(), AT_SYMLINK_FOLLOW) != 0)
      throw_system_error("naming it " + named, errno);
    is_named_ = true;
  }

  static Descriptor open_file_of(const SegmentOffer& offer) {
    Descriptor file(shm_open(offer.name, O_RDWR | O_CLOEXEC, 0));
    if (!file.is_open()) throw_system_error("opening /dev/shm/" + std::string(offer.name), errno);
    return file;
  }

  const HandoverRanks& ranks_;
  bool is_named_ = false;
};

}  // namespace

SegmentOffer make_segment_offer(int64_t bytes) {
  std::random_device random;
  SegmentOffer offer;
  offer.bytes = bytes;
  offer.mark.random = (uint64_t{random()} << 32) | random() | 1;  // 0: no memory
  offer.process = getpid();
  std::snprintf(offer.name, sizeof offer.name, "zea-%ld-%08x%08x", static_cast<long>(getpid()),
                random(), random());
  return offer;
}

void HandoverRanks::accept(int from, const Descriptor& received) const {
  const SegmentOffer& offer = offers[from];
  if (!is_segment_file(received.number(), offer.bytes, offer.mark))
    throw CommError("what was found for rank " + std::to_string(from) + " is not its memory");
  (*segments)[from] = SharedSegment(received.number(), offer.bytes);
}

std::unique_ptr<Handover> make_handover(int way, const HandoverRanks& ranks) {
  if (way == 0) return std::make_unique<SocketHandover>(ranks);
  if (way == 1) return std::make_unique<ProcessHandover>(ranks);
  return std::make_unique<NameHandover>(ranks);
}

}  // namespace zea
