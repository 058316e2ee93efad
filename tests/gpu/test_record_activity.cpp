// SPDX-License-Identifier: Apache-2.0
// The output of record_activity.cpp for CUPTI's records. This program has a made-up CUPTI, which
// needs no GPU: it delivers its records of the enabled kinds in one buffer at the end.
#include <cupti.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "support/files.hpp"

extern "C" int InitializeInjection();

namespace zea::test_record_activity {
namespace {

CUpti_BuffersCallbackRequestFunc request = nullptr;
CUpti_BuffersCallbackCompleteFunc complete = nullptr;
std::set<CUpti_ActivityKind> enabled;
CUptiResult of_enabling = CUPTI_SUCCESS;
std::vector<std::shared_ptr<CUpti_Activity>> there;
size_t given = 0;

template <class Record>
void give(CUpti_ActivityKind kind, uint64_t begin, const char* name = nullptr, int copy_kind = 0) {
  const auto record = std::make_shared<Record>();
  record->kind = kind;
  record->start = begin;
  record->end = begin + 5;
  record->streamId = 7;
  if constexpr (requires { record->name; }) record->name = name;
  if constexpr (requires { record->copyKind; }) record->copyKind = static_cast<uint8_t>(copy_kind);
  there.emplace_back(record, reinterpret_cast<CUpti_Activity*>(record.get()));
}

void give_all() {
  give<CUpti_ActivityKernel9>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, 10, "_ZN3zea4sumsIfEEvT_");
  give<CUpti_ActivityKernel9>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, 20, "f");
  give<CUpti_ActivityMemcpy5>(CUPTI_ACTIVITY_KIND_MEMCPY, 30, nullptr,
                              CUPTI_ACTIVITY_MEMCPY_KIND_HTOD);
  give<CUpti_ActivityMemcpy5>(CUPTI_ACTIVITY_KIND_MEMCPY, 40, nullptr,
                              CUPTI_ACTIVITY_MEMCPY_KIND_PTOP);
  give<CUpti_ActivityMemset4>(CUPTI_ACTIVITY_KIND_MEMSET, 50);
}

[[noreturn]] void end_after_recording(const std::string& file) {
  ::setenv("ZEA_ACTIVITY_FILE", file.c_str(), 1);
  std::exit(InitializeInjection() == 1 ? 0 : 1);
}

std::string recorded_in(const std::string& folder) {
  std::string found;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    found += read_bytes(entry.path().string());
  return found;
}

TEST(RecordActivity, WritesALineOfEachWhenTheProgramEnds) {
  const TemporaryDirectory folder;
  give_all();

  EXPECT_EXIT(end_after_recording(folder / "activity"), ::testing::ExitedWithCode(0), "^$");

  EXPECT_EQ(recorded_in(folder.path()),
            "10\t15\t7\tvoid zea::sums<float>(float)\n"
            "20\t25\t7\tf\n"
            "30\t35\t7\tcopy from host to device\n"
            "40\t45\t7\tcopy of another kind\n"
            "50\t55\t7\tfill\n");
}

TEST(RecordActivity, TellsWhatItCannotDoAndLetsTheProgramRun) {
  const TemporaryDirectory folder;
  EXPECT_EXIT(end_after_recording(folder / "none/activity"), ::testing::ExitedWithCode(0),
              "^record_activity: .*/none/activity.[0-9]+: No such file or directory\n$");
  of_enabling = CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
  EXPECT_EXIT(end_after_recording(folder / "activity"), ::testing::ExitedWithCode(0),
              "record_activity: cuptiActivityEnable of kernels: made up");
}

}  // namespace
}  // namespace zea::test_record_activity

namespace made_up = zea::test_record_activity;

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete) {
  made_up::request = request;
  made_up::complete = complete;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  made_up::enabled.insert(kind);
  return made_up::of_enabling;
}

CUptiResult cuptiActivityFlushAll(uint32_t) {
  uint8_t* buffer = nullptr;
  size_t bytes = 0, most = 0;
  made_up::request(&buffer, &bytes, &most);
  made_up::complete(nullptr, 0, buffer, bytes, made_up::there.size());
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t*, size_t, CUpti_Activity** record) {
  while (made_up::given < made_up::there.size()) {
    *record = made_up::there[made_up::given++].get();
    if (made_up::enabled.contains((*record)->kind)) return CUPTI_SUCCESS;
  }
  return CUPTI_ERROR_MAX_LIMIT_REACHED;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  *dropped = 0;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult, const char** text) {
  *text = "made up";
  return CUPTI_SUCCESS;
}
