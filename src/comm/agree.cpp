// SPDX-License-Identifier: Apache-2.0
#include "comm/agree.hpp"

#include <exception>
#include <string>

#include "core/error.hpp"

namespace zea {
namespace {

/// What a rank has to say about its own part.
struct Outcome {
  std::exception_ptr failure;  ///< null: it went well
  ExitCode code = ExitCode::Internal;
  std::string message;
};

/// Of the exception that is being handled.
Outcome failed(ExitCode code, const std::string& message) {
  return {std::current_exception(), code, message};
}

Outcome outcome_of(const std::function<void()>& risky) {
  try {
    risky();
    return {};
  } catch (const Error& error) {
    return failed(error.code(), error.what());
  } catch (const std::exception& error) {
    return failed(ExitCode::Internal, error.what());
  } catch (...) {
    return failed(ExitCode::Internal, "unknown exception");
  }
}

/// Gives every rank the outcome of `root`, but for its exception.
void share(Collectives& control, Outcome& outcome, int root) {
  int64_t header[2] = {static_cast<int64_t>(outcome.code),
                       static_cast<int64_t>(outcome.message.size())};
  control.broadcast(header, 2, DType::Int64, root).wait();
  outcome.code = static_cast<ExitCode>(header[0]);
  outcome.message.resize(static_cast<size_t>(header[1]));
  control.broadcast(outcome.message.data(), header[1], DType::UInt8, root).wait();
}

}  // namespace

void agree(Collectives& control, const std::function<void()>& risky) {
  Outcome outcome = outcome_of(risky);
  int64_t lowest = outcome.failure ? control.rank() : control.size();
  control.all_reduce(&lowest, 1, DType::Int64, ReduceOp::Min).wait();
  if (lowest == control.size()) return;
  const std::exception_ptr own = outcome.failure;
  share(control, outcome, static_cast<int>(lowest));
  if (own) std::rethrow_exception(own);
  throw_error(outcome.code, "rank " + std::to_string(lowest) + " failed: " + outcome.message);
}

void agree_on_root(Collectives& control, const std::function<void()>& risky) {
  agree(control, [&] {
    if (control.rank() == 0) risky();
  });
}

}  // namespace zea
