// SPDX-License-Identifier: Apache-2.0
// The main of tests that need no ranks.
#include "support/chosen_tests.hpp"

int main(int argc, char** argv) {
  zea::testing::choose_tests(argc, argv);
  zea::testing::leave(zea::testing::run_chosen_tests());
}
