// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <map>

#include "core/text.hpp"
#include "inspect.hpp"

namespace zea {
namespace {

struct Total {
  int64_t pieces = 0, bytes = 0;
};

void print_totals(const char* title, const std::map<std::string, Total>& totals) {
  print_line("%s", title);
  for (const auto& [name, total] : totals)
    print_line("  %-24s %8s pieces  %s bytes", name.c_str(), grouped(total.pieces).c_str(),
               grouped(total.bytes).c_str());
}

}  // namespace

void print_position(const StateSource& source) {
  const TrainPosition& position = source.position();
  print_line("run %s, step %s (optimizer step %s)", source.run_id().c_str(),
             grouped(position.step).c_str(), grouped(position.optimizer_step).c_str());
  print_line("seen: %s samples, %s tokens, %s target tokens", grouped(position.samples).c_str(),
             grouped(position.tokens).c_str(), grouped(position.target_tokens).c_str());
}

void print_deck(const StateSource& source) {
  std::printf("deck:\n%s", printable(source.deck()).c_str());
}

void inspect_checkpoint(const std::string& directory, const InspectOptions& options) {
  if (options.norms)
    throw WeightsError(
        directory +
        ": --norms is for weights; give model.h5 in it, or a file that zea-consolidate wrote");
  const std::unique_ptr<StateSource> opened = open_state(directory);
  const StateSource& source = *opened;
  const Manifest manifest = read_manifest(directory);
  print_line("checkpoint %s", directory.c_str());
  if (!source.note().empty()) print_line("note: %s", source.note().c_str());
  print_position(source);
  print_line("written for %s ranks: %s", grouped(manifest.world_size).c_str(),
             manifest.mesh.c_str());
  std::map<std::string, Total> by_file, by_state;
  for (const ManifestFile& file : manifest.files) by_file[file.name] = {};
  for (const Piece& piece : manifest.pieces)
    for (Total* total : {&by_file[piece.file], &by_state[piece.state]}) {
      ++total->pieces;
      total->bytes += piece.extent.elements() * static_cast<int64_t>(element_bytes(piece.dtype));
    }
  int64_t elements = 0;
  for (const ManifestTensor& tensor : manifest.tensors) elements += num_elements(tensor.shape);
  print_line("%zu tensors, %s elements", manifest.tensors.size(), grouped(elements).c_str());
  print_totals("by state:", by_state);
  print_totals("by file:", by_file);
  if (options.deck) print_deck(source);
  if (!options.check) return;
  source.check_all();
  print_line("checked: every piece is there once and every hash is right%s",
             manifest.view_hash.empty() ? " (model.h5 has none)" : "");
}

}  // namespace zea
