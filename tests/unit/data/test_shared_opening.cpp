// SPDX-License-Identifier: Apache-2.0
// A data set is looked through once, and by ranks together as by one.
#include "data/dataset.hpp"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "support/dataset_file.hpp"

namespace zea::test_shared_opening {
namespace {

using testing::Arrays;
using SharedOpeningFile = testing::DatasetFile;

/// Opens a data set of which something is kept however small it is; tells whether its contents had
/// to be looked at, which is a part of opening that may fail.
struct Opened {
  std::unique_ptr<Dataset> data;
  bool looked = false;
};

Opened open_kept(const std::string& path) {
  int parts = 0;
  SharedOpening opening{.kept_from_tokens = 1};
  opening.agree = [&parts](const auto& part) {
    part();
    ++parts;
  };
  Opened opened{.data = open_dataset(path, kHeldBytes, opening)};
  opened.looked = parts == 3;
  return opened;
}

std::vector<int64_t> targets_of(const Dataset& data) {
  std::vector<int64_t> targets;
  for (const SampleIndex& sample : data.index()) targets.push_back(sample.targets);
  return targets;
}

TEST_F(SharedOpeningFile, IsLookedThroughOnce) {
  const std::string path = write({});
  EXPECT_TRUE(open_kept(path).looked);
  const Opened again = open_kept(path);
  EXPECT_FALSE(again.looked);
  EXPECT_EQ(targets_of(*again.data), targets_of(*open_dataset(path)));
  EXPECT_EQ(again.data->max_token(), 7);
}

TEST_F(SharedOpeningFile, RanksExchangeNothingOfEachSampleWhereAScanIsKept) {
  const std::string path = write({});
  for (const size_t most : {3 + 4, 1}) {  // with and without the targets of three samples
    SharedOpening opening{.kept_from_tokens = 1};
    size_t values_at_once = 0;
    opening.max = [&](const std::vector<int64_t>& values) {
      values_at_once = std::max(values_at_once, values.size());
    };
    open_dataset(path, kHeldBytes, opening);
    EXPECT_EQ(values_at_once, most);
  }
}

TEST_F(SharedOpeningFile, SaysThatItMovesWhileItIsLookedThrough) {
  int moves = 0;
  SharedOpening opening;
  opening.moved = [&moves] { ++moves; };
  open_dataset(write({}), kHeldBytes, opening);
  EXPECT_EQ(moves, 2) << "for its samples, and for masks with tokens";
}

TEST_F(SharedOpeningFile, NothingIsKeptOfASmallOneOrOfOneWithFaults) {
  open_dataset(write({}));
  EXPECT_FALSE(std::filesystem::exists(kept_path()));
  Arrays damaged;
  damaged.tokens[3] = -5;
  EXPECT_THROW(open_kept(write(damaged)), DataError);
  EXPECT_FALSE(std::filesystem::exists(kept_path()));
}

TEST_F(SharedOpeningFile, IsLookedThroughAgainWhenItIsAnother) {
  const std::string path = write({});
  open_kept(path);
  const auto written = std::filesystem::last_write_time(path);
  Arrays other;
  other.loss_mask[8] = 1;
  const auto bytes = std::filesystem::file_size(path);
  write(other);
  std::filesystem::last_write_time(path, written);
  ASSERT_EQ(std::filesystem::file_size(path), bytes) << "only what is in it differs";

  const Opened changed = open_kept(path);
  EXPECT_TRUE(changed.looked);
  EXPECT_EQ(targets_of(*changed.data), (std::vector<int64_t>{2, 1, 1}));
  EXPECT_FALSE(open_kept(path).looked) << "what was kept is of the new one";
  std::filesystem::last_write_time(path, written + std::chrono::seconds(1));
  EXPECT_TRUE(open_kept(path).looked);
}

TEST_F(SharedOpeningFile, WhatIsKeptIsNotTrustedWhenItIsDamaged) {
  const std::string path = write({});
  open_kept(path);
  std::stringstream text;
  text << std::ifstream(kept_path(), std::ios::binary).rdbuf();
  const std::string kept = text.str();
  std::vector<std::string> damages{"", kept + "x", kept.substr(0, kept.size() - 8)};
  for (size_t at = 0; at < kept.size(); at += 7) {
    damages.push_back(kept);
    damages.back()[at] ^= 1;
  }
  for (const std::string& damaged : damages) {
    std::ofstream(kept_path(), std::ios::binary) << damaged;
    const Opened opened = open_kept(path);
    EXPECT_TRUE(opened.looked);
    EXPECT_EQ(targets_of(*opened.data), (std::vector<int64_t>{2, 1, 0}));
    EXPECT_FALSE(open_kept(path).looked) << "it is written anew";
  }
}

TEST_F(SharedOpeningFile, APlaceWhereNothingCanBeWrittenIsNoFault) {
  const std::string path = write({});
  std::filesystem::create_directories(kept_path() + ".tmp/full");
  for (int time = 0; time < 2; ++time) EXPECT_TRUE(open_kept(path).looked);
  EXPECT_FALSE(std::filesystem::exists(kept_path()));
}

/// Opens a data set together with `ranks` threads as ranks. Returns the answer of each: its counts,
/// or its error.
std::vector<std::string> open_together(const std::string& path, int ranks) {
  std::barrier<> meeting(ranks);
  std::vector<std::vector<int64_t>> told(ranks);
  std::vector<int> failed(ranks, 0);
  std::vector<std::string> said(ranks);
  const auto open = [&](int rank) {
    SharedOpening opening{.rank = rank, .ranks = ranks};
    opening.agree = [&, rank](const auto& part) {
      std::exception_ptr fault;
      try {
        part();
      } catch (...) {
        fault = std::current_exception();
      }
      failed[rank] = fault != nullptr;
      meeting.arrive_and_wait();
      const bool any = std::ranges::count(failed, 1) > 0;
      meeting.arrive_and_wait();
      if (fault) std::rethrow_exception(fault);
      if (any) throw DataError("another rank failed");
    };
    opening.max = [&, rank](std::vector<int64_t>& values) {
      told[rank] = values;
      meeting.arrive_and_wait();
      for (const std::vector<int64_t>& other : told)
        for (size_t i = 0; i < values.size(); ++i) values[i] = std::max(values[i], other.at(i));
      meeting.arrive_and_wait();
    };
    try {
      const auto data = open_dataset(path, 0, opening);
      said[rank] = std::to_string(data->max_token());
      for (const int64_t targets : targets_of(*data)) said[rank] += ' ' + std::to_string(targets);
    } catch (const DataError& error) {
      said[rank] = error.what();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(open, rank);
  }
  return said;
}

TEST_F(SharedOpeningFile, RanksTogetherFindWhatOneFinds) {
  const std::vector<std::function<void(Arrays&)>> cases{
      [](Arrays&) {},
      [](Arrays& a) { a.loss_mask[5] = 2; },
      [](Arrays& a) { a.loss_mask[8] = a.loss_mask[4] = a.loss_mask[1] = 3; },
      [](Arrays& a) { a.tokens[8] = -1; },
      [](Arrays& a) { a.tokens[2] = a.tokens[7] = 8; },
      [](Arrays& a) {
        a.tokens[0] = -4;
        a.loss_mask[8] = 9;
      },
      [](Arrays& a) { a.image_token = "8"; },
      [](Arrays& a) { a.token_offsets[1] = 0; },
      [](Arrays& a) { a.labels[2] = 5; }};
  for (const auto& change : cases) {
    Arrays arrays;
    change(arrays);
    const std::string path = write(arrays);
    const std::string alone = open_together(path, 1)[0];
    for (int ranks : {2, 3, 5})
      for (const std::string& said : open_together(path, ranks)) EXPECT_EQ(said, alone) << ranks;
  }
}

}  // namespace
}  // namespace zea::test_shared_opening
