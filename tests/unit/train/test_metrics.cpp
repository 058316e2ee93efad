// SPDX-License-Identifier: Apache-2.0
#include "train/metrics.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "files/durable_file.hpp"
#include "support/files.hpp"

namespace zea::testing::test_metrics {
namespace {

constexpr int64_t kMebibyte = 1 << 20;

StepMetrics on_a_gpu() {
  StepMetrics metrics;
  metrics.step = 2;
  metrics.steps = 10;
  metrics.report.targets = 5;
  metrics.model_tflops = 400;
  metrics.mfu = 0.4;
  metrics.mfu_unmasked = 0.45;
  metrics.memory_bytes = 3 * kMebibyte;
  metrics.tensor_peak_bytes = 7 * kMebibyte;
  metrics.gpu_memory = DeviceMemory{.allocated = 1 * kMebibyte,
                                    .peak_allocated = 5 * kMebibyte,
                                    .reserved = 6 * kMebibyte,
                                    .peak_reserved = 8 * kMebibyte,
                                    .alloc_retries = 3};
  return metrics;
}

nlohmann::json line_of(const StepMetrics& metrics) {
  const TemporaryDirectory folder;
  const std::string path = folder / "metrics.jsonl";
  MetricsFile(path).append(metrics);
  return nlohmann::json::parse(std::ifstream(path));
}

TEST(Metrics, TellSpeedAndMemoryOfGpus) {
  const nlohmann::json line = line_of(on_a_gpu());
  EXPECT_EQ(line.at("model_tflops"), 400);
  EXPECT_EQ(line.at("mfu"), 0.4);
  EXPECT_EQ(line.at("mfu_unmasked"), 0.45);
  EXPECT_EQ(line.at("gpu_memory"), (nlohmann::json{{"allocated_bytes", 1 * kMebibyte},
                                                   {"reserved_bytes", 6 * kMebibyte},
                                                   {"peak_allocated_bytes", 5 * kMebibyte},
                                                   {"peak_reserved_bytes", 8 * kMebibyte},
                                                   {"alloc_retries", 3}}));
  EXPECT_NE(progress_line(on_a_gpu())
                .find("  400 TFLOP/s a rank, MFU 40.0 % (45.0 % unmasked)  3 MiB, GPU 5 of 8 MiB "
                      "reserved  "),
            std::string::npos)
      << progress_line(on_a_gpu());
}

TEST(Metrics, LeaveOutWhatIsNotKnown) {
  StepMetrics metrics = on_a_gpu();
  metrics.mfu = 0;
  metrics.gpu_memory = std::nullopt;
  const nlohmann::json line = line_of(metrics);
  EXPECT_TRUE(line.contains("model_tflops"));
  EXPECT_FALSE(line.contains("mfu"));
  EXPECT_FALSE(line.contains("gpu_memory"));
  EXPECT_NE(progress_line(metrics).find("  400 TFLOP/s a rank  3 MiB (tensors at most 7)  "),
            std::string::npos)
      << progress_line(metrics);
}

TEST(Metrics, TellTheLoadOfExperts) {
  StepMetrics metrics = on_a_gpu();
  EXPECT_FALSE(line_of(metrics).contains("expert_imbalance"));
  EXPECT_EQ(progress_line(metrics).find("expert"), std::string::npos);
  metrics.report.expert_imbalance = {{"llm.layers.1", 1.25}, {"llm.layers.2", 2.5}};
  EXPECT_EQ(line_of(metrics).at("expert_imbalance"),
            (nlohmann::json{{"llm.layers.1", 1.25}, {"llm.layers.2", 2.5}}));
  EXPECT_NE(progress_line(metrics).find(", fullest expert 2.50 times the mean  lr"),
            std::string::npos)
      << progress_line(metrics);
}

/// A run leaves it if it is killed while it writes, or if its disk is full.
TEST(Metrics, HalfALineIsReplaced) {
  const TemporaryDirectory folder;
  const std::string path = folder / "metrics.jsonl";
  const std::string halves[] = {"{\"kind\": \"tr", "", "{\"kind\": \"train\"}\n{\"ki"};
  for (const std::string& half : halves) {
    replace_text(path, half);
    MetricsFile(path).append(on_a_gpu());
    std::ifstream file(path);
    int lines = 0;
    for (std::string line; std::getline(file, line); ++lines)
      EXPECT_EQ(nlohmann::json::parse(line).at("kind"), "train");
    EXPECT_EQ(lines, half.find('\n') == std::string::npos ? 1 : 2);
  }
}

}  // namespace
}  // namespace zea::testing::test_metrics
