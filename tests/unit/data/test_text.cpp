// SPDX-License-Identifier: Apache-2.0
#include "data/text.hpp"

#include <gtest/gtest.h>

namespace zea::test_text {
namespace {

const std::vector<std::string> kClasses{"t-shirt", "shirt", "coat", "ankle boot"};

TEST(TextOfTokens, JoinsBytesAndLeavesOutSpecialTokens) {
  EXPECT_EQ(text_of_tokens({"", " a", "\xc3", "\xa9"}, {0, 1, 2, 3, 0, 99, -1}), " a\xc3\xa9");
}

TEST(ClassNamedIn, TakesWholeWordsOnly) {
  EXPECT_EQ(class_named_in(" this is a t-shirt.", kClasses), 0);
  EXPECT_EQ(class_named_in("a shirt", kClasses), 1);
  EXPECT_EQ(class_named_in("shirts, shirt", kClasses), 1);
  EXPECT_EQ(class_named_in("it is an ankle boot", kClasses), 3);
  EXPECT_EQ(class_named_in("coats", kClasses), std::nullopt);
  EXPECT_EQ(class_named_in("overcoat", kClasses), std::nullopt);
  EXPECT_EQ(class_named_in("", kClasses), std::nullopt);
}

TEST(ClassNamedIn, TwoClassesAreNone) {
  EXPECT_EQ(class_named_in("a coat or a shirt", kClasses), std::nullopt);
  EXPECT_EQ(class_named_in("a coat, yes, a coat", kClasses), 2);
}

}  // namespace
}  // namespace zea::test_text
