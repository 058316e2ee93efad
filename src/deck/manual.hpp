// SPDX-License-Identifier: Apache-2.0
// The declarations of a command line as JSON, of which src/make_manual.py makes man pages and
// completions. For the two places that declare one with CLI11: src/deck/command_line.cpp, and
// postprocess/tool.hpp.
#pragma once

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>

namespace zea {

/// The option, in no help, at which a program prints what its manual is made of.
inline constexpr const char* kManualOption = "--manual";

inline nlohmann::ordered_json manual_of(const CLI::App& app) {
  nlohmann::ordered_json manual{{"purpose", app.get_description()}, {"options", {}}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    manual["options"].push_back(
        {{"names", option->get_name(false, true)},
         {"is_positional", option->get_positional()},
         {"is_required", option->get_required()},
         {"value", option->get_type_size() == 0 ? "" : option->get_type_name()},
         {"help", option->get_description()}});
  }
  return manual;
}

}  // namespace zea
