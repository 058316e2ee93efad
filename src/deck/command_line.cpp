// SPDX-License-Identifier: Apache-2.0
// The only file of src/ that includes CLI11.
#include "deck/command_line.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <charconv>
#include <memory>
#include <sstream>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "deck/deck.hpp"
#include "deck/manual.hpp"

namespace zea {
namespace {

constexpr const char* kUsage =
    "zea -i deck | -r run-or-checkpoint [-d run-directory] [-n] [--ranks N] [--ranks-per-node N] "
    "[--hardware FILE] [--plan [--memory SIZE] [--out DIRECTORY] [--mtbf HOURS]] [--json] "
    "[--profile FILE] [--profile-hardware FILE] [--check-node] [--verify-layout [--steps K] "
    "[--against LAYOUT]] "
    "[--reproduce RUN [--steps K]] "
    "[-t hh:mm:ss] [-c] [-h [KEY]] "
    "[section.key=value ...] [--compare DECK-OR-OVERRIDES ...]";

constexpr const char* kPurpose = "zea trains multimodal language models sharded over many ranks.";

constexpr const char* kSignals =
    "Signals, and files put into the run directory (all ranks agree once per step):\n"
    "  SIGUSR1, SAVE   write a checkpoint now and continue\n"
    "  SIGUSR2, STOP   write a checkpoint and stop with exit code 75\n"
    "  SIGTERM         as SIGUSR2; mpirun kills its ranks 2 s after it, srun does not\n"
    "Evaluation-only and generation runs save nothing: they stop between two batches,\n"
    "with the results so far.\n";

constexpr std::pair<ExitCode, const char*> kExitCodes[] = {
    {ExitCode::Done, "done"},
    {ExitCode::Internal, "a bug in zea"},
    {ExitCode::Usage, "deck, plan or command line"},
    {ExitCode::Data, "data set"},
    {ExitCode::Weights, "weights file or checkpoint"},
    {ExitCode::NonFinite, "loss or gradient is not finite, or spikes too often"},
    {ExitCode::Communication, "communication (MPI or NCCL), or a hang"},
    {ExitCode::Storage, "storage: disk, permissions, lock; or out of memory"},
    {ExitCode::SickNode,
     "a faulty node: zea --check-node found one, or copies of parameters differ"},
    {ExitCode::LayoutDiffers, "zea --verify-layout or --reproduce found other values"},
    {ExitCode::Requeue, "stopped on purpose, training runs after a checkpoint: requeue me"},
};

std::string exit_codes() {
  std::string text;
  for (const auto& [code, meaning] : kExitCodes) {
    const std::string number = std::to_string(static_cast<int>(code));
    text += std::string(4 - number.size(), ' ') + number + "   " + meaning + "\n";
  }
  return text;
}

/// CLI11's layout with zea's usage line.
struct ZeaFormatter : CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string) const override {
    return std::string("Usage: mpirun -n RANKS ") + kUsage + "\n";
  }
};

struct Declared {
  CommandLine values;
  std::string wall_limit, memory;
};

void declare_options(CLI::App& app, Declared& given) {
  CommandLine& values = given.values;
  app.set_help_flag();
  app.add_option("-i", values.deck,
                 "deck to run (.toml); with -r it replaces the checkpoint's deck")
      ->type_name("DECK");
  app.add_option("-r", values.restart,
                 "resume from a checkpoint, or from the newest one of a run directory")
      ->type_name("DIRECTORY");
  app.add_option("-d", values.directory, "run directory; the same as run.directory=DIRECTORY")
      ->type_name("DIRECTORY");
  app.add_flag("-n", values.plan_only,
               "print the plan of the run, and stop; needs no weights; data sets that exist are "
               "opened and checked");
  app.add_option("--ranks", values.ranks,
                 "with -n, --plan: plan for N ranks (default: 1); with --verify-layout: ranks of "
                 "the reference (default: 1, with --against all)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option(
         "--ranks-per-node", values.ranks_per_node,
         "with -n, --plan: N ranks share a node (default: all; with --hardware as its file says)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--compare", values.compare,
                 "with -n: compare the deck's layout with others on the samples of the same steps; "
                 "each is a deck, or quoted overrides: \"mesh.llm.tp=2 mesh.llm.cp=2\"")
      ->type_name("LAYOUT")
      ->expected(1, 1 << 10);
  app.add_flag(
      "--plan", values.search,
      "search the ten fastest layouts of --ranks ranks that fit into memory, among the values of "
      "the keys that the deck does not set, print them, and stop; needs --hardware");
  app.add_option("--hardware", values.hardware,
                 "with -n, --plan: hardware file, rates of devices and links (inputs/hardware) by "
                 "which seconds of a step are predicted; -h hardware lists its keys")
      ->type_name("FILE");
  app.add_option("--memory", given.memory,
                 "with --plan: memory of a rank, in GiB, MiB or GB (default: the hardware file's)")
      ->type_name("80GiB");
  app.add_option("--out", values.out_directory,
                 "with --plan: folder to write a deck of each layout to")
      ->type_name("DIRECTORY");
  app.add_option("--mtbf", values.mtbf_hours,
                 "with --plan: mean time between failures of the whole job in hours; adds the best "
                 "checkpoint.every and the goodput of each layout")
      ->type_name("HOURS")
      ->check(CLI::Range(1e-3, 1e6));
  app.add_flag("--json", values.as_json, "with -n, --plan, --verify-layout: print JSON");
  app.add_option("--profile", values.profile,
                 "measure the time of every unit of the model on this process with run.threads "
                 "threads, write it to FILE for mesh.profile, and stop")
      ->type_name("FILE");
  app.add_option("--profile-hardware", values.hardware_out,
                 "measure the ranks' devices and links, write their rates to FILE for --hardware "
                 "and mesh.hardware, and stop; needs several ranks but no deck; uses "
                 "precision.preset, run.device and run.threads")
      ->type_name("FILE");
  app.add_flag(
      "--check-node", values.check_node,
      "check the health of the ranks' nodes (GPUs, links, memory, disk of the run directory, "
      "clocks, builds), name sick ones, and stop; needs no deck");
  app.add_flag(
      "--verify-layout", values.verify_layout,
      "run the first steps of the deck on its layout, then on one rank, compare every unit's "
      "outputs and gradients and every parameter's gradient and update, name what differs first, "
      "and stop; writes no files");
  app.add_option(
         "--steps", values.steps,
         "with --verify-layout: number of steps (default: 2); with --reproduce: leave after "
         "step K (default: the last one that the run logged)")
      ->type_name("K")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_option("--against", values.against,
                 "with --verify-layout: layout of the reference, a deck or quoted overrides: "
                 "\"mesh.llm.tp=1\" (default: all keys of [mesh] at their defaults)")
      ->type_name("LAYOUT");
  app.add_option("--reproduce", values.reproduce,
                 "run the deck of an earlier run again, in the directory of -d (default: "
                 "RUN-reproduced), compare losses and checkpoint bit for bit, and list which of "
                 "commit, libraries, processors, layout, deck, data and weights differ")
      ->type_name("RUN");
  app.add_option("-t", given.wall_limit,
                 "wall time limit: write a checkpoint and stop before it ends")
      ->type_name("HH:MM:SS");
  app.add_flag("-c", values.show_build, "print how zea was built, and stop");
  app.add_option("-h,--help", values.help_key,
                 "print this text, or the help of a deck's key or section (mesh.llm.tp), and stop")
      ->type_name("KEY")
      ->expected(0, 1);
  app.add_flag("--version", values.show_version, "print the version, and stop");
  app.add_flag(kManualOption, values.show_manual)->group("");
  app.add_option("overrides", values.overrides,
                 "values of deck keys, which replace those of the deck")
      ->type_name("section.key=value");
}

[[noreturn]] void refuse(const std::string& fault) {
  throw DeckError(fault + "\nusage: " + kUsage + "\nzea -h explains them");
}

/// Reads a part of hh:mm:ss: digits only, `digits` at most.
bool read_number(const std::string& text, size_t digits, int& value) {
  if (text.empty() || text.size() > digits) return false;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  return text[0] != '-' && end.ec == std::errc() && end.ptr == text.data() + text.size();
}

double seconds_of(const std::string& limit) {
  const size_t first = limit.find(':');
  const size_t last = limit.rfind(':');
  int hours = 0, minutes = 0, seconds = 0;
  const bool is_clock = first != last && read_number(limit.substr(0, first), 6, hours) &&
                        read_number(limit.substr(first + 1, last - first - 1), 2, minutes) &&
                        read_number(limit.substr(last + 1), 2, seconds) && minutes < 60 &&
                        seconds < 60;
  const double total = 3600.0 * hours + 60.0 * minutes + seconds;
  if (!is_clock || total == 0)
    refuse("-t " + limit + " is not a wall limit; write hours:minutes:seconds, as in 11:30:00");
  return total;
}

/// Returns GiB of "80GiB", "8192MiB", "80GB".
double gibibytes_of(const std::string& text) {
  double number = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end.ptr, text.data() + text.size());
  const std::pair<const char*, double> units[] = {
      {"GiB", 1}, {"MiB", 1.0 / 1024}, {"GB", 1e9 / (1 << 30)}};
  for (const auto& [name, gib] : units)
    if (end.ec == std::errc() && unit == name && number > 0 && number < 1e9) return number * gib;
  refuse("--memory " + text + " is no size; write 80GiB, 8192MiB or 80GB");
}

void check_search(const CommandLine& values) {
  if (!values.search) {
    if (values.memory_gib > 0 || !values.out_directory.empty() || values.mtbf_hours > 0)
      refuse("--memory, --out and --mtbf belong to --plan, which searches layouts; add --plan");
    const bool is_timed_plan =
        values.plan_only && !values.hardware.empty() && values.compare.empty();
    if (values.as_json && !values.verify_layout && !is_timed_plan)
      refuse(
          "--json needs --plan, --verify-layout, or -n with --hardware and without --compare, "
          "whose "
          "results it prints");
    if (!values.hardware.empty() && !values.plan_only)
      refuse("--hardware tells the seconds of a plan and needs -n or --plan");
    return;
  }
  if (values.hardware.empty())
    refuse("--plan compares seconds and needs --hardware FILE, as in inputs/hardware");
  if (!values.restart.empty())
    refuse(
        "--plan searches what a deck leaves open, and the deck of a checkpoint has every key; "
        "give a deck by -i");
  if (!values.compare.empty())
    refuse("--compare compares layouts that you name, --plan finds some; take one of them");
}

void check_reproduction(const CommandLine& values) {
  if (!values.deck.empty() || !values.restart.empty())
    refuse(
        "--reproduce starts the run of RUN/deck.used.toml from its own beginning; leave out -i and "
        "-r");
  if (values.plan_only || values.check_node || values.verify_layout || !values.profile.empty())
    refuse(
        "--reproduce runs an earlier run again; -n, --plan, --profile, --check-node and "
        "--verify-layout do something else; take one of them");
  if (is_overridden("run.directory", values.overrides))
    refuse("with --reproduce -d names the directory of the new run; leave out run.directory");
}

void check_verification(const CommandLine& values, bool has_limit) {
  if (!values.verify_layout) {
    if (!values.against.empty()) refuse("--against belongs to --verify-layout; add it");
    if (values.steps > 0 && values.reproduce.empty())
      refuse("--steps belongs to --verify-layout or --reproduce; add one of them");
    return;
  }
  constexpr int64_t kMostSteps = 1000;
  if (values.steps > kMostSteps)
    refuse(formatted("--steps %ld: --verify-layout compares at most %ld steps",
                     static_cast<long>(values.steps), static_cast<long>(kMostSteps)));
  if (values.plan_only || values.check_node || !values.profile.empty())
    refuse(
        "--verify-layout runs steps; -n, --plan, --profile and --check-node run none; take one "
        "of them");
  if (!values.restart.empty())
    refuse(
        "--verify-layout begins with step 1 and does not resume; give the deck by -i, and the "
        "checkpoint of -r as its model.weights");
  if (!values.directory.empty() || has_limit)
    refuse(
        "--verify-layout writes no run directory and no checkpoint, so -d and -t have no effect; "
        "leave them out");
}

void check_command_line(const CommandLine& values) {
  for (const std::string& entry : values.overrides)
    if (entry.ends_with(".toml") && entry.find('=') == std::string::npos)
      refuse("\"" + entry +
             "\" is neither an option nor section.key=value; a deck is given by -i: -i " + entry);
    else if (entry.find('=') == std::string::npos)
      refuse("\"" + entry + "\" is neither an option nor section.key=value");
  check_search(values);
  if (values.ranks > 0 && !values.plan_only && !values.verify_layout)
    refuse(
        "--ranks says how many ranks to plan for and needs -n or --plan, or of the reference and "
        "needs --verify-layout; mpirun -n starts them");
  if (values.ranks_per_node > 0 && !values.plan_only)
    refuse(
        "--ranks-per-node says how nodes are to be planned and needs -n; a run asks MPI which "
        "ranks share a node");
  if (!values.compare.empty() && !values.plan_only)
    refuse("--compare prints the plans of several layouts and needs -n");
  if (values.plan_only && !values.profile.empty())
    refuse("--profile measures and -n plans; measure first, then plan with mesh.profile=FILE");
  const bool does_more = values.plan_only || values.check_node || values.verify_layout ||
                         !values.profile.empty() || !values.reproduce.empty();
  if (!values.hardware_out.empty() && does_more)
    refuse(
        "--profile-hardware measures and does nothing else; leave out -n, --plan, --profile, "
        "--check-node, --verify-layout and --reproduce");
  if (values.check_node && (values.plan_only || !values.profile.empty()))
    refuse(
        "--check-node looks at the nodes of a job, -n and --profile need none; take one of them");
  const bool only_prints =
      values.show_build || values.show_help || values.show_version || values.show_manual;
  if (values.deck.empty() && values.restart.empty() && values.reproduce.empty() && !only_prints &&
      !values.check_node && values.hardware_out.empty())
    refuse("nothing to run: give a deck (-i) or a run to go on with (-r)");
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CLI::App app;
  Declared given;
  declare_options(app, given);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    refuse(error.what());
  }
  given.values.show_help = app.count("-h") > 0;
  if (app.count("-t") > 0) given.values.wall_seconds = seconds_of(given.wall_limit);
  if (app.count("--memory") > 0) given.values.memory_gib = gibibytes_of(given.memory);
  given.values.plan_only |= given.values.search;
  check_verification(given.values, app.count("-t") > 0);
  if (!given.values.reproduce.empty()) check_reproduction(given.values);
  check_command_line(given.values);
  return given.values;
}

CommandLine line_of_layout(CommandLine line, const std::string& entry) {
  line.compare.clear();
  std::vector<std::string> parts;
  std::istringstream words(entry);
  for (std::string word; words >> word;) {
    const size_t key =
        word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");
    const bool begins = key != 0 && key != std::string::npos && word[key] == '=';
    if (begins || parts.empty())
      parts.push_back(word);
    else
      parts.back() += " " + word;  // of a list, or of a deck's path
  }
  if (parts.empty())
    refuse("--compare \"" + entry + "\" is empty; write a deck, or overrides as in mesh.llm.tp=2");
  for (const std::string& part : parts) {
    if (part.find('=') != std::string::npos)
      line.overrides.push_back(part);
    else
      line.deck = part;
  }
  return line;
}

std::string help_text() {
  CLI::App app(kPurpose);
  Declared unused;
  declare_options(app, unused);
  app.formatter(std::make_shared<ZeaFormatter>());
  return app.help() + "\n" + kSignals + "\nExit codes:\n" + exit_codes() +
         "\nDeck (TOML): sections, keys with their defaults, and what is allowed:\n\n" +
         deck_reference();
}

std::string manual_text() {
  CLI::App app(kPurpose);
  Declared unused;
  declare_options(app, unused);
  nlohmann::ordered_json manual = manual_of(app);
  manual["usage"] = kUsage;
  manual["texts"] = {{"signals", kSignals}, {"exit codes", exit_codes()}};
  for (const KeyDescription& key : describe_keys())
    manual["keys"].push_back({{"path", key.path},
                              {"default", key.standard},
                              {"values", key.values},
                              {"help", key.help}});
  return manual.dump() + "\n";
}

}  // namespace zea
