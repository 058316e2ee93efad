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
  Internal = 1,       ///< a bug in zea
  Usage = 2,          ///< deck, plan or command line
  Data = 3,           ///< data set
  Weights = 4,        ///< weights file or checkpoint
  NonFinite = 5,      ///< loss or gradient is not finite, or spikes too often
  Communication = 6,  ///< MPI or NCCL, or a hang
  Storage = 7,        ///< disk, permissions, lock; out of memory
  SickNode = 8,       ///< a faulty node (zea --check-node), or bits that changed on the way
  LayoutDiffers = 9,  ///< zea --verify-layout or --reproduce found other values
  Requeue = 75,       ///< stopped on request (training: after a checkpoint): start the run again
};

/// Base of every error that is not a bug in zea; code() is its kind.
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

/// A broken invariant of zea: a bug, so it does not derive from Error.
struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};

}  // namespace zea
