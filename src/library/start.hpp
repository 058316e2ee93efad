// SPDX-License-Identifier: Apache-2.0
// Reads the start of a run before ranks communicate: the deck, and the weights or the checkpoint
// that it names.
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

/// The start of a run: the deck, the weights or the checkpoint, and the run directory.
struct Start {
  Options options;
  std::unique_ptr<ModelSource> weights;     ///< null with a checkpoint
  std::unique_ptr<StateSource> checkpoint;  ///< null for a new run
  std::optional<Options> resumed;           ///< the deck that it was written under
  std::string config_json;
  std::string profile;  ///< what the file of mesh.profile holds
  std::string directory;
  std::string note;  ///< of how the checkpoint was found

  /// The source of the engine's values.
  const WeightsSource& source() const {
    if (checkpoint) return *checkpoint;
    return *weights;
  }
};

/// For `ranks` ranks, from the checkpoint that `restart` is, or else what -r names. The `reader` of
/// the options is told as soon as they are known: opening what they name may take long. Throws
/// DeckError with all faults at once, WeightsError.
Start read_start(const CommandLine& line, int ranks,
                 const std::optional<ResolvedCheckpoint>& restart = {},
                 const std::function<void(const Options&)>& reader = {});

/// Reads the options and the run directory ("." without a deck) for zea --check-node, but neither
/// model nor data. Throws DeckError.
Start read_check(const CommandLine& line);

}  // namespace zea
