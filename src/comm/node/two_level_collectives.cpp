// SPDX-License-Identifier: Apache-2.0
#include "comm/node/two_level_collectives.hpp"

#include <exception>
#include <utility>

#include "core/error.hpp"

namespace zea {
namespace {

std::vector<Pending> one(Pending pending) {
  std::vector<Pending> parts;
  parts.push_back(std::move(pending));
  return parts;
}

std::vector<Pending> nothing() {
  return {};
}

int64_t width_of(DType dtype) {
  return static_cast<int64_t>(element_bytes(dtype));
}

/// Sums of these are rounded once: between the levels they travel as fp32.
bool is_narrow(DType dtype) {
  return dtype == DType::BFloat16 || dtype == DType::Float16;
}

}  // namespace

class TwoLevelCollectives::StagedWork : public ProgressWork {
 public:
  StagedWork(std::shared_ptr<Progress> progress, std::shared_ptr<Order> order, Stages stages)
      : ProgressWork(std::move(progress)),
        order_(std::move(order)),
        stages_(std::move(stages)),
        number_(order_->issued++) {
    progress_->poll();
  }
  StagedWork(const StagedWork&) = delete;
  StagedWork& operator=(const StagedWork&) = delete;
  ~StagedWork() override { leave(); }

 private:
  bool advance() noexcept override {
    bool moved = false;
    try {
      while (!done_ && is_stage_done()) {
        if (next_ == kNumStages) {
          finish();
        } else {
          if (order_->started[next_] != number_) break;
          ++order_->started[next_];
          under_way_ = stages_[next_++]();
        }
        moved = true;
      }
    } catch (...) {
      finish(std::current_exception());
    }
    return moved;
  }

  bool is_stage_done() {
    bool done = true;
    for (Pending& part : under_way_) done = part.test() && done;
    if (done) under_way_.clear();
    return done;
  }

  std::shared_ptr<Order> order_;
  Stages stages_;
  uint64_t number_;
  int next_ = 0;
  std::vector<Pending> under_way_;
};

TwoLevelCollectives::TwoLevelCollectives(std::shared_ptr<Progress> progress, Parts parts)
    : progress_(std::move(progress)),
      mpi_(std::move(parts.mpi)),
      into_node_(std::move(parts.into_node)),
      between_nodes_(std::move(parts.between_nodes)),
      out_of_node_(std::move(parts.out_of_node)) {}

std::unique_ptr<TwoLevelCollectives> TwoLevelCollectives::build(const Communicator& communicator,
                                                                int ranks_per_node,
                                                                int64_t max_shared_bytes,
                                                                std::string& why_not) {
  const int node = communicator.rank() / ranks_per_node;
  const int rank_in_node = communicator.rank() % ranks_per_node;
  const Communicator inside = communicator.split(node, communicator.name() + " on this node");
  const Communicator across =
      communicator.split(rank_in_node, communicator.name() + " between nodes");
  const auto buffers = std::make_shared<SharedBuffers>(rank_in_node, max_shared_bytes);
  Parts parts;
  parts.mpi = make_mpi_collectives(communicator);
  parts.between_nodes = make_mpi_collectives(across);
  parts.into_node = NodeCollectives::build(inside, buffers, max_shared_bytes, why_not);
  parts.out_of_node = NodeCollectives::build(inside, buffers, max_shared_bytes, why_not);
  int32_t can_all = parts.into_node && parts.out_of_node;
  parts.mpi->all_reduce(&can_all, 1, DType::Int32, ReduceOp::Min).wait();
  if (can_all)
    return std::unique_ptr<TwoLevelCollectives>(
        new TwoLevelCollectives(communicator.progress(), std::move(parts)));
  return nullptr;
}

Pending TwoLevelCollectives::start(const CollectiveCall& call) {
  const auto chain = [&](Stages stages) {
    return Pending(std::make_unique<StagedWork>(progress_, order_, std::move(stages)));
  };
  switch (call.kind) {
    case CallKind::AllReduce:
      return chain(all_reduce_stages(call));
    case CallKind::AllGather:
      return chain(all_gather_stages(call));
    case CallKind::ReduceScatter:
      return chain(reduce_scatter_stages(call));
    default:
      return mpi_->start(call);
  }
}

Counts TwoLevelCollectives::counts_on_node(const Counts& counts, int node) const {
  const auto first = counts.begin() + first_rank(node);
  return Counts(first, first + ranks_per_node());
}

Counts TwoLevelCollectives::counts_across_nodes(const Counts& counts) const {
  Counts across;
  for (int node = 0; node < num_nodes(); ++node)
    across.push_back(counts[node * ranks_per_node() + rank_in_node()]);
  return across;
}

TwoLevelCollectives::Stages TwoLevelCollectives::all_reduce_stages(const CollectiveCall& call) {
  const bool widens = is_narrow(call.dtype) && call.op == ReduceOp::Sum;
  const DType between = widens ? DType::Float32 : call.dtype;
  const Counts counts = even_line_counts(call.count, call.dtype, ranks_per_node());
  const int64_t own_count = counts[rank_in_node()];
  std::byte* data = static_cast<std::byte*>(call.receive);
  std::byte* cut = data + begins_of(counts)[rank_in_node()] * width_of(call.dtype);
  const auto own =
      std::make_shared<std::vector<std::byte>>(widens ? own_count * width_of(between) : 0);
  void* sums = widens ? own->data() : cut;
  return {
      [=, this] {
        return one(into_node_->reduce_to_cuts(data, sums, counts, call.dtype, {call.op, widens}));
      },
      [=, this] { return one(between_nodes_->all_reduce(sums, own_count, between, call.op)); },
      [=, this] {
        if (widens) convert_elements(between, own->data(), call.dtype, cut, own_count);
        return one(out_of_node_->all_gather(cut, data, counts, call.dtype));
      }};
}

// A node's ranks are neighbours, so what the ranks of one node shall receive is one range of
// `send`: one reduction inside the node for each node.
TwoLevelCollectives::Stages TwoLevelCollectives::reduce_scatter_stages(const CollectiveCall& call) {
  const bool widens = is_narrow(call.dtype);
  const DType between = widens ? DType::Float32 : call.dtype;
  const Counts across = counts_across_nodes(call.counts);
  const std::vector<int64_t> begins = begins_of(across);
  const int64_t own_count = call.counts[rank()];
  const auto sums = std::make_shared<std::vector<std::byte>>(begins.back() * width_of(between));
  const auto own =
      std::make_shared<std::vector<std::byte>>(widens ? own_count * width_of(between) : 0);
  void* result = widens ? own->data() : call.receive;
  const std::byte* from = static_cast<const std::byte*>(call.send);
  return {
      [=, this] {
        std::vector<Pending> parts;
        for (int node = 0; node < num_nodes(); ++node) {
          const int64_t first = begins_of(call.counts)[first_rank(node)];
          parts.push_back(into_node_->reduce_to_cuts(
              from + first * width_of(call.dtype), sums->data() + begins[node] * width_of(between),
              counts_on_node(call.counts, node), call.dtype, {ReduceOp::Sum, widens}));
        }
        return parts;
      },
      [=, this] {
        return one(between_nodes_->reduce_scatter(sums->data(), result, across, between));
      },
      [=] {
        if (widens) convert_elements(between, own->data(), call.dtype, call.receive, own_count);
        return nothing();
      }};
}

TwoLevelCollectives::Stages TwoLevelCollectives::all_gather_stages(const CollectiveCall& call) {
  const Counts across = counts_across_nodes(call.counts);
  const std::vector<int64_t> begins = begins_of(across);
  const auto cuts = std::make_shared<std::vector<std::byte>>(begins.back() * width_of(call.dtype));
  std::byte* to = static_cast<std::byte*>(call.receive);
  return {
      nothing,
      [=, this] {
        return one(between_nodes_->all_gather(call.send, cuts->data(), across, call.dtype));
      },
      [=, this] {
        std::vector<Pending> parts;
        for (int node = 0; node < num_nodes(); ++node) {
          const int64_t first = begins_of(call.counts)[first_rank(node)];
          parts.push_back(out_of_node_->all_gather(
              cuts->data() + begins[node] * width_of(call.dtype), to + first * width_of(call.dtype),
              counts_on_node(call.counts, node), call.dtype));
        }
        return parts;
      }};
}

}  // namespace zea
