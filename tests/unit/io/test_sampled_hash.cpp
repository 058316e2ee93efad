// SPDX-License-Identifier: Apache-2.0
// The hash of weights in job_info.json: which bytes it covers of files, directories, checkpoints.
#include "io/sampled_hash.hpp"

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "support/files.hpp"

namespace zea::test_sampled_hash {
namespace {

namespace fs = std::filesystem;

/// Returns whether the hash notices another byte at `offset` of a file of so many bytes.
bool notices(const TemporaryDirectory& directory, int64_t bytes, int64_t offset) {
  const std::string path = directory / "file";
  std::string text(static_cast<size_t>(bytes), 'a');
  write_bytes(path, text);
  const std::string before = sampled_hash(path);
  text[static_cast<size_t>(offset)] = 'b';
  write_bytes(path, text);
  return sampled_hash(path) != before;
}

TEST(SampledHash, ReadsAllOfASmallFile) {
  const TemporaryDirectory directory;
  for (const int64_t offset : {int64_t{0}, kHeadBytes + 7, kWholeBytes - 1})
    EXPECT_TRUE(notices(directory, kWholeBytes, offset)) << offset;
}

TEST(SampledHash, ReadsSamplesOfALargeFile) {
  const TemporaryDirectory directory;
  constexpr int64_t kBytes = 3 * kWholeBytes + 5;
  for (const int64_t offset : {int64_t{0}, kHeadBytes - 1, kBytes - kSampleBytes, kBytes - 1})
    EXPECT_TRUE(notices(directory, kBytes, offset)) << offset;
  EXPECT_FALSE(notices(directory, kBytes, kHeadBytes));
  EXPECT_FALSE(notices(directory, kBytes, kBytes - kSampleBytes - 1));
  // Samples are at even distances.
  const int64_t distance = (kBytes - kHeadBytes) / kSamples + 1;
  int seen = 0;
  const int64_t first = kHeadBytes + distance / 2;
  for (int64_t offset = first; offset < first + distance; offset += kSampleBytes / 2)
    seen += notices(directory, kBytes, offset);
  EXPECT_GE(seen, 2);
}

TEST(SampledHash, KnowsTheSizeOfALargeFile) {
  const TemporaryDirectory directory;
  write_bytes(directory / "a", std::string(2 * kWholeBytes, 'a'));
  write_bytes(directory / "b", std::string(2 * kWholeBytes + 1, 'a'));
  EXPECT_NE(sampled_hash(directory / "a"), sampled_hash(directory / "b"));
}

TEST(SampledHash, CoversNamesAndFilesOfADirectory) {
  const TemporaryDirectory directory;
  write_bytes(directory / "a", "1");
  write_bytes(directory / "b", "2");
  const std::string& path = directory.path();
  const std::string before = sampled_hash(path);
  EXPECT_EQ(before.size(), 32);
  fs::create_directory(directory / "folder");
  fs::create_symlink(directory / "nothing", directory / "link");
  EXPECT_EQ(sampled_hash(path), before);
  fs::rename(directory / "b", directory / "c");
  const std::string renamed = sampled_hash(path);
  EXPECT_NE(renamed, before);
  write_bytes(directory / "c", "3");
  EXPECT_NE(sampled_hash(path), renamed);
}

TEST(SampledHash, OfACheckpointIsThatOfItsManifest) {
  const TemporaryDirectory directory;
  write_bytes(directory / "manifest.json", "{}");
  write_bytes(directory / "rank-00000.h5", "values");
  EXPECT_EQ(sampled_hash(directory.path()), sampled_hash(directory / "manifest.json"));
}

TEST(SampledHash, NamesWhatCannotBeRead) {
  const TemporaryDirectory directory;
  EXPECT_EQ(error_of([&] { sampled_hash(directory / "none"); }),
            "cannot hash " + (directory / "none") + ": No such file or directory");
}

}  // namespace
}  // namespace zea::test_sampled_hash
