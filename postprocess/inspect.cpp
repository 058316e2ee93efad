// SPDX-License-Identifier: Apache-2.0
// zea-inspect: what a weights file, data set, checkpoint or run directory holds.
#include "inspect.hpp"

#include <cstdio>

#include "core/text.hpp"
#include "tool.hpp"

namespace zea {
namespace {

void refuse_dataset_options(const InspectOptions& options) {
  if (options.sample || !options.picture.empty())
    throw DataError(options.path + " is no data set, of which alone --sample and --picture tell");
}

void refuse_options_of_weights(const InspectOptions& options) {
  if (options.norms || options.check || options.deck)
    throw DataError(options.path +
                    " is a data set, of which --norms, --check and --deck tell nothing");
}

void inspect(const InspectOptions& options) {
  if (!std::filesystem::exists(options.path)) throw WeightsError(options.path + ": does not exist");
  const bool is_folder = std::filesystem::is_directory(options.path);
  const std::string checkpoint = is_folder ? find_checkpoint(options.path) : "";
  if (checkpoint.empty() && is_dataset(options.path)) {
    refuse_options_of_weights(options);
    return inspect_dataset(options);
  }
  refuse_dataset_options(options);
  if (checkpoint.empty()) return inspect_weights(options);
  read_newest(options.path, DamagedNewest::Refuse,
              [&](const std::string& path) { inspect_checkpoint(path, options); });
}

}  // namespace

void print_line(const char* format, ...) {
  std::va_list values;
  va_start(values, format);
  const std::string line = formatted_list(format, values);
  va_end(values);
  std::printf("%s\n", printable(line, true).c_str());
}

std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3)
    text.insert(static_cast<size_t>(at), 1, ',');
  return text;
}

}  // namespace zea

int main(int argc, char** argv) {
  zea::InspectOptions options;
  CLI::App app("Shows the contents of a weights file, data set, checkpoint or run directory.",
               "zea-inspect");
  app.add_option("path", options.path, "File or directory")->required();
  app.add_flag("--norms", options.norms, "Norm, minimum and maximum of every tensor (reads all)");
  app.add_flag("--check", options.check,
               "Read everything and verify every hash (of a checkpoint, or of a file with "
               "optimizer states)");
  app.add_flag("--deck", options.deck, "Print the deck of the run");
  app.add_option("--sample", options.sample,
                 "For a data set: print the text of this sample (from 0 on), with targets marked")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--picture", options.picture,
                 "For a data set: write a contact sheet of samples to this file (PNG)");
  return zea::run_tool(app, argc, argv, [&] { zea::inspect(options); });
}
