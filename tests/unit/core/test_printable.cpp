// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"

#include <gtest/gtest.h>

namespace zea::test_printable {
namespace {

TEST(Printable, LeavesTextAsItIs) {
  for (const std::string text : {"", "a b\n\tc",
                                 "Gr\xc3\xb6\xc3\x9f"
                                 "e \xe2\x82\xac \xf0\x9f\x98\x80 \xc2\xa0"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, EscapesWhatATerminalObeys) {
  EXPECT_EQ(printable("a\x1b[2Jb\x1b]0;c\x07"), "a\\x1b[2Jb\\x1b]0;c\\x07");
  EXPECT_EQ(printable("a\rb\x7f" + std::string(1, '\0')), "a\\x0db\\x7f\\x00");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");  // CSI in one character
  EXPECT_EQ(printable("\xe2\x80\xae\xe2\x81\xa6"), "\\xe2\\x80\\xae\\xe2\\x81\\xa6");
}

TEST(Printable, EscapesWhatIsNotUtf8) {
  for (const auto& [text, shown] : std::initializer_list<std::pair<const char*, const char*>>{
           {"\x9b", "\\x9b"},                             // no first byte
           {"\xc3", "\\xc3"},                             // cut short
           {"\xc3(", "\\xc3("},                           // no second byte
           {"\xc0\x9b", "\\xc0\\x9b"},                    // longer than it need be
           {"\xe0\x82\x9b", "\\xe0\\x82\\x9b"},           // the same
           {"\xed\xa0\x80", "\\xed\\xa0\\x80"},           // half of a pair
           {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},  // beyond the last
           {"\xff\xfe", "\\xff\\xfe"}})
    EXPECT_EQ(printable(text), shown);
}

TEST(Printable, KeepsALineOne) {
  EXPECT_EQ(printable("a\nb\tc", true), "a\\x0ab\tc");
}

}  // namespace
}  // namespace zea::test_printable
