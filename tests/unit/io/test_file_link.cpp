// SPDX-License-Identifier: Apache-2.0
// A second name for a file, and nothing where that cannot be or the file is not the one meant.
#include "files/durable_file.hpp"

#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support/files.hpp"

namespace zea::test_file_link {
namespace {

namespace fs = std::filesystem;

/// Restores a file's time of modification.
void set_time(const std::string& path, const struct stat& before) {
  const struct timespec times[] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

struct FileLink : ::testing::Test {
  FileLink() {
    write_bytes(from, "values");
    wanted = identity_of(from).value();
  }

  TemporaryDirectory directory;
  const std::string from = directory / "from", to = directory / "to";
  FileIdentity wanted;
};

TEST_F(FileLink, IsTheSameFileUnderBothNames) {
  ASSERT_EQ(link_file(from, to, wanted), 0);

  EXPECT_EQ(identity_of(to), wanted);
  EXPECT_EQ(fs::hard_link_count(from), 2u);
  fs::remove(from);
  EXPECT_EQ(read_bytes(to), "values");
  EXPECT_EQ(identity_of(to), wanted) << "names come and go";
}

TEST_F(FileLink, SaysWhyThereIsNone) {
  EXPECT_EQ(link_file(directory / "nowhere", to, wanted), ENOENT);
  EXPECT_NE(link_file(from, "/proc/to", wanted), 0);
  write_bytes(to, "other");
  EXPECT_EQ(link_file(from, to, wanted), EEXIST);
  EXPECT_EQ(read_bytes(to), "other");
}

TEST_F(FileLink, RefusesWhatWasWrittenToOrReplaced) {
  struct stat before {};
  ASSERT_EQ(::stat(from.c_str(), &before), 0);
  ::usleep(20000);  // files' times move in ticks
  write_bytes(from, "VALUES");
  EXPECT_EQ(link_file(from, to, wanted), ESTALE);
  write_bytes(from, "longer values");
  set_time(from, before);
  EXPECT_EQ(link_file(from, to, wanted), ESTALE);

  fs::copy_file(from, directory / "copy");
  write_bytes(directory / "copy", "values");
  set_time(directory / "copy", before);
  fs::rename(directory / "copy", from);
  EXPECT_EQ(link_file(from, to, wanted), ESTALE);

  EXPECT_FALSE(fs::exists(to));
}

TEST_F(FileLink, FollowsNoSymbolicLink) {
  const std::string symbolic = directory / "symbolic";
  fs::create_symlink(from, symbolic);

  EXPECT_FALSE(identity_of(symbolic).has_value());
  EXPECT_FALSE(identity_of(directory.path()).has_value());
  EXPECT_EQ(link_file(symbolic, to, wanted), ESTALE);
  EXPECT_FALSE(fs::exists(fs::symlink_status(to)));
}

}  // namespace
}  // namespace zea::test_file_link
