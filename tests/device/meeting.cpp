// SPDX-License-Identifier: Apache-2.0
#include "device/meeting.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace zea::testing {
namespace {

constexpr size_t kPiece = 16 << 10;  // smaller than what tests send: pieces are tried, too
constexpr size_t kText = 120;
std::atomic<std::chrono::milliseconds> patience_of_all = kUsualPatience;
constexpr int kPause = 20;             // microseconds
constexpr size_t kTimedMessages = 64;  // of a pair that one end may be ahead of the other

void write_text(char (&to)[kText], const std::string& text) {
  std::snprintf(to, kText, "%s", text.c_str());
}

}  // namespace

struct Meeting::File {
  std::atomic<int> joined, aborted;
};

/// Data that a rank shows to all.
struct Meeting::Board {
  int process;
  std::atomic<size_t> meetings;
  double begin;  ///< virtual time of the rank's part of a call
  char call[kText];
  char data[kPiece];
};

/// Data from one rank for another.
struct Meeting::Letter {
  std::atomic<int> is_full, sender_came, receiver_came;
  std::atomic<size_t> begun[2];      ///< messages that the sender, the receiver has begun
  double begins[2][kTimedMessages];  ///< and when, of the last ones, in virtual time
  char call[kText];
  char data[kPiece];
};

void set_patience(std::chrono::milliseconds patience) {
  patience_of_all = patience;
}

Meeting::Meeting(const std::string& name, int rank, int size)
    : name_(name), rank_(rank), size_(size) {
  bytes_ = sizeof(File) + size * sizeof(Board) + size * size * sizeof(Letter);
  const std::string path = "/zea-stand-in-" + name;
  const int file = shm_open(path.c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes_)) != 0)
    throw std::runtime_error("no shared memory for " + path);
  void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at == MAP_FAILED) throw std::runtime_error("no shared memory for " + path);
  file_ = static_cast<File*>(at);  // zeros, which are how everything starts
  board(rank_).process = getpid();
  ++file_->joined;
  await([this] { return file_->joined == size_; }, [] { return "ranks did not join"; });
  if (rank_ == 0) shm_unlink(path.c_str());
}

Meeting::~Meeting() {
  munmap(file_, bytes_);
}

Meeting::Board& Meeting::board(int rank) const {
  return reinterpret_cast<Board*>(file_ + 1)[rank];
}

Meeting::Letter& Meeting::letter(int from, int to) const {
  return reinterpret_cast<Letter*>(&board(size_))[from * size_ + to];
}

int Meeting::process(int rank) const {
  return board(rank).process;
}

void Meeting::abort() {
  file_->aborted = 1;
}

void Meeting::await(const std::function<bool()>& reached,
                    const std::function<std::string()>& missing) {
  const auto start = std::chrono::steady_clock::now();
  while (!reached()) {
    if (file_->aborted) throw std::runtime_error("a rank gave the communicator up");
    if (std::chrono::steady_clock::now() - start > patience_of_all.load())
      throw OutOfPatience(missing());
    usleep(kPause);
  }
}

void Meeting::meet(const std::string& call) {
  board(rank_).meetings = ++meetings_;
  await(
      [this] {
        for (int r = 0; r < size_; ++r)
          if (board(r).meetings < meetings_) return false;
        return true;
      },
      [&] {
        std::string ranks;
        for (int r = 0; r < size_; ++r)
          if (board(r).meetings < meetings_) ranks += " " + std::to_string(r);
        return "rank " + std::to_string(rank_) + " waits in " + call + " for ranks" + ranks;
      });
}

double Meeting::show(const std::string& call, const char* mine, size_t bytes, const Take& take,
                     double begin) {
  size_t offset = 0;
  double latest = begin;
  board(rank_).begin = begin;
  do {
    const size_t piece = std::min(kPiece, bytes - offset);
    write_text(board(rank_).call, call);
    if (mine != nullptr) std::memcpy(board(rank_).data, mine + offset, piece);
    meet(call);
    std::vector<const char*> shown;
    for (int r = 0; r < size_; ++r) {
      if (std::string(board(r).call) != call.substr(0, kText - 1))
        throw std::runtime_error("rank " + std::to_string(rank_) + " calls " + call +
                                 " where rank " + std::to_string(r) + " calls " + board(r).call);
      shown.push_back(board(r).data);
    }
    take(shown, offset, piece);
    for (int r = 0; r < size_; ++r) latest = std::max(latest, board(r).begin);
    meet(call);  // all have seen it
    offset += piece;
  } while (offset < bytes);
  return latest;
}

bool Meeting::step(Transfer& transfer) {
  Letter& at = transfer.sends ? letter(rank_, transfer.peer) : letter(transfer.peer, rank_);
  if (at.is_full == (transfer.sends ? 1 : 0)) return false;
  const size_t piece = std::min(kPiece, transfer.bytes - transfer.moved);
  if (transfer.sends) {
    write_text(at.call, transfer.call);
    std::memcpy(at.data, transfer.data + transfer.moved, piece);
  } else {
    if (at.call != transfer.call)
      throw std::runtime_error("rank " + std::to_string(rank_) + " receives " + transfer.call +
                               " from rank " + std::to_string(transfer.peer) + ", which sends " +
                               at.call);
    std::memcpy(transfer.data + transfer.moved, at.data, piece);
  }
  transfer.moved += piece;
  at.is_full = transfer.sends ? 1 : 0;
  return true;
}

void Meeting::connect(const std::vector<Transfer>& messages) {
  const auto at = [&](const Transfer& message) -> Letter& {
    return message.sends ? letter(rank_, message.peer) : letter(message.peer, rank_);
  };
  const auto has_come = [&](const Transfer& message) {
    return (message.sends ? at(message).receiver_came : at(message).sender_came) == 1;
  };
  for (const Transfer& message : messages)
    (message.sends ? at(message).sender_came : at(message).receiver_came) = 1;
  await([&] { return std::ranges::all_of(messages, has_come); },
        [&] {
          std::string text = "rank " + std::to_string(rank_) + " waits at its first message";
          for (const Transfer& message : messages)
            if (!has_come(message))
              text += (message.sends ? " to rank " : " from rank ") + std::to_string(message.peer);
          return text;
        });
}

void Meeting::meet_peers(std::vector<Transfer>& transfers, double begin) {
  std::vector<size_t> numbers;
  for (const Transfer& one : transfers) {
    Letter& at = one.sends ? letter(rank_, one.peer) : letter(one.peer, rank_);
    numbers.push_back(messages_[{one.peer, one.sends}]++);
    at.begins[one.sends ? 0 : 1][numbers.back() % kTimedMessages] = begin;
    at.begun[one.sends ? 0 : 1] = numbers.back() + 1;
  }
  for (size_t i = 0; i < transfers.size(); ++i) {
    Transfer& one = transfers[i];
    Letter& at = one.sends ? letter(rank_, one.peer) : letter(one.peer, rank_);
    const int there = one.sends ? 1 : 0;
    await([&] { return at.begun[there] > numbers[i]; },
          [&] {
            return "rank " + std::to_string(rank_) + " waits for rank " + std::to_string(one.peer) +
                   " to begin a message";
          });
    one.met = std::max(begin, at.begins[there][numbers[i] % kTimedMessages]);
  }
}

void Meeting::move(std::vector<Transfer>& transfers, double begin) {
  meet_peers(transfers, begin);
  await(
      [&] {
        bool all = true;
        // The first of several transfers with one peer goes first, as in NCCL.
        for (size_t i = 0; i < transfers.size(); ++i) {
          const bool is_first = std::none_of(
              transfers.begin(), transfers.begin() + static_cast<ptrdiff_t>(i),
              [&](const Transfer& earlier) {
                return earlier.peer == transfers[i].peer && earlier.sends == transfers[i].sends &&
                       earlier.moved < earlier.bytes;
              });
          while (is_first && transfers[i].moved < transfers[i].bytes && step(transfers[i])) {
          }
          all = all && transfers[i].moved == transfers[i].bytes;
        }
        return all;
      },
      [&] {
        std::string text = "rank " + std::to_string(rank_) + " waits";
        for (const Transfer& transfer : transfers)
          if (transfer.moved < transfer.bytes)
            text += (transfer.sends ? " for rank " : " to hear of rank ") +
                    std::to_string(transfer.peer) + (transfer.sends ? " to receive " : " ") +
                    transfer.call;
        return text;
      });
}

}  // namespace zea::testing
