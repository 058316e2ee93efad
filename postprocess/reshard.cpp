// SPDX-License-Identifier: Apache-2.0
#include "outputs.hpp"

#include <algorithm>
#include <map>

#include "core/error.hpp"
#include "core/extent.hpp"
#include "files/durable_file.hpp"
#include "io/checkpoint.hpp"
#include "io/shard_file.hpp"
#include "tool.hpp"

namespace zea {
namespace {

/// One state of one tensor, on the line of all that have this state.
struct PlacedState {
  TensorInfo state;  ///< its shape and type
  int64_t elements_of_each;
  int64_t begin;  ///< element of the line where it starts
};

/// All tensors of a state, laid end to end.
struct Line {
  std::vector<PlacedState> states;
  int64_t elements = 0;

  void add(const TensorInfo& tensor, const TensorInfo& state) {
    states.push_back({state, zea::elements_of_each(tensor, state), elements});
    elements += num_elements(state.shape);
  }
};

std::map<std::string, Line> lines_of(const StateSource& source) {
  std::map<std::string, Line> lines;
  for (const TensorInfo& tensor : source.tensors()) {
    lines[kStateParameter].add(tensor, tensor);
    for (const std::string& state : source.states(tensor.name))
      lines[state].add(tensor, source.state_info(tensor.name, state));
  }
  return lines;
}

int64_t bytes_of(const std::map<std::string, Line>& lines) {
  int64_t bytes = 0;
  for (const auto& [state, line] : lines)
    for (const PlacedState& place : line.states)
      bytes +=
          num_elements(place.state.shape) * static_cast<int64_t>(element_bytes(place.state.dtype));
  return bytes;
}

/// Element of a line where the cut of `rank` begins: equal cuts, but for one element.
int64_t cut(int64_t elements, int64_t rank, int64_t ranks) {
  return elements / ranks * rank + std::min(rank, elements % ranks);
}

/// Begins the pieces of a line's elements [begin, end).
void begin_pieces(ShardWriter& writer, const std::string& state, const Line& line, int64_t begin,
                  int64_t end, std::vector<Piece>& pieces) {
  for (const PlacedState& place : line.states) {
    const Shape& shape = place.state.shape;
    const int64_t first = std::max<int64_t>(0, begin - place.begin);
    const int64_t last = std::min(num_elements(shape), end - place.begin);
    if (first >= last) continue;
    for (const Extent& box : boxes_of_range(shape, first, last))
      pieces.push_back(writer.begin(place.state.name, state, shape, box, place.state.dtype,
                                    place.elements_of_each));
  }
}

Manifest manifest_without_pieces(const StateSource& source, int64_t ranks) {
  Manifest manifest;
  manifest.run_id = source.run_id();
  manifest.position = source.position();
  manifest.deck = source.deck();
  manifest.config = source.config_json();
  manifest.mesh = "equal cuts (zea-consolidate)";
  manifest.world_size = ranks;
  for (const TensorInfo& tensor : source.tensors())
    manifest.tensors.push_back(
        {tensor.name, tensor.shape, tensor.dtype, !source.states(tensor.name).empty()});
  return manifest;
}

}  // namespace

void reshard(const StateSource& source, const ReshardOptions& options) {
  const std::map<std::string, Line> lines = lines_of(source);
  check_free_bytes(without_trailing_slash(options.target), bytes_of(lines));
  StagedDirectory directory(options.target, options.replaces);
  Progress progress(bytes_of(lines), options.show_progress);
  Manifest manifest = manifest_without_pieces(source, options.ranks);
  for (int64_t rank = 0; rank < options.ranks; ++rank) {
    ShardWriter writer(directory.path(), shard_file_name(rank), source.run_id(),
                       source.position().step);
    std::vector<Piece> pieces;
    for (const auto& [state, line] : lines)
      begin_pieces(writer, state, line, cut(line.elements, rank, options.ranks),
                   cut(line.elements, rank + 1, options.ranks), pieces);
    copy_pieces(source, &source, pieces, options.limits,
                [&](Piece& piece, int64_t first, int64_t count, const void* data) {
                  hash_part(piece, first, count, data);
                  writer.write(piece, first, count, data);
                  progress.add(count * static_cast<int64_t>(element_bytes(piece.dtype)));
                });
    writer.finish();
    manifest.files.push_back(writer.file());
    manifest.pieces.insert(manifest.pieces.end(), pieces.begin(), pieces.end());
  }
  complete_checkpoint(directory.path(), std::move(manifest));
  directory.finish();
}

}  // namespace zea
