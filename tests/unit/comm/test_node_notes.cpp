// SPDX-License-Identifier: Apache-2.0
#include "comm/agree.hpp"

#include <gtest/gtest.h>

namespace zea::test_node_notes {
namespace {

TEST(NodeNotes, NothingIsSaidOfNothing) {
  EXPECT_EQ(describe({}, 8), "");
}

TEST(NodeNotes, OfOneNodeAloneItIsNotSaidWhich) {
  EXPECT_EQ(describe({{0, "here", "too small"}, {0, "here", "too small"}}, 1), "too small");
}

TEST(NodeNotes, OneOfSeveralNodesIsNamed) {
  EXPECT_EQ(describe({{6, "n17", "too small"}, {6, "n17", "too small"}}, 8),
            "too small (on 1 of 8 nodes: n17)");
}

TEST(NodeNotes, SeveralAreCountedAndTheFirstIsNamed) {
  const std::vector<NodeNote> notes{
      {2, "n17", "too small"}, {2, "n17", "closed"}, {4, "n20", "closed"}, {6, "n17", "closed"}};
  EXPECT_EQ(describe(notes, 8), "too small (on 3 of 8 nodes, the first n17)")
      << "nodes may have one name";
}

}  // namespace
}  // namespace zea::test_node_notes
