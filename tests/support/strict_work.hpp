// SPDX-License-Identifier: Apache-2.0
// A strict communication in progress: received data stays hidden until it is waited for, sent data
// must not change before, and one that is destroyed without a wait leaves a fault.
#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "comm/progress.hpp"

namespace zea {

/// Memory that a call in progress reads or receives into.
struct UsedMemory {
  const std::byte* begin;
  size_t bytes;
  bool is_received;
  std::string call;
};

/// State that all strict works of one Collectives share.
struct StrictState {
  std::shared_ptr<Progress> progress;
  std::chrono::milliseconds patience;
  std::vector<std::string> faults;
  std::list<UsedMemory> used{};
};

class StrictWork : public Pending::Work {
 public:
  StrictWork(std::string what, std::shared_ptr<StrictState> state);
  ~StrictWork() override;

  /// Memory to receive into instead of `target`, which holds NaN from now on (integers: -1) outside
  /// [keep, keep + keep_bytes). Throws if another call in progress uses the memory, as watch()
  /// does.
  void* hide(void* target, size_t bytes, const void* keep = nullptr, size_t keep_bytes = 0);
  /// Remembers `data`, to see at the end that it has not changed.
  void watch(const void* data, size_t bytes);
  /// Adds a communication that this one consists of.
  void start(Pending inner) { inner_.push_back(std::move(inner)); }

  void wait() override;
  bool test() override;

 private:
  struct Hidden {
    std::unique_ptr<std::byte[]> arrived;
    void* target;
    size_t bytes;
    uint64_t hash;  ///< while it is hidden
  };
  struct Watched {
    const void* data;
    size_t bytes;
    uint64_t hash;
  };

  bool test_inner();
  void finish();
  void use(const void* data, size_t bytes, bool is_received);

  std::string what_;
  std::shared_ptr<StrictState> state_;
  std::vector<Hidden> hidden_;
  std::vector<Watched> watched_;
  std::vector<std::list<UsedMemory>::iterator> used_;
  std::vector<Pending> inner_;  // destroyed first: they may still write into what is hidden
  bool finished_ = false;
};

}  // namespace zea
