// SPDX-License-Identifier: Apache-2.0
// Random plans (grids of tp, cp and dp_module among them) and steps, every rank's list simulated
// side by side: communicators see the same calls in the same order on all their ranks, no two
// buffers have a slot at a time, units run on gathered buffers, and every gradient is reduced after
// its last addition.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "support/tiny_llava.hpp"
#include "zea/plan/plan.hpp"
#include "zea/plan/reduction.hpp"

namespace zea {
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
  if (mesh.strategy == "no_shard") {
    mesh.bucket_mib = random.one_of<double>({0, 0.001, 0.01, 25});
    return mesh;
  }
  const std::vector<std::string> prefetches{"none", "pre", "post"};
  mesh.prefetch_depth = random.one_of<int64_t>({1, 2, 3, 5, 64});
  mesh.backward_prefetch = random.one_of(prefetches);
  mesh.forward_prefetch = random.one_of(prefetches);
  if (mesh.prefetch_depth == 1 && mesh.forward_prefetch == "post") mesh.forward_prefetch = "pre";
  if (mesh.forward_prefetch == "none" && mesh.backward_prefetch == "none") mesh.prefetch_depth = 1;
  mesh.wrap_units = random.below(5);
  mesh.flatten_parameters = random.below(4) != 0;
  if (random.below(2)) mesh.sync_grad_accum = AutoOption::of(random.below(2) == 1);
  const int size = random.one_of(random.divisors(shards));
  if (mesh.strategy.ends_with("_shard") && size > 1 && size < shards)
    mesh.reshard_after_forward = AutoOption::of_count(size);
  return mesh;
}

Plan random_plan(Random& random) {
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
  options.mesh_llm = random_module(llm);
  if (has_vision) {
    options.mesh_vision = random_module(vision);
    options.vision = {.train = random.below(2) == 1, .train_projector = random.below(2) == 1};
    options.llm.train = !options.vision.train_projector || random.below(2);
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
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      const bool vision = plan.groups[g].module == "vision";
      const auto& mesh = vision ? options.mesh_vision : options.mesh_llm;
      plan.shardings[g].offloads = mesh.strategy != "no_shard";
    }
    plan.slots = make_slots(plan);
  }
  return plan;
}

StepPlan random_step(Random& random, const Plan& plan) {
  std::vector<SampleIndex> index;
  std::vector<int64_t> ids;
  const int images = plan.model.vision ? random.below(3) : 0;
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
    return replica(plan.mesh, rank);
  if (action.unit >= 0)  // the layers of a unit communicate inside
    return plan.mesh.group(rank, plan.model.units[action.unit].module, {Axis::Cp, Axis::Tp});
  const std::string& module = plan.groups[action.group].module;
  const Sharding& sharding = plan.shardings[action.group];
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

using Lists = std::vector<std::vector<Action>>;  ///< of each rank

void expect_same_order(const Plan& plan, const Lists& lists) {
  std::map<std::vector<int>, std::map<int, std::vector<std::pair<ActionKind, int>>>> calls;
  for (int rank = 0; rank < plan.world_size(); ++rank)
    for (const Action& action : lists[rank])
      if (const std::vector<int> ranks = ranks_of(plan, action, rank); !ranks.empty())
        if (ranks.size() > 1)
          calls[ranks][rank].push_back({action.kind, std::max(action.group, action.unit)});
  for (auto& [ranks, of_rank] : calls)
    for (int rank : ranks) ASSERT_EQ(of_rank[rank], of_rank[ranks.front()]) << "rank " << rank;
}

/// What a rank holds while it walks its list, and the engine's rule that one reduction is under way
/// at a time.
class Holdings {
 public:
  explicit Holdings(const Plan& plan)
      : plan_(plan),
        unit_groups_(groups_of_units(plan.model, plan.groups)),
        gathered_(plan.slots.gathered.bytes.size(), -1),
        gradients_(plan.slots.gradients.bytes.size(), -1),
        added_(plan.groups.size()) {}

  void take(const Action& action) {
    switch (action.kind) {
      case ActionKind::Unshard:
      case ActionKind::UnshardSubgroup:
        return gather(action.group);
      case ActionKind::Reshard:
      case ActionKind::ReshardSubgroup:
        ASSERT_EQ(slot(action.group), action.group);
        slot(action.group) = -1;
        return;
      case ActionKind::Forward:
      case ActionKind::Backward:
        return run(action);
      case ActionKind::ReduceShard:
        finish();
        open(action.group);
        reducing_ = action.group;
        added_[action.group] = false;
        return;
      case ActionKind::ReduceReplicas:
        if (reducing_ == action.group) finish();
        added_[action.group] = false;
        summed_.insert(action.group);
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
    for (int holder : gathered_) EXPECT_EQ(holder, -1);
    for (int holder : gradients_) EXPECT_EQ(holder, -1);
    for (size_t g = 0; g < added_.size(); ++g) {
      const Sharding& sharding = plan_.shardings[g];
      EXPECT_FALSE(added_[g] && (sharding.gathered() || sharding.replicas > 1))
          << plan_.groups[g].name << " is not reduced";
    }
  }

 private:
  int& slot(int group) { return gathered_.at(plan_.slots.gathered.slot_of_group[group]); }
  int& gradient(int group) { return gradients_.at(plan_.slots.gradients.slot_of_group[group]); }

  void gather(int group) {
    ASSERT_EQ(slot(group), -1) << plan_.groups[group].name;
    slot(group) = group;
  }

  void run(const Action& action) {
    for (int group : unit_groups_[action.unit]) {
      const bool gathers = plan_.shardings[group].gathered();
      if (gathers) {
        ASSERT_EQ(slot(group), group) << plan_.groups[group].name;
      }
      if (action.kind != ActionKind::Backward || !plan_.groups[group].trainable) continue;
      ASSERT_FALSE(summed_.contains(group)) << "an addition after the last sum";
      if (reducing_ == group) finish();
      if (gathers && gradient(group) != group) {
        if (gradient(group) >= 0) {
          ASSERT_EQ(gradient(group), reducing_);
          finish();
        }
        open(group);
      }
      added_[group] = true;
    }
  }

  void open(int group) {
    if (gradient(group) == group) return;
    ASSERT_EQ(gradient(group), -1) << plan_.groups[group].name;
    gradient(group) = group;
  }

  void finish() {
    if (reducing_ >= 0) gradient(reducing_) = -1;
    reducing_ = -1;
  }

  const Plan& plan_;
  std::vector<std::vector<int>> unit_groups_;
  std::vector<int> gathered_, gradients_;  ///< who has each slot; -1: nobody
  std::vector<bool> added_;                ///< something that is not reduced yet
  std::set<int> summed_;
  std::set<std::pair<int, int>> moved_;  ///< unit and microbatch
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
        lists.push_back(make_schedule(plan.schedule_input(step, rank, forward_only)));
      expect_same_order(plan, lists);
      for (const auto& list : lists) {
        Holdings holdings(plan);
        for (const Action& action : list) holdings.take(action);
        holdings.expect_nothing_left();
      }
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace zea
