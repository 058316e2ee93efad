// SPDX-License-Identifier: Apache-2.0
#include "support/chosen_tests.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

namespace zea::testing {
namespace {

/// Tests of the suite in other files, as a filter names them: "Suite.*" if all are.
std::string others_of(const ::testing::TestSuite& suite, const std::string& file) {
  std::string others;
  bool is_all = true;
  for (int t = 0; t < suite.total_test_count(); ++t) {
    const ::testing::TestInfo& test = *suite.GetTestInfo(t);
    if (std::filesystem::path(test.file()).stem() == file)
      is_all = false;
    else
      others += std::string(suite.name()) + "." + test.name() + ":";
  }
  return is_all ? std::string(suite.name()) + ".*:" : others;
}

/// The filter, less all tests of other files.
std::string filter_of(const std::string& file, std::string filter) {
  filter += filter.find('-') == std::string::npos ? "-" : ":";
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s)
    filter += others_of(*all.GetTestSuite(s), file);
  return filter;
}

}  // namespace

void choose_tests(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view kOption = "--file=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with(kOption)) continue;
    const std::string file(argument.substr(kOption.size()));
    GTEST_FLAG_SET(filter, filter_of(file, GTEST_FLAG_GET(filter)));
  }
}

int run_chosen_tests() {
  const ::testing::UnitTest& tests = *::testing::UnitTest::GetInstance();
  if (RUN_ALL_TESTS() != 0 || tests.test_to_run_count() == 0) return kFailed;
  return tests.skipped_test_count() == tests.test_to_run_count() ? kSkipped : 0;
}

void leave(int code) {
  if (ZEA_IS_SANITIZED) std::exit(code);
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace zea::testing
