// SPDX-License-Identifier: Apache-2.0
#include "zea/io/durable_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "io/direct_write.hpp"
#include "support/files.hpp"

namespace zea::test_durable_file {
namespace {

TEST(DurableFile, AppearsOnlyWhenFinished) {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.txt";
  {
    DurableFile file(path);
    file.write(3, "def", 3);
    file.write(0, "abc", 3);
    EXPECT_FALSE(std::filesystem::exists(path));
    file.finish();
  }
  EXPECT_EQ(read_bytes(path), "abcdef");
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST(DurableFile, WritesLargePartsAtAnyPlaceFromAnyMemory) {
  const TemporaryDirectory directory;
  const std::string path = directory / "a";
  std::string bytes(12 << 20, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>((i * 2654435761u) >> 24);
  std::vector<int64_t> ends = {0, 5, 4096, (3 << 20) + 77, (8 << 20) + 4095};
  ends.push_back(static_cast<int64_t>(bytes.size()));

  DurableFile file(path);
  for (size_t part = ends.size(); --part > 0;)
    file.write(ends[part - 1], bytes.data() + ends[part - 1], ends[part] - ends[part - 1]);
  file.finish();

  EXPECT_TRUE(read_bytes(path) == bytes);
}

TEST(DurableFile, KeepsTheOldFileWhenDropped) {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.txt";
  write_text_durably(path, "old");
  { DurableFile(path).write(0, "new", 3); }

  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

/// /dev/null takes everything, and says so when it is asked to sync it.
TEST(UnsyncedBytes, AreSyncedBeforeTheyAreTooMany) {
  const int file = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  const std::string part(2 << 20, 'x');
  UnsyncedBytes unsynced(5 << 20);
  const auto write = [&] {
    unsynced.add(file, "null", write_past_buffers(-1, file, "null", 0, part.data(), 2 << 20));
  };
  write();
  write();
  EXPECT_EQ(unsynced.bytes(), 4 << 20);
  EXPECT_TRUE(contains(error_of(write), "null: fdatasync failed"));
  EXPECT_EQ(unsynced.bytes(), 0);
  ::close(file);
}

TEST(DurableFile, SaysWhatFailed) {
  EXPECT_TRUE(contains(error_of([] { write_text_durably("/nowhere/a", "x"); }),
                       "/nowhere/a.tmp: create failed"));
  EXPECT_TRUE(contains(error_of([] { rename_durably("/nowhere/a", "/nowhere/b"); }),
                       "rename to /nowhere/b"));
  EXPECT_TRUE(contains(error_of([] { throw_storage_error("write", "/", 28, 1000); }),
                       "needed 1000 bytes, free "));
}

TEST(DurableFile, KnowsTheFreeSpace) {
  const TemporaryDirectory directory;
  EXPECT_GT(free_bytes(directory.path()), 0);
  EXPECT_GT(free_bytes(directory / "not-yet-there"), 0);
  EXPECT_EQ(free_bytes("/nowhere/at/all"), -1);
  EXPECT_EQ(error_of([&] { check_free_bytes(directory.path(), 1); }), "");
  EXPECT_TRUE(
      contains(error_of([&] { check_free_bytes(directory.path(), INT64_MAX); }), "make room"));
}

TEST(ReadText, RefusesLinksDirectoriesAndLargeFiles) {
  const TemporaryDirectory directory;
  write_bytes(directory / "a", "12345");
  ASSERT_EQ(::symlink("a", (directory / "link").c_str()), 0);

  EXPECT_EQ(read_text(directory / "a", 5), "12345");
  EXPECT_TRUE(contains(error_of([&] { read_text(directory / "a", 4); }), "at most 4"));
  EXPECT_TRUE(contains(error_of([&] { read_text(directory / "link", 5); }), "symbolic link"));
  EXPECT_TRUE(contains(error_of([&] { read_text(directory.path(), 5); }), "not a regular file"));
  EXPECT_TRUE(contains(error_of([&] { read_text(directory / "none", 5); }), "No such file"));
}

TEST(ParentDirectory, IsThatOfThePath) {
  EXPECT_EQ(parent_directory("a/b/c"), "a/b");
  EXPECT_EQ(parent_directory("a/b/"), "a");
  EXPECT_EQ(parent_directory("a"), ".");
  EXPECT_EQ(parent_directory("/a"), "/");
  EXPECT_EQ(parent_directory("/"), "/");
}

}  // namespace
}  // namespace zea::test_durable_file
