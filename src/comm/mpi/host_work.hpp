// SPDX-License-Identifier: Apache-2.0
// A communication on host memory: MPI requests, and the steps to take when they are complete, each
// of which may post more. Buffers that only the communication needs live here.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "progress.hpp"
#include "zea/comm/collectives.hpp"

namespace zea {

class HostWork : public Pending::Work, private Progress::Task {
 public:
  using Step = std::function<void(HostWork&)>;

  explicit HostWork(std::shared_ptr<Progress> progress);
  HostWork(const HostWork&) = delete;
  HostWork& operator=(const HostWork&) = delete;
  ~HostWork() override;

  void wait() override;
  bool test() override;
  /// Waits at most `limit`: whether it is done.
  bool wait_for(std::chrono::nanoseconds limit);

  /// Where the next non-blocking call puts its request.
  MPI_Request* new_request();
  /// Runs when everything posted so far, and by earlier steps, is complete.
  void then(Step step) { steps_.push_back(std::move(step)); }
  /// Memory that lives as long as the work.
  std::byte* scratch(size_t bytes);

 private:
  bool advance() noexcept override;
  bool complete_requests();
  void rethrow();
  void abandon() noexcept;

  std::shared_ptr<Progress> progress_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::deque<Step> steps_;
  std::vector<std::unique_ptr<std::byte[]>> scratch_;
  std::exception_ptr failure_;
  bool done_ = false;
};

}  // namespace zea
