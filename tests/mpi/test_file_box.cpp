// SPDX-License-Identifier: Apache-2.0
// Ranks of a node send each other open files through local sockets.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/node/fd_socket.hpp"
#include "comm/node/segment.hpp"
#include "core/error.hpp"
#include "support/mpi_main.hpp"

namespace zea::test_file_box {
namespace {

class FileBoxTest : public ::testing::Test {
 protected:
  FileBoxTest() : addresses_(communicator_.size()) {
    const Counts counts(communicator_.size(), sizeof(FdSocket::Address));
    mpi_->all_gather(&box_.address(), addresses_.data(), counts, DType::UInt8).wait();
  }

  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }
  int next() const { return (rank() + 1) % size(); }
  int previous() const { return (rank() + size() - 1) % size(); }

  Communicator communicator_ = testing::world().communicator();
  std::unique_ptr<Collectives> mpi_ = make_mpi_collectives(communicator_);
  FdSocket box_;
  std::vector<FdSocket::Address> addresses_;
};

TEST_F(FileBoxTest, FilesOfPeersArrive) {
  constexpr int64_t kBytes = 10000;
  const Descriptor file = make_segment_file(kBytes, 0);
  const SharedSegment own(file.number(), kBytes);
  std::memset(own.data(), 1 + rank(), kBytes);

  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) box_.send(addresses_[peer], rank(), file.number());
  mpi_->barrier();

  std::vector<bool> seen(size());
  for (int n = 1; n < size(); ++n) {
    const auto [from, received] = box_.receive(addresses_);
    const SharedSegment theirs(received.number(), kBytes);
    EXPECT_EQ(theirs.data()[kBytes - 1], std::byte(1 + from));
    EXPECT_FALSE(seen[from]);
    seen[from] = true;
  }
  EXPECT_FALSE(seen[rank()]);
}

TEST_F(FileBoxTest, NothingToReceiveIsAnError) {
  EXPECT_THROW(box_.receive(addresses_), CommError);
}

TEST_F(FileBoxTest, APeerThatIsNotThereIsAnError) {
  FdSocket::Address nobody;
  std::strcpy(nobody.name, "zea-nobody");
  EXPECT_THROW(box_.send(nobody, rank(), STDIN_FILENO), CommError);
}

/// Sends a message of the size of a true one, as any process may.
bool write_as_stranger(const char* name) {
  const Descriptor stranger(socket(AF_UNIX, SOCK_DGRAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path + 1, name);
  const char junk[16] = {};
  const size_t bytes = offsetof(sockaddr_un, sun_path) + 1 + std::strlen(name);
  return sendto(stranger.number(), junk, sizeof junk, 0, reinterpret_cast<sockaddr*>(&address),
                static_cast<socklen_t>(bytes)) == sizeof junk;
}

TEST_F(FileBoxTest, StrangersAreIgnored) {
  const Descriptor file = make_segment_file(100, 0);
  EXPECT_TRUE(write_as_stranger(box_.address().name));
  FdSocket stranger;
  stranger.send(addresses_[next()], rank(), file.number());
  mpi_->barrier();
  box_.send(addresses_[next()], rank(), file.number());
  mpi_->barrier();

  EXPECT_EQ(box_.receive(addresses_).first, previous());
}

}  // namespace
}  // namespace zea::test_file_box
