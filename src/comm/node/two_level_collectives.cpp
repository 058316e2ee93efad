// SPDX-License-Identifier: Apache-2.0
#include "node/two_level_collectives.hpp"

#include <utility>

#include "zea/core/error.hpp"

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
  const int place = communicator.rank() % ranks_per_node;
  const Communicator inside = communicator.split(node, communicator.name() + " on this node");
  const Communicator across = communicator.split(place, communicator.name() + " between nodes");
  const auto buffers = std::make_shared<SharedBuffers>(place, max_shared_bytes);
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
  if (why_not.empty()) why_not = "another node has no shared memory for it";
  return nullptr;
}

Pending TwoLevelCollectives::start(ChainedWork::Stages stages) {
  return Pending(std::make_unique<ChainedWork>(progress_, order_, std::move(stages)));
}

Counts TwoLevelCollectives::counts_on_node(const Counts& counts, int node) const {
  const auto first = counts.begin() + node * ranks_per_node();
  return Counts(first, first + ranks_per_node());
}

Counts TwoLevelCollectives::counts_at_place(const Counts& counts) const {
  Counts at_place;
  for (int node = 0; node < num_nodes(); ++node)
    at_place.push_back(counts[node * ranks_per_node() + place()]);
  return at_place;
}

Pending TwoLevelCollectives::all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) {
  std::byte* bytes = static_cast<std::byte*>(data);
  const Counts counts = even_line_cuts(count, dtype, ranks_per_node());
  if (is_narrow(dtype) && op == ReduceOp::Sum) return all_reduce_wide(bytes, counts, dtype);
  std::byte* cut = bytes + begins_of(counts)[place()] * width_of(dtype);
  return start(
      {[=, this] {
         return one(into_node_->reduce_to_cuts(bytes, cut, counts, dtype, {op, false}));
       },
       [=, this] { return one(between_nodes_->all_reduce(cut, counts[place()], dtype, op)); },
       [=, this] { return one(out_of_node_->all_gather(cut, bytes, counts, dtype)); }});
}

Pending TwoLevelCollectives::all_reduce_wide(std::byte* data, const Counts& counts, DType dtype) {
  std::byte* cut = data + begins_of(counts)[place()] * width_of(dtype);
  const auto sums = std::make_shared<std::vector<float>>(counts[place()]);
  return start({[=, this] {
                  return one(into_node_->reduce_to_cuts(data, sums->data(), counts, dtype,
                                                        {ReduceOp::Sum, true}));
                },
                [=, this] {
                  return one(between_nodes_->all_reduce(sums->data(), counts[place()],
                                                        DType::Float32, ReduceOp::Sum));
                },
                [=, this] {
                  convert_elements(DType::Float32, sums->data(), dtype, cut, counts[place()]);
                  return one(out_of_node_->all_gather(cut, data, counts, dtype));
                }});
}

// A node's ranks are neighbours, so what the ranks of one node shall receive is one range of
// `send`: one reduction inside the node for each node.
Pending TwoLevelCollectives::reduce_scatter(const void* send, void* receive, const Counts& counts,
                                            DType dtype) {
  const bool widens = is_narrow(dtype);
  const DType between = widens ? DType::Float32 : dtype;
  const Counts at_place = counts_at_place(counts);
  const std::vector<int64_t> begins = begins_of(at_place);
  const auto sums = std::make_shared<std::vector<std::byte>>(begins.back() * width_of(between));
  const auto own =
      std::make_shared<std::vector<std::byte>>(widens ? counts[rank()] * width_of(between) : 0);
  void* result = widens ? own->data() : receive;
  const std::byte* from = static_cast<const std::byte*>(send);
  return start(
      {[=, this] {
         std::vector<Pending> parts;
         for (int node = 0; node < num_nodes(); ++node) {
           const int64_t first = begins_of(counts)[node * ranks_per_node()] * width_of(dtype);
           parts.push_back(into_node_->reduce_to_cuts(
               from + first, sums->data() + begins[node] * width_of(between),
               counts_on_node(counts, node), dtype, {ReduceOp::Sum, widens}));
         }
         return parts;
       },
       [=, this] {
         return one(between_nodes_->reduce_scatter(sums->data(), result, at_place, between));
       },
       [=, this] {
         if (widens) convert_elements(between, own->data(), dtype, receive, counts[rank()]);
         return nothing();
       }});
}

Pending TwoLevelCollectives::all_gather(const void* send, void* receive, const Counts& counts,
                                        DType dtype) {
  const Counts at_place = counts_at_place(counts);
  const std::vector<int64_t> begins = begins_of(at_place);
  const auto cuts = std::make_shared<std::vector<std::byte>>(begins.back() * width_of(dtype));
  std::byte* to = static_cast<std::byte*>(receive);
  return start(
      {nothing,
       [=, this] { return one(between_nodes_->all_gather(send, cuts->data(), at_place, dtype)); },
       [=, this] {
         std::vector<Pending> parts;
         for (int node = 0; node < num_nodes(); ++node) {
           const int64_t first = begins_of(counts)[node * ranks_per_node()];
           parts.push_back(out_of_node_->all_gather(cuts->data() + begins[node] * width_of(dtype),
                                                    to + first * width_of(dtype),
                                                    counts_on_node(counts, node), dtype));
         }
         return parts;
       }});
}

Pending TwoLevelCollectives::all_to_all(const void* send, const Counts& send_counts, void* receive,
                                        const Counts& receive_counts, DType dtype) {
  return mpi_->all_to_all(send, send_counts, receive, receive_counts, dtype);
}

Pending TwoLevelCollectives::broadcast(void* data, int64_t count, DType dtype, int root) {
  return mpi_->broadcast(data, count, dtype, root);
}

Pending TwoLevelCollectives::gather(const void* send, void* receive, const Counts& counts,
                                    DType dtype, int root) {
  return mpi_->gather(send, receive, counts, dtype, root);
}

Pending TwoLevelCollectives::scatter(const void* send, void* receive, const Counts& counts,
                                     DType dtype, int root) {
  return mpi_->scatter(send, receive, counts, dtype, root);
}

Pending TwoLevelCollectives::send(const void* data, int64_t count, DType dtype, int destination) {
  return mpi_->send(data, count, dtype, destination);
}

Pending TwoLevelCollectives::recv(void* data, int64_t count, DType dtype, int source) {
  return mpi_->recv(data, count, dtype, source);
}

}  // namespace zea
