// SPDX-License-Identifier: Apache-2.0
// A communication on host memory: MPI requests, and the steps to take when they complete, each of
// which may post more requests. Buffers that only the communication needs live here. Long messages
// are split into pieces that fit MPI's int counts, the same on both sides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <mpi.h>

#include "comm/progress.hpp"
#include "core/dtype.hpp"

namespace zea {

class HostWork : public ProgressWork {
 public:
  using Step = std::function<void(HostWork&)>;

  explicit HostWork(std::shared_ptr<Progress> progress) : ProgressWork(std::move(progress)) {}
  HostWork(const HostWork&) = delete;
  HostWork& operator=(const HostWork&) = delete;
  ~HostWork() override;

  /// Where the next non-blocking call puts its request.
  MPI_Request* new_request();
  /// Runs when everything posted so far, and by earlier steps, is complete.
  void then(Step step) { steps_.push_back(std::move(step)); }
  /// Memory that lives as long as the work.
  std::byte* scratch(size_t bytes);

 private:
  bool advance() noexcept override;
  bool complete_requests();
  void abandon() noexcept;

  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::deque<Step> steps_;
  std::vector<std::unique_ptr<std::byte[]>> scratch_;
};

/// Where messages of one kind travel.
struct Channel {
  MPI_Comm comm = MPI_COMM_NULL;
  int tag = 0;
  int64_t max_elements = INT32_MAX;  ///< of one MPI message
  bool rendezvous = false;           ///< a send completes only when its receive has been posted
};

/// Elements of `dtype` in one MPI message of bytes.
int64_t piece_elements(const Channel& channel, DType dtype);

void post_send(HostWork& work, const Channel& channel, const void* data, int64_t count, DType dtype,
               int destination);
void post_receive(HostWork& work, const Channel& channel, void* data, int64_t count, DType dtype,
                  int source);

}  // namespace zea
