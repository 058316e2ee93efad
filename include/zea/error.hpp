// SPDX-License-Identifier: Apache-2.0
// The errors that zea throws, one type per kind. A message names the file or key at fault, what was
// found, what is allowed and what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace zea {

/// Kinds of errors; also the exit codes of every zea program, as `zea -h` lists them.
enum class ExitCode : int {
  Done = 0,
  Internal = 1,       ///< a bug of zea
  Usage = 2,          ///< deck, plan or command line
  Data = 3,           ///< data set
  Weights = 4,        ///< weights file or checkpoint
  NonFinite = 5,      ///< loss or gradient is not finite, or spikes too often
  Communication = 6,  ///< MPI or NCCL
  Storage = 7,        ///< disk, permissions, lock
  SickNode = 8,       ///< zea --check-node found a node that should not be used
  LayoutDiffers = 9,  ///< zea --verify-layout found values beyond their bounds
  Requeue = 75,       ///< stopped on purpose after a checkpoint: start the run again
};

/// Base of every error that the world or the user can cause; code() is its kind.
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

/// A broken invariant of zea's own code: a bug, so it is no Error.
struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};

}  // namespace zea
