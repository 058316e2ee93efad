// SPDX-License-Identifier: Apache-2.0
// What the tools share: one line on stderr and a documented exit code for every error, and their
// common options.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <new>
#include <optional>
#include <string>

#include "zea/core/dtype.hpp"
#include "zea/core/error.hpp"

namespace zea {

inline constexpr const char* kExitCodes =
    "Exit codes: 0 done, 1 a bug of zea's, 2 usage, 3 data set, 4 weights or checkpoint, 7 "
    "storage.";

inline int report(const std::string& tool, const std::string& message, ExitCode code) {
  std::fprintf(stderr, "%s: %s\n", tool.c_str(), message.c_str());
  return static_cast<int>(code);
}

/// Parses the command line, runs `body`, and turns what it throws into an exit code.
inline int run_tool(CLI::App& app, int argc, char** argv, const std::function<void()>& body) {
  const std::string tool = app.get_name();
  app.footer(kExitCodes);
  try {
    app.parse(argc, argv);
    body();
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return report(tool, std::string(error.what()) + " (see " + tool + " --help)", ExitCode::Usage);
  } catch (const Error& error) {
    return report(tool, error.what(), error.code());
  } catch (const std::filesystem::filesystem_error& error) {
    return report(tool, error.what(), ExitCode::Storage);
  } catch (const std::bad_alloc&) {
    return report(tool, "out of memory; try a smaller --memory", ExitCode::Storage);
  } catch (const std::exception& error) {
    return report(tool, std::string("internal error: ") + error.what(), ExitCode::Internal);
  }
  return static_cast<int>(ExitCode::Done);
}

/// Element type and memory of what is written.
struct CopyOptions {
  std::string dtype;
  int64_t memory_mib = 256;

  void add_to(CLI::App& app) {
    app.add_option("--dtype", dtype, "Element type to write (default: the source's)")
        ->check(CLI::IsMember({"float64", "float32", "bfloat16", "float16"}));
    app.add_option("--memory", memory_mib, "MiB of memory to use (default 256)")
        ->check(CLI::Range(int64_t{16}, int64_t{1} << 20));
  }

  DType dtype_for(DType found) const {
    return dtype.empty() || !is_floating(found) ? found : dtype_from_name(dtype);
  }

  /// Half of the memory; the other half is for conversion, hashing and the libraries.
  size_t buffer_bytes() const { return static_cast<size_t>(memory_mib) << 19; }
};

}  // namespace zea
