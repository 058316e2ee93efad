// SPDX-License-Identifier: Apache-2.0
// A test program holds the tests of many files. CTest runs those of one file in a process of their
// own: program --file=test_plan.
#pragma once

namespace zea::testing {

constexpr int kFailed = 1;
constexpr int kSkipped = 77;  ///< CTest's SKIP_RETURN_CODE

/// Takes GoogleTest's arguments, and keeps of the tests that its filter names those of the file
/// that --file names by its name without folder and suffix; all without --file.
void choose_tests(int argc, char** argv);

/// Runs them: 0, kFailed where one failed or none was left, kSkipped where all were skipped.
int run_chosen_tests();

/// Ends the program without destructors of static objects: libtorch's take a quarter of a short
/// test's time. It runs them where a sanitizer checks at exit, and in programs that are tested.
[[noreturn]] void leave(int code);

}  // namespace zea::testing
