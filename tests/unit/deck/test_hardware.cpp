// SPDX-License-Identifier: Apache-2.0
// Hardware files: every key reaches its member, every fault is named with its place, and the files
// in inputs/hardware are read.
#include "deck/hardware.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/error.hpp"
#include "deck/deck.hpp"

namespace zea::test_hardware {
namespace {

constexpr const char* kFile = R"([hardware]
name = "two ranks"
source = "measured"
[node]
ranks = 2
memory_gib = 8
[device]
fp32_tflops = 2.0
gemm_dims = [16, 256]
gemm_efficiency = [0.1, 0.9]
attention_efficiency = 0.5
memory_gb_per_s = 10
launch_us = 3.0
[inside]
latency_us = 5.0
gb_per_s = 4.0
all_reduce_gb_per_s = 8.0
[between]
gb_per_s = 1.0
)";

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = kFile;
  return text.replace(text.find(from), from.size(), to);
}

std::string refusal_of(const std::string& text) {
  try {
    parse_hardware(text, "file.toml");
  } catch (const DeckError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(Hardware, ReadsItsKeys) {
  const Hardware hardware = parse_hardware(kFile, "file.toml");
  EXPECT_EQ(hardware.identity.name, "two ranks");
  EXPECT_EQ(hardware.identity.source, FigureSource::Measured);
  EXPECT_EQ(hardware.node.ranks, 2);
  EXPECT_EQ(hardware.node.memory_gib, 8);
  EXPECT_EQ(hardware.device.peak(DType::Float32), 2e12);
  EXPECT_EQ(hardware.device.peak(DType::BFloat16), 0);
  EXPECT_EQ(hardware.device.optimizer_rate(), 1e10);
  EXPECT_TRUE(hardware.device.overlaps);
  EXPECT_EQ(hardware.inside.rate(CollectiveKind::AllReduce), 8e9);
  EXPECT_EQ(hardware.inside.rate(CollectiveKind::AllGather), 4e9);
  EXPECT_EQ(hardware.between.rate(CollectiveKind::Send), 1e9);
}

TEST(Hardware, InterpolatesBetweenSizesOfGemms) {
  const DeviceRates device = parse_hardware(kFile, "file.toml").device;
  EXPECT_DOUBLE_EQ(device.gemm_share(1), 0.1);
  EXPECT_DOUBLE_EQ(device.gemm_share(16), 0.1);
  EXPECT_DOUBLE_EQ(device.gemm_share(64), 0.5);  // half of the way from 2^4 to 2^8
  EXPECT_DOUBLE_EQ(device.gemm_share(256), 0.9);
  EXPECT_DOUBLE_EQ(device.gemm_share(1e6), 0.9);
}

TEST(Hardware, RefusesWhatIsNoHardwareFile) {
  const std::pair<std::string, const char*> refused[] = {
      {replaced("latency_us", "latency"), "inside.latency is not a key; did you mean"},
      {replaced("latency_us", "latency"), "file.toml:15:1"},
      {replaced("ranks = 2", "ranks = 0"), "node.ranks = 0 is out of range; allowed: 1 to 1000000"},
      {replaced("ranks = 2", ""), "node.ranks is missing: ranks of a full node (file.toml)"},
      {replaced("gb_per_s = 1.0", "gb_per_s = \"fast\""),
       "between.gb_per_s = \"fast\" is a string"},
      {replaced("[between]\ngb_per_s = 1.0", ""), "between.gb_per_s is missing"},
      {replaced("0.1, 0.9", "0.1"), "device.gemm_dims has 2 entries and device.gemm_efficiency 1"},
      {replaced("16, 256", "256, 16"), "device.gemm_dims must be ascending"},
      {replaced("0.1, 0.9", "0.1, 1.9"), "out of range"},
      {replaced("0.1, 0.9", "0.9, 0.1"), "it must not fall, nor grow faster than gemm_dims"},
      {replaced("0.1, 0.9", "0.01, 0.9"), "goes from 0.01 to 0.9; it must not fall, nor grow"},
      {replaced("fp32_tflops = 2.0", ""), "[device] has no peak"},
      {replaced("\"measured\"", "\"guessed\""), "\"published\" or \"measured\""},
      {replaced("[between]", "[network]"),
       "network is no section; the sections of a hardware file"},
      {"inside = 3\n" + std::string(kFile), "inside"},
      {"name: two ranks", "not TOML"}};
  for (const auto& [text, sentence] : refused)
    EXPECT_NE(refusal_of(text).find(sentence), std::string::npos) << sentence << "\n"
                                                                  << refusal_of(text);
  EXPECT_THROW(read_hardware("/no/such/file.toml"), DeckError);
}

TEST(Hardware, TextIsReadBack) {
  const Hardware hardware = parse_hardware(kFile, "file.toml");
  const std::string text = hardware_text(hardware);
  const Hardware again = parse_hardware(text, "text");
  EXPECT_EQ(hardware_text(again), text);
  EXPECT_EQ(again.device.gemm_efficiency, hardware.device.gemm_efficiency);
  EXPECT_EQ(again.between.rate(CollectiveKind::Send), hardware.between.rate(CollectiveKind::Send));
  EXPECT_EQ(again.identity.reference, hardware.identity.reference);
}

TEST(Hardware, TellsAllFaultsAtOnce) {
  const std::string refusal = refusal_of(replaced("ranks = 2\nmemory_gib = 8", "memory = 8"));
  EXPECT_NE(refusal.find("node.memory is not a key"), std::string::npos);
  EXPECT_NE(refusal.find("node.ranks is missing"), std::string::npos);
  EXPECT_NE(refusal.find("node.memory_gib is missing"), std::string::npos);
}

TEST(Hardware, FilesOfTheProjectAreRead) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ZEA_INPUTS "/hardware")) {
    const Hardware hardware = read_hardware(entry.path());
    EXPECT_FALSE(hardware.identity.reference.empty()) << entry.path();
    EXPECT_LE(hardware.between.gb_per_s, hardware.inside.gb_per_s) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 5);
}

TEST(Hardware, HasAReferenceOfItsKeys) {
  const std::string reference = key_help("hardware");
  for (const char* line : {"[hardware]\n", "\n[between]\n", "  memory_gib: memory of a rank in GiB",
                           "  source: where the figures come from"})
    EXPECT_NE(reference.find(line), std::string::npos) << line;
}

}  // namespace zea::test_hardware
