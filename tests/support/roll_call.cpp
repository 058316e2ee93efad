// SPDX-License-Identifier: Apache-2.0
#include "support/roll_call.hpp"

#include <algorithm>

#include "comm/mpi/host_work.hpp"
#include "core/error.hpp"

namespace zea {
namespace {

constexpr int kHeaderTag = 1;

/// "sum", "max", "min".
const char* reduce_op_name(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "max", "min"};
  return kNames[static_cast<int>(op)];
}

const char* kind_name(CallKind kind) {
  return kind == CallKind::Send ? "message" : call_name(kind);
}

std::string rank_list(const std::vector<int>& ranks) {
  std::string list = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) list += (i ? ", " : "") + std::to_string(ranks[i]);
  return list;
}

}  // namespace

bool CallHeader::same_call(const CallHeader& other) const {
  return sequence == other.sequence && counts_hash == other.counts_hash && count == other.count &&
         kind == other.kind && dtype == other.dtype && op == other.op && root == other.root;
}

std::string describe(const CallHeader& header) {
  std::string text =
      "call " + std::to_string(header.sequence) + ", " + std::string(kind_name(header.kind)) + "(";
  if (header.op >= 0) text.append(reduce_op_name(static_cast<ReduceOp>(header.op))).append(" of ");
  text += std::to_string(header.count) + " " + dtype_name(static_cast<DType>(header.dtype));
  if (header.root >= 0) text += ", root " + std::to_string(header.root);
  return text + ")";
}

// FNV-1a over words of 8 bytes, then over the bytes that are left.
uint64_t hash_bytes(const void* data, size_t bytes) {
  constexpr uint64_t kPrime = 0x100000001b3ull;
  uint64_t hash = 0xcbf29ce484222325ull;
  const char* next = static_cast<const char*>(data);
  for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), next += sizeof(uint64_t)) {
    uint64_t word;
    std::copy_n(next, sizeof word, reinterpret_cast<char*>(&word));
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 29;  // high bits of a word must reach the low ones
  }
  for (; bytes > 0; --bytes, ++next) hash = (hash ^ static_cast<unsigned char>(*next)) * kPrime;
  return hash;
}

void RollCall::check(const std::vector<CallHeader>& to_rank) const {
  const std::vector<CallHeader> from_rank = exchange(to_rank);
  std::vector<std::pair<const CallHeader*, std::vector<int>>> groups;
  for (int r = 0; r < communicator_.size(); ++r) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return group.first->same_call(from_rank[r]);
    });
    if (same == groups.end())
      groups.push_back({&from_rank[r], {r}});
    else
      same->second.push_back(r);
  }
  if (groups.size() == 1) return check_pairs(from_rank, to_rank);
  std::string text =
      "ranks of communicator " + communicator_.name() + " call different collectives:";
  for (const auto& [header, ranks] : groups)
    text.append(" ").append(rank_list(ranks)).append(": ").append(describe(*header)).append(";");
  text += " every rank must make the same calls in the same order, with the same counts";
  throw CommError(text);
}

std::vector<CallHeader> RollCall::exchange(const std::vector<CallHeader>& to_rank) const {
  const int size = communicator_.size();
  std::vector<CallHeader> from_rank(size);
  std::vector<std::unique_ptr<HostWork>> receives;
  HostWork sends(communicator_.progress());
  const Channel channel{communicator_.handle(), kHeaderTag};
  for (int r = 0; r < size; ++r) {
    receives.push_back(std::make_unique<HostWork>(communicator_.progress()));
    post_receive(*receives[r], channel, &from_rank[r], sizeof(CallHeader), DType::UInt8, r);
    post_send(sends, channel, &to_rank[r], sizeof(CallHeader), DType::UInt8, r);
  }
  const auto all_came = [&] {
    return std::all_of(receives.begin(), receives.end(),
                       [](const auto& work) { return work->test(); });
  };
  if (communicator_.progress()->wait_until(all_came, patience_)) {
    sends.wait();
    return from_rank;
  }
  std::vector<int> missing;
  for (int r = 0; r < size; ++r)
    if (!receives[r]->test()) missing.push_back(r);
  throw CommError("nothing heard from " + rank_list(missing) + " of communicator " +
                  communicator_.name() + " within " + std::to_string(patience_.count()) +
                  " ms, while rank " + std::to_string(communicator_.rank()) + " is at " +
                  describe(to_rank[communicator_.rank()]));
}

// Only the receiver of a wrong count sees it; a second round tells all, so that no rank goes on
// alone.
void RollCall::check_pairs(const std::vector<CallHeader>& from_rank,
                           const std::vector<CallHeader>& to_rank) const {
  CallHeader verdict = to_rank[communicator_.rank()];
  if (verdict.kind != CallKind::AllToAll) return;
  for (int r = 0; r < communicator_.size(); ++r)
    if (from_rank[r].sends_to_peer != to_rank[r].expects_from_peer) {
      verdict.root = r;
      verdict.sends_to_peer = from_rank[r].sends_to_peer;
      verdict.expects_from_peer = to_rank[r].expects_from_peer;
    }
  const auto verdicts = exchange(std::vector<CallHeader>(communicator_.size(), verdict));
  for (int r = 0; r < communicator_.size(); ++r)
    if (verdicts[r].root >= 0)
      throw CommError("in " + describe(to_rank[r]) + " on communicator " + communicator_.name() +
                      " rank " + std::to_string(verdicts[r].root) + " sends " +
                      std::to_string(verdicts[r].sends_to_peer) + " elements to rank " +
                      std::to_string(r) + ", which expects " +
                      std::to_string(verdicts[r].expects_from_peer));
}

}  // namespace zea
