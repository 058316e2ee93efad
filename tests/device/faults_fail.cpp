// SPDX-License-Identifier: Apache-2.0
// A test that leaves faults of the stand-in device has failed, whatever it checked.
#include <gtest/gtest.h>

#include "device/device.hpp"

namespace zea::testing {
namespace {

class FaultsFail : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo&) override {
    const std::vector<std::string> faults = device().take_faults();
    if (!faults.empty()) ADD_FAILURE() << faults.size() << " faults, the first: " << faults[0];
  }
};

const bool is_listening = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new FaultsFail);
  return true;
}();

}  // namespace
}  // namespace zea::testing
