// SPDX-License-Identifier: Apache-2.0
// Host tensors get memory that was freed before, if it is about as large; idle memory is bounded,
// and a tensor may outlive the allocator.
#include "kernels/launch.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/error.hpp"

namespace zea::detail::test_kept_memory {
namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;

TEST(CachingAllocator, GivesWhatWasFreedLastToAboutTheSameSize) {
  CachingAllocator memory;
  for (const size_t bytes : {20 * kKiB, 1000 * kKiB, 10 * kMiB}) {
    c10::DataPtr first = memory.allocate(bytes), second = memory.allocate(bytes);
    void* const address = first.get();
    EXPECT_NE(address, second.get());
    second.clear();
    first.clear();
    EXPECT_EQ(memory.allocate(bytes + bytes / 100).get(), address) << bytes;
  }
}

TEST(CachingAllocator, IsAlignedAndAsLargeAsAsked) {
  CachingAllocator memory;
  std::vector<c10::DataPtr> blocks;
  for (const size_t bytes : {size_t{1}, 63 * kKiB + 7, kMiB, kMiB + 1, 20 * kMiB}) {
    blocks.push_back(memory.allocate(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back().get()) % 64, 0U);
    std::memset(blocks.back().get(), static_cast<int>(blocks.size()), bytes);
  }
  for (size_t i = 0; i < blocks.size(); ++i)
    EXPECT_EQ(*static_cast<char*>(blocks[i].get()), static_cast<char>(i + 1));
  EXPECT_EQ(memory.allocate(0).get(), nullptr);
}

TEST(CachingAllocator, KeepsOnlySoMuchAndNothingSmallOrHuge) {
  CachingAllocator memory;
  memory.allocate(100).clear();
  memory.allocate(40 * kMiB).clear();
  EXPECT_EQ(memory.idle_bytes(), 0U);
  std::vector<c10::DataPtr> blocks;
  for (int i = 0; i < 9; ++i) blocks.push_back(memory.allocate(10 * kMiB));
  blocks.clear();
  EXPECT_LE(memory.idle_bytes(), CachingAllocator::kMostIdle);
  EXPECT_GE(memory.idle_bytes(), CachingAllocator::kMostIdle - 12 * kMiB);
}

/// Fills the memory with blocks of one size, so that no other fits.
void fill(CachingAllocator& memory, size_t bytes) {
  std::vector<c10::DataPtr> blocks;
  for (size_t all = 0; all <= CachingAllocator::kMostIdle; all += bytes)
    blocks.push_back(memory.allocate(bytes));
}

TEST(CachingAllocator, WhatNobodyAsksForAnyMoreMakesRoom) {
  CachingAllocator memory;
  fill(memory, 50 * kKiB);
  fill(memory, 15 * kMiB);
  for (const size_t bytes : {20 * kKiB, 1000 * kKiB, 10 * kMiB}) {
    c10::DataPtr block = memory.allocate(bytes);
    void* const address = block.get();
    block.clear();
    EXPECT_LE(memory.idle_bytes(), CachingAllocator::kMostIdle);
    EXPECT_EQ(memory.allocate(bytes).get(), address) << bytes;
  }
}

TEST(CachingAllocator, WhatWasAskedForLaterStays) {
  CachingAllocator memory;
  c10::DataPtr early = memory.allocate(9 * kMiB);
  fill(memory, 5 * kMiB);
  const size_t idle = memory.idle_bytes();
  early.clear();
  EXPECT_EQ(memory.idle_bytes(), idle);
}

TEST(CachingAllocator, AtItsEndGivesUpWhatIsIdleAndNamesTheBytes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer ends the program";
#endif
  CachingAllocator memory;
  memory.allocate(kMiB).clear();
  EXPECT_GT(memory.idle_bytes(), kMiB);
  const size_t bytes = size_t{1} << 60;
  try {
    memory.allocate(bytes);
    FAIL() << "so much memory there is not";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(bytes) + " bytes"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(memory.idle_bytes(), 0U);
  EXPECT_NE(memory.allocate(kMiB).get(), nullptr);
}

TEST(CachingAllocator, OfOneThreadMayBeFreedByAnotherAndAfterTheAllocator) {
  std::optional<CachingAllocator> memory(std::in_place);
  c10::DataPtr other = memory->allocate(kMiB), last = memory->allocate(kMiB);
  std::thread([&] { other.clear(); }).join();
  EXPECT_GT(memory->idle_bytes(), kMiB);
  memory.reset();
  std::memset(last.get(), 1, kMiB);
  last.clear();
}

}  // namespace
}  // namespace zea::detail::test_kept_memory
