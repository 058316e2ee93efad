// SPDX-License-Identifier: Apache-2.0
// Decks: reading, the echo, and faults, each of which is named with its place, all of them at once.
#include "deck/deck.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "core/error.hpp"

namespace zea::test_deck {
namespace {

const std::string kMinimal = "[model]\nweights = \"w.h5\"\n[data]\ntrain = \"t.h5\"\n";

std::string faults_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse_deck(text, "x.toml", overrides);
  } catch (const DeckError& error) {
    return error.what();
  }
  return "";
}

/// The faults of a deck that is right but for `lines`.
std::string faults_beside_minimal(const std::string& lines,
                                  const std::vector<std::string>& overrides = {}) {
  return faults_of(kMinimal + lines, overrides);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

size_t count_lines(const std::string& text) {
  return text.empty() ? 0 : 1 + static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

struct KeyName {
  std::string section;
  std::string name;
};

std::vector<KeyName> all_keys() {
  std::vector<KeyName> keys;
  Options options;
  options.visit_sections([&](const char* section, auto& members) {
    members.visit([&](auto&, const KeyInfo& info) { keys.push_back({section, info.name}); });
  });
  return keys;
}

bool is_known(const std::vector<KeyName>& keys, const std::string& section,
              const std::string& name) {
  for (const KeyName& key : keys)
    if (key.section == section && key.name == name) return true;
  return false;
}

/// `name` with one letter changed, left out, doubled, or swapped with the next.
std::vector<std::string> typos_of(const std::string& name) {
  std::vector<std::string> typos;
  for (size_t i = 0; i < name.size(); ++i) {
    std::string changed = name, dropped = name, doubled = name, swapped = name;
    changed[i] = name[i] == 'x' ? 'q' : 'x';
    dropped.erase(i, 1);
    doubled.insert(i, 1, name[i]);
    if (i + 1 < name.size()) std::swap(swapped[i], swapped[i + 1]);
    for (const std::string& typo : {changed, dropped, doubled, swapped})
      if (typo != name && !typo.empty()) typos.push_back(typo);
  }
  return typos;
}

}  // namespace

TEST(Deck, ReadsEveryTypeAndKeepsDefaults) {
  const Options options = parse_deck(kMinimal +
                                         "packing = false\nrow_tokens = 64\n"
                                         "image_mean = [0, 0.5, 1]\n[optim]\nlr = 1\n"
                                         "[mesh.llm]\ntp = 2\n[run]\ndirectory = 'a b'\n",
                                     "x.toml", {});

  EXPECT_EQ(options.model.weights, "w.h5");
  EXPECT_FALSE(options.data.packing);
  EXPECT_EQ(options.data.row_tokens, 64);
  EXPECT_EQ(options.data.image_mean, (std::vector<double>{0, 0.5, 1}));
  EXPECT_EQ(options.optim.lr, 1.0);
  EXPECT_EQ(options.meshes["llm"].tp, 2);
  EXPECT_EQ(options.meshes["vision"].tp, 1);
  EXPECT_EQ(options.run.directory, "a b");
  EXPECT_EQ(options.schedule.steps, 100);
}

TEST(Deck, EchoReadsBackExactly) {
  Options options = parse_deck(kMinimal, "x.toml", {});
  options.optim.lr = 0.1 + 0.2;
  options.optim.eps = 1.401298464324817e-45;  // the least of fp32
  options.optim.clip_norm = 1e12;
  options.data.image_std = {1.0 / 3, 1e-6, 3};
  options.run.directory = "a \"b\" \\ \t \n \x7f \xc3\xa9 # c";
  options.run.seed = 8999999999999999;
  options.data.packing = false;

  const std::string text = echo_deck(options);
  const Options again = parse_deck(text, "echo", {});

  EXPECT_EQ(again.optim.lr, options.optim.lr);
  EXPECT_EQ(again.optim.eps, options.optim.eps);
  EXPECT_EQ(again.optim.clip_norm, options.optim.clip_norm);
  EXPECT_EQ(again.data.image_std, options.data.image_std);
  EXPECT_EQ(again.run.directory, options.run.directory);
  EXPECT_EQ(again.run.seed, options.run.seed);
  EXPECT_EQ(again.data.packing, options.data.packing);
  EXPECT_EQ(echo_deck(again), text);
}

TEST(Deck, EchoAndReferenceNameEveryKey) {
  const std::string echo = echo_deck(Options{}), reference = deck_reference();

  for (const KeyName& key : all_keys()) {
    EXPECT_TRUE(contains(echo, "[" + key.section + "]\n")) << key.section;
    EXPECT_TRUE(contains(echo, "\n" + key.name + " = ")) << key.name;
    EXPECT_TRUE(contains(reference, "\n  " + key.name + " = ")) << key.name;
  }
  EXPECT_TRUE(contains(reference, "(integer: -1 to 1000000)"));
  EXPECT_TRUE(contains(reference,
                       "\"cosine\", \"linear\", \"constant\", \"wsd\" or "
                       "\"inverse_sqrt\""));
}

/// The line of an explanation's end, "tp = 2".
std::string example_of(const KeyName& key) {
  const std::string text = key_help(key.section + "." + key.name);
  const std::string head = "\nIn a deck:\n\n  [" + key.section + "]\n  ";
  const size_t at = text.find(head);
  EXPECT_NE(at, std::string::npos) << text;
  return text.substr(at + head.size());
}

TEST(Deck, EveryKeyIsExplainedWithAnExample) {
  for (const KeyName& key : all_keys()) {
    const std::string example = example_of(key);
    EXPECT_TRUE(example.starts_with(key.name + " = ")) << example;
    // Another value than the default, but of moments.
    EXPECT_EQ(contains(key_help(key.section + "." + key.name),
                       "  default: " + example.substr(key.name.size() + 3)),
              key.name == "betas")
        << example;
    // Rules between keys may refuse it, the key itself does not.
    const std::string faults = faults_of("[" + key.section + "]\n" + example);
    for (const char* fault : {"must be", "out of range", "not allowed", "not a key", "not TOML"})
      EXPECT_FALSE(contains(faults, fault)) << faults;
  }
}

TEST(Deck, AKeyIsExplainedAndASectionListed) {
  EXPECT_EQ(key_help("mesh.llm.tp"),
            "mesh.llm.tp\n  tensor-parallel ranks of the module\n\n  integer: 1 to 4096\n"
            "  default: 1\n\nIn a deck:\n\n  [mesh.llm]\n  tp = 2\n");
  const std::string section = key_help("mesh");
  EXPECT_TRUE(section.starts_with("[mesh]\n  layout = \"deck\"   (string: \"deck\" or \"auto\")"))
      << section;
  EXPECT_TRUE(section.ends_with("\nSections below it: mesh.vision, mesh.audio, mesh.llm\n"))
      << section;
  EXPECT_FALSE(contains(section, "cp_mode"));
  EXPECT_FALSE(contains(key_help("schedule"), "Sections below"));
}

TEST(Deck, AnUnknownKeyIsRefusedWithTheNearest) {
  for (const auto& [path, advice] : std::initializer_list<std::pair<const char*, const char*>>{
           {"mesh.llm.tpp", "did you mean mesh.llm.pp or mesh.llm.tp?"},
           {"global_batch", "did you mean schedule.global_batch?"},
           {"mesh.lm", "did you mean the section mesh.llm?"},
           {"optim.thing", "[optim] has kind, lr, "},
           {"", "zea -h lists the keys"}}) {
    std::string refusal;
    try {
      key_help(path);
    } catch (const DeckError& error) {
      refusal = error.what();
    }
    const std::string wanted = std::string(path) + " is neither a key nor a section; " + advice;
    EXPECT_TRUE(refusal.starts_with(wanted)) << refusal;
  }
}

TEST(Deck, OneLetterTyposNameLineAndNearestKey) {
  const std::vector<KeyName> keys = all_keys();
  size_t tried = 0, named = 0;

  for (const KeyName& key : keys)
    for (const std::string& typo : typos_of(key.name)) {
      if (is_known(keys, key.section, typo)) continue;
      const std::string faults = faults_of("\n[" + key.section + "]\n\n  " + typo + " = 1\n");
      const std::string wanted = key.section + "." + typo + " is not a key; did you mean ";
      const size_t at = faults.find(wanted);
      const std::string line =
          at == std::string::npos ? "" : faults.substr(at, faults.find('\n', at) - at);
      const std::string nearest = line.substr(std::min(wanted.size(), line.size()));
      const bool is_named = contains(nearest, key.section + "." + key.name);
      EXPECT_TRUE(contains(line, "(x.toml:4:3)")) << faults;
      ++tried;
      named += is_named ? 1 : 0;
      if (!is_named) std::printf("%s.%s: %s\n", key.section.c_str(), typo.c_str(), line.c_str());
    }

  EXPECT_GT(tried, 1000u);
  EXPECT_GE(static_cast<double>(named), 0.99 * static_cast<double>(tried))
      << named << " of " << tried;
}

TEST(Deck, EveryNameOfAChoiceReadsBackAndNoOther) {
  Options options;
  int choices = 0;
  options.visit_sections([&](const std::string& section, auto& members) {
    members.visit([&](auto& member, const KeyInfo& info) {
      if constexpr (requires { member.names(); })
        for (const std::string name : member.names()) {
          const std::string key = section + "." + info.name;
          std::vector<std::string> overrides = {key + "=" + name, "eval.generate_tokens=4"};
          if (name == "wsd") overrides.push_back("optim.decay_steps=2");
          const Options read = parse_deck(kMinimal + "eval = \"e.h5\"", "x", overrides);
          EXPECT_TRUE(contains(echo_deck(read), std::string(info.name) + " = \"" + name + "\""));
          member = name;
          EXPECT_EQ(member.name(), name);
          EXPECT_THROW(member = name + "s", InternalError);
          ++choices;
        }
    });
  });
  EXPECT_GT(choices, 20);
}

TEST(Deck, EveryValueOfTheWrongTypeIsRefused) {
  for (const KeyName& key : all_keys()) {
    const std::string faults = faults_of("[" + key.section + "]\n" + key.name + " = 1979-05-27\n");

    EXPECT_TRUE(contains(faults, key.section + "." + key.name + " is a date or time; it must be "))
        << faults;
    EXPECT_TRUE(contains(faults, "(x.toml:2:")) << faults;
  }
}

TEST(Deck, RefusesValuesWithWhatIsAllowedAndWhere) {
  const struct {
    const char* lines;
    const char* fault;
  } cases[] = {
      {"[schedule]\nsteps = 1.5",
       "schedule.steps = 1.5 is a float; it must be an integer (x.toml:6:9)"},
      {"[optim]\nlr = \"1\"", "optim.lr = \"1\" is a string; it must be a number (x.toml:6:6)"},
      {"packing = 1", "data.packing = 1 is an integer; it must be true or false (x.toml:5:11)"},
      {"[mesh.llm]\ntp = 0", "mesh.llm.tp = 0 is out of range; allowed: 1 to 4096 (x.toml:6:6)"},
      {"[mesh.llm]\ntp = 4097", "mesh.llm.tp = 4097 is out of range; allowed: 1 to 4096"},
      {"[optim]\nbetas = [0.9, 1.5]",
       "optim.betas = 1.5 is out of range; allowed: 0 to 1 (x.toml:6:15)"},
      {"[optim]\nlr = nan", "optim.lr = nan is not a finite number; allowed: 0 to 1000"},
      {"[optim]\nlr = -inf", "optim.lr = -inf is not a finite number"},
      {"image_mean = [0.1, inf, 0]", "data.image_mean = inf is not a finite number"},
      {"image_mean = [0.1, [1], 0]", "data.image_mean is a list; it must be a list of numbers"},
      {"[run]\ndevice = \"gpu\"",
       "run.device = \"gpu\" is not allowed; use \"cpu\" or \"cuda\" (x.toml:6:10)"},
      {"[run]\ndirectory = \"a\\u0000b\"", "holds a NUL character"},
      {"[[log]]\nevery = 1", "log is a section, not a list"},
      {"[log]\nevery = {a = 1}", "log.every is a section; it must be an integer"},
      {"[\"mesh.llm\"]\ntp = 1", "\"mesh.llm\" is one quoted name"},
      {"[model.smell]\nx = 1", "[model.smell] is not a section; the sections are [run], "},
      {"[llm]\nx = 1",
       "[llm] is not a section; did you mean [model.llm], [mesh.llm] or [precision.llm]? "
       "(x.toml:5:2)"},
      {"[mesh]\ntp = 2",
       "mesh.tp is not a key; did you mean mesh.vision.tp, mesh.audio.tp or mesh.llm.tp?"},
      {"[optim]\nlearnt_rate = 2",
       "optim.learnt_rate is not a key; [optim] has kind, lr, min_lr, "},
  };

  for (const auto& [lines, fault] : cases) {
    const std::string faults = faults_beside_minimal(lines);
    EXPECT_TRUE(contains(faults, fault)) << lines << "\ngives " << faults;
    EXPECT_EQ(count_lines(faults), 1u) << faults;
  }
}

TEST(Deck, BoundsAreInclusive) {
  EXPECT_EQ(faults_beside_minimal("[mesh.llm]\ntp = 4096\npp = 1\n[optim]\nlr = 1000\n"), "");
}

TEST(Deck, ShowsAllFaultsInTheirOrder) {
  const std::string faults = faults_of(
      "steps = 3\n[modle]\nweights = 4\n[run]\nmode = \"trian\"\nthreads = 0\n[optim]\nbetas = "
      "[0.9]\n",
      {"log.every=0", "nowhere"});

  EXPECT_EQ(
      faults,
      "steps is not a key; did you mean schedule.steps? (x.toml:1:1)\n"
      "[modle] is not a section; did you mean [model]? (x.toml:2:2)\n"
      "model.weights = 4 is an integer; it must be a string (x.toml:3:11)\n"
      "run.mode = \"trian\" is not allowed; use \"train\", \"evaluate\" or \"generate\" "
      "(x.toml:5:8)\n"
      "run.threads = 0 is out of range; allowed: 1 to 1024 (x.toml:6:11)\n"
      "log.every = 0 is out of range; allowed: 1 to 1000000000 (override log.every=0)\n"
      "an override is section.key=value; there is no = here (override nowhere)\n"
      "optim.betas has 1 entries; 2 are needed, for the first and second moment (x.toml:8:9)");
}

TEST(Deck, ChecksWhatMustHoldBetweenKeys) {
  const struct {
    const char* override_text;
    const char* fault;
  } cases[] = {
      {"model.weights=", "model.weights is not set"},
      {"model.load_modules=[\"llm\", \"smell\"]",
       "model.load_modules holds \"smell\"; allowed: \"vision\", \"audio\", \"projector\", "
       "\"llm\""},
      {"data.train=", "data.train is not set"},
      {"run.mode=evaluate", "run.mode = \"evaluate\" needs a data set in data.eval"},
      {"eval.every=1", "eval.every = 1 needs a data set in data.eval"},
      {"eval.samples=1", "eval.samples = 1 needs a data set in data.eval"},
      {"eval.generate_tokens=1", "eval.generate_tokens = 1 needs a data set in data.eval"},
      {"mesh.dp_shard=0", "mesh.dp_shard = 0; use 1 or more"},
      {"mesh.dp_replicate=0", "mesh.dp_replicate = 0; use 1 or more"},
      {"mesh.dp_replicate=-1", "only one of them can be the rest"},
      {"data.image_mean=[1]", "data.image_mean has 1 entries"},
      {"data.image_std=[1,1,1,1]", "data.image_std has 4 entries"},
      {"data.train=caf\xe9.h5", "is not UTF-8"},
      {"optim.min_lr=0.5", "optim.min_lr = 0.5 is above optim.lr = 0.001"},
      {"optim.warmup_steps=101", "optim.warmup_steps = 101 is above schedule.steps = 100"},
      {"optim.betas=[0.9,1.0]", "each must be below 1"},
      {"optim.eps=0", "optim.eps = 0.0; it must be above 0"},
      {"optim.eps=1e-50", "optim.eps = 1e-50; it must be above 0 in fp32"},
      {"mesh.order=[\"tp\",\"dp\"]", "mesh.order = [\"tp\", \"dp\"]; it must name each of"},
      {"mesh.order=[\"tp\",\"cp\",\"encoder_dp\",\"pp\",\"module\",\"ep\"]", "it must name"},
  };

  for (const auto& [override_text, fault] : cases) {
    const std::string faults = faults_beside_minimal("", {override_text});
    EXPECT_TRUE(contains(faults, fault)) << override_text << "\ngives " << faults;
    EXPECT_EQ(count_lines(faults), 1u) << faults;
  }
  EXPECT_TRUE(contains(faults_beside_minimal("", {"optim.kind=muon", "optim.momentum=1"}),
                       "it must be below 1, or no matrix ever moves"));
  EXPECT_EQ(faults_beside_minimal("", {"optim.eps=1e-50", "precision.preset=fp64"}), "");
  EXPECT_EQ(faults_beside_minimal("", {"model.weights=", "model.config=c.json"}), "");
  EXPECT_EQ(faults_beside_minimal("", {"model.config=c.json"}), "");
  EXPECT_TRUE(contains(faults_beside_minimal("[optim]\ndecay = \"constant\"\nmin_lr = 1e-4\n"),
                       "is never reached"));
}

TEST(Deck, OneMistakeIsOneFault) {
  EXPECT_EQ(count_lines(faults_of("[model]\nweigths = \"w\"\n[data]\ntrain = \"t\"\n")), 1u);
  EXPECT_EQ(count_lines(faults_of("[modle]\nweights = \"w\"\n[data]\ntrain = \"t\"\n")), 1u);
  EXPECT_EQ(count_lines(faults_of("[model\n")), 1u);
}

TEST(Deck, SettingsMayBeLeftOpen) {
  const Options options = parse_deck(
      kMinimal + "[mesh.llm]\nreshard_after_forward = 2\nsync_grad_accum = false\n", "x.toml",
      {"mesh.vision.reshard_after_forward=true", "mesh.vision.sync_grad_accum=auto"});

  EXPECT_EQ(options.meshes["llm"].reshard_after_forward, AutoOption::of_count(2));
  EXPECT_EQ(options.meshes["llm"].sync_grad_accum, AutoOption::of(false));
  EXPECT_EQ(options.meshes["vision"].reshard_after_forward, AutoOption::of(true));
  EXPECT_TRUE(options.meshes["vision"].sync_grad_accum.is_auto());
  EXPECT_EQ(parse_deck(echo_deck(options), "echo", {}).meshes["llm"], options.meshes["llm"]);
  EXPECT_EQ(parse_deck(echo_deck(options), "echo", {}).meshes["vision"], options.meshes["vision"]);

  const struct {
    const char* line;
    const char* fault;
  } cases[] = {
      {"reshard_after_forward = 1",
       "mesh.llm.reshard_after_forward = 1 is out of range; allowed: true, false, \"auto\" or 2 "
       "to"},
      {"reshard_after_forward = 'yes'", "it must be true, false, \"auto\" or an integer"},
      {"sync_grad_accum = 2", "it must be true, false or \"auto\""},
  };
  for (const auto& [line, fault] : cases)
    EXPECT_TRUE(contains(faults_beside_minimal(std::string("[mesh.llm]\n") + line), fault))
        << faults_beside_minimal(std::string("[mesh.llm]\n") + line);
}

TEST(Deck, OverridesReplaceAndAreNamedInFaults) {
  const Options options =
      parse_deck(kMinimal, "x.toml",
                 {"schedule.steps=7", "schedule.steps=8", "run.directory=2026-11-21",
                  "model.weights=/a/b=c.h5", "optim.betas=[0.5, 0.25]", "data.train=\"q\\\"\"",
                  "optim.lr=1e-2", "data.packing=false"});

  EXPECT_EQ(options.schedule.steps, 8);
  EXPECT_EQ(options.run.directory, "2026-11-21");
  EXPECT_EQ(options.model.weights, "/a/b=c.h5");
  EXPECT_EQ(options.optim.betas, (std::vector<double>{0.5, 0.25}));
  EXPECT_EQ(options.data.train, "q\"");
  EXPECT_EQ(options.optim.lr, 1e-2);
  EXPECT_FALSE(options.data.packing);
  const Options tables = parse_deck(
      kMinimal, "x.toml",
      {"model.llm.lora={targets = [\"q_proj\", \"v_proj\"], rank = 4}",
       "model.left.lora={targets = [\"fc1\"], rank = 2}", "mesh={dp_shard = 2, llm = {tp = 2}}"});
  EXPECT_EQ(tables.llm.lora.targets, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(tables.llm.lora.rank, 4);
  EXPECT_EQ(tables.encoders["left"].lora.rank, 2);
  EXPECT_EQ(tables.mesh.dp_shard, 2);
  EXPECT_EQ(tables.meshes["llm"].tp, 2);

  const struct {
    const char* override_text;
    const char* fault;
  } cases[] = {
      {"schedule.step=7",
       "schedule.step is not a key; did you mean schedule.steps? (override schedule.step=7)"},
      {"optim.lr=fast",
       "optim.lr = \"fast\" is a string; it must be a number (override optim.lr=fast)"},
      {"optim.lr=", "optim.lr = \"\" is a string; it must be a number"},
      {"optim.betas=[1,", "optim.betas: [1, is not a TOML value"},
      {"schedule.steps=99999999999999999999",
       "schedule.steps: 99999999999999999999 is not a number that TOML takes"},
      {"run.directory=\"a", "run.directory: \"a is not a TOML value"},
      {"log.every=1\nx=2", "log.every: 1?x=2 is not a TOML value"},
      {"=3", "is not a key"},
      {"mesh=3", "mesh is a section, not an integer; write [mesh] and its keys below"},
      {"model.llm.lora={targets = [",
       "model.llm.lora: {targets = [ is not a TOML value; a "
       "section's keys are a table, {key = value}"},
      {"model.llm.lora={rnk = 4}",
       "model.llm.lora.rnk is not a key; did you mean "
       "model.llm.lora.rank? (override model.llm.lora={rnk = 4})"},
      {"model.llm.lra={rank = 4}",
       "[model.llm.lra] is not a section; did you mean "
       "[model.llm.lora]?"},
  };
  for (const auto& [override_text, fault] : cases)
    EXPECT_TRUE(contains(faults_beside_minimal("", {override_text}), fault))
        << faults_beside_minimal("", {override_text});
}

TEST(Deck, RefusesWhatIsNotADeck) {
  EXPECT_TRUE(contains(faults_of("[run]\nmode = \n"), "not TOML: "));
  EXPECT_TRUE(contains(faults_of("[run]\nmode = \n"), "(x.toml:2:"));
  EXPECT_TRUE(contains(faults_of("[log]\nevery = 1\nevery = 1\n"), "(x.toml:3:"));
  EXPECT_TRUE(contains(faults_of("[run]\nmode = \"\xff\""), "not TOML: "));
  EXPECT_TRUE(contains(faults_of("x = " + std::string(100000, '[')), "not TOML: "));
  EXPECT_TRUE(contains(faults_of(std::string((1 << 20) + 1, '#')), "larger than 1 MiB"));
  std::string deep = "a";
  for (int i = 0; i < 400000; ++i) deep += ".a";
  EXPECT_TRUE(contains(faults_of(deep + " = 1"), "over 1000 dots"));
  EXPECT_LE(count_lines(faults_of(std::string(9000, '\n') + "\"a\\nb\" = 1\n")), 3u);
}

TEST(Deck, HasSectionsOfAnyModule) {
  const Options options =
      parse_deck(kMinimal + "[mesh.thermal]\ntp = 2\n[model.thermal]\n", "x.toml",
                 {"precision.x-ray_2.param_dtype=bf16", "model.load_modules=[\"thermal\"]"});

  EXPECT_EQ(options.meshes["thermal"].tp, 2);
  EXPECT_TRUE(options.encoders.has("thermal"));
  EXPECT_EQ(options.precisions["x-ray_2"].param_dtype, DTypeOption::Bf16);
  EXPECT_FALSE(options.meshes.has("x-ray_2"));
  EXPECT_EQ(options.meshes["x-ray_2"], ModuleMeshOptions{});
  const std::string echo = echo_deck(options);
  EXPECT_EQ(echo_deck(parse_deck(echo, "echo", {})), echo);

  const struct {
    const char* lines;
    const char* fault;
  } cases[] = {
      {"[mesh.thermal]\ntp = 0", "mesh.thermal.tp = 0 is out of range; allowed: 1 to 4096"},
      {"[mesh.thermal]\ntp = 1\ntpp = 2",
       "mesh.thermal.tpp is not a key; did you mean mesh.thermal.pp or mesh.thermal.tp?"},
      {"[mesh.thermal]\ntrain = true", "[mesh.thermal] is not a section; "},
      {"[model.thermal]\nimage_attention = 'causal'", "[model.thermal] is not a section; "},
      {"[mesh.'a b']\ntp = 2", "[mesh.a b] is not a section; "},
      {"[data.thermal]\ntp = 2", "[data.thermal] is not a section; "},
  };
  for (const auto& [lines, fault] : cases)
    EXPECT_TRUE(contains(faults_beside_minimal(lines), fault)) << faults_beside_minimal(lines);
}

TEST(Deck, ReadsFilesAndSaysWhyItCannot) {
  const std::string path = ::testing::TempDir() + "zea_test_deck.toml";
  std::ofstream(path) << kMinimal << "[run]\nthreads = 2\n";

  EXPECT_EQ(read_deck(path, {"run.seed=5"}).run.threads, 2);
  EXPECT_EQ(read_deck(path, {"run.seed=5"}).run.seed, 5);

  std::remove(path.c_str());
  for (const std::string& unreadable : {path, ::testing::TempDir()}) try {
      read_deck(unreadable, {});
      FAIL() << unreadable;
    } catch (const DeckError& error) {
      EXPECT_TRUE(contains(error.what(), "cannot read deck " + unreadable)) << error.what();
    }
}

}  // namespace zea::test_deck
