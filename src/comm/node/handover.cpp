// SPDX-License-Identifier: Apache-2.0
#include "comm/node/handover.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <random>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/error.hpp"

namespace zea {
namespace {

/// Sends open files to peers through sockets whose names are in no folder and vanish with their
/// processes. It needs one network namespace, but no right to look into other processes, no common
/// numbering of processes and no common folder: what containers forbid is seldom this.
class SocketHandover : public Handover {
 public:
  explicit SocketHandover(const HandoverRanks& ranks) : ranks_(ranks) {}

  /// One to open the sockets, then some to send, each of which takes what the one before sent.
  int num_steps() const override;
  void take_step(int step) override;

 private:
  /// What a queue surely takes of two steps, since a fast peer is one ahead (10 is the kernel's
  /// least default); nor may a user's processes have many files under way.
  static constexpr int kSendsAtOnce = 4;

  void open_box();
  void send_to(int rank) const;
  void receive_one();
  /// How many of the peers send_step n concerns.
  int num_sent(int send_step) const;

  const HandoverRanks& ranks_;
  Descriptor box_;
};

/// The message beside the file. Anybody can write to a socket without a folder, but only who was
/// told knows the mark.
struct Letter {
  SegmentMark mark;
  int64_t rank = 0;
};

/// "@name" as tools print it: a zero byte, then the name.
struct Address {
  explicit Address(const char* name) {
    socket.sun_family = AF_UNIX;
    const size_t length = strnlen(name, sizeof socket.sun_path - 1);
    std::memcpy(socket.sun_path + 1, name, length);
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  sockaddr* data() { return reinterpret_cast<sockaddr*>(&socket); }

  sockaddr_un socket{};
  socklen_t bytes = 0;
};

/// A letter with room for one open file.
struct Envelope {
  Envelope() {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = CMSG_LEN(sizeof(int));  // padding would have room for another
  }
  Envelope(const Envelope&) = delete;
  Envelope& operator=(const Envelope&) = delete;

  void enclose(int file) {
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof file);
    std::memcpy(CMSG_DATA(head), &file, sizeof file);
  }
  Descriptor enclosed() {
    const cmsghdr* head = CMSG_FIRSTHDR(&message);
    int file = -1;
    if (head != nullptr && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
        head->cmsg_len >= CMSG_LEN(sizeof file))
      std::memcpy(&file, CMSG_DATA(head), sizeof file);
    return Descriptor(file);
  }

  Letter letter;
  iovec part{&letter, sizeof letter};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
};

int SocketHandover::num_steps() const {
  return 2 + (ranks_.size() - 1 + kSendsAtOnce - 1) / kSendsAtOnce;
}

int SocketHandover::num_sent(int send_step) const {
  const int left = ranks_.size() - 1 - send_step * kSendsAtOnce;
  return send_step < 0 ? 0 : std::clamp(left, 0, kSendsAtOnce);
}

void SocketHandover::take_step(int step) {
  if (step == 0) return open_box();
  for (int n = 0; n < num_sent(step - 2); ++n) receive_one();
  for (int n = 0; n < num_sent(step - 1); ++n)
    send_to((ranks_.rank + 1 + (step - 1) * kSendsAtOnce + n) % ranks_.size());
}

void SocketHandover::open_box() {
  box_ = Descriptor(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  Address address(ranks_.offers[ranks_.rank].name);
  if (!box_.is_open() || bind(box_.number(), address.data(), address.bytes) != 0)
    throw_system_error("opening a local socket", errno);
}

void SocketHandover::send_to(int rank) const {
  Address address(ranks_.offers[rank].name);
  Envelope envelope;
  envelope.letter = {ranks_.offers[ranks_.rank].mark, ranks_.rank};
  envelope.enclose(ranks_.file);
  envelope.message.msg_name = address.data();
  envelope.message.msg_namelen = address.bytes;
  ssize_t sent = -1;
  do {
    sent = sendmsg(box_.number(), &envelope.message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent != static_cast<ssize_t>(sizeof(Letter)))
    throw_system_error("sending it to rank " + std::to_string(rank) + " through a local socket",
                       errno);
}

void SocketHandover::receive_one() {
  while (true) {
    Envelope envelope;
    const ssize_t received = recvmsg(box_.number(), &envelope.message, MSG_CMSG_CLOEXEC);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0) throw_system_error("receiving it through a local socket", errno);
    const Descriptor file = envelope.enclosed();
    const Letter& letter = envelope.letter;
    if (received != static_cast<ssize_t>(sizeof letter)) continue;  // a stranger's
    if (letter.rank < 0 || letter.rank >= ranks_.size() || letter.rank == ranks_.rank) continue;
    const int from = static_cast<int>(letter.rank);
    if (letter.mark.random != ranks_.offers[from].mark.random) continue;
    if (!file.is_open())
      throw CommError("the memory of rank " + std::to_string(from) +
                      " came without its file: too many open files (ulimit -n)?");
    return ranks_.accept(from, file);
  }
}

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
