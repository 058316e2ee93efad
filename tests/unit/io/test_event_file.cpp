// SPDX-License-Identifier: Apache-2.0
// The bytes of TensorBoard's own writer for the same events, and files that grow, fail and follow
// each other. tests/run/check_tensorboard.py reads a run's files with TensorBoard.
#include "files/event_file.hpp"

#include <sys/resource.h>

#include <gtest/gtest.h>
#include <algorithm>
#include <csignal>
#include <vector>

#include "support/files.hpp"

namespace zea::test_event_file {
namespace {

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    text += "0123456789abcdef"[static_cast<uint8_t>(byte) >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::vector<std::string> sorted_names(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// Bytes of a file of one start, which begins with step 1 and has events of one scalar.
size_t bytes_with(int64_t events, const EventScalar& scalar) {
  const Event event{.wall_seconds = 1, .step = 1, .scalars = {scalar}};
  return event_file_header(1, 1).size() + static_cast<size_t>(events) * event_record(event).size();
}

TEST(EventFile, WritesTheBytesOfTensorboardsWriter) {
  const Event event{
      .wall_seconds = 1.5, .step = 300, .scalars = {{"train/loss", 2.25}, {"train/lr", 1e-3}}};

  EXPECT_EQ(hex(event_record(event)),
            "3200000000000000241956ec09000000000000f83f10ac022a240a110a0a747261696e2f6c6f7373"
            "15000010400a0f0a08747261696e2f6c72156f12833a41fb0799");
  EXPECT_EQ(hex(event_file_header(1.5, 301)),
            "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c"
            "100000000000000095fbfe1809000000000000f83f10ad023a020801d17949d4");
}

TEST(EventFile, IsMadeByItsFirstEventAndGrowsByEach) {
  const TemporaryDirectory directory;
  EventFile file(directory / "run/tensorboard", 1);
  EXPECT_FALSE(std::filesystem::exists(directory / "run"));

  for (int64_t step = 1; step <= 3; ++step) {
    file.append(step, {{"loss", 1.0}});
    EXPECT_EQ(read_bytes(file.path()).size(), bytes_with(step, {"loss", 1.0}));
  }
}

TEST(EventFile, OfEveryStartIsNewAndSortsBehindEarlierOnes) {
  const TemporaryDirectory directory;
  const std::string of_the_future = "events.out.tfevents.8999999999.host.1";
  write_bytes(directory / of_the_future, "another start's");
  write_bytes(directory / "notes.txt", "somebody's");

  std::vector<std::string> expected = {of_the_future};
  for (int start = 0; start < 3; ++start) {
    EventFile file(directory.path(), 1);
    file.append(1, {{"loss", 1.0}});
    expected.push_back(std::filesystem::path(file.path()).filename().string());
  }
  expected.push_back("notes.txt");

  EXPECT_EQ(sorted_names(directory.path()), expected);
  EXPECT_EQ(read_bytes(directory / of_the_future), "another start's");
}

/// Lets no file of this process grow beyond so many bytes.
class FileLimit {
 public:
  explicit FileLimit(size_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST(EventFile, KeepsNothingOfAWriteThatFailed) {
  const TemporaryDirectory directory;
  EventFile file(directory.path(), 1);
  file.append(1, {{"loss", 1.0}});

  {
    const FileLimit limit(bytes_with(1, {"loss", 1.0}) + 5);
    const std::string error = error_of([&] { file.append(2, {{"loss", 1.0}}); });
    EXPECT_TRUE(contains(error, file.path() + ": write failed: File too large")) << error;
    EXPECT_EQ(read_bytes(file.path()).size(), bytes_with(1, {"loss", 1.0}));
  }
  file.append(3, {{"loss", 1.0}});
  EXPECT_EQ(read_bytes(file.path()).size(), bytes_with(2, {"loss", 1.0}));
}

TEST(EventFile, BeginsAnewWhereItsFirstWriteFailed) {
  const TemporaryDirectory directory;
  EventFile file(directory.path(), 1);
  {
    const FileLimit limit(5);
    EXPECT_THROW(file.append(1, {{"loss", 1.0}}), StorageError);
  }

  file.append(2, {{"loss", 1.0}});

  EXPECT_EQ(read_bytes(file.path()).size(), bytes_with(1, {"loss", 1.0}));
  EXPECT_EQ(sorted_names(directory.path()).size(), 1u);
}

TEST(EventFile, SaysWhereItCannotBe) {
  const TemporaryDirectory directory;
  write_bytes(directory / "file", "");
  EventFile file(directory / "file/tensorboard", 1);

  EXPECT_TRUE(contains(error_of([&] { file.append(1, {}); }),
                       directory / "file/tensorboard: create failed: Not a directory"));
}

}  // namespace
}  // namespace zea::test_event_file
