// SPDX-License-Identifier: Apache-2.0
// Communications of the data-parallel options: test_layouts shows that no option changes the
// result, this test that each does what it says.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "checkpoint/load_weights.hpp"
#include "support/mpi_main.hpp"
#include "support/recording_collectives.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_run.hpp"

namespace zea::testing::test_data_parallel {
namespace {

/// Two microbatches for each of the four ranks in every step, each with an image.
TinyRunOptions make_run(const std::string& strategy, int64_t steps = 1) {
  TinyRunOptions run;
  run.config_json = tiny_llava_config();
  run.steps = steps;
  run.deck.data.row_tokens = 20;
  run.deck.data.packing = false;
  run.deck.schedule = {.steps = steps, .global_batch = 8};
  run.deck.meshes["vision"].strategy = run.deck.meshes["llm"].strategy = strategy;
  return run;
}

void refine(TinyRunOptions& run, const std::function<void(ModuleMeshOptions&)>& change) {
  change(run.deck.meshes["vision"]);
  change(run.deck.meshes["llm"]);
}

Plan plan_of(const TinyRunOptions& run) {
  return make_plan(run.deck, run.config_json, testing::world().size());
}

MemoryDataset dataset_of(const TinyRunOptions& run, const std::vector<int>& images = {1}) {
  return make_tiny_dataset(make_model_spec(run.config_json), 32, images, 5);
}

/// The calls of a run on all ranks.
Record record_of(const TinyRunOptions& run, TinyResult* result = nullptr) {
  Record record;
  const TinyResult got =
      run_tiny(testing::world().communicator(), recording(record), dataset_of(run), run);
  if (result) *result = got;
  return record;
}

int64_t count(const Record& record, const std::string& call, int ranks = 4) {
  return std::count_if(record.begin(), record.end(), [&](const RecordedCall& made) {
    return made.call == call && made.ranks == ranks;
  });
}

bool are_alike(const Record& one, const Record& other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](const RecordedCall& a, const RecordedCall& b) { return a.is_like(b); });
}

int64_t trainable_buffers(const Plan& plan) {
  return std::count_if(plan.buffers.begin(), plan.buffers.end(),
                       [](const FlatBuffer& buffer) { return buffer.trainable; });
}

TEST(DataParallel, DdpSumsEachBucketOncePerStep) {
  TinyRunOptions run = make_run("no_shard");
  for (double bucket_mib : {0.0, 0.01, 25.0}) {
    refine(run, [&](ModuleMeshOptions& mesh) { mesh.bucket_mib = bucket_mib; });
    const Plan plan = plan_of(run);
    const Record record = record_of(run);
    EXPECT_EQ(count(record, "all_reduce"), trainable_buffers(plan)) << bucket_mib;
    EXPECT_EQ(count(record, "all_gather") + count(record, "reduce_scatter"), 0);
    if (bucket_mib == 25.0) {
      EXPECT_EQ(trainable_buffers(plan), 2) << "one bucket for each module";
    }
    if (bucket_mib != 0.01) continue;
    const auto is_small = [&](const RecordedCall& call) {
      return call.elements < static_cast<int64_t>(bucket_mib * (1 << 20)) / 4;
    };
    const Record buckets = calls_of(record, "all_reduce");
    EXPECT_GT(buckets.size(), 2);
    EXPECT_LE(std::count_if(buckets.begin(), buckets.end(), is_small), 2)
        << "only what is left of a module";
  }
}

TEST(DataParallel, DdpGradientsAreViewsOfTheBucketThatIsSummed) {
  const TinyRunOptions run = make_run("no_shard");
  const Plan plan = plan_of(run);
  Record record;
  Mesh mesh(testing::world().communicator(), plan.mesh, recording(record));
  Engine engine(plan, mesh, at::kCPU);
  for (auto& buffer : engine.buffers()) {
    if (!buffer->trainable()) continue;
    buffer->open_gradient();
    const char* bucket = static_cast<const char*>(buffer->gradient().const_data_ptr());
    for (const FlatParam& member : buffer->layout().params)
      if (Parameter* parameter = buffer->parameter(member.param)) {
        EXPECT_EQ(parameter->gradient().const_data_ptr(),
                  bucket + member.offset * static_cast<int64_t>(sizeof(float)));
      }
    buffer->start_reduce_replicas();
    buffer->finish_reduce_replicas();
    EXPECT_EQ(record.back().data, bucket);
  }
}

TEST(DataParallel, EveryStepMakesTheSameCallsInTheSameOrder) {
  for (const char* strategy : {"no_shard", "full_shard"}) {
    const Record one = record_of(make_run(strategy, 1)), three = record_of(make_run(strategy, 3));
    ASSERT_EQ(three.size(), 3 * one.size()) << strategy;
    for (size_t i = 0; i < three.size(); ++i)
      EXPECT_TRUE(three[i].is_like(one[i % one.size()])) << strategy << " call " << i;
  }
}

TEST(DataParallel, CommunicationProgressesBetweenActions) {
  for (const char* strategy : {"no_shard", "full_shard", "hybrid_shard"}) {
    TinyRunOptions run = make_run(strategy);
    if (strategy == std::string("hybrid_shard")) run.deck.mesh.dp_replicate = 2;
    const Record record = record_of(run);
    ASSERT_FALSE(record.empty());
    for (const RecordedCall& call : record)
      EXPECT_GT(*call.asked, 0) << strategy << ": nobody asked its " << call.call
                                << " between its start and its wait";
  }
}

TEST(DataParallel, WithoutItemsNobodyWaitsAndNothingIsSentForTheirModule) {
  for (const char* strategy : {"no_shard", "full_shard"}) {
    TinyRunOptions run = make_run(strategy);
    Record with, without;
    const Communicator world = testing::world().communicator();
    run_tiny(world, recording(with), dataset_of(run, {1}), run);
    run_tiny(world, recording(without), dataset_of(run, {0}), run);
    const Plan plan = plan_of(run);
    int64_t llm = 0;
    for (const FlatBuffer& buffer : plan.buffers) llm += buffer.module == "llm" && buffer.trainable;
    const bool is_ddp = strategy == std::string("no_shard");
    EXPECT_EQ(count(without, is_ddp ? "all_reduce" : "reduce_scatter"), is_ddp ? llm : 2 * llm);
    EXPECT_LT(without.size(), with.size()) << strategy;
    // One sample of the whole batch has an image: its shard group meets, and no more.
    Record one;
    run_tiny(world, recording(one), dataset_of(run, {1, 0, 0, 0, 0, 0, 0, 0}), run);
    EXPECT_GT(one.size(), without.size()) << strategy;
    EXPECT_LE(one.size(), with.size()) << strategy;
  }
}

TEST(DataParallel, SyncGradAccumSaysHowOftenGradientsAreReduced) {
  TinyRunOptions run = make_run("full_shard");
  const int64_t buffers = trainable_buffers(plan_of(run));
  EXPECT_EQ(count(record_of(run), "reduce_scatter"), 2 * buffers);
  refine(run, [](ModuleMeshOptions& mesh) { mesh.sync_grad_accum = AutoOption::of(false); });
  EXPECT_EQ(count(record_of(run), "reduce_scatter"), buffers);
}

TEST(DataParallel, ReshardAfterForwardSaysWhatIsGatheredForBackward) {
  TinyRunOptions full = make_run("full_shard"), zero2 = make_run("shard_grad_op");
  TinyRunOptions pairs = make_run("full_shard");
  refine(pairs,
         [](ModuleMeshOptions& mesh) { mesh.reshard_after_forward = AutoOption::of_count(2); });
  const Record of_full = record_of(full), of_zero2 = record_of(zero2), of_pairs = record_of(pairs);
  EXPECT_LT(count(of_zero2, "all_gather"), count(of_full, "all_gather"));
  EXPECT_EQ(count(of_pairs, "all_gather", 4), count(of_zero2, "all_gather"))
      << "once for forward, from everybody";
  EXPECT_EQ(count(of_pairs, "all_gather", 2),
            count(of_full, "all_gather") - count(of_zero2, "all_gather"))
      << "once for backward, from the pair";
  EXPECT_EQ(count(of_full, "all_gather", 2), 0);
}

TEST(DataParallel, HybridShardGathersInsideAReplicaAndSumsBetweenThem) {
  TinyRunOptions run = make_run("hybrid_shard");
  run.deck.mesh.dp_replicate = 2;
  const Record record = record_of(run);
  EXPECT_GT(count(record, "all_gather", 2), 0);
  EXPECT_EQ(count(record, "all_gather", 4) + count(record, "reduce_scatter", 4), 0);
  EXPECT_EQ(count(record, "all_reduce", 2), trainable_buffers(plan_of(run)))
      << "between replicas once per step";
}

TEST(DataParallel, WrapPolicySaysHowManyBuffersAreGathered) {
  const auto gathers = [](const std::function<void(ModuleMeshOptions&)>& change) {
    TinyRunOptions run = make_run("full_shard");
    refine(run, change);
    return count(record_of(run), "all_gather");
  };
  const int64_t units = gathers([](ModuleMeshOptions&) {});
  EXPECT_LT(gathers([](ModuleMeshOptions& mesh) { mesh.wrap_units = 2; }), units);
  EXPECT_LE(gathers([](ModuleMeshOptions& mesh) { mesh.wrap_units = 0; }), 2 * 2 * 2)
      << "two modules, forward and backward of two microbatches";
  EXPECT_GT(gathers([](ModuleMeshOptions& mesh) { mesh.flatten_parameters = false; }), 3 * units);
}

TEST(DataParallel, ReduceDtypeIsTheTypeOnTheWire) {
  for (const char* strategy : {"no_shard", "full_shard", "hybrid_shard"}) {
    TinyRunOptions run = make_run(strategy, 3);
    if (strategy == std::string("hybrid_shard")) run.deck.mesh.dp_replicate = 2;
    TinyResult exact, rounded;
    record_of(run, &exact);
    run.deck.precisions["vision"].reduce_dtype = run.deck.precisions["llm"].reduce_dtype = "bf16";
    int64_t reductions = 0;
    for (const RecordedCall& call : record_of(run, &rounded))
      if (call.call == "reduce_scatter" || call.call == "all_reduce") {
        EXPECT_EQ(call.dtype, DType::BFloat16) << strategy;
        ++reductions;
      }
    EXPECT_GT(reductions, 0);
    // AdamW moves every weight by about lr, so rounding shows as a part of the way.
    const double difference = max_difference(rounded.weights, exact.weights);
    EXPECT_GT(difference, 0) << strategy;
    EXPECT_NEAR(rounded.losses[2], exact.losses[2], 2e-3) << strategy;
    EXPECT_NEAR(rounded.grad_norms[0] / exact.grad_norms[0], 1, 4e-3) << strategy;
  }
}

TEST(DataParallel, AdamDecaysThroughTheGradientAndAdamwBesideIt) {
  const auto weights = [](const char* kind, double decay) {
    TinyRunOptions run = make_run("no_shard", 2);
    run.deck.optim.kind = kind;
    run.deck.optim.weight_decay = decay;
    TinyResult result;
    record_of(run, &result);
    return result.weights;
  };
  EXPECT_EQ(max_difference(weights("adam", 0), weights("adamw", 0)), 0);
  EXPECT_GT(max_difference(weights("adam", 0.1), weights("adamw", 0.1)), 1e-5);
}

TEST(DataParallel, EveryModuleHasItsOwnTypes) {
  TinyRunOptions run = make_run("full_shard", 3);
  run.deck.meshes["llm"].wrap_units = 0;
  TinyResult exact, mixed;
  record_of(run, &exact);
  run.deck.precisions["llm"].param_dtype = "bf16";
  run.deck.precisions["vision"].reduce_dtype = "bf16";
  const Record record = record_of(run, &mixed);
  const Plan plan = plan_of(run);
  // A call is known by its size, since the language model is wrapped as a whole.
  std::map<int64_t, std::string> module_of;
  for (const FlatBuffer& buffer : plan.buffers) {
    const auto [entry, is_new] = module_of.emplace(buffer.padded(4), buffer.module);
    ASSERT_EQ(entry->second, buffer.module) << buffer.name;
  }
  std::map<std::string, std::set<DType>> gathered, reduced;
  for (const RecordedCall& call : calls_of(record, "all_gather"))
    gathered[module_of.at(call.elements)].insert(call.dtype);
  for (const RecordedCall& call : calls_of(record, "reduce_scatter"))
    reduced[module_of.at(call.elements)].insert(call.dtype);
  using Types = std::map<std::string, std::set<DType>>;
  EXPECT_EQ(gathered, (Types{{"vision", {DType::Float32}}, {"llm", {DType::BFloat16}}}));
  EXPECT_EQ(reduced, (Types{{"vision", {DType::BFloat16}}, {"llm", {DType::Float32}}}));
  EXPECT_NE(mixed.losses[0], exact.losses[0]);
  EXPECT_NEAR(mixed.losses[2], exact.losses[2], 0.02);
}

// Without a GPU the device is the host, too: the test shows that copies to and from the device, and
// gradients that are accumulated in host memory, change nothing.
TEST(DataParallel, OffloadEqualsNoOffloadWithAccumulation) {
  for (const char* strategy : {"full_shard", "shard_grad_op", "hybrid_shard"})
    for (const char* reduce : {"preset", "bf16"}) {
      TinyRunOptions run = make_run(strategy, 4);
      if (strategy == std::string("hybrid_shard")) run.deck.mesh.dp_replicate = 2;
      run.deck.precisions["llm"].reduce_dtype = reduce;
      TinyResult here, offloaded;
      record_of(run, &here);
      run.adjust = [](Plan& plan) {
        for (Sharding& sharding : plan.shardings) sharding.offloads = true;
      };
      record_of(run, &offloaded);
      EXPECT_EQ(offloaded.losses, here.losses) << strategy << ' ' << reduce;
      EXPECT_EQ(max_difference(offloaded.weights, here.weights), 0) << strategy << ' ' << reduce;
    }
}

/// Settings that an offloaded shard is combined with: how it is gathered, reduced and kept.
struct OffloadCase {
  const char* name;
  std::function<void(TinyRunOptions&)> change;
};

TEST(DataParallel, OffloadEqualsNoOffloadWithWhateverElseIsAsked) {
  const auto each = [](std::function<void(ModuleMeshOptions&)> change) {
    return [change](TinyRunOptions& run) { refine(run, change); };
  };
  const OffloadCase cases[] = {
      {"published in bf16",
       [](TinyRunOptions& run) {
         run.deck.precisions["vision"].param_dtype = run.deck.precisions["llm"].param_dtype =
             "bf16";
       }},
      {"subgroup",
       each([](ModuleMeshOptions& mesh) { mesh.reshard_after_forward = AutoOption::of_count(2); })},
      {"summed once",
       each([](ModuleMeshOptions& mesh) { mesh.sync_grad_accum = AutoOption::of(false); })}};
  const Record plain = record_of(make_run("full_shard", 3));
  for (const OffloadCase& tried : cases) {
    TinyRunOptions run = make_run("full_shard", 3);
    tried.change(run);
    TinyResult here, offloaded;
    const Record calls = record_of(run, &here);
    run.adjust = [](Plan& plan) {
      for (Sharding& sharding : plan.shardings) sharding.offloads = true;
    };
    const Record offloaded_calls = record_of(run, &offloaded);
    EXPECT_FALSE(are_alike(calls, plain)) << tried.name << " changes nothing";
    EXPECT_TRUE(are_alike(offloaded_calls, calls)) << tried.name;
    EXPECT_EQ(offloaded.losses, here.losses) << tried.name;
    EXPECT_EQ(max_difference(offloaded.weights, here.weights), 0) << tried.name;
  }
}

/// One rank's runs of `run`, without offload and with it.
std::pair<TinyResult, TinyResult> runs_alone(TinyRunOptions run) {
  const Communicator world = testing::world().communicator();
  const Communicator alone = world.split(world.rank(), "alone");
  const MemoryDataset dataset = dataset_of(run);
  const TinyResult here = run_tiny(alone, make_mpi_collectives, dataset, run);
  run.adjust = [](Plan& plan) {
    for (Sharding& sharding : plan.shardings) sharding.offloads = true;
    plan.slots = make_slots(plan.schedule_parts(), plan.precisions);
  };
  return {here, run_tiny(alone, make_mpi_collectives, dataset, run)};
}

TEST(DataParallel, OneRankOffloadsToo) {
  TinyRunOptions run = make_run("full_shard", 3);
  refine(run, [](ModuleMeshOptions& mesh) { mesh.sync_grad_accum = AutoOption::of(false); });
  const auto [here, offloaded] = runs_alone(run);
  EXPECT_EQ(offloaded.losses, here.losses);
  EXPECT_EQ(max_difference(offloaded.weights, here.weights), 0);
}

// Without other ranks and offload, GEMMs add to the gradient of earlier microbatches directly; an
// offloaded gradient is computed separately, and then added. That is the same sum in another order
// if a GEMM begins with its accumulator, which the library decides.
TEST(DataParallel, OneRankThatAddsEachMicrobatchOffloadsToo) {
  TinyRunOptions run = make_run("full_shard", 3);
  run.deck.precision.preset = "fp64";
  const auto [here, offloaded] = runs_alone(run);
  for (size_t step = 0; step < here.losses.size(); ++step)
    EXPECT_NEAR(offloaded.losses[step], here.losses[step], 1e-10) << "step " << step;
  EXPECT_LT(max_difference(offloaded.weights, here.weights), 1e-10);
}

TEST(DataParallel, OutputDtypeIsThatOfTheFeaturesThatCross) {
  TinyRunOptions run = make_run("no_shard");
  run.deck.precisions["llm"].param_dtype = "fp32";
  TinyResult exact, crossed;
  record_of(run, &exact);
  run.deck.precisions["vision"].output_dtype = "bf16";
  record_of(run, &crossed);
  EXPECT_NE(crossed.losses[0], exact.losses[0]) << "features are rounded";
  EXPECT_NEAR(crossed.losses[0], exact.losses[0], 1e-2);
}

/// Counts the elements that are read from it.
class CountingSource : public FilledSource {
 public:
  using FilledSource::FilledSource;
  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    elements += extent.elements();
    FilledSource::read(name, shape, extent, dtype, target);
  }
  mutable int64_t elements = 0;
};

TEST(DataParallel, SyncModuleStatesReadsOneCopyAndGivesItToAll) {
  for (const char* strategy : {"no_shard", "hybrid_shard"}) {
    TinyRunOptions run = make_run(strategy);
    run.deck.mesh.dp_replicate = 2;
    const auto control = make_mpi_collectives(testing::world().communicator());
    std::vector<at::Tensor> masters;
    for (bool sync : {false, true}) {
      run.deck.model.sync_module_states = sync;
      const Plan plan = plan_of(run);
      Mesh mesh(testing::world().communicator(), plan.mesh, make_mpi_collectives);
      Engine engine(plan, mesh, at::kCPU);
      const CountingSource source(plan.model, run.config_json, 3);
      load_weights(engine, source);
      if (sync) engine.broadcast_weights();
      int64_t read = source.elements;
      control->all_reduce(&read, 1, DType::Int64, ReduceOp::Sum).wait();
      const int64_t copies = strategy == std::string("no_shard") ? 4 : 2;
      EXPECT_EQ(read, plan.model.num_parameters() * (sync ? 1 : copies)) << strategy;
      for (size_t g = 0; g < engine.buffers().size(); ++g)
        if (!sync)
          masters.push_back(engine.buffers()[g]->master().clone());
        else
          EXPECT_TRUE(at::equal(masters[g], engine.buffers()[g]->master())) << strategy;
    }
  }
}

}  // namespace
}  // namespace zea::testing::test_data_parallel
