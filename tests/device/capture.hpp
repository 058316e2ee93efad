// SPDX-License-Identifier: Apache-2.0
// Captures the work of streams for a graph: the work is kept instead of run, and later launched on
// the graph's own streams, which only the captured events order.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "device/device.hpp"

namespace zea::testing {

class Capture {
 public:
  /// Captures the work of `origin` and of streams that wait for it.
  explicit Capture(Stream& origin) { join(origin); }

  void join(Stream& stream);
  void keep(const Stream& stream, std::function<void(Stream&)> work);
  std::shared_ptr<Mark> record(const Stream& stream);
  void wait(const Stream& stream, const Mark& mark);
  /// Nothing more is kept. Gives the numbers of streams with work that the origin has not waited
  /// for.
  std::vector<int> end();
  bool has_ended() const { return has_ended_; }

 private:
  friend class Graph;

  struct Launch {
    std::vector<std::unique_ptr<Stream>> streams;
    std::vector<std::shared_ptr<Mark>> marks;
  };

  std::vector<Stream*> streams_;  ///< the origin first
  std::vector<Clock> seen_;       ///< by each of them, of the work of all
  std::vector<int64_t> times_;    ///< of the latest work of each
  std::vector<std::function<void(Launch&)>> steps_;
  size_t num_marks_ = 0;
  bool has_ended_ = false;
};

/// A capture that can be launched.
class Graph {
 public:
  explicit Graph(std::shared_ptr<const Capture> capture);

  /// Launches the graph after the stream's earlier work and before its later work.
  void launch(Stream& stream);

 private:
  std::shared_ptr<const Capture> capture_;
  Capture::Launch launch_;
};

/// While a thread captures it may neither wait for the device nor query its progress. Returns
/// whether `what` is allowed; a fault if not.
bool may_ask(const std::string& what);
void this_thread_captures(bool does_so);

}  // namespace zea::testing
