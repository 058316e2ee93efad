// SPDX-License-Identifier: Apache-2.0
// The command line of zea as plain values. Nothing is printed or opened here, and every option is
// declared once: the help is made from the same declarations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zea {

struct CommandLine {
  std::string deck;       ///< -i; with -r it replaces the deck kept in the checkpoint
  std::string restart;    ///< -r: a run directory or a checkpoint
  std::string directory;  ///< -d
  bool plan_only = false;
  int ranks = 0;           ///< --ranks of the plan, or of the reference; 0: not given
  int ranks_per_node = 0;  ///< --ranks-per-node of the plan; 0: all on one node
  /// --compare: what each further layout changes, a deck or overrides
  std::vector<std::string> compare;
  bool search = false;         ///< --plan: search the fastest layouts; plan_only is set, too
  std::string hardware;        ///< --hardware: file of the rates of devices and links
  double memory_gib = 0;       ///< --memory of a rank; 0: as the hardware file says
  std::string out_directory;   ///< --out: folder for the decks that --plan finds
  bool as_json = false;        ///< --json
  double mtbf_hours = 0;       ///< --mtbf; 0: not given
  std::string profile;         ///< --profile: file for the measured costs of the units
  std::string hardware_out;    ///< --profile-hardware: hardware file for the measured rates
  bool check_node = false;     ///< --check-node: only look at the nodes
  bool verify_layout = false;  ///< --verify-layout: compare the layout with a reference
  /// --steps of --verify-layout or --reproduce; 0: not given
  int64_t steps = 0;
  std::string reproduce;  ///< --reproduce: the run to start again and to compare with
  /// --against of --verify-layout: what the reference layout changes, as --compare has it; empty:
  /// every key of [mesh] as it is by default
  std::string against;
  double wall_seconds = 0;  ///< -t; 0: no limit
  bool show_build = false;
  bool show_help = false;
  std::string help_key;  ///< a deck key or section to explain; empty: everything
  bool show_version = false;
  bool show_manual = false;
  std::vector<std::string> overrides;  ///< section.key=value, in the order given
};

/// Reads main's arguments. Throws DeckError with a hint at the usage.
CommandLine parse_command_line(int argc, const char* const* argv);

/// Returns the command line of a layout of --compare: `entry` is a deck, which replaces that of
/// `line`, or overrides in one text, which follow those of `line`, or both.
CommandLine line_of_layout(CommandLine line, const std::string& entry);

/// Returns the text of `zea -h`: options, signals, exit codes, and every key of a deck.
std::string help_text();

/// Returns the help as JSON, for man pages and completions (src/make_manual.py).
std::string manual_text();

}  // namespace zea
