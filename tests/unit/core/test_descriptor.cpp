// SPDX-License-Identifier: Apache-2.0
#include "core/system.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "support/files.hpp"

namespace zea::test_descriptor {
namespace {

bool is_open(int number) {
  return fcntl(number, F_GETFD) >= 0;
}

Descriptor opened() {
  return Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

TEST(Descriptor, ClosesAtTheEnd) {
  int number = -1;
  {
    const Descriptor file = opened();
    number = file.number();
    ASSERT_TRUE(file.is_open());
    EXPECT_TRUE(is_open(number));
  }

  EXPECT_FALSE(is_open(number));
}

TEST(Descriptor, IsClosedOnceWhereItWasMoved) {
  Descriptor file = opened();
  const int number = file.number();
  Descriptor other = std::move(file);
  EXPECT_TRUE(is_open(number));

  other = Descriptor();

  EXPECT_FALSE(is_open(number));
  EXPECT_FALSE(other.is_open());
}

TEST(OpenForWriting, MakesAppendsAndFollowsNoLink) {
  const TemporaryDirectory folder;
  write_bytes(folder / "kept", "old");
  std::filesystem::create_symlink("kept", folder / "link");
  std::filesystem::create_symlink("not yet there", folder / "dangling");

  for (const char* name : {"kept", "new"})
    ASSERT_EQ(write(open_for_writing(folder / name, O_APPEND).number(), "+", 1), 1);
  EXPECT_EQ(read_bytes(folder / "kept"), "old+");
  EXPECT_EQ(read_bytes(folder / "new"), "+");
  for (const char* name : {"link", "dangling"})
    EXPECT_TRUE(contains(error_of([&] { open_for_writing(folder / name, O_TRUNC); }),
                         "it is a symbolic link"));
  EXPECT_EQ(read_bytes(folder / "kept"), "old+");
  EXPECT_FALSE(std::filesystem::exists(folder / "not yet there"));
}

}  // namespace
}  // namespace zea::test_descriptor
