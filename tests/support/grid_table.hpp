// SPDX-License-Identifier: Apache-2.0
// The table of grids that tests of tensor, sequence and context parallelism share: layouts of up to
// 8 ranks that all give the results of one rank, and refused layouts, with the sentence.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "deck/options.hpp"
#include "layout/axis.hpp"
#include "support/tiny_llava.hpp"

namespace zea::testing {

/// How one module lies on the ranks of a replica.
struct GridModule {
  int tp = 1, cp = 1;
  const char* mode = "allgather_kv";  ///< of cp; has no meaning where that is 1
  const char* distribution = "makespan_min";
  bool sequence_parallel = true;  ///< where tp is not 1
  int chunks = 1;                 ///< tp_chunks

  bool operator==(const GridModule&) const = default;
};

struct Grid {
  GridModule llm = {};
  const char* strategy = "full_shard";
  int replicas = 1;
  std::optional<GridModule> vision = {};     ///< nothing: as llm
  const char* vision_strategy = "no_shard";  ///< where `vision` is set
  int heads = 4;                             ///< that the model must have for it
  std::optional<GridModule> audio = {};      ///< nothing: as vision
  const char* audio_strategy = "no_shard";   ///< where `audio` is set

  int ranks() const { return replicas * llm.tp * llm.cp; }
  /// "tp 2 x cp 4 (ring, zigzag), no_shard; vision ..."
  std::string name() const;
};

/// Tokens of a block that makespan_min distributes in all of them.
inline constexpr int64_t kGridBlock = 8;

/// The table. Any two settings that go together at all do so in one of them (test_grid_table).
const std::vector<Grid>& grids();

/// Sets the sections of the mesh, that of audio for models with audio.
void apply(const Grid& grid, Options& deck);

/// A tiny model with encoder heads enough for every grid, and the heads that `grid` wants.
TinyLlava model_for(const Grid& grid, TinyLlava model = {});

/// Returns the mesh of `grid`, for a model with images and audio.
MeshShape mesh_of(const Grid& grid);

/// A refused grid, and the sentence that says so.
struct RefusedGrid {
  const char* name;
  int ranks;
  void (*set)(Options&);
  const char* sentence;
  bool gpt2 = false;
};
const std::vector<RefusedGrid>& refused_grids();

}  // namespace zea::testing
