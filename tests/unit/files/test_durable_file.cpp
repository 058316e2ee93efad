// SPDX-License-Identifier: Apache-2.0
#include "files/durable_file.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <filesystem>

#include "files/direct_write.hpp"
#include "h5/h5.hpp"
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
                       "needed 1000 bytes, and the file system has "));
}

TEST(DurableFile, NamesWhatIsUsedUp) {
  const auto told = [](int error_number) {
    return error_of([&] { throw_storage_error("write", "/tmp/a", error_number, 1 << 20); });
  };
  EXPECT_TRUE(contains(told(EDQUOT), "Disk quota exceeded; your quota there"));
  EXPECT_FALSE(contains(told(EDQUOT), "the disk is full"));
  EXPECT_FALSE(contains(told(EDQUOT), "needed"));
  EXPECT_TRUE(contains(told(EROFS), "Read-only file system; choose another directory"));
  EXPECT_TRUE(contains(told(EMFILE), "ulimit -n"));
  EXPECT_TRUE(contains(told(ENOSPC), "No space left on device; the disk or a project's quota"));
}

/// With SIGXFSZ ignored, as by zea and its tools.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const struct rlimit limit { bytes, before_.rlim_max };
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  struct rlimit before_ {};
};

TEST(DurableFile, NamesTheLimitOnFiles) {
  const TemporaryDirectory directory;
  const std::string text(8192, 'x');
  const FileSizeLimit limit(4096);
  for (const std::string& told :
       {error_of([&] { write_text_durably(directory / "a", text); }),
        error_of([&] { append_text(directory / "b", text); }), error_of([&] {
          H5File file = H5File::create(directory / "c.h5");
          file.write("x", {std::ssize(text)}, DType::UInt8, text.data());
          file.close_and_sync();
        })}) {
    EXPECT_TRUE(contains(told, "File too large; the limit on a file's size is 4096 bytes"));
    EXPECT_FALSE(contains(told, "18446744073709551615"));
  }
}

TEST(AppendText, AndReplaceTextFollowNoLink) {
  const TemporaryDirectory directory;
  append_text(directory / "a", "1\n");
  append_text(directory / "a", "2\n");
  EXPECT_EQ(read_bytes(directory / "a"), "1\n2\n");
  replace_text(directory / "a", "3");
  EXPECT_EQ(read_bytes(directory / "a"), "3");
  std::filesystem::create_symlink("a", directory / "link");
  EXPECT_TRUE(contains(error_of([&] { append_text(directory / "link", "4"); }), "symbolic link"));
  EXPECT_TRUE(contains(error_of([&] { replace_text(directory / "link", "4"); }), "symbolic link"));
  EXPECT_EQ(read_bytes(directory / "a"), "3");
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
