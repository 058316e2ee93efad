// SPDX-License-Identifier: Apache-2.0
// Parts that the tools share: one line on stderr and a documented exit code for every error, and
// common options.
#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include <CLI/CLI.hpp>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "deck/manual.hpp"
#include "zea/copy.hpp"

namespace zea {

inline constexpr const char* kExitCodes =
    "Exit codes: 0 done, 1 a bug in zea, 2 usage, 3 data set, 4 weights or checkpoint, 7 storage "
    "or out of memory.";

inline int report(const std::string& tool, const std::string& message, ExitCode code) {
  std::fprintf(stderr, "%s: %s\n", tool.c_str(), printable(message).c_str());
  return static_cast<int>(code);
}

/// Parses the command line, runs `body`, and turns what it throws into an exit code.
inline int run_tool(CLI::App& app, int argc, char** argv, const std::function<void()>& body) {
  std::signal(SIGXFSZ,
              SIG_IGN);  // a file beyond `ulimit -f` is an error of the call that writes it
  const std::string tool = app.get_name();
  app.footer(kExitCodes);
  app.add_flag_callback(kManualOption,
                        [&app] {
                          nlohmann::ordered_json manual = manual_of(app);
                          manual["texts"] = {{"exit codes", kExitCodes}};
                          throw CLI::CallForVersion(manual.dump(), 0);
                        })
      ->group("");
  try {
    app.parse(argc, argv);
    body();
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return report(tool, std::string(error.what()) + " (see " + tool + " --help)", ExitCode::Usage);
  } catch (const Error& error) {
    return report(tool, error.what(), error.code());
  } catch (const std::system_error& error) {  // of files, or of threads that a limit forbids
    return report(tool, error.what(), ExitCode::Storage);
  } catch (const std::bad_alloc&) {
    return report(tool, "out of memory; try a smaller --memory", ExitCode::Storage);
  } catch (const std::exception& error) {
    return report(tool, std::string("internal error: ") + error.what(), ExitCode::Internal);
  }
  return static_cast<int>(ExitCode::Done);
}

/// Sizes as people write them: 256MiB, 5GB. A whole number with one of the units B, KB, MB, GB, TB
/// (powers of 1000) or KiB, MiB, GiB, TiB; a number alone counts `plain_unit` bytes. Throws
/// CLI::ValidationError naming the option.
inline int64_t parse_byte_size(const std::string& option, const std::string& text,
                               int64_t plain_unit) {
  static const std::map<std::string, int64_t> units = {
      {"B", 1},
      {"KB", 1000},
      {"MB", 1000'000},
      {"GB", 1000'000'000},
      {"TB", 1000'000'000'000},
      {"KiB", int64_t{1} << 10},
      {"MiB", int64_t{1} << 20},
      {"GiB", int64_t{1} << 30},
      {"TiB", int64_t{1} << 40},
  };
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const size_t begin = std::min(text.find_first_not_of(' ', digits), text.size());
  const auto unit = units.find(text.substr(begin));
  const bool known = begin == text.size() || unit != units.end();
  if (digits == 0 || digits > 15 || !known)
    throw CLI::ValidationError(option,
                               "\"" + text + "\" is no size; write for example 256MiB or 5GB");
  const int64_t bytes_of_unit = begin == text.size() ? plain_unit : unit->second;
  int64_t bytes = 0;
  if (__builtin_mul_overflow(std::stoll(text.substr(0, digits)), bytes_of_unit, &bytes))
    throw CLI::ValidationError(option, "\"" + text + "\" is too large");
  return bytes;
}

/// Element type and memory of what is written.
struct CopyOptions {
  std::string dtype;
  int64_t memory_bytes = int64_t{256} << 20;
  int threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 4u));

  void add_to(CLI::App& app) {
    app.add_option("--dtype", dtype,
                   "Element type to write, also as fp64, fp32, bf16, fp16 (default: the source's; "
                   "for a Hugging Face directory none wider than its config.json names)")
        ->transform([](const std::string& text) -> std::string {
          const std::optional<DType> found = find_dtype(text);
          return found ? dtype_name(*found) : text;
        })
        ->check(CLI::IsMember({"float64", "float32", "bfloat16", "float16"}));
    add_limits_to(app);
  }

  void add_limits_to(CLI::App& app) {
    app.add_option_function<std::string>(
        "--memory",
        [this](const std::string& text) {
          memory_bytes = parse_byte_size("--memory", text, int64_t{1} << 20);
          if (memory_bytes < int64_t{16} << 20)
            throw CLI::ValidationError("--memory", text + " is too little; at least 16MiB");
        },
        "Memory to use: 256MiB, 2GiB, or a number of MiB (default 256)");
    app.add_option("-j,--threads", threads,
                   "Threads that read and write (default: the machine's, at most 4)")
        ->check(CLI::Range(1, 256));
  }

  /// Half of the memory; the other half is for conversion, hashing and the libraries.
  CopyLimits limits() const { return {.threads = threads, .buffer_bytes = memory_bytes / 2}; }

  DType dtype_for(DType found) const {
    return dtype.empty() || !is_floating(found) ? found : dtype_from_name(dtype);
  }
};

// How far a long copy is, on stderr: a bar on a terminal, and lines elsewhere when they are asked
// for.

class Progress {
 public:
  /// Shown on a terminal, or when `always`.
  Progress(int64_t total_bytes, bool always);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Ends the bar's line.
  ~Progress();

  /// More bytes were copied; by any thread.
  void add(int64_t bytes);

 private:
  void show() const;

  int64_t total_bytes_;
  bool is_bar_, is_shown_;
  std::chrono::steady_clock::time_point start_, last_shown_;
  std::mutex mutex_;
  int64_t done_bytes_ = 0;
};

// The checkpoint of a run that a tool reads, while the run may go on and remove its older ones.

enum class DamagedNewest {
  Refuse,   ///< what is damaged is an error
  PassOver  ///< an older checkpoint that is whole is taken, and a note on stderr says so
};

/// Calls `read` with `path` or, where that is a run directory, with its newest complete checkpoint.
/// Where the run removes that one while it is read, `read` is called again with the one that is the
/// newest by then, a bounded number of times. Throws what `read` throws.
void read_newest(const std::string& path, DamagedNewest damaged,
                 const std::function<void(const std::string&)>& read);

}  // namespace zea
