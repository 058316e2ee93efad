// SPDX-License-Identifier: Apache-2.0
#include "zea/core/descriptor.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <utility>

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

}  // namespace
}  // namespace zea::test_descriptor
