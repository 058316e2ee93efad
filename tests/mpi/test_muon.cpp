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

std::string stacked_config() {
  return with_stacks(with_experts(tiny_llava_config({.tied = true}), 4), "in_out");
}

/// After one step the averages are (1 - momentum) times the gradient.
TEST(Muon, OrthogonalisesTensorsOfFiles) {
  const MemoryDataset dataset = axis_dataset();
  const Communicator ranks = first_ranks(kAxisRanks);
  const std::string layers = "language_model.model.layers.", projector = "multi_modal_projector.";
  const struct {
    AxisLayout layout;
    std::vector<std::string> matrices;
    bool has_stacks = false;  ///< a matrix of each expert
  } tried[] = {
      {{"full_shard"}, {"0.self_attn.q_proj.weight", "1.mlp.down_proj.weight"}},
      {{.name = "tp", .tp = 2}, {"0.self_attn.q_proj.weight", "1.mlp.down_proj.weight"}},
      {{"full_shard"}, {"0.mlp.experts.gate_up_proj", "0.mlp.experts.down_proj"}, true},
      {{.name = "tp", .tp = 2}, {"0.mlp.experts.gate_up_proj", "0.mlp.experts.down_proj"}, true}};
  for (const auto& [layout, matrices, has_stacks] : tried) {
    SCOPED_TRACE(std::string(layout.name) + (has_stacks ? ", stacks" : ""));
    TinyRunOptions options = with_muon(run_on(layout, "fp64"));
    options.deck.optim.weight_decay = 0.1;
    if (has_stacks) {
      options.config_json = stacked_config();
      options.deck.meshes["llm"].ep = 2;
    }
    TinyRun run(ranks, make_mpi_collectives, dataset, options);
    const Tensors before = run.weights();
    TinyResult result;
    run.train(1, result);
    const Tensors after = run.weights(), averages = run.state("momentum_buffer");
    const ModelSpec& model = run.engine().plan().model;
    const double lr = options.deck.optim.lr / 2;  // the first of two steps of warm-up
    const auto expect_orthogonalized = [&](const std::string& name) {
      const Shape shape = model.params[model.param_index(name)].tensor_shape();
      const int64_t rows = shape[shape.size() - 2], columns = shape.back();
      const auto matrices_of = [&](const Tensors& tensors) {
        return at::tensor(tensors.at(name), at::kDouble).view({-1, rows, columns}).unbind();
      };
      const auto old = matrices_of(before), now = matrices_of(after), mean = matrices_of(averages);
      for (size_t i = 0; i < old.size(); ++i) {
        const at::Tensor gradient = mean[i] / (1 - options.deck.optim.momentum);
        const at::Tensor made =
            orthogonalized(gradient.lerp(mean[i], options.deck.optim.momentum), at::kDouble);
        const at::Tensor expected = old[i] * (1 - lr * 0.1) -
                                    made * lr * muon_scale(MuonRate::MatchRmsAdamw, rows, columns);
        EXPECT_LE((now[i] - expected).abs().max().item<double>(), 1e-12) << name << " " << i;
      }
    };
    for (const std::string& name : matrices) expect_orthogonalized(layers + name);
    expect_orthogonalized(projector + "linear_1.weight");
    // The rest is AdamW's: its first update is the rate, wherever the gradient is not tiny.
    const std::string norm = "language_model.model.norm.weight";
    for (size_t i = 0; i < before.at(norm).size(); ++i)
      EXPECT_NEAR(std::abs(after.at(norm)[i] - before.at(norm)[i]), lr, 0.1 * lr);
  }
}

/// Returns the tensors of `model`, which stacks the matrices of the experts that `split` has.
Tensors stacked(const Tensors& split, const ModelSpec& model, bool transposes) {
  Tensors all;
  for (const ParamSpec& param : model.params) {
    if (!param.stacks_experts) {
      all[param.name] = split.at(param.name);
      continue;
    }
    const size_t end = param.name.rfind('.') + 1;
    const bool is_up = param.name.ends_with("gate_up_proj");
    for (int64_t e = 0; e < param.shape[0]; ++e) {
      std::vector<at::Tensor> parts;
      for (const char* linear : {"gate_proj", "up_proj", "down_proj"})
        if (is_up != std::string(linear).starts_with("down"))
          parts.push_back(at::tensor(split.at(param.name.substr(0, end) + std::to_string(e) + "." +
                                              linear + ".weight"),
                                     at::kDouble)
                              .view({-1, param.shape[transposes ? 1 : 2]}));
      const at::Tensor matrix = at::cat(parts);
      const at::Tensor flat = (transposes ? matrix.t() : matrix).contiguous();
      const double* values = flat.const_data_ptr<double>();
      std::vector<double>& tensor = all[param.name];
      tensor.insert(tensor.end(), values, values + flat.numel());
    }
  }
  return all;
}

/// Gate and up, which are one matrix in a stack, are frozen.
TEST(Muon, UpdatesMatricesInStacksAsSeparateOnes) {
  const MemoryDataset dataset = axis_dataset();
  const Communicator alone = world().communicator().split(world().rank(), "alone");
  TinyRunOptions split = with_muon(run_on({.name = "alone"}, "fp64"));
  split.config_json = with_experts(tiny_llava_config({.tied = true}), 4);
  split.deck.optim.frozen = {"*.experts.*.gate_proj.weight", "*.experts.*.up_proj.weight"};
  const Tensors first = TinyRun(alone, make_mpi_collectives, dataset, split).weights();
  const TinyResult expected = run_tiny(alone, make_mpi_collectives, dataset, split);
  for (const char* order : {"out_in", "in_out"}) {
    SCOPED_TRACE(order);
    const bool transposes = order == std::string("in_out");
    TinyRunOptions run = split;
    run.config_json = with_stacks(split.config_json, order);
    run.deck.optim.frozen = {"*.experts.gate_up_proj"};
    const ModelSpec model = make_model_spec(run.config_json);
    const Tensors weights = stacked(first, model, transposes);
    run.fill = [&](Engine& engine) {
      for (const auto& buffer : engine.buffers())
        for (const FlatParam& member : buffer->layout().params)
          buffer->master()
              .narrow(0, member.offset, member.elements)
              .copy_(at::tensor(weights.at(model.params[member.param].name), at::kDouble));
      engine.broadcast_weights();
    };
    const TinyResult got = run_tiny(alone, make_mpi_collectives, dataset, run);
    EXPECT_LE(max_difference(got.weights, stacked(expected.weights, model, transposes)),
              kTolerance);
    for (size_t step = 0; step < expected.losses.size(); ++step)
      EXPECT_NEAR(got.losses[step], expected.losses[step], kTolerance);
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
  TinyRunOptions stacks = options;
  stacks.config_json = stacked_config();
  stacks.deck.meshes["llm"].ep = 2;
  for (const TinyRunOptions& run : {options, stacks}) {
    const StoppedRun stopped =
        run_through(ranks, make_mpi_collectives, dataset, run,
                    shared / (run.config_json == options.config_json ? "tp" : "stacks"));
    expect_resumes(ranks, make_mpi_collectives, dataset, run, stopped, 0);
  }
}

TEST(Muon, StacksGoOnAtAnotherEp) {
  const SharedDirectory shared(world().communicator());
  const MemoryDataset dataset = axis_dataset();
  const Communicator ranks = first_ranks(kAxisRanks);
  const auto run_of = [&](const AxisLayout& layout, int64_t ep) {
    TinyRunOptions run = with_muon(run_on(layout, "fp64"));
    run.config_json = stacked_config();
    run.deck.meshes["llm"].ep = ep;
    return run;
  };
  const StoppedRun stopped = run_through(ranks, make_mpi_collectives, dataset,
                                         run_of({"full_shard"}, 2), shared / "full_shard");
  for (const auto& [layout, ep] :
       {std::pair{AxisLayout{"full_shard"}, 4},
        {AxisLayout{.name = "tp", .tp = 2}, 2},
        {AxisLayout{.name = "pp", .pp = 2, .schedule = "zero_bubble"}, 1}})
    expect_resumes(ranks, make_mpi_collectives, dataset, run_of(layout, ep), stopped);
}

}  // namespace
}  // namespace zea::testing::test_muon
