// SPDX-License-Identifier: Apache-2.0
// Random plans (grids of tp, cp and encoder_dp, pipelines of every placement and schedule among
// them) and steps, with every rank's list simulated together: communicators see the same calls in
// the same order on all their ranks, messages are received in the order in which they are sent,
// nobody waits for ever where calls begin in the order of their launches, no two buffers have a
// slot at a time, units run on gathered buffers, and every gradient is reduced after its last
// addition.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "layout/reduction.hpp"
#include "schedule/plan.hpp"
#include "support/launched_calls.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_schedule_properties {
namespace {

using testing::tiny_llava_config;

const char* const kTextModel =
    R"({"model_type": "llama", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 3,
        "num_attention_heads": 8, "vocab_size": 40, "tie_word_embeddings": true})";

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int below(int n) { return static_cast<int>(engine_() % static_cast<uint64_t>(n)); }
  template <class T>
  T one_of(const std::vector<T>& values) {
    return values[below(static_cast<int>(values.size()))];
  }
  std::vector<int> divisors(int n) {
    std::vector<int> found;
    for (int d = 1; d <= n; ++d)
      if (n % d == 0) found.push_back(d);
    return found;
  }

 private:
  std::mt19937_64 engine_;
};

/// Degrees whose product is `ranks`.
void choose_degrees(Random& random, int ranks, ModuleMeshOptions& mesh) {
  mesh.tp = random.one_of(random.divisors(ranks));
  mesh.cp = ranks / mesh.tp;
}

/// `degrees`: its tp and cp; `shards`: the ranks that share a copy where it is cut.
ModuleMeshOptions random_mesh(Random& random, const ModuleMeshOptions& degrees, int dp_replicate,
                              int shards) {
  ModuleMeshOptions mesh = degrees;
  const std::vector<std::string> one_copy{"full_shard", "shard_grad_op", "no_shard"};
  const std::vector<std::string> copies{"hybrid_shard", "hybrid_shard_zero2", "no_shard"};
  mesh.strategy = random.one_of(dp_replicate > 1 ? copies : one_copy);
  if (mesh.strategy == ShardingStrategy::NoShard) {
    mesh.bucket_mib = random.one_of<double>({0, 0.001, 0.01, 25});
    return mesh;
  }
  const std::vector<std::string> prefetches{"none", "pre", "post"};
  mesh.prefetch_depth = random.one_of<int64_t>({1, 2, 3, 5, 64});
  mesh.backward_prefetch = random.one_of(prefetches);
  mesh.forward_prefetch = random.one_of(prefetches);
  if (mesh.prefetch_depth == 1 && mesh.forward_prefetch == Prefetch::Post)
    mesh.forward_prefetch = "pre";
  if (mesh.forward_prefetch == Prefetch::None && mesh.backward_prefetch == Prefetch::None)
    mesh.prefetch_depth = 1;
  mesh.wrap_units = random.below(5);
  mesh.flatten_parameters = random.below(4) != 0;
  if (random.below(2)) mesh.sync_grad_accum = AutoOption::of(random.below(2) == 1);
  const int size = random.one_of(random.divisors(shards));
  if (mesh.strategy.name().ends_with("_shard") && size > 1 && size < shards)
    mesh.reshard_after_forward = AutoOption::of_count(size);
  return mesh;
}

/// Modules or stages on ranks of their own. Sets the degrees; returns the ranks of a replica.
int choose_pipeline(Random& random, bool has_vision, Options& options) {
  ModuleMeshOptions &llm = options.meshes["llm"], &vision = options.meshes["vision"];
  options.mesh.placement =
      has_vision ? random.one_of<std::string>({"shared", "colocated", "disjoint"}) : "shared";
  const bool shared = options.mesh.placement == ModulePlacement::Shared;
  llm.tp = random.one_of<int64_t>({1, 1, 2});
  llm.cp = random.one_of<int64_t>({1, 1, 2});
  llm.pp = random.one_of<int64_t>({shared ? 2 : 1, 2, 3});
  options.mesh.schedule = random.one_of<std::string>({"gpipe", "1f1b", "zero_bubble"});
  if (llm.pp == 2 && random.below(3) == 0) {
    options.mesh.schedule = "interleaved_1f1b";
    llm.virtual_stages = 2;
  }
  const auto stage_ranks = static_cast<int>(llm.tp * llm.cp);
  const int llm_ranks = stage_ranks * static_cast<int>(llm.pp);
  if (!has_vision) return llm_ranks;
  if (shared) {
    vision.tp = random.one_of(random.divisors(stage_ranks));
    return llm_ranks;
  }
  vision.tp = random.one_of<int64_t>({1, 2});
  vision.pp = random.one_of<int64_t>({1, 2});
  vision.encoder_dp = random.one_of<int64_t>({1, 2, 3});
  return llm_ranks + static_cast<int>(vision.tp * vision.pp * vision.encoder_dp);
}

Plan random_pipeline(Random& random) {
  Options options;
  const bool has_vision = random.below(4) != 0;
  const int replica_ranks = choose_pipeline(random, has_vision, options);
  options.mesh.dp_replicate = random.one_of<int64_t>({1, 1, 2});
  options.mesh.dp_shard = random.one_of<int64_t>({1, 2});
  const auto replicas = static_cast<int>(options.mesh.dp_replicate * options.mesh.dp_shard);
  for (ModuleMeshOptions* mesh : {&options.meshes["llm"], &options.meshes["vision"]}) {
    if (mesh == &options.meshes["vision"] && !has_vision) continue;
    *mesh = random_mesh(random, *mesh, static_cast<int>(options.mesh.dp_replicate), 1);
    if (mesh->strategy.name().ends_with("_shard") && mesh->strategy != ShardingStrategy::NoShard &&
        random.below(3))
      mesh->reshard_after_forward = AutoOption::of(random.below(2) == 1);
  }
  if (has_vision) {
    options.encoders["vision"] = {.train = random.below(2) == 1,
                                  .train_projector = random.below(2) == 1};
    options.llm.train = !options.encoders["vision"].train_projector || random.below(2);
  }
  options.data.row_tokens = 30;
  const bool tied = random.below(2) == 1;
  return make_plan(
      options,
      has_vision ? tiny_llava_config(
                       {.tied = tied, .layers = 2 + random.below(5), .heads = 8, .vision_heads = 8})
                 : kTextModel,
      replicas * replica_ranks);
}

Plan random_plan(Random& random) {
  if (random.below(2)) return random_pipeline(random);
  Options options;
  const int ranks = random.one_of<int>({1, 2, 3, 4, 6, 8});
  std::vector<int> sizes = random.divisors(ranks);
  std::erase_if(sizes, [](int size) { return size % 3 == 0; });  // of the 8 heads
  const int replica_ranks = random.below(2) ? 1 : random.one_of(sizes);
  const int replicas = ranks / replica_ranks;
  const int replicate = random.below(2) ? 1 : random.one_of(random.divisors(replicas));
  options.mesh.dp_replicate = replicate;
  options.mesh.dp_shard = replicas / replicate;
  const bool has_vision = random.below(3) != 0;
  ModuleMeshOptions llm, vision;
  choose_degrees(random, replica_ranks, llm);
  choose_degrees(random, random.one_of(random.divisors(replica_ranks)), vision);
  const auto random_module = [&](const ModuleMeshOptions& degrees) {
    const int shards = ranks / replicate / static_cast<int>(degrees.tp);
    return random_mesh(random, degrees, replicate, shards);
  };
  options.meshes["llm"] = random_module(llm);
  if (has_vision) {
    options.meshes["vision"] = random_module(vision);
    options.encoders["vision"] = {.train = random.below(2) == 1,
                                  .train_projector = random.below(2) == 1};
    options.llm.train = !options.encoders["vision"].train_projector || random.below(2);
  }
  options.data.row_tokens = 30;
  options.data.packing = random.below(2) == 1;
  const bool tied = random.below(2) == 1;
  Plan plan = make_plan(
      options,
      has_vision ? tiny_llava_config(
                       {.tied = tied, .layers = 1 + random.below(5), .heads = 8, .vision_heads = 8})
                 : kTextModel,
      ranks);
  if (random.below(4) == 0) {
    for (size_t g = 0; g < plan.buffers.size(); ++g) {
      const bool vision = plan.buffers[g].module == "vision";
      const auto& mesh = vision ? options.meshes["vision"] : options.meshes["llm"];
      plan.shardings[g].offloads = mesh.strategy != ShardingStrategy::NoShard;
    }
    plan.slots = make_slots(plan.schedule_parts(), plan.precisions);
  }
  return plan;
}

StepPlan random_step(Random& random, const Plan& plan) {
  std::vector<SampleIndex> index;
  std::vector<int64_t> ids;
  const int images = plan.model.has("vision") ? random.below(3) : 0;
  const int samples = 1 + random.below(3 * plan.world_size() + 3);
  for (int i = 0; i < samples; ++i) {
    const int64_t items = images == 1 ? random.below(2) : images == 2 ? random.below(6) == 0 : 0;
    index.push_back({5 + random.below(26), items, 1});
    ids.push_back(i);
  }
  return plan.step_plan(0, ids, index);
}

/// The ranks of the communicator on which an action of `rank` communicates; empty for none.
std::vector<int> ranks_of(const Plan& plan, const Action& action, int rank) {
  if (action.kind == ActionKind::Move || action.kind == ActionKind::MoveBack)
    return plan.mesh.group(rank, "llm", stage_axes());
  if (action.group >= 0) return {};  // see expect_delivery
  if (action.unit >= 0)              // the layers of a unit communicate inside
    return plan.mesh.group(rank, plan.model.units[action.unit].module, {Axis::Cp, Axis::Tp});
  const std::string& module = plan.buffers[action.buffer].module;
  const Sharding& sharding = plan.shardings[action.buffer];
  switch (action.kind) {
    case ActionKind::Unshard:
    case ActionKind::ReduceShard:
      return sharding.shards == 1 ? std::vector<int>{}
                                  : plan.mesh.group(rank, module, shard_axes());
    case ActionKind::UnshardSubgroup:
      return shard_subgroup(plan.mesh, rank, module, sharding.subgroup);
    case ActionKind::ReduceReplicas:
      return plan.mesh.group(
          rank, module, sharding.gathered() ? std::vector<Axis>{Axis::DpReplicate} : token_axes());
    default:
      return {};
  }
}

using Lists = testing::ActionLists;

void expect_same_order(const Plan& plan, const Lists& lists) {
  std::map<std::vector<int>, std::map<int, std::vector<std::pair<ActionKind, int>>>> calls;
  for (int rank = 0; rank < plan.world_size(); ++rank)
    for (const Action& action : lists[rank])
      if (const std::vector<int> ranks = ranks_of(plan, action, rank); !ranks.empty())
        if (ranks.size() > 1)
          calls[ranks][rank].push_back({action.kind, std::max(action.buffer, action.unit)});
  for (auto& [ranks, of_rank] : calls)
    for (int rank : ranks) ASSERT_EQ(of_rank[rank], of_rank[ranks.front()]) << "rank " << rank;
}

bool is_send(const Action& action) {
  return action.kind == ActionKind::Send || action.kind == ActionKind::SendGradient;
}

/// A send and its receives have in common: replica, both stage groups, direction, unit, microbatch.
using Delivery = std::tuple<int, int, int, bool, int, int>;

Delivery delivery_of(const Plan& plan, const Action& action, int rank) {
  const int here = plan.group_of(rank);
  const bool back =
      action.kind == ActionKind::SendGradient || action.kind == ActionKind::ReceiveGradient;
  return {plan.replica_of(rank),
          is_send(action) ? here : action.group,
          is_send(action) ? action.group : here,
          back,
          action.unit,
          action.microbatch};
}

/// Every message that a rank receives is sent, and the other way round.
void expect_delivery(const Plan& plan, const Lists& lists) {
  std::set<Delivery> sent, received;
  for (int rank = 0; rank < plan.world_size(); ++rank)
    for (const Action& action : lists[rank])
      if (action.group >= 0)
        (is_send(action) ? sent : received).insert(delivery_of(plan, action, rank));
  ASSERT_EQ(sent, received);
}

/// Between two ranks messages of one way follow each other as both ends come to them.
void expect_same_order_of_messages(const Plan& plan, const Lists& lists) {
  using Message = std::pair<int, int>;
  std::map<std::tuple<int, int, int, bool>, std::map<int, std::vector<Message>>> sent, received;
  for (int rank = 0; rank < plan.world_size(); ++rank)
    for (const Action& action : lists[rank]) {
      if (action.group < 0) continue;
      const auto [replica, from, to, back, unit, microbatch] = delivery_of(plan, action, rank);
      (is_send(action) ? sent : received)[{replica, from, to, back}][rank].push_back(
          {unit, microbatch});
    }
  for (const auto& [way, senders] : sent)
    for (const auto& [sender, messages] : senders)
      for (const auto& [receiver, expected] : received[way]) {
        // A rank without items sends nothing, and one that takes nothing receives nothing.
        std::vector<Message> both_sent, both_received;
        for (const Message& message : messages)
          if (std::count(expected.begin(), expected.end(), message)) both_sent.push_back(message);
        for (const Message& message : expected)
          if (std::count(messages.begin(), messages.end(), message))
            both_received.push_back(message);
        ASSERT_EQ(both_sent, both_received) << sender << " to " << receiver;
      }
}

/// Contents of a rank's slots while its list is traced, and the engine's rule that one reduction is
/// in progress at a time.
class Holdings {
 public:
  Holdings(const Plan& plan, int rank)
      : plan_(plan),
        rank_(rank),
        slots_(plan.slots[plan.group_of(rank)]),
        unit_buffers_(buffers_of_units(plan.model, plan.buffers)),
        gathered_(slots_.gathered.bytes.size(), -1),
        gradients_(slots_.gradients.bytes.size(), -1),
        added_(plan.buffers.size()) {}

  void take(const Action& action) {
    switch (action.kind) {
      case ActionKind::Unshard:
      case ActionKind::UnshardSubgroup:
        return gather(action.buffer);
      case ActionKind::Reshard:
      case ActionKind::ReshardSubgroup:
        ASSERT_EQ(slot(action.buffer), action.buffer);
        slot(action.buffer) = -1;
        return;
      case ActionKind::Forward:
      case ActionKind::Backward:
        return run(action);
      case ActionKind::BackwardInput:
        EXPECT_TRUE(put_off_.insert({action.unit, action.microbatch}).second);
        return run(action);
      case ActionKind::BackwardWeight:
        EXPECT_EQ(put_off_.erase({action.unit, action.microbatch}), 1u);
        return run(action);
      case ActionKind::Send:
      case ActionKind::Receive:
      case ActionKind::SendGradient:
      case ActionKind::ReceiveGradient:
        return;
      case ActionKind::ReduceShard:
        finish();
        open(action.buffer);
        reducing_ = action.buffer;
        added_[action.buffer] = false;
        return;
      case ActionKind::ReduceReplicas:
        if (reducing_ == action.buffer) finish();
        added_[action.buffer] = false;
        summed_.insert(action.buffer);
        return;
      case ActionKind::Move:
        EXPECT_TRUE(moved_.insert({action.unit, action.microbatch}).second);
        return;
      case ActionKind::MoveBack:
        EXPECT_EQ(moved_.erase({action.unit, action.microbatch}), 1u);
        return;
    }
  }

  void expect_nothing_left() {
    finish();
    EXPECT_TRUE(put_off_.empty());
    for (int holder : gathered_) EXPECT_EQ(holder, -1);
    for (int holder : gradients_) EXPECT_EQ(holder, -1);
    for (size_t g = 0; g < added_.size(); ++g) {
      const Sharding& sharding = plan_.shardings[g];
      EXPECT_FALSE(added_[g] && (sharding.gathered() || sharding.replicas > 1))
          << plan_.buffers[g].name << " is not reduced";
    }
  }

 private:
  int& slot(int buffer) { return gathered_.at(slots_.gathered.slot_of_buffer[buffer]); }
  int& gradient(int buffer) { return gradients_.at(slots_.gradients.slot_of_buffer[buffer]); }

  void gather(int buffer) {
    ASSERT_EQ(slot(buffer), -1) << plan_.buffers[buffer].name;
    slot(buffer) = buffer;
  }

  void run(const Action& action) {
    ASSERT_EQ(plan_.pipeline.group_of_unit(action.unit), plan_.group_of(rank_));
    for (int buffer : unit_buffers_[action.unit]) {
      ASSERT_TRUE(plan_.holds(rank_, buffer)) << plan_.buffers[buffer].name;
      const bool gathers = plan_.shardings[buffer].gathered();
      if (gathers) {
        ASSERT_EQ(slot(buffer), buffer) << plan_.buffers[buffer].name;
      }
      if (action.kind == ActionKind::Forward || !plan_.buffers[buffer].trainable) continue;
      ASSERT_FALSE(summed_.contains(buffer)) << "an addition after the last sum";
      if (reducing_ == buffer) finish();
      if (gathers && gradient(buffer) != buffer) {
        if (gradient(buffer) >= 0) {
          ASSERT_EQ(gradient(buffer), reducing_);
          finish();
        }
        open(buffer);
      }
      added_[buffer] = true;
    }
  }

  void open(int buffer) {
    if (gradient(buffer) == buffer) return;
    ASSERT_EQ(gradient(buffer), -1) << plan_.buffers[buffer].name;
    gradient(buffer) = buffer;
  }

  void finish() {
    if (reducing_ >= 0) gradient(reducing_) = -1;
    reducing_ = -1;
  }

  const Plan& plan_;
  int rank_;
  const SlotPlans& slots_;
  std::vector<std::vector<int>> unit_buffers_;
  std::vector<int> gathered_, gradients_;  ///< who has each slot; -1: nobody
  std::vector<bool> added_;                ///< something that is not reduced yet
  std::set<int> summed_;
  std::set<std::pair<int, int>> moved_, put_off_;  ///< unit and microbatch
  int reducing_ = -1;
};

TEST(ScheduleProperties, HoldForRandomPlansAndSteps) {
  Random random(7);
  for (int trial = 0; trial < 1500; ++trial) {
    const Plan plan = random_plan(random);
    for (bool forward_only : {false, true}) {
      SCOPED_TRACE("trial " + std::to_string(trial) + (forward_only ? ", evaluation" : ""));
      const StepPlan step = random_step(random, plan);
      Lists lists;
      for (int rank = 0; rank < plan.world_size(); ++rank)
        lists.push_back(plan.rank_step(step, rank, forward_only).schedule.actions);
      expect_same_order(plan, lists);
      expect_delivery(plan, lists);
      expect_same_order_of_messages(plan, lists);
      ASSERT_EQ(testing::launch_deadlock(plan, lists), "");
      for (int rank = 0; rank < plan.world_size(); ++rank) {
        Holdings holdings(plan, rank);
        for (const Action& action : lists[rank]) holdings.take(action);
        holdings.expect_nothing_left();
      }
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace zea::test_schedule_properties
