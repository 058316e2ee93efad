// SPDX-License-Identifier: Apache-2.0
// Muon: torch's numbers, whole matrices of weights files on every layout, the rest as AdamW has it,
// and resume.
#include "optim/muon.hpp"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "estimate/memory_estimate.hpp"
#include "estimate/traffic.hpp"
#include "kernels/flat_kernels.hpp"
#include "kernels/matmul.hpp"
#include "support/axis_layouts.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "train/training_data.hpp"

namespace zea::testing::test_muon {
namespace {

constexpr double kTolerance = 1e-10;

TinyRunOptions with_muon(TinyRunOptions run) {
  run.deck.optim.kind = "muon";
  run.deck.optim.momentum = 0.95;
  run.steps = kStepsBeforeStop + kStepsAfterStop;
  return run;
}

at::Tensor orthogonalized(const at::Tensor& matrix, at::ScalarType type) {
  const at::Tensor made = matrix.clone();
  orthogonalize(made, type, 1);
  return made;
}

/// Three steps of torch.optim.Muon (2.11) with its iteration in fp64, by a script: lr 0.1, decay
/// 0.05, momentum 0.9.
struct FromTorch {
  MuonRate rate;
  int64_t rows, columns;
  std::vector<double> parameter;
};

TEST(Muon, IsTorchs) {
  const FromTorch cases[] = {{MuonRate::Original,
                              3,
                              2,
                              {-0.268672464884903, -0.148455771054575, -0.0513061965431739,
                               0.0553149920252543, 0.121953523344078, 0.266539375662892}},
                             {MuonRate::MatchRmsAdamw,
                              2,
                              3,
                              {-0.244072426169222, -0.142287736931846, -0.0418829785079489,
                               0.144740454108241, 0.229165097801384, 0.328116153376671}}};
  for (const FromTorch& expected : cases) {
    const auto wide = at::TensorOptions().dtype(at::kDouble);
    const at::Tensor index = at::arange(6, wide);
    at::Tensor parameter = index * 0.1 - 0.2, average = at::zeros({6}, wide);
    for (int step = 1; step <= 3; ++step) {
      const at::Tensor gradient = ((index * 7 + 3 * step).remainder(11) - 5) / 10;
      const at::Tensor update = at::empty_like(gradient);
      nesterov({{average, gradient, update, 0.9}});
      const at::Tensor matrix = update.view({expected.rows, expected.columns});
      const double lr = 0.1 * muon_scale(expected.rate, expected.rows, expected.columns);
      parameter.mul_(1 - 0.1 * 0.05).sub_(orthogonalized(matrix, at::kDouble).flatten() * lr);
    }
    for (int64_t i = 0; i < 6; ++i)
      EXPECT_NEAR(parameter[i].item<double>(), expected.parameter[i], 1e-13) << i;
  }
}

at::Tensor five_steps(at::Tensor x) {
  x = x / x.norm();
  for (int step = 0; step < 5; ++step) {
    const at::Tensor gram = x.mm(x.t());
    x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram.mm(gram)).mm(x);
  }
  return x;
}

/// Long matrices go through their Gram matrix: as step by step, whatever their rank.
TEST(Muon, LongMatricesAreThoseOfAllSteps) {
  for (const auto& [rows, columns, rank] : {std::tuple{12, 24, 12}, {40, 7, 7}, {16, 64, 3}})
    for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
      const auto options = at::TensorOptions().dtype(at::kDouble);
      const auto generator = at::detail::createCPUGenerator(3);
      const at::Tensor matrix = at::randn({rows, rank}, generator, options)
                                    .mm(at::randn({rank, columns}, generator, options));
      const at::Tensor x = five_steps(rows > columns ? matrix.t() : matrix);
      const at::Tensor made = orthogonalized(matrix, type).to(at::kDouble);
      EXPECT_LE((made - (rows > columns ? x.t() : x)).abs().max().item<double>(),
                type == at::kDouble ? 1e-12 : 1e-4);
    }
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b).norm().item<double>() / b.norm().item<double>();
}

/// torch.optim.Muon iterates in bf16 and rounds everything: singular values that are small relative
/// to the largest are wrong by a sixth. Without rounded sums, those of every spectrum come nearer,
/// or within a tenth: exact ones are 0.3 away from 1 themselves.
TEST(Muon, InBf16IsNearerThanTorchs) {
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const auto generator = at::detail::createCPUGenerator(3);
  for (const auto& [rows, columns] : {std::pair{64, 64}, {64, 192}, {192, 64}})
    for (const double power : {0.0, 1.0, 2.0}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << columns << ", power " << power);
      const int64_t least = std::min(rows, columns);
      const auto unitary = [&](int64_t size) {
        return std::get<0>(at::linalg_qr(at::randn({size, least}, generator, options)));
      };
      const at::Tensor values = at::arange(1, least + 1, options).pow(-power);
      const at::Tensor matrix = unitary(rows).mul(values).mm(unitary(columns).t());
      const bool is_tall = rows > columns;
      const at::Tensor wide = is_tall ? matrix.t() : matrix;
      const at::Tensor exact = five_steps(wide);
      const double of_torch = distance(five_steps(wide.to(at::kBFloat16)), exact);
      const at::Tensor made = orthogonalized(matrix.to(at::kFloat), at::kBFloat16);
      EXPECT_LE(distance(is_tall ? made.t() : made, exact), std::max(of_torch, 0.1));
    }
}

/// After one step the averages are (1 - momentum) times the gradient.
TEST(Muon, OrthogonalisesTensorsOfFiles) {
  const MemoryDataset dataset = axis_dataset();
  const Communicator ranks = first_ranks(kAxisRanks);
  const std::string matrices[] = {"language_model.model.layers.0.self_attn.q_proj.weight",
                                  "language_model.model.layers.1.mlp.down_proj.weight",
                                  "multi_modal_projector.linear_1.weight"};
  for (const AxisLayout& layout : {AxisLayout{"full_shard"}, AxisLayout{.name = "tp", .tp = 2}}) {
    TinyRunOptions options = with_muon(run_on(layout, "fp64"));
    options.deck.optim.weight_decay = 0.1;
    TinyRun run(ranks, make_mpi_collectives, dataset, options);
    const Tensors before = run.weights();
    TinyResult result;
    run.train(1, result);
    const Tensors after = run.weights(), averages = run.state("momentum_buffer");
    const ModelSpec& model = run.engine().plan().model;
    const double lr = options.deck.optim.lr / 2;  // the first of two steps of warm-up
    for (const std::string& name : matrices) {
      const Shape shape = model.params[model.param_index(name)].tensor_shape();
      const at::Tensor average = at::tensor(averages.at(name), at::kDouble).view(shape);
      const at::Tensor gradient = average / (1 - options.deck.optim.momentum);
      const at::Tensor made =
          orthogonalized(gradient.lerp(average, options.deck.optim.momentum), at::kDouble);
      const at::Tensor expected =
          at::tensor(before.at(name), at::kDouble).view(shape) * (1 - lr * 0.1) -
          made * lr * muon_scale(MuonRate::MatchRmsAdamw, shape[0], shape[1]);
      const at::Tensor got = at::tensor(after.at(name), at::kDouble).view(shape);
      EXPECT_LE((got - expected).abs().max().item<double>(), 1e-12) << name;
    }
    // The rest is AdamW's: its first update is the rate, wherever the gradient is not tiny.
    const std::string norm = "language_model.model.norm.weight";
    for (size_t i = 0; i < before.at(norm).size(); ++i)
      EXPECT_NEAR(std::abs(after.at(norm)[i] - before.at(norm)[i]), lr, 0.1 * lr);
  }
}

struct Layout {
  const char* name;
  void (*set)(Options&);
};

void each(Options& deck, const char* strategy) {
  deck.meshes["vision"].strategy = deck.meshes["llm"].strategy = strategy;
}

const Layout kDataLayouts[] = {
    {"no_shard", [](Options& deck) { each(deck, "no_shard"); }},
    {"shard_grad_op", [](Options& deck) { each(deck, "shard_grad_op"); }},
    {"full_shard", [](Options& deck) { each(deck, "full_shard"); }},
    {"hybrid_shard",
     [](Options& deck) {
       each(deck, "hybrid_shard");
       deck.mesh.dp_replicate = 2;
     }},
};

TEST(Muon, IsTheSameOnEveryLayout) {
  const MemoryDataset dataset = axis_dataset();
  const Communicator ranks = first_ranks(kAxisRanks);
  const Communicator alone = ranks.split(ranks.rank(), "alone");
  const TinyResult expected =
      run_tiny(alone, make_mpi_collectives, dataset, with_muon(run_on({.name = "alone"}, "fp64")));
  const auto compare = [&](const char* name, const TinyRunOptions& options) {
    SCOPED_TRACE(name);
    const TinyResult got = run_tiny(ranks, make_host_collectives, dataset, options);
    EXPECT_LE(max_difference(got.weights, expected.weights), kTolerance);
    for (size_t step = 0; step < expected.losses.size(); ++step)
      EXPECT_NEAR(got.losses[step], expected.losses[step], kTolerance);
  };
  for (const Layout& layout : kDataLayouts) {
    TinyRunOptions options = with_muon(run_on({layout.name}, "fp64"));
    layout.set(options.deck);
    compare(layout.name, options);
  }
  for (const AxisLayout& layout :
       {AxisLayout{.name = "tp", .tp = 2}, AxisLayout{.name = "tp and cp", .tp = 2, .cp = 2},
        AxisLayout{.name = "pp and tp", .tp = 2, .pp = 2, .schedule = "zero_bubble"}})
    compare(layout.name, with_muon(run_on(layout, "fp64")));
}

TEST(Muon, IsTheSameBySeveralThreads) {
  const MemoryDataset dataset = axis_dataset();
  const Communicator ranks = first_ranks(kAxisRanks);
  const TinyRunOptions options = with_muon(run_on({.name = "tp", .tp = 2}, "fp64"));
  const TinyResult expected = run_tiny(ranks, make_mpi_collectives, dataset, options);
  at::set_num_threads(3);
  const TinyResult got = run_tiny(ranks, make_mpi_collectives, dataset, options);
  at::set_num_threads(1);
  EXPECT_LE(max_difference(got.weights, expected.weights), kTolerance);
}

/// The memory of the first step on this rank.
int64_t predicted_bytes(const Plan& plan, const Dataset& dataset, int rank) {
  Sampler sampler(static_cast<int64_t>(dataset.index().size()), plan.options.schedule.global_batch,
                  plan.options.run.seed, plan.options.data.shuffle);
  const StepPlan step = plan.step_plan(0, sampler.global_batch(0), dataset.index());
  return estimate_memory(plan, rank, step.replicas[plan.replica_of(rank)], dataset.index()).total();
}

/// Widths are large relative to the tokens of a step, so that the optimizer takes the most time.
std::string wide_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config());
  config["text_config"]["hidden_size"] = 192;
  config["text_config"]["intermediate_size"] = 512;
  config["text_config"]["head_dim"] = 48;
  return config.dump();
}

TEST(Muon, IsPredicted) {
  const Communicator ranks = first_ranks(kAxisRanks);
  for (const bool has_tp : {false, true}) {
    SCOPED_TRACE(has_tp);
    TinyRunOptions options;
    options.config_json = wide_config();
    options.deck.data.row_tokens = 40;
    options.deck.schedule = {.steps = 1, .global_batch = 4};
    options.deck.mesh.dp_replicate = has_tp ? 1 : 2;
    for (const char* module : {"vision", "llm"}) {
      options.deck.meshes[module].strategy = has_tp ? "full_shard" : "hybrid_shard";
      if (has_tp) options.deck.meshes[module].tp = 2;
    }
    const MemoryDataset dataset =
        make_tiny_dataset(make_model_spec(options.config_json), 14, {0}, 5);
    std::map<std::string, Traffic> sent, told;
    std::map<std::string, int64_t> bytes;
    for (const char* kind : {"adamw", "muon"}) {
      options.deck.optim.kind = kind;
      const Plan plan = plan_of(options, kAxisRanks);
      told[kind] =
          traffic_of_samples(plan, draw_samples(plan, dataset, "data.train", 0), ranks.rank());
      bytes[kind] = predicted_bytes(plan, dataset, ranks.rank());
      TinyRun run(ranks, make_host_collectives, dataset, options);
      const Traffic before = run.engine().mesh().traffic();
      TinyResult result;
      run.train(1, result);
      sent[kind] = traffic_between(before, run.engine().mesh().traffic());
      const double ratio =
          static_cast<double>(result.tensor_peak_bytes) / static_cast<double>(bytes[kind]);
      EXPECT_GT(ratio, 0.9) << kind;
      EXPECT_LT(ratio, 1.1) << kind;
    }
    EXPECT_EQ(traffic_between(sent["adamw"], sent["muon"]),
              traffic_between(told["adamw"], told["muon"]));
    EXPECT_GT(sent["muon"].size(), 0U);
    EXPECT_LT(bytes["adamw"], bytes["muon"]);
  }
}

TEST(Muon, GoesOnBitByBit) {
  const SharedDirectory shared(world().communicator());
  const MemoryDataset dataset = axis_dataset();
  const Communicator ranks = first_ranks(kAxisRanks);
  TinyRunOptions options = with_muon(run_on({.name = "tp", .tp = 2}, "fp32"));
  options.deck.optim.frozen = {"vision = 4"};
  const StoppedRun stopped =
      run_through(ranks, make_mpi_collectives, dataset, options, shared / "tp");
  expect_resumes(ranks, make_mpi_collectives, dataset, options, stopped, 0);
}

}  // namespace
}  // namespace zea::testing::test_muon
