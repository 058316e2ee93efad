// SPDX-License-Identifier: Apache-2.0
// Prints each kind of file for zea-inspect, on stdout.
#pragma once

#include <optional>
#include <string>

#include "zea/checkpoint.hpp"
#include "zea/dataset.hpp"

namespace zea {

struct InspectOptions {
  std::string path;
  bool norms = false;             ///< of every tensor: reads it all
  bool check = false;             ///< every hash of a checkpoint
  bool deck = false;              ///< of the run that wrote it
  std::optional<int64_t> sample;  ///< of a data set: its number
  std::string picture;            ///< of a data set: where a contact sheet is written; empty: none
};

/// A weights file, a safetensors file, or a Hugging Face directory.
void inspect_weights(const InspectOptions& options);
/// A checkpoint or a run directory's newest one.
void inspect_checkpoint(const std::string& directory, const InspectOptions& options);
void inspect_dataset(const InspectOptions& options);
void inspect_sample(const DatasetReader& dataset, int64_t id);
/// Throws StorageError.
void draw_sheet(const DatasetReader& dataset, const std::string& path);

/// Where the run stood that wrote it.
void print_position(const StateSource& source);
void print_deck(const StateSource& source);

/// printf() of a line on stdout, of which what comes from files makes no two.
[[gnu::format(printf, 1, 2)]] void print_line(const char* format, ...);

/// "1,234,567".
std::string grouped(int64_t number);

}  // namespace zea
