// SPDX-License-Identifier: Apache-2.0
// Words of other programs and of former versions: options are answered with zea's key, element
// types may have PyTorch's names, and former keys are read or refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

#include "core/error.hpp"
#include "deck/deck.hpp"
#include "deck/key_table.hpp"

namespace zea::test_other_programs {
namespace {

const std::string kMinimal = "[model]\nweights = \"w.h5\"\n[data]\ntrain = \"t.h5\"\n";

std::string faults_beside_minimal(const std::string& lines,
                                  const std::vector<std::string>& overrides = {}) {
  try {
    parse_deck(kMinimal + lines, "x.toml", overrides);
  } catch (const DeckError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(OtherPrograms, AnswersOptionsOfOtherProgramsWithItsOwn) {
  for (const auto& [name, advice] : other_program_options()) {
    const std::string key = "log." + std::string(name);
    EXPECT_TRUE(contains(faults_beside_minimal("[log]\n" + std::string(name) + " = 1\n"),
                         key + " is not a key; " + advice + " (x.toml:6:"))
        << key;
    EXPECT_TRUE(contains(faults_beside_minimal("", {key + "=true"}), advice)) << key;
  }
  const struct {
    const char* lines;
    const char* fault;
  } cases[] = {
      {"[mesh.llm]\nstatic_graph = true",
       "mesh.llm.static_graph is not a key; zea always plans its buckets; leave it out"},
      {"[mesh.llm]\nfind_unused_parameters = false", "zea always allows unused parameters"},
      {"[mesh.vision]\ntp_size = 2", "mesh.vision.tp_size is not a key; here it is mesh.llm.tp"},
      {"[run]\nfp16 = true", "fp16 is not built"},
      {"[run]\nbfloat16 = true", "here it is precision.preset = \"bf16\""},
      {"[optim]\nlearning_rate = 1", "optim.learning_rate is not a key; here it is optim.lr"},
      {"[optim]\nmax-grad-norm = 1", "here it is optim.clip_norm"},
      {"[fsdp]\nsize = 2", "[fsdp] is not a section; here it is mesh.llm.strategy"},
      {"[dist.fsdp]\nsize = 2", "[dist] is not a section; "},
      {"[precision]\npreset = \"fp16\"",
       "use \"fp32\", \"bf16\" or \"fp64\"; fp16 is not built, since it needs loss scaling"},
      {"[precision.llm]\nparam_dtype = \"torch.float16\"", "; fp16 is not built"},
      {"[mesh.llm]\nstrategy = \"ddp\"", "\"no_shard\" (DDP)"},
  };
  for (const auto& [lines, fault] : cases)
    EXPECT_TRUE(contains(faults_beside_minimal(lines), fault))
        << lines << "\ngives " << faults_beside_minimal(lines);
}

/// Every key that an answer names is one.
TEST(OtherPrograms, AnswersWithKeysThatThereAre) {
  Options options;
  const std::vector<Key> keys = list_keys(options);
  size_t named = 0;
  for (const auto& [name, advice] : other_program_options()) {
    std::string word;
    for (const char c : std::string(advice) + " ") {
      if (std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.') {
        word += c;
        continue;
      }
      const size_t dot = word.rfind('.');
      const std::string root = word.substr(0, word.find('.'));
      const bool is_section =
          std::ranges::any_of(keys, [&](const Key& key) { return key.section.starts_with(root); });
      if (dot != std::string::npos && is_section) {
        EXPECT_EQ(std::ranges::count(keys, word, &Key::path), 1) << name << ": " << word;
        ++named;
      }
      word.clear();
    }
  }
  EXPECT_GT(named, 80u);
}

TEST(OtherPrograms, TakesEverySpellingOfAnElementType) {
  for (const char* spelling : {"bf16", "bfloat16", "torch.bfloat16"}) {
    const std::string value = " = \"" + std::string(spelling) + "\"\n";
    const Options options = parse_deck(kMinimal + "[precision]\npreset" + value, "x.toml",
                                       {"precision.llm.param_dtype=" + std::string(spelling)});
    EXPECT_EQ(options.precision.preset, PrecisionPreset::Bf16) << spelling;
    EXPECT_EQ(options.precisions["llm"].param_dtype, DTypeOption::Bf16) << spelling;
    EXPECT_TRUE(contains(echo_deck(options), "preset = \"bf16\"")) << spelling;
  }
  EXPECT_EQ(parse_deck(kMinimal, "x.toml", {"precision.preset=float64"}).precision.preset,
            PrecisionPreset::Fp64);
}

TEST(OtherPrograms, ARenamedKeyIsReadWithANote) {
  const Options options = parse_deck(
      "[mesh]\norder = [\"tp\", \"cp\", \"dp_module\", \"pp\", "
      "\"module\", \"dp\"]\n[mesh.eyes]\ndp_module = 2\n",
      "deck.toml", {"model.weights=w.h5", "data.train=t.h5", "mesh.vision.dp_module=4"});
  EXPECT_EQ(options.meshes["eyes"].encoder_dp, 2);
  EXPECT_EQ(options.meshes["vision"].encoder_dp, 4);
  EXPECT_EQ(options.mesh.order[2], "encoder_dp");
  EXPECT_EQ(options.notes,
            (std::vector<std::string>{
                "mesh.eyes.dp_module is now called mesh.eyes.encoder_dp (deck.toml:4:1)",
                "mesh.vision.dp_module is now called mesh.vision.encoder_dp (override "
                "mesh.vision.dp_module=4)"}));
  EXPECT_TRUE(contains(key_help("mesh.llm.dp_module"), "mesh.llm.encoder_dp\n"));
}

TEST(OtherPrograms, ARemovedKeyIsRefusedUnlessItHasItsFormerDefault) {
  const std::vector<std::string> files{"model.weights=w.h5", "data.train=t.h5"};
  EXPECT_EQ(parse_deck("[data]\nprefetch = 2\n", "deck.toml", files).notes.size(), 0u);
  EXPECT_TRUE(
      contains(faults_beside_minimal("prefetch = 3\n"), "data.prefetch = 3 is no longer a key; "));
}

}  // namespace
}  // namespace zea::test_other_programs
