// SPDX-License-Identifier: Apache-2.0
#include "watch/unanswered.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>

namespace zea {
namespace {

constexpr uint64_t kRetransmissions = 3;

std::optional<uint64_t> number_of(const std::string& text, int base) {
  uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, fault] = std::from_chars(text.data(), end, number, base);
  if (fault != std::errc() || at != end) return {};
  return number;
}

std::string address_text(int family, const void* bytes) {
  char text[INET6_ADDRSTRLEN] = {};
  return inet_ntop(family, bytes, text, sizeof text) ? text : "";
}

/// Returns the address of an "address:port" field such as "0200007F:1F90", whose 32-bit words have
/// this machine's byte order; empty if the field is malformed.
std::string peer_of(const std::string& field) {
  constexpr size_t kDigits = 8, kMostWords = 4;
  const std::string digits = field.substr(0, field.find(':'));
  uint32_t words[kMostWords] = {};
  if (digits.size() != kDigits && digits.size() != kMostWords * kDigits) return "";
  for (size_t word = 0; word * kDigits < digits.size(); ++word) {
    const auto value = number_of(digits.substr(word * kDigits, kDigits), 16);
    if (!value) return "";
    words[word] = static_cast<uint32_t>(*value);
  }
  if (digits.size() == kDigits) return address_text(AF_INET, words);
  in6_addr address;
  std::copy_n(reinterpret_cast<const uint8_t*>(words), sizeof address.s6_addr, address.s6_addr);
  const bool is_mapped = IN6_IS_ADDR_V4MAPPED(&address);  // an IPv4 peer of an IPv6 socket
  return is_mapped ? address_text(AF_INET, words + kMostWords - 1)
                   : address_text(AF_INET6, &address);
}

}  // namespace

std::vector<std::string> own_addresses() {
  std::vector<std::string> found;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return found;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
    if (one->ifa_addr->sa_family == AF_INET)
      found.push_back(
          address_text(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr));
    if (one->ifa_addr->sa_family == AF_INET6)
      found.push_back(
          address_text(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr));
  }
  freeifaddrs(first);
  return found;
}

std::vector<std::string> unanswered_peers(const std::string& table, uid_t user) {
  // sl, local_address, rem_address, st, tx_queue:rx_queue, tr:tm->when, retrnsmt, uid, ...
  constexpr size_t kPeer = 2, kRetransmitted = 6, kUser = 7;
  std::set<std::string> peers;
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    const std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
    if (fields.size() <= kUser || number_of(fields[kUser], 10) != uint64_t{user}) continue;
    if (number_of(fields[kRetransmitted], 16).value_or(0) < kRetransmissions) continue;
    if (const std::string peer = peer_of(fields[kPeer]); !peer.empty()) peers.insert(peer);
  }
  return {peers.begin(), peers.end()};
}

std::vector<std::string> unanswered_peers() {
  std::string tables;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(path);
    tables.append(std::istreambuf_iterator<char>(file), {});
  }
  return unanswered_peers(tables, geteuid());
}

}  // namespace zea
