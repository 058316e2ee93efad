// SPDX-License-Identifier: Apache-2.0
// Shared memory is taken only if enough of /dev/shm stays free for others, at every moment: a full
// /dev/shm kills processes that touch their memory. Its fill level is made up.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>

#include "comm/node/segment.hpp"
#include "core/error.hpp"

namespace zea::test_shared_segment {
namespace {

constexpr int64_t kMiB = 1 << 20;

/// A /dev/shm of which so much is free while each of several processes reserves as much as this.
struct Room {
  int64_t free;
  int processes;
  int64_t reserved = 0;  ///< by this one
};

std::optional<Room> room;  ///< nothing: as it is

}  // namespace
}  // namespace zea::test_shared_segment

// In place of libc's: the segment's calls come here.
extern "C" {

int posix_fallocate(int file, off_t offset, off_t bytes) {
  auto& room = zea::test_shared_segment::room;
  if (!room) return fallocate(file, 0, offset, bytes) == 0 ? 0 : errno;
  room->free -= room->processes * static_cast<int64_t>(bytes);
  room->reserved += bytes;
  return 0;
}

int fstatvfs(int file, struct statvfs* status) noexcept {
  const auto& room = zea::test_shared_segment::room;
  if (!room) return statvfs(("/proc/self/fd/" + std::to_string(file)).c_str(), status);
  *status = {};
  status->f_frsize = 1;
  status->f_blocks = static_cast<fsblkcnt_t>(100 * zea::test_shared_segment::kMiB);
  status->f_bavail = static_cast<fsblkcnt_t>(std::max<int64_t>(0, room->free));
  return 0;
}
}

namespace zea::test_shared_segment {
namespace {

class SharedSegmentTest : public ::testing::Test {
 protected:
  ~SharedSegmentTest() override { room.reset(); }

  static std::string refusal(int64_t bytes, int64_t spare_bytes) {
    try {
      make_segment_file(bytes, spare_bytes);
    } catch (const CommError& error) {
      return error.what();
    }
    return "made";
  }
};

TEST_F(SharedSegmentTest, ReservesAllWhereEnoughIsLeft) {
  const int64_t bytes = 5 * kMiB + 1;
  room = Room{.free = 2 * bytes + 16 * kMiB, .processes = 2};

  const Descriptor file = make_segment_file(bytes, 16 * kMiB);

  EXPECT_TRUE(file.is_open());
  EXPECT_EQ(room->reserved, bytes);
}

TEST_F(SharedSegmentTest, TakesNothingWhereTooLittleWouldBeLeft) {
  const int64_t bytes = 60 * kMiB;
  room = Room{.free = bytes + 16 * kMiB - 1, .processes = 1};

  const std::string said = refusal(bytes, 16 * kMiB);

  EXPECT_EQ(said, std::to_string(bytes + 16 * kMiB - 1) + " bytes are free in /dev/shm, and " +
                      std::to_string(bytes) +
                      " are wanted beside 16777216 that are left to MPI; remove what earlier jobs "
                      "left there, or make it larger (containers: --shm-size)");
  EXPECT_EQ(room->reserved, 0);
}

/// Each finds enough for itself when it begins.
TEST_F(SharedSegmentTest, ProcessesThatReserveAtOnceLeaveSomeFree) {
  constexpr int kProcesses = 4;
  constexpr int64_t kSpare = 6 * kProcesses * kMiB;
  room = Room{.free = 60 * kMiB, .processes = kProcesses};

  const std::string said = refusal(14 * kMiB, kSpare);

  EXPECT_NE(said.find(" bytes are free in /dev/shm"), std::string::npos) << said;
  EXPECT_GE(room->free, 4 * kProcesses * kMiB);
}

}  // namespace
}  // namespace zea::test_shared_segment
