// SPDX-License-Identifier: Apache-2.0
#include "io/open_source.hpp"

#include <gtest/gtest.h>

#include "io/checkpoint.hpp"
#include "io/weights_file.hpp"
#include "support/files.hpp"
#include "zea/copy.hpp"

namespace zea::test_open_source {
namespace {

class OpenSource : public ::testing::Test {
 protected:
  void make_checkpoint(const std::string& name, bool complete) {
    std::filesystem::create_directories(directory_ / name);
    if (complete) write_bytes(directory_ / (name + "/manifest.json"), "{}");
  }
  TemporaryDirectory directory_;
};

TEST_F(OpenSource, FindsTheNewestCompleteCheckpoint) {
  make_checkpoint("checkpoints/step-00000200", true);
  make_checkpoint("checkpoints/step-00000300.tmp", true);
  make_checkpoint("checkpoints/step-00000400", false);
  make_checkpoint("checkpoints/step-00000090", true);
  make_checkpoint("checkpoints/step-5", true);
  make_checkpoint("checkpoints/other", true);

  EXPECT_EQ(list_checkpoints(directory_ / "checkpoints").size(), 2u);
  EXPECT_EQ(find_checkpoint(directory_.path()), directory_ / "checkpoints/step-00000200");
  EXPECT_EQ(find_checkpoint(directory_ / "checkpoints"), directory_ / "checkpoints/step-00000200");
  EXPECT_EQ(find_checkpoint(directory_ / "checkpoints/step-00000090"),
            directory_ / "checkpoints/step-00000090");

  make_checkpoint("checkpoints/step-100000000", true);
  EXPECT_EQ(find_checkpoint(directory_.path()), directory_ / "checkpoints/step-100000000");
}

TEST_F(OpenSource, SaysWhatWouldDo) {
  EXPECT_EQ(find_checkpoint(directory_.path()), "");
  EXPECT_TRUE(
      contains(error_of([&] { open_weights(directory_.path()); }), "holds no complete checkpoint"));
  EXPECT_TRUE(contains(error_of([&] { open_weights(directory_ / "none"); }), "does not exist"));
}

TEST_F(OpenSource, StreamsThroughASmallBuffer) {
  std::vector<float> values(35);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  WeightsWriter writer(directory_ / "w.h5", "{}");
  writer.add({"x", {5, 7}, DType::Float32});
  writer.write("x", 0, 35, values.data());
  writer.finish();
  const auto source = open_weights(directory_ / "w.h5");

  for (const size_t bytes : {0, 8, 24, 1000}) {
    std::vector<char> buffer(bytes);
    std::vector<double> streamed;
    stream_tensor(*source, source->tensors()[0], DType::Float64, buffer,
                  [&](int64_t first, int64_t count, const void* data) {
                    ASSERT_EQ(first, static_cast<int64_t>(streamed.size()));
                    const auto* part = static_cast<const double*>(data);
                    streamed.insert(streamed.end(), part, part + count);
                  });
    EXPECT_TRUE(std::equal(streamed.begin(), streamed.end(), values.begin(), values.end()))
        << bytes;
    EXPECT_LE(buffer.size(), std::max<size_t>(bytes, 8));
  }
  EXPECT_EQ(total_bytes(source->tensors()), 140);
}

}  // namespace
}  // namespace zea::test_open_source
