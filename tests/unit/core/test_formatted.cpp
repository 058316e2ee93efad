// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"

#include <gtest/gtest.h>

namespace zea::test_formatted {
namespace {

TEST(Formatted, IsWhatPrintfPrints) {
  EXPECT_EQ(formatted("%s of %05d: %.2f %%", "rank", 7, 12.345), "rank of 00007: 12.35 %");
  EXPECT_EQ(formatted("%s", ""), "");
}

TEST(Formatted, HasRoomForAnyLength) {
  const std::string host(5000, 'h');

  EXPECT_EQ(formatted("%s!", host.c_str()), host + "!");
}

}  // namespace
}  // namespace zea::test_formatted
