// SPDX-License-Identifier: Apache-2.0
// The command line: every option reaches its field, everything else is refused with a hint, and the
// help is complete.
#include "deck/command_line.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "deck/manual.hpp"

namespace zea::test_command_line {
namespace {

CommandLine parsed(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "zea");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

std::string refusal_of(const std::vector<const char*>& arguments) {
  try {
    parsed(arguments);
  } catch (const DeckError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(CommandLine, ReadsEveryOption) {
  const CommandLine line =
      parsed({"optim.lr=1e-3", "-i", "a.toml", "-r", "runs/a", "-d", "runs/b", "-n", "--ranks",
              "512", "--ranks-per-node", "8", "-t", "101:02:03", "data.image_mean=[0.5,0.5, 0.5]",
              "mesh.dp_shard=-1", "-c", "run.directory=a=b"});

  EXPECT_EQ(line.deck, "a.toml");
  EXPECT_EQ(line.restart, "runs/a");
  EXPECT_EQ(line.directory, "runs/b");
  EXPECT_TRUE(line.plan_only);
  EXPECT_EQ(line.ranks, 512);
  EXPECT_EQ(line.ranks_per_node, 8);
  EXPECT_EQ(line.wall_seconds, 101 * 3600 + 2 * 60 + 3);
  EXPECT_TRUE(line.show_build);
  EXPECT_FALSE(line.show_help);
  EXPECT_EQ(line.overrides,
            (std::vector<std::string>{"optim.lr=1e-3", "data.image_mean=[0.5,0.5, 0.5]",
                                      "mesh.dp_shard=-1", "run.directory=a=b"}));
}

TEST(CommandLine, LooksAtNodesWithAndWithoutADeck) {
  EXPECT_TRUE(parsed({"--check-node"}).check_node);
  const CommandLine line = parsed({"--check-node", "-i", "a.toml", "-t", "1:00:00", "a.b=c"});
  EXPECT_TRUE(line.check_node);
  EXPECT_EQ(line.deck, "a.toml");
  EXPECT_FALSE(parsed({"-i", "a.toml"}).check_node);
  EXPECT_EQ(parsed({"--profile-hardware", "h.toml"}).hardware_out, "h.toml");
  const std::string sentence =
      "--check-node looks at the nodes of a job, -n and --profile need none; take one of them";
  EXPECT_TRUE(contains(refusal_of({"--check-node", "-n", "-i", "a.toml"}), sentence));
  EXPECT_TRUE(contains(refusal_of({"--check-node", "--profile", "b", "-i", "a.toml"}), sentence));
}

TEST(CommandLine, GivesNothingThatWasNotAsked) {
  const CommandLine line = parsed({"-i", "a.toml"});

  EXPECT_EQ(line.restart + line.directory, "");
  EXPECT_FALSE(line.plan_only || line.show_build || line.show_help || line.show_version);
  EXPECT_EQ(line.ranks, 0);
  EXPECT_EQ(line.ranks_per_node, 0);
  EXPECT_EQ(line.wall_seconds, 0);
  EXPECT_TRUE(line.overrides.empty());
}

TEST(CommandLine, ProfilesIntoAFile) {
  EXPECT_EQ(parsed({"-i", "a.toml", "--profile", "costs.json"}).profile, "costs.json");
  EXPECT_EQ(parsed({"-i", "a.toml"}).profile, "");
}

TEST(CommandLine, SearchesLayouts) {
  const CommandLine line =
      parsed({"--plan", "--ranks", "64", "--ranks-per-node", "8", "--hardware", "h.toml",
              "--memory", "512MiB", "--out", "decks", "--json", "-i", "a.toml", "mesh.llm.tp=2"});
  EXPECT_TRUE(line.search);
  EXPECT_TRUE(line.plan_only);
  EXPECT_EQ(line.hardware, "h.toml");
  EXPECT_EQ(line.memory_gib, 0.5);
  EXPECT_EQ(line.out_directory, "decks");
  EXPECT_TRUE(line.as_json);
  const CommandLine plan = parsed({"-n", "--hardware", "h.toml", "-i", "a.toml"});
  EXPECT_FALSE(plan.search);
  EXPECT_EQ(plan.hardware, "h.toml");
  const auto memory = [](const char* size) {
    return parsed({"--plan", "--hardware", "h", "-i", "a", "--memory", size}).memory_gib;
  };
  EXPECT_EQ(memory("80GiB"), 80);
  EXPECT_NEAR(memory("80GB"), 74.506, 1e-3);
}

TEST(CommandLine, RefusesSearchesThatCannotBe) {
  const std::pair<std::vector<const char*>, const char*> refused[] = {
      {{"--plan", "-i", "a"}, "--plan compares seconds and needs --hardware FILE"},
      {{"--plan", "--hardware", "h", "-r", "run"}, "give a deck by -i"},
      {{"--plan", "--hardware", "h", "-i", "a", "--compare", "b=1"}, "take one of them"},
      {{"--plan", "--hardware", "h", "-i", "a", "--memory", "80"}, "--memory 80 is no size"},
      {{"--plan", "--hardware", "h", "-i", "a", "--memory", "-1GiB"}, "--memory -1GiB is no size"},
      {{"-n", "-i", "a", "--out", "d"}, "--memory, --out and --mtbf belong to --plan"},
      {{"-n", "-i", "a", "--mtbf", "8"}, "--memory, --out and --mtbf belong to --plan"},
      {{"-n", "-i", "a", "--json"}, "--json needs --plan, --verify-layout"},
      {{"-n", "-i", "a", "--hardware", "h", "--json", "--compare", "b=1"}, "without --compare"},
      {{"-i", "a", "--hardware", "h"}, "--hardware tells the seconds of a plan and needs -n"}};
  for (const auto& [arguments, sentence] : refused)
    EXPECT_TRUE(contains(refusal_of(arguments), sentence)) << refusal_of(arguments);
}

TEST(CommandLine, VerifiesALayout) {
  const CommandLine line = parsed({"--verify-layout", "-i", "a"});
  EXPECT_TRUE(line.verify_layout);
  EXPECT_EQ(line.steps, 0);
  EXPECT_EQ(line.ranks, 0);
  const CommandLine other = parsed({"--verify-layout", "-i", "a", "--steps", "5", "--against",
                                    "b.toml", "--ranks", "3", "--json", "optim.lr=1"});
  EXPECT_EQ(other.steps, 5);
  EXPECT_EQ(other.against, "b.toml");
  EXPECT_EQ(other.ranks, 3);
  EXPECT_TRUE(other.as_json);
  EXPECT_EQ(other.overrides, std::vector<std::string>{"optim.lr=1"});
}

TEST(CommandLine, RefusesVerificationsThatCannotBe) {
  const std::pair<std::vector<const char*>, const char*> refused[] = {
      {{"-i", "a", "--steps", "3"}, "--steps belongs to --verify-layout or --reproduce"},
      {{"-i", "a", "--against", "b"}, "--against belongs to --verify-layout"},
      {{"--verify-layout", "-i", "a", "--steps", "1001"}, "compares at most 1000 steps"},
      {{"-i", "a", "--ranks", "3"}, "of the reference and needs --verify-layout"},
      {{"--verify-layout", "-i", "a", "-n"}, "take one of them"},
      {{"--verify-layout", "-i", "a", "--profile", "b"}, "take one of them"},
      {{"--verify-layout", "--check-node"}, "take one of them"},
      {{"--verify-layout", "-r", "a"}, "does not resume"},
      {{"--verify-layout", "-i", "a", "-d", "b"}, "-d and -t have no effect"},
      {{"--verify-layout", "-i", "a", "-t", "1:00:00"}, "-d and -t have no effect"},
      {{"--verify-layout", "-i", "a", "--steps", "0"}, "--steps"},
      {{"--verify-layout", "-i", "a", "--hardware", "h"}, "--hardware tells the seconds"},
      {{"--verify-layout"}, "nothing to run"}};
  for (const auto& [arguments, sentence] : refused)
    EXPECT_TRUE(contains(refusal_of(arguments), sentence)) << refusal_of(arguments);
}

TEST(CommandLine, ReproducesARun) {
  const CommandLine line =
      parsed({"--reproduce", "runs/a", "-d", "b", "--steps", "2000", "run.threads=2"});
  EXPECT_EQ(line.reproduce, "runs/a");
  EXPECT_EQ(line.directory, "b");
  EXPECT_EQ(line.steps, 2000);
  const std::pair<std::vector<const char*>, const char*> refused[] = {
      {{"--reproduce", "a", "-i", "b"}, "leave out -i and -r"},
      {{"--reproduce", "a", "-r", "b"}, "leave out -i and -r"},
      {{"--reproduce", "a", "-n"}, "take one of them"},
      {{"--reproduce", "a", "--check-node"}, "take one of them"},
      {{"--reproduce", "a", "--profile", "b"}, "take one of them"},
      {{"--reproduce", "a", "run.directory=b"}, "-d names the directory"},
      {{"--reproduce", "a", "--steps", "0"}, "--steps"},
      {{"--reproduce"}, "--reproduce"}};
  for (const auto& [arguments, sentence] : refused)
    EXPECT_TRUE(contains(refusal_of(arguments), sentence)) << refusal_of(arguments);
}

TEST(CommandLine, PrintingNeedsNoDeck) {
  EXPECT_TRUE(parsed({"-h"}).show_help);
  EXPECT_TRUE(parsed({"--help"}).show_help);
  EXPECT_TRUE(parsed({"-c"}).show_build);
  EXPECT_TRUE(parsed({"--version"}).show_version);
}

TEST(CommandLine, ExplainsAKey) {
  EXPECT_EQ(parsed({"-h"}).help_key, "");
  EXPECT_EQ(parsed({"-h", "mesh.llm.tp"}).help_key, "mesh.llm.tp");
  EXPECT_TRUE(parsed({"--help", "mesh"}).show_help);
  EXPECT_TRUE(contains(refusal_of({"-h", "mesh", "data"}), "\"data\" is neither"));
}

TEST(CommandLine, ManualHasEveryOptionAndKey) {
  const nlohmann::json manual = nlohmann::json::parse(manual_text());
  const std::string help = help_text();

  EXPECT_GT(manual["options"].size(), 9);
  for (const nlohmann::json& option : manual["options"])
    EXPECT_TRUE(contains(help, "  " + option["names"].get<std::string>())) << option;
  EXPECT_FALSE(contains(manual["options"].dump(), kManualOption));
  EXPECT_FALSE(contains(help, kManualOption));
  EXPECT_GT(manual["keys"].size(), 100);
  for (const nlohmann::json& key : manual["keys"]) {
    const std::string path = key["path"];
    EXPECT_TRUE(contains(help, "\n  " + path.substr(path.rfind('.') + 1) + " = " +
                                   key["default"].get<std::string>() + "   (" +
                                   key["values"].get<std::string>() + ")\n"))
        << key;
  }
}

TEST(CommandLine, RefusesWithAHint) {
  const struct {
    std::vector<const char*> arguments;
    const char* fault;
  } cases[] = {
      {{}, "nothing to run"},
      {{"-i"}, "-i"},
      {{"-i", "a", "-i", "b"}, "-i"},
      {{"-i", "a", "-q"}, "-q"},
      {{"-i", "a", "b.toml"}, "\"b.toml\" is neither an option nor section.key=value"},
      {{"-i", "a", "--ranks", "4"}, "--ranks says how many ranks to plan for and needs -n"},
      {{"-i", "a", "-n", "--profile", "b"}, "--profile measures and -n plans; measure first"},
      {{"--profile", "b"}, "nothing to run"},
      {{"-i", "a", "-n", "--profile-hardware", "b"},
       "--profile-hardware measures and does nothing"},
      {{"-i", "a", "-n", "--ranks", "0"}, "--ranks"},
      {{"-i", "a", "-n", "--ranks", "4x"}, "--ranks"},
      {{"-i", "a", "-n", "--ranks", "99999999999"}, "--ranks"},
  };

  for (const auto& [arguments, fault] : cases) {
    const std::string refusal = refusal_of(arguments);
    EXPECT_TRUE(contains(refusal, fault)) << refusal;
    EXPECT_TRUE(contains(refusal, "usage: zea -i deck | -r run-or-checkpoint")) << refusal;
  }
}

TEST(CommandLine, RefusesWallLimitsThatAreNone) {
  for (const char* limit :
       {"", "30", "1:30", "1:60:00", "1:00:60", "0:00:00", "-1:00:00", "1:-1:00", "a:00:00",
        "1:00:00:00", "1::0", "1:00:001", "9999999:00:00", " 1:00:00"})
    EXPECT_TRUE(contains(refusal_of({"-i", "a", "-t", limit}), "-t")) << limit;
  EXPECT_EQ(parsed({"-i", "a", "-t", "0:00:01"}).wall_seconds, 1);
  EXPECT_EQ(parsed({"-i", "a", "-t", "1:2:3"}).wall_seconds, 3723);
}

TEST(CommandLine, HelpIsComplete) {
  const std::string help = help_text();

  for (const char* part :
       {"-i DECK", "-r DIRECTORY", "-d DIRECTORY", "-n ", "--ranks N", "--profile FILE",
        "-t HH:MM:SS", "-c ", "-h,--help", "section.key=value", "SIGUSR1", "SIGUSR2", "SIGTERM",
        "STOP", "SAVE", "75   stopped on purpose",
        "7   storage: disk, permissions, lock; or out of memory", "[mesh.llm]",
        "global_batch = 32"})
    EXPECT_TRUE(contains(help, part)) << part;
}

}  // namespace zea::test_command_line
