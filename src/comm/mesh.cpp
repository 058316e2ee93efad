// SPDX-License-Identifier: Apache-2.0
#include "comm/mesh.hpp"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "comm/checksummed_collectives.hpp"
#include "comm/recorded_collectives.hpp"
#include "core/error.hpp"

namespace zea {
namespace {

constexpr const char* kOutputs = " outputs";
constexpr const char* kGradients = " gradients";

}  // namespace

Mesh::Mesh(const Communicator& world, MeshShape shape, MakeCollectives make, ActionRecord* record,
           bool has_checksums)
    : shape_(std::move(shape)),
      own_record_(record ? nullptr : std::make_unique<ActionRecord>()),
      record_(record ? record : own_record_.get()),
      make_(std::move(make)),
      has_checksums_(has_checksums),
      world_communicator_(world.duplicate("world")) {
  if (world.size() != shape_.world_size())
    throw InternalError("a mesh of " + std::to_string(shape_.world_size()) + " ranks on " +
                        std::to_string(world.size()) + " ranks");
  world_communicator_.limit_sms();
  Collectives* everyone = owned_.add(make_(world_communicator_));
  Ranks all(world.size());
  std::iota(all.begin(), all.end(), 0);
  add_name("world", *everyone, all);
  for (const RankGroups& groups : rank_groups(shape_)) build(groups);
  for (const RankLink& link : shape_.links) build_link(link);
}

Mesh::Owned::~Owned() {
  if (std::uncaught_exceptions() > 0) abort_together(all);
}

Collectives* Mesh::Owned::add(std::unique_ptr<Collectives> collectives) {
  return all.emplace_back(std::move(collectives)).get();
}

// Each direction has a separate communicator, also where other groups have the same ranks: on a
// device the messages of a communicator follow each other on one stream, and forward must not wait
// for backward. Messages wait for a peer's pass, so they hold few SMs. Pairs connect here: if they
// connected at their first messages, ranks would wait for each other in an order that depends on
// the data and could deadlock.
void Mesh::build_link(const RankLink& link) {
  const int replica_ranks = shape_.ranks_per_replica(),
            first = rank() / replica_ranks * replica_ranks;
  const bool takes_part = link.has(rank() - first);
  Ranks members;
  for (int other = 0; takes_part && other < replica_ranks; ++other)
    if (link.has(other)) members.push_back(first + other);
  for (const char* way : {kOutputs, kGradients}) {
    Communicator communicator =
        world_communicator_.split(takes_part ? first : Communicator::kNoColor, link.name + way);
    if (!takes_part) continue;
    communicator.limit_sms();
    Collectives* exchanging = owned_.add(make_(communicator));
    const bool sends = link.from.has(rank() - first) == (way == kOutputs);
    const std::vector<int> peers = link.peers_of(rank() - first), none;
    exchanging->connect(sends ? peers : none, sends ? none : peers);
    add_name(link.name + way, *exchanging, members);
  }
}

// Every rank works out the groups of all ranks, so that all agree which are new and enter the same
// splits in the same order, also those in which they get nothing. A group's color is its lowest
// rank.
void Mesh::build(const RankGroups& groups) {
  const Ranks own = groups.of(rank());
  std::set<Ranks> all;
  std::vector<bool> covered(shape_.world_size(), false);
  for (int r = 0; r < shape_.world_size(); ++r) {
    const Ranks ranks = covered[r] ? Ranks{} : groups.of(r);
    for (int member : ranks) covered[member] = true;
    if (!ranks.empty()) all.insert(ranks);
  }
  build_new(groups.name, all, own, groups_);
  if (groups.shards_buffers && owned_.all.front()->is_streamed())
    build_new(groups.name + " reductions", all, own, reductions_);
  if (!own.empty()) add_name(groups.name, *groups_.of_rank.at(own), own);
}

void Mesh::build_new(const std::string& name, const std::set<Ranks>& all, const Ranks& own,
                     Groups& groups) {
  int color = Communicator::kNoColor;
  bool any_is_new = false;
  for (const Ranks& ranks : all) {
    if (!groups.every.insert(ranks).second) continue;
    any_is_new = true;
    if (ranks == own) color = ranks.front();
  }
  if (!any_is_new) return;
  const Communicator communicator = world_communicator_.split(color, name);
  if (color != Communicator::kNoColor) groups.of_rank.emplace(own, owned_.add(make_(communicator)));
}

void Mesh::add_name(const std::string& name, Collectives& group, const Ranks& members) {
  Named& named = by_name_[name];
  named.all = watched(group, named, name, members);
  if (const auto found = reductions_.of_rank.find(members); found != reductions_.of_rank.end())
    named.reductions = watched(*found->second, named, name, members);
}

Mesh::Watched Mesh::watched(Collectives& group, Named& named, const std::string& name,
                            const Ranks& members) {
  Watched made;
  if (has_checksums_) made.checked = make_checksummed_collectives(group, name, members);
  made.counted = make_counted_collectives(made.checked ? *made.checked : group, named.sent_bytes);
  made.recorded = make_recorded_collectives(*made.counted, *record_, name, members);
  return made;
}

std::string Mesh::note() const {
  for (const auto& collectives : owned_.all)
    if (std::string note = collectives->note(); !note.empty()) return note;
  return "";
}

const Mesh::Named& Mesh::of_name(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end())
    throw InternalError("rank " + std::to_string(rank()) + " has no group " + name +
                        ": not a part of the module, or a group that is not built");
  return found->second;
}

Traffic Mesh::traffic() const {
  Traffic traffic;
  for (const auto& [name, named] : by_name_)
    if (named.sent_bytes > 0) traffic[name] = named.sent_bytes;
  return traffic;
}

void Mesh::count(const Traffic& sent) {
  for (const auto& [name, bytes] : sent) by_name_.at(name).sent_bytes += bytes;
}

Collectives& Mesh::replica() {
  return named("replica");
}

Collectives& Mesh::along(const std::string& module, const std::vector<Axis>& axes) {
  return named(group_name(module, axes));
}

Collectives& Mesh::reducing_along(const std::string& module, const std::vector<Axis>& axes) {
  const Named& group = of_name(group_name(module, axes));
  return group.reductions.recorded ? *group.reductions.recorded : *group.all.recorded;
}

Collectives& Mesh::shard_subgroup(const std::string& module) {
  return named(group_name(module, "shard_subgroup"));
}

Collectives& Mesh::kv_holders(const std::string& module) {
  return named(group_name(module, "kv_holders"));
}

Collectives& Mesh::tied(const std::string& module, int set) {
  return named(tied_name(module, set));
}

Collectives& Mesh::outputs(const std::string& link) {
  return named(link + kOutputs);
}

Collectives& Mesh::gradients(const std::string& link) {
  return named(link + kGradients);
}

Collectives& Mesh::cp_inner(const std::string& module) {
  return named(group_name(module, "cp_inner"));
}

Collectives& Mesh::cp_outer(const std::string& module) {
  return named(group_name(module, "cp_outer"));
}

}  // namespace zea
