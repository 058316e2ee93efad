// SPDX-License-Identifier: Apache-2.0
#include "mpi/host_work.hpp"

#include <utility>

#include "zea/comm/communicator.hpp"

namespace zea {

HostWork::HostWork(std::shared_ptr<Progress> progress) : progress_(std::move(progress)) {
  progress_->add(this);
}

HostWork::~HostWork() {
  if (!done_ && std::uncaught_exceptions() == 0) progress_->wait_until([this] { return done_; });
  progress_->remove(this);
  if (!done_ || failure_) abandon();
}

void HostWork::wait() {
  if (!done_) progress_->wait_until([this] { return done_; });
  rethrow();
}

bool HostWork::wait_for(std::chrono::nanoseconds limit) {
  const bool done = done_ || progress_->wait_until([this] { return done_; }, limit);
  rethrow();
  return done;
}

bool HostWork::test() {
  if (!done_) progress_->poll();
  rethrow();
  return done_;
}

MPI_Request* HostWork::new_request() {
  requests_.push_back(MPI_REQUEST_NULL);
  return &requests_.back();
}

std::byte* HostWork::scratch(size_t bytes) {
  scratch_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
  return scratch_.back().get();
}

bool HostWork::advance() noexcept {
  bool moved = false;
  try {
    while (!done_ && complete_requests()) {
      moved = true;
      if (steps_.empty()) {
        done_ = true;
        progress_->remove(this);
        break;
      }
      const Step step = std::move(steps_.front());
      steps_.pop_front();
      step(*this);
    }
  } catch (...) {
    failure_ = std::current_exception();
    done_ = true;
    progress_->remove(this);
    moved = true;
  }
  return moved;
}

bool HostWork::complete_requests() {
  if (requests_.empty()) return true;
  int complete = 0;
  statuses_.resize(requests_.size());
  const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &complete,
                               statuses_.data());
  if (code == MPI_ERR_IN_STATUS)
    for (const MPI_Status& status : statuses_)
      if (status.MPI_ERROR != MPI_ERR_PENDING) check_mpi(status.MPI_ERROR, "MPI_Testall");
  check_mpi(code, "MPI_Testall");
  if (complete) requests_.clear();
  return complete;
}

void HostWork::rethrow() {
  if (failure_) std::rethrow_exception(failure_);
}

// The peers may never answer: receives are withdrawn where MPI can, and what MPI may still touch is
// left to it. This happens only on the way to the end of the job.
void HostWork::abandon() noexcept {
  for (MPI_Request& request : requests_)
    if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
  for (auto& buffer : scratch_) buffer.release();
}

}  // namespace zea
