// SPDX-License-Identifier: Apache-2.0
#include "core/error.hpp"

namespace zea {

void throw_error(ExitCode code, const std::string& message) {
  switch (code) {
    case ExitCode::Data:
      throw DataError(message);
    case ExitCode::Weights:
      throw WeightsError(message);
    case ExitCode::NonFinite:
      throw NonFiniteError(message);
    case ExitCode::Communication:
      throw CommError(message);
    case ExitCode::Storage:
      throw StorageError(message);
    default:
      throw Error(code, message);
  }
}

}  // namespace zea
