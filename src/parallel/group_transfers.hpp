// SPDX-License-Identifier: Apache-2.0
// Outputs of units, and their gradients, between pipeline stage groups. Both ends know every shape
// from the microbatch, so only rows are sent. Messages of neighboring actions between two groups
// are one call. A send overlaps computation; a receive is waited for when its rows are read.
#pragma once

#include <ATen/ATen.h>

#include <list>
#include <memory>
#include <vector>

#include "comm/mesh.hpp"
#include "model/microbatch.hpp"
#include "schedule/plan.hpp"
#include "schedule/schedule.hpp"

namespace zea {

/// Rows that this rank is receiving.
class Arrival {
 public:
  Arrival() = default;
  /// `indices`: the index of each received row among the `rows` that are needed; undefined: they
  /// are in order.
  Arrival(at::Tensor received, at::Tensor indices, int64_t rows, std::shared_ptr<Pending> pending);

  /// Waits and returns (rows, width).
  at::Tensor take();

 private:
  at::Tensor received_, indices_;
  int64_t rows_ = 0;
  std::shared_ptr<Pending> pending_;  ///< of all rows of one call
};

class GroupTransfers {
 public:
  /// Both must outlive it.
  GroupTransfers(const Plan& plan, Mesh& mesh, at::Device device);

  /// Adds the message of `action` (Send or SendGradient) to the next call; `rows` are the unit's
  /// output as this rank holds it, or the gradient of the output as this rank received it.
  void send(const Action& action, const at::Tensor& rows, const Microbatch& microbatch);
  /// Adds the message of `action` (Receive or ReceiveGradient) to the next call.
  Arrival receive(const Action& action, const Microbatch& microbatch);
  /// Starts the call, if anything was added to it.
  void start();

  /// Releases the memory of messages that have been sent.
  void progress();
  void finish();

 private:
  /// The rows that are sent over one edge between this rank and another pipeline stage group.
  struct Route {
    Collectives* ranks;  ///< the ranks of the link
    const RankLink* link;
    bool is_features;  ///< between modules, by rows; else whole, between equal coordinates
    DType dtype;
    int64_t width;
  };

  Route route_of(const Action& action) const;
  /// Returns the rank with the same coordinate at the other end of an edge inside a module.
  int peer_of(const Action& action) const;
  std::vector<Message> messages(const Route& route, void* data,
                                const std::vector<int64_t>& rows_of_rank) const;
  at::TensorOptions format(const Route& route) const;

  struct Call {
    Collectives* ranks = nullptr;
    std::vector<Message> sends = {}, receives = {};
    std::vector<at::Tensor> sent = {};
    std::shared_ptr<Pending> received = std::make_shared<Pending>();
  };
  struct Sent {
    std::vector<at::Tensor> rows;
    Pending pending;
  };

  void add(const Route& route, const std::vector<Message>& messages, bool sends);

  const Plan& plan_;
  Mesh& mesh_;
  at::Device device_;
  int group_;
  Call next_;
  std::list<Sent> sent_;
};

}  // namespace zea
