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

constexpr const char* kWorld = "world";
constexpr const char* kOutputs = " outputs";
constexpr const char* kGradients = " gradients";

/// Names an action that is collective, in which a rank may wait for others.
std::string making(const std::string& group) {
  return "make communicator " + group;
}

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
  Ranks all(world.size());
  std::iota(all.begin(), all.end(), 0);
  declared_[kWorld] = {all, false};
  for (const RankGroups& groups : rank_groups(shape_))
    if (Ranks own = groups.of(rank()); !own.empty())
      declared_[groups.name] = {std::move(own), groups.shards_buffers};
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
  if (!link.has(rank() - first)) return;
  Ranks members;
  for (int other = 0; other < replica_ranks; ++other)
    if (link.has(other)) members.push_back(first + other);
  for (const char* way : {kOutputs, kGradients}) {
    const ActionRecord::Action action(*record_, making(link.name + way));
    Communicator communicator = world_communicator_.of_ranks(members, link.name + way);
    communicator.limit_sms();
    Collectives* exchanging = owned_.add(make_(communicator));
    const bool sends = link.from.has(rank() - first) == (way == kOutputs);
    const std::vector<int> peers = link.peers_of(rank() - first), none;
    exchanging->connect(sends ? peers : none, sends ? none : peers);
    Named& named = by_name_[link.name + way];
    named.all = watched(*exchanging, named, link.name + way, members);
  }
}

Collectives& Mesh::made(std::map<Ranks, Collectives*>& groups, const Ranks& ranks,
                        const std::string& name) {
  Collectives*& group = groups[ranks];
  if (group == nullptr) {
    const ActionRecord::Action action(*record_, making(name));
    Communicator communicator = world_communicator_.of_ranks(ranks, name);
    if (name == kWorld) communicator.limit_sms();
    group = owned_.add(make_(communicator));
  }
  return *group;
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

int Mesh::num_communicators() const {
  return static_cast<int>(
      std::ranges::count_if(owned_.all, [](const auto& group) { return group->size() > 1; }));
}

const Mesh::Declared& Mesh::declared(const std::string& name) const {
  const auto found = declared_.find(name);
  if (found == declared_.end())
    throw InternalError("rank " + std::to_string(rank()) + " has no group " + name +
                        ": not a part of the module, or a group that is not declared");
  return found->second;
}

Collectives& Mesh::named(const std::string& name) {
  const auto known = by_name_.find(name);
  if (known != by_name_.end()) return *known->second.all.recorded;
  const Ranks& ranks = declared(name).ranks;
  // The world's communicator has few SMs for small calls; a group of the same ranks needs more.
  std::map<Ranks, Collectives*> alone;
  Collectives& group = made(name == kWorld ? alone : groups_, ranks, name);
  Named& named = by_name_[name];
  named.all = watched(group, named, name, ranks);
  return *named.all.recorded;
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

Collectives& Mesh::along(const std::string& module, const std::vector<Axis>& axes) {
  return named(group_name(module, axes));
}

Collectives& Mesh::reducing_along(const std::string& module, const std::vector<Axis>& axes) {
  const std::string name = group_name(module, axes);
  const auto& [ranks, shards_buffers] = declared(name);
  if (ranks.size() == 1 || !shards_buffers || !along(module, axes).is_streamed())
    return along(module, axes);
  Named& named = by_name_[name];
  if (!named.reductions.recorded)
    named.reductions = watched(made(reductions_, ranks, name + " reductions"), named, name, ranks);
  return *named.reductions.recorded;
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
