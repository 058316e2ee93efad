// SPDX-License-Identifier: Apache-2.0
#include "node/socket_handover.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "zea/core/error.hpp"

namespace zea {
namespace {

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

}  // namespace

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

}  // namespace zea
