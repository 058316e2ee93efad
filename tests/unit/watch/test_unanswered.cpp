// SPDX-License-Identifier: Apache-2.0
// Peers that do not answer, read from tables of connections as the kernel prints them.
#include "watch/unanswered.hpp"

#include <gtest/gtest.h>

namespace zea::test_unanswered {
namespace {

using Addresses = std::vector<std::string>;

constexpr uid_t kUser = 1000;
const std::string kHeading =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
    "inode\n";

std::string connection(const std::string& peer, const std::string& again, uid_t user = kUser) {
  return "   0: 0100004D:A1B2 " + peer + " 01 00000040:00000000 01:00000029 " + again + "  " +
         std::to_string(user) + "        0 4711 2 0000000000000000 20 4 30 10 -1\n";
}

TEST(UnansweredPeers, AreThoseToWhichDataWasSentAgain) {
  const std::string table =
      kHeading + connection("02004D0A:1F90", "00000003") + connection("03004D0A:1F90", "00000002") +
      connection("04004D0A:0016", "0000000A") + connection("02004D0A:1F91", "00000007");
  EXPECT_EQ(unanswered_peers(table, kUser), (Addresses{"10.77.0.2", "10.77.0.4"}));
}

TEST(UnansweredPeers, AreOfThisUser) {
  const std::string table = kHeading + connection("02004D0A:1F90", "00000005", kUser + 1);
  EXPECT_EQ(unanswered_peers(table, kUser), Addresses());
  EXPECT_EQ(unanswered_peers(table, kUser + 1), Addresses{"10.77.0.2"});
}

TEST(UnansweredPeers, HaveAddressesOfEitherKind) {
  const std::string table = kHeading +
                            connection("000080FE00000000FF005450B6AD1DFE:1F90", "00000004") +
                            connection("0000000000000000FFFF000002004D0A:1F90", "00000004");
  EXPECT_EQ(unanswered_peers(table, kUser), (Addresses{"10.77.0.2", "fe80::5054:ff:fe1d:adb6"}));
}

TEST(UnansweredPeers, AreNotReadFromOtherText) {
  EXPECT_EQ(unanswered_peers(kHeading + connection("02004D0A", "zz") + connection("x:1", "09") +
                                 connection("0G004D0A:1", "09") + "1: 2 3\n\n",
                             kUser),
            Addresses());
}

TEST(OwnAddresses, AreNotTheLoopback) {
  for (const std::string& address : own_addresses()) {
    EXPECT_FALSE(address.empty());
    EXPECT_FALSE(address.starts_with("127.")) << address;
    EXPECT_NE(address, "::1");
  }
}

}  // namespace
}  // namespace zea::test_unanswered
