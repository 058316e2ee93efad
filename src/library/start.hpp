// SPDX-License-Identifier: Apache-2.0
// The start of a run, found before ranks communicate: the command line's deck, and the weights
// or the checkpoint that it names.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deck/command_line.hpp"
#include "deck/options.hpp"
#include "io/model_source.hpp"
#include "io/retention.hpp"
#include "zea/checkpoint.hpp"

namespace zea {

/// Everything that a run starts from, and the directory that it writes to.
struct Start {
  Options options;
  std::unique_ptr<ModelSource> weights;     ///< null with a checkpoint
  std::unique_ptr<StateSource> checkpoint;  ///< null for a new run
  std::optional<Options> resumed;           ///< the deck of the checkpoint
  std::string config_json;
  std::string profile;  ///< content of the file of mesh.profile
  std::string directory;
  std::string note;  ///< how the checkpoint was found

  /// Returns the source of the engine's values.
  const WeightsSource& source() const {
    if (checkpoint) return *checkpoint;
    return *weights;
  }
};

/// Reads the start for `ranks` ranks, from the checkpoint `restart`, or else the one that -r
/// names. Calls `reader` with the options as soon as they are known: opening the files that
/// they name may take long. Throws DeckError with all faults at once, WeightsError.
Start read_start(const CommandLine& line, int ranks,
                 const std::optional<ResolvedCheckpoint>& restart = {},
                 const std::function<void(const Options&)>& reader = {});

/// Returns the part of a start that zea --check-node and --profile-hardware need: options and the
/// run directory ("." without a deck), but neither model nor data. Throws DeckError.
Start read_check(const CommandLine& line);

}  // namespace zea
