// SPDX-License-Identifier: Apache-2.0
#include "comm/node/fd_socket.hpp"

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "comm/node/segment.hpp"
#include "core/error.hpp"

namespace zea {
namespace {

/// The message that accompanies a file.
struct Letter {
  uint64_t key = 0;
  int64_t rank = 0;
};

/// "@name" as tools print it: a zero byte, then the name.
struct SocketName {
  explicit SocketName(const char* name) {
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

FdSocket::FdSocket() : socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  std::random_device random;
  address_.key = (uint64_t{random()} << 32) | random() | 1;  // 0: nobody's
  std::snprintf(address_.name, sizeof address_.name, "zea-%ld-%08x%08x",
                static_cast<long>(getpid()), random(), random());
  SocketName name(address_.name);
  if (!socket_.is_open() || bind(socket_.number(), name.data(), name.bytes) != 0)
    throw_system_error("opening a local socket", errno);
}

void FdSocket::send(const Address& to, int own_rank, int file) const {
  SocketName name(to.name);
  Envelope envelope;
  envelope.letter = {address_.key, own_rank};
  envelope.enclose(file);
  envelope.message.msg_name = name.data();
  envelope.message.msg_namelen = name.bytes;
  ssize_t sent = -1;
  do {
    sent = sendmsg(socket_.number(), &envelope.message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent != static_cast<ssize_t>(sizeof(Letter)))
    throw_system_error("sending it through a local socket", errno);
}

std::pair<int, Descriptor> FdSocket::receive(const std::vector<Address>& address_of_rank) const {
  while (true) {
    Envelope envelope;
    const ssize_t received = recvmsg(socket_.number(), &envelope.message, MSG_CMSG_CLOEXEC);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0) throw_system_error("receiving it through a local socket", errno);
    Descriptor file = envelope.enclosed();
    const Letter& letter = envelope.letter;
    if (received != static_cast<ssize_t>(sizeof letter)) continue;
    if (letter.rank < 0 || letter.rank >= static_cast<int64_t>(address_of_rank.size())) continue;
    if (letter.key != address_of_rank[static_cast<size_t>(letter.rank)].key) continue;
    if (!file.is_open())
      throw CommError("the memory of rank " + std::to_string(letter.rank) +
                      " came without its file: too many open files (ulimit -n)?");
    return {static_cast<int>(letter.rank), std::move(file)};
  }
}

}  // namespace zea
