// SPDX-License-Identifier: Apache-2.0
// The errors that zea throws, one type per documented exit code. A message says what was found,
// what is allowed, where, and what to do. Nothing below main prints or exits; main adds the rank.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace zea {

/// Exit codes of every zea program, as `zea -h` lists them.
enum class ExitCode : int {
  Done = 0,
  Internal = 1,       ///< a bug of ours
  Usage = 2,          ///< deck, plan or command line
  Data = 3,           ///< data set
  Weights = 4,        ///< weights file or checkpoint
  NonFinite = 5,      ///< loss or gradient is not finite, or spikes too often
  Communication = 6,  ///< MPI or NCCL
  Storage = 7,        ///< disk, permissions, lock
  SickNode = 8,       ///< zea --check-node found one
  Requeue = 75,       ///< stopped on purpose after a checkpoint: start me again
};

/// Base of every error that the environment or the user can cause.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// One or more faults of a deck or of the command line, one per line.
struct DeckError : Error {
  explicit DeckError(const std::string& message) : Error(ExitCode::Usage, message) {}
};

/// A deck that is well formed but asks for something impossible or not built yet.
struct PlanError : Error {
  explicit PlanError(const std::string& message) : Error(ExitCode::Usage, message) {}
};

struct DataError : Error {
  explicit DataError(const std::string& message) : Error(ExitCode::Data, message) {}
};

struct WeightsError : Error {
  explicit WeightsError(const std::string& message) : Error(ExitCode::Weights, message) {}
};

struct NonFiniteError : Error {
  explicit NonFiniteError(const std::string& message) : Error(ExitCode::NonFinite, message) {}
};

struct CommError : Error {
  explicit CommError(const std::string& message) : Error(ExitCode::Communication, message) {}
};

struct StorageError : Error {
  explicit StorageError(const std::string& message) : Error(ExitCode::Storage, message) {}
};

/// Throws the type that belongs to an exit code.
[[noreturn]] void throw_error(ExitCode code, const std::string& message);

/// A broken invariant of zea itself, thus a bug.
struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};

/// Throws InternalError with file, line and expression. Always on: it guards cheap invariants only.
#define ZEA_ASSERT(condition)                                                             \
  do {                                                                                    \
    if (!(condition))                                                                     \
      throw ::zea::InternalError(std::string(__FILE__) + ":" + std::to_string(__LINE__) + \
                                 ": assertion failed: " #condition);                      \
  } while (false)

namespace detail {

/// Collects the faults of a plan, to be thrown together, and notes on accepted settings without
/// effect.
class Faults {
 public:
  void add(const std::string& fault) { text_ += (text_.empty() ? "" : "\n") + fault; }
  void add(const Faults& others) {
    if (!others.none()) add(others.text_);
    notes_.insert(notes_.end(), others.notes_.begin(), others.notes_.end());
  }
  bool none() const { return text_.empty(); }
  void note(const std::string& note) { notes_.push_back(note); }
  const std::vector<std::string>& notes() const { return notes_; }
  void throw_if_any() const {
    if (!text_.empty()) throw PlanError(text_);
  }

 private:
  std::string text_;
  std::vector<std::string> notes_;
};

}  // namespace detail
}  // namespace zea
