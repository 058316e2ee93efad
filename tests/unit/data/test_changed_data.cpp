// SPDX-License-Identifier: Apache-2.0
// A data set is known by its hash wherever it lies, and one that changes under a run is noticed.
#include <algorithm>
#include <chrono>
#include <fstream>

#include "data/dataset.hpp"
#include "support/dataset_file.hpp"
#include "support/files.hpp"

namespace zea::test_changed_data {
namespace {

namespace fs = std::filesystem;
using ChangedData = testing::DatasetFile;
using testing::Arrays;

std::string hash_of(const std::string& path, SharedOpening opening = {}) {
  return open_dataset(path, kHeldBytes, opening)->set_hashes().at(0);
}

TEST_F(ChangedData, TheHashIsThatOfTheContents) {
  const std::string path = write({}), hash = hash_of(path);
  EXPECT_EQ(hash.size(), 32u);
  EXPECT_EQ(hash_of(path, {.kept_from_tokens = 1}), hash);
  EXPECT_EQ(hash_of(path, {.kept_from_tokens = 1}), hash) << "what was kept has it, too";
  const TemporaryDirectory elsewhere;
  fs::copy(path, fs::path(elsewhere / "moved.h5"));
  EXPECT_EQ(hash_of(elsewhere / "moved.h5"), hash);

  const std::vector<std::function<void(Arrays&)>> changes{
      [](Arrays& a) { a.tokens[4] = 2; }, [](Arrays& a) { a.loss_mask[8] = 1; },
      [](Arrays& a) { std::swap(a.tokens[2], a.tokens[3]); },
      [](Arrays& a) { a.token_offsets[1] = 3; }, [](Arrays& a) { a.item_bytes[1] = 21; }};
  for (const auto& change : changes) {
    Arrays other;
    change(other);
    EXPECT_NE(hash_of(write(other)), hash);
  }
}

TEST_F(ChangedData, SetsHaveAHashEachAndAFolderHasOne) {
  const std::string path = write({}), hash = hash_of(path);
  std::vector<std::unique_ptr<Dataset>> sets, parts;
  for (int set = 0; set < 2; ++set) {
    sets.push_back(open_dataset(path));
    parts.push_back(open_dataset(path));
  }
  EXPECT_EQ(join_datasets(std::move(sets))->set_hashes(), (std::vector<std::string>{hash, hash}));
  const auto folder = join_datasets(std::move(parts), "folder")->set_hashes();
  ASSERT_EQ(folder.size(), 1u);
  EXPECT_NE(folder[0], hash);
}

/// Writes zeros over all of a file, in place, after its time was seen.
void zero(const std::string& path) {
  const auto bytes = fs::file_size(path);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file << std::string(bytes, '\0');
  file.close();
  fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(5));
}

std::string refusal(const std::function<void()>& part) {
  try {
    part();
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST_F(ChangedData, ZerosInPlaceEndARunThatReadsTheFile) {
  const std::string path = write({});
  const auto data = open_dataset(path, 0);
  data->read(1);
  EXPECT_EQ(data->check_files(), "");
  zero(path);
  EXPECT_NE(refusal([&] { data->read(1); }).find("sample 1 is no longer what it was"),
            std::string::npos);
  EXPECT_NE(refusal([&] { data->check_files(); }).find(path + " was changed since the run opened"),
            std::string::npos);
}

TEST_F(ChangedData, WhatIsHeldInMemoryIsToldOnce) {
  const std::string path = write({});
  const auto data = open_dataset(path);
  zero(path);
  EXPECT_NE(data->check_files().find("changed since the run opened it; the run goes on with what "
                                     "it holds in memory"),
            std::string::npos);
  EXPECT_EQ(data->check_files(), "");
  EXPECT_EQ(data->read(1).tokens, (std::vector<int32_t>{3, 4}));
}

TEST_F(ChangedData, AnotherTimeOrAnotherFileOfThatNameIsToldAndTheRunGoesOn) {
  const std::string path = write({});
  const auto data = open_dataset(path, 0);
  fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(5));
  EXPECT_NE(data->check_files().find("its size and its hash are the same"), std::string::npos);
  EXPECT_EQ(data->check_files(), "");
  const TemporaryDirectory elsewhere;
  fs::copy(path, fs::path(elsewhere / "other.h5"));
  fs::rename(elsewhere / "other.h5", path);
  EXPECT_NE(data->check_files().find("replaced"), std::string::npos);
  EXPECT_EQ(data->read(1).tokens, (std::vector<int32_t>{3, 4}));
  fs::remove(path);
  EXPECT_NE(data->check_files().find("removed"), std::string::npos);
}

TEST_F(ChangedData, MasksOnPlaceholdersAreTold) {
  Arrays arrays;
  EXPECT_EQ(open_dataset(write(arrays))->note(), "");
  arrays.loss_mask[0] = 1;
  EXPECT_EQ(open_dataset(write(arrays))->note(), "") << "the first token is no target";
  arrays.loss_mask[7] = 1;
  for (const int64_t kept_from : {int64_t{1}, int64_t{1}, int64_t{1} << 20})
    EXPECT_NE(open_dataset(write(arrays), kHeldBytes, {.kept_from_tokens = kept_from})
                  ->note()
                  .find("the loss mask covers placeholders of items, first in sample 2 at token 1"),
              std::string::npos);
}

}  // namespace
}  // namespace zea::test_changed_data
