// SPDX-License-Identifier: Apache-2.0
#include "parallel/group_transfers.hpp"

#include <utility>

#include "core/error.hpp"
#include "parallel/exchange_rows.hpp"
#include "parallel/sharded_buffer.hpp"

namespace zea {
namespace {

bool goes_back(const Action& action) {
  return action.kind == ActionKind::SendGradient || action.kind == ActionKind::ReceiveGradient;
}

/// Returns whether the unit of an action runs on this pipeline rank group.
bool is_own_unit(const Action& action) {
  return action.kind == ActionKind::Send || action.kind == ActionKind::ReceiveGradient;
}

const RowTransfer& transfer_of(const EncoderPart& part, const Action& action) {
  return goes_back(action) ? part.feature_gradients : part.features;
}

}  // namespace

Arrival::Arrival(at::Tensor received, at::Tensor indices, int64_t rows,
                 std::shared_ptr<Pending> pending)
    : received_(std::move(received)),
      indices_(std::move(indices)),
      rows_(rows),
      pending_(std::move(pending)) {}

at::Tensor Arrival::take() {
  pending_->wait();
  if (!indices_.defined()) return std::move(received_);
  return placed_rows(received_, indices_, rows_);
}

GroupTransfers::GroupTransfers(const Plan& plan, Mesh& mesh, at::Device device)
    : plan_(plan), mesh_(mesh), device_(device), group_(plan.group_of(mesh.rank())) {}

GroupTransfers::Route GroupTransfers::route_of(const Action& action) const {
  const StageGroup& here = plan_.pipeline.stage_groups[group_];
  const StageGroup& there = plan_.pipeline.stage_groups[action.group];
  const std::string name = is_own_unit(action) ? link_name(here, there) : link_name(there, here);
  const UnitSpec& unit = plan_.model.units[action.unit];
  const Precision& precision = plan_.precision_of(unit.module);
  Route route;
  route.ranks = goes_back(action) ? &mesh_.gradients(name) : &mesh_.outputs(name);
  route.link = &plan_.mesh.link(name);
  route.is_features = plan_.model.makes_features(action.unit);
  route.dtype = route.is_features ? precision.output : precision.param;
  route.width = plan_.model.output_width(unit, plan_.mesh.grid(unit.module).tp);
  return route;
}

int GroupTransfers::peer_of(const Action& action) const {
  const std::string& module = plan_.model.units[action.unit].module;
  Coordinate there = plan_.mesh.coordinate(mesh_.rank(), module);
  there.pp = plan_.mesh.grid(module).stage_at(plan_.pipeline.stage_groups[action.group].first_rank);
  return plan_.rank_in_replica(plan_.mesh.rank_at(there, module));
}

at::TensorOptions GroupTransfers::format(const Route& route) const {
  return at::TensorOptions().dtype(to_torch(route.dtype)).device(device_);
}

/// One for each rank of the replica that has rows in it, packed in order of rank.
std::vector<Message> GroupTransfers::messages(const Route& route, void* data,
                                              const std::vector<int64_t>& rows_of_rank) const {
  std::vector<Message> messages;
  auto* next = static_cast<char*>(data);
  for (size_t rank = 0; rank < rows_of_rank.size(); ++rank) {
    const int64_t count = rows_of_rank[rank] * route.width;
    if (count == 0) continue;
    messages.push_back({next, count, route.dtype, route.link->rank_of(static_cast<int>(rank))});
    next += count * static_cast<int64_t>(element_bytes(route.dtype));
  }
  return messages;
}

void GroupTransfers::send(const Action& action, const at::Tensor& rows,
                          const Microbatch& microbatch) {
  const Route route = route_of(action);
  std::vector<int64_t> counts(plan_.mesh.ranks_per_replica(), 0);
  at::Tensor sent = rows.to(to_torch(route.dtype));
  if (route.is_features) {
    const RowTransfer& transfer =
        transfer_of(microbatch.encoder(plan_.model.units[action.unit]), action);
    counts = transfer.sent_counts;
    sent = sent.index_select(0, transfer.sent_rows);
  } else {
    counts[peer_of(action)] = sent.size(0);
  }
  sent = sent.contiguous();
  add(route, messages(route, sent.data_ptr(), counts), true);
  next_.sent.push_back(sent);
}

Arrival GroupTransfers::receive(const Action& action, const Microbatch& microbatch) {
  const Route route = route_of(action);
  const UnitSpec& unit = plan_.model.units[action.unit];
  std::vector<int64_t> counts(plan_.mesh.ranks_per_replica(), 0);
  at::Tensor indices;
  int64_t rows = 0;
  if (route.is_features) {
    const RowTransfer& transfer = transfer_of(microbatch.encoder(unit), action);
    counts = transfer.received_counts;
    indices = transfer.received_rows;
    rows = transfer.needed;
  } else {
    rows = microbatch.local_rows(unit);
    counts[peer_of(action)] = rows;
  }
  const at::Tensor received =
      at::empty({indices.defined() ? indices.numel() : rows, route.width}, format(route));
  add(route, messages(route, received.data_ptr(), counts), false);
  return {received, indices, rows, next_.received};
}

void GroupTransfers::add(const Route& route, const std::vector<Message>& messages, bool sends) {
  ZEA_ASSERT(next_.ranks == nullptr || next_.ranks == route.ranks);
  next_.ranks = route.ranks;
  std::vector<Message>& all = sends ? next_.sends : next_.receives;
  all.insert(all.end(), messages.begin(), messages.end());
}

void GroupTransfers::start() {
  Call call = std::exchange(next_, Call());
  if (!call.sends.empty())
    sent_.push_back({std::move(call.sent), call.ranks->exchange(std::move(call.sends), {})});
  if (!call.receives.empty()) *call.received = call.ranks->exchange({}, std::move(call.receives));
}

void GroupTransfers::progress() {
  sent_.remove_if([](Sent& sent) { return sent.pending.test(); });
}

void GroupTransfers::finish() {
  for (Sent& sent : sent_) sent.pending.wait();
  sent_.clear();
}

}  // namespace zea
