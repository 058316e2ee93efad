// SPDX-License-Identifier: Apache-2.0
// One node writes the report, and the others learn whether it is whole.
#include "watch/hang_report.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <iterator>

#include "core/error.hpp"
#include "support/files.hpp"

namespace zea::test_hang_report {
namespace {

class HangReportTest : public ::testing::Test {
 protected:
  std::string report() const {
    std::ifstream file(hang_report_path(directory_));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TemporaryDirectory folder_;
  const std::string directory_ = folder_ / "watchdog";
};

TEST_F(HangReportTest, TheFirstOneWritesIt) {
  EXPECT_EQ(write_hang_report(directory_, "of one", 5), HangReport::Written);
  EXPECT_EQ(write_hang_report(directory_, "of another", 5), HangReport::ByAnother);
  EXPECT_EQ(report(), "of one");
}

TEST_F(HangReportTest, OneThatIsBegunIsWaitedFor) {
  std::filesystem::create_directories(directory_);
  std::ofstream(directory_ + "/told");
  EXPECT_EQ(write_hang_report(directory_, "x", 0.02), HangReport::HalfWritten);

  auto waiting =
      std::async(std::launch::async, [&] { return write_hang_report(directory_, "x", 30); });
  std::ofstream(directory_ + "/told") << "written\n";
  EXPECT_EQ(waiting.get(), HangReport::ByAnother);
}

TEST_F(HangReportTest, SaysWhatCannotBeWritten) {
  std::filesystem::create_directories(hang_report_path(directory_));  // a folder in its place

  EXPECT_THROW(write_hang_report(directory_, "x", 5), StorageError);
}

}  // namespace
}  // namespace zea::test_hang_report
