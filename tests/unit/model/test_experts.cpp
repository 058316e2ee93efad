// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts, compared with their definition by libtorch's operations: gates, chosen
// experts, outputs and all gradients, also where experts get no token or every token.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/row_kernels.hpp"
#include "model/functions.hpp"

namespace zea::test_experts {
namespace {

using at::Tensor;

constexpr int64_t kTokens = 23, kHidden = 12, kInner = 10;

struct Case {
  RouterSpec router;
  double preference;  ///< is added to the score of the first expert
};

RouterSpec sigmoid_router(int64_t experts, int64_t chosen, int64_t groups, int64_t topk_groups,
                          bool norm_topk_prob) {
  return {.experts = experts,
          .chosen = chosen,
          .norm_topk_prob = norm_topk_prob,
          .scores = RouterScores::Sigmoid,
          .has_correction_bias = true,
          .groups = groups,
          .topk_groups = topk_groups,
          .min_sum = 1e-20,
          .factor = 2.5};
}

/// The bias of the choice alone.
at::Tensor correction_bias(const RouterSpec& router) {
  return at::linspace(-0.4, 0.4, router.experts, at::TensorOptions(at::kDouble)).flip(0);
}

struct Results {
  Tensor y, dx, drouter, dup, ddown;
};

struct Weights {
  Tensor router, up,
      down;  ///< (experts, hidden), (experts, inner, hidden), (experts, hidden, inner)
};

at::TensorOptions doubles() {
  return at::TensorOptions(at::kDouble);
}

/// The experts of each token by their definition: those outside its best groups have no rank.
Tensor defined_choice(const Tensor& scores, const RouterSpec& router) {
  Tensor ranks = scores.detach().clone();
  if (router.has_correction_bias) ranks += correction_bias(router);
  const int64_t of_group = router.experts / router.groups;
  for (int64_t t = 0; t < ranks.size(0) && router.groups > 1; ++t) {
    std::vector<std::pair<double, int64_t>> groups;
    for (int64_t g = 0; g < router.groups; ++g) {
      const Tensor two = std::get<0>(ranks[t].narrow(0, g * of_group, of_group).topk(2));
      groups.emplace_back(-two.sum().item<double>(), g);
    }
    std::ranges::sort(groups);
    for (int64_t g = router.topk_groups; g < router.groups; ++g)
      ranks[t].narrow(0, groups[static_cast<size_t>(g)].second * of_group, of_group).fill_(-99);
  }
  return std::get<1>(ranks.topk(router.chosen, 1));
}

/// Every expert computes all tokens; what was not chosen has the gate 0.
Results defined(const Tensor& x_values, const Weights& weights, const Case& one, const Tensor& dy) {
  const Tensor x = x_values.detach().clone().requires_grad_(true);
  const Tensor router = weights.router.detach().clone().requires_grad_(true);
  const Tensor up = weights.up.detach().clone().requires_grad_(true);
  const Tensor down = weights.down.detach().clone().requires_grad_(true);
  const Tensor bias = at::zeros({one.router.experts}, doubles());
  bias[0] = one.preference;
  const Tensor outputs = at::matmul(x, router.t()) + bias;
  const Tensor shares =
      one.router.scores == RouterScores::Sigmoid ? outputs.sigmoid() : outputs.softmax(1);
  const Tensor chosen = defined_choice(shares, one.router);
  const Tensor is_chosen = at::zeros_like(shares).scatter_(1, chosen, 1);
  Tensor gates = shares * is_chosen;
  if (one.router.norm_topk_prob) gates = gates / gates.sum(1, true);
  gates = gates * one.router.factor;
  Tensor y = at::zeros_like(x_values);
  for (int64_t e = 0; e < one.router.experts; ++e)
    y = y + gates.narrow(1, e, 1) * at::matmul(at::matmul(x, up[e].t()).tanh(), down[e].t());
  y.backward(dy);
  return {y.detach(), x.grad(), router.grad(), up.grad(), down.grad()};
}

Parameter parameter_of(const std::string& name, const Tensor& value, bool trains = true) {
  Parameter parameter(name, value.sizes().vec(), trains, at::kCPU);
  parameter.set_value(value.clone());
  parameter.set_gradient(at::zeros_like(value));
  return parameter;
}

Results routed(const Tensor& x_values, const Weights& weights, const Case& one, const Tensor& dy,
               bool defers) {
  const Tensor x = x_values.detach().clone().requires_grad_(true);
  Parameter router = parameter_of("router", weights.router);
  Parameter up = parameter_of("up", weights.up.flatten(0, 1));
  Parameter down = parameter_of("down", weights.down.flatten(0, 1));
  const Tensor bias = at::zeros({one.router.experts}, doubles());
  bias[0] = one.preference;
  const Routing routing =
      route(linear(x, router, nullptr) + bias, one.router,
            one.router.has_correction_bias ? correction_bias(one.router).to(at::kFloat) : Tensor());
  const DispatchedRows sent =
      dispatch_to_experts(x, routing.chosen, {0, one.router.experts, one.router.experts});
  const Tensor inner = expert_linear(sent.rows, up, sent.ends).tanh();
  const Tensor y = combined(expert_linear(inner, down, sent.ends), routing.gates, sent.places);
  DeferredGradients deferred;
  {
    const std::optional<DeferringGradients> deferring =
        defers ? std::optional<DeferringGradients>(std::in_place, std::vector{&up, &down}, deferred)
               : std::nullopt;
    y.backward(dy);
  }
  if (defers) {
    EXPECT_EQ(up.gradient().abs().max().item<double>(), 0);
    deferred.run();
  }
  return {y.detach(), x.grad(), router.gradient(), up.gradient().view_as(weights.up),
          down.gradient().view_as(weights.down)};
}

void expect_close(const Tensor& found, const Tensor& expected, const char* name) {
  EXPECT_LE((found - expected).abs().max().item<double>(),
            1e-12 * (1 + expected.abs().max().item<double>()))
      << name;
}

class Mixtures : public ::testing::TestWithParam<Case> {};

TEST_P(Mixtures, AreTheirDefinition) {
  at::manual_seed(7);
  const Case& one = GetParam();
  const int64_t experts = one.router.experts;
  const Weights weights{at::randn({experts, kHidden}, doubles()),
                        at::randn({experts, kInner, kHidden}, doubles()),
                        at::randn({experts, kHidden, kInner}, doubles())};
  const Tensor x = at::randn({kTokens, kHidden}, doubles()), dy = at::randn_like(x);
  const Results expected = defined(x, weights, one, dy);
  for (const bool defers : {false, true}) {
    const Results found = routed(x, weights, one, dy, defers);
    expect_close(found.y, expected.y, "y");
    expect_close(found.dx, expected.dx, "dx");
    expect_close(found.drouter, expected.drouter, "router");
    expect_close(found.dup, expected.dup, "up");
    expect_close(found.ddown, expected.ddown, "down");
  }
}

INSTANTIATE_TEST_SUITE_P(All, Mixtures,
                         ::testing::Values(Case{{6, 2, true}, 0}, Case{{6, 2, false}, 0},
                                           Case{{5, 1, false}, 0}, Case{{4, 4, true}, 0},
                                           Case{{40, 3, true}, 0},   // some without a token
                                           Case{{6, 1, false}, 99},  // one has every token
                                           Case{{6, 2, true}, 99},
                                           Case{sigmoid_router(8, 3, 1, 1, true), 0},
                                           Case{sigmoid_router(8, 3, 4, 2, true), 0},
                                           Case{sigmoid_router(6, 2, 3, 1, false), 0},
                                           Case{sigmoid_router(8, 4, 2, 1, true), 99}));

TEST(Experts, TiesGoToTheLowerIndex) {
  const Tensor scores = at::zeros({3, 7}, doubles());
  scores[1][5] = scores[1][2] = 1;
  const Tensor chosen = route(scores, {.experts = 7, .chosen = 3}).chosen;
  const Tensor expected = at::tensor({0, 1, 2, 2, 5, 0, 0, 1, 2}, at::kLong).view({3, 3});
  EXPECT_TRUE(chosen.equal(expected)) << chosen;
}

TEST(Experts, TiesOfGroupsGoToTheLowerIndex) {
  RouterSpec router = sigmoid_router(6, 2, 3, 1, true);
  const Tensor scores = at::zeros({2, 6}, doubles());
  scores[1][3] = 1;
  const auto chosen = [&](const Tensor& bias) { return route(scores, router, bias).chosen; };
  EXPECT_TRUE(chosen({}).equal(at::tensor({0, 1, 3, 2}, at::kLong).view({2, 2})));
  // Two experts of a group count, not its best alone.
  const Tensor bias = at::tensor({0.0, 0.0, 0.0, 0.4, 0.3, 0.3}, doubles());
  EXPECT_TRUE(chosen(bias).equal(at::tensor({4, 5, 3, 2}, at::kLong).view({2, 2})));
}

TEST(Experts, GatesThatVanishAreNotDividedByZero) {
  const Tensor scores = at::full({1, 4}, -1e4, at::TensorOptions(at::kFloat));
  const Routing made = route(scores, sigmoid_router(4, 2, 1, 1, true));
  EXPECT_LE(made.gates.abs().max().item<float>(), 1e-15F);
}

TEST(Experts, TheKernelRoutesAsTheLibrary) {
  at::manual_seed(5);
  for (RouterSpec router :
       {RouterSpec{6, 2, true}, RouterSpec{40, 7, false}, RouterSpec{5, 5, true},
        sigmoid_router(8, 3, 1, 1, true), sigmoid_router(8, 1, 1, 1, false),
        sigmoid_router(40, 6, 5, 2, true), sigmoid_router(128, 4, 64, 3, false)}) {
    SCOPED_TRACE(std::to_string(router.experts) + " experts");
    const bool are_sigmoids = router.scores == RouterScores::Sigmoid;
    const Tensor bias = are_sigmoids ? correction_bias(router) : Tensor();
    const RouteOptions options{router.chosen, are_sigmoids,  router.norm_topk_prob, router.min_sum,
                               router.factor, router.groups, router.topk_groups};
    const Tensor outputs = at::randn({kTokens, router.experts}, doubles());
    outputs[3].fill_(0.5);  // ties
    const Routes expected = route_rows_reference(outputs, bias, options);
    const Routes found = route_rows(outputs, bias, options);
    EXPECT_TRUE(found.chosen.equal(expected.chosen));
    EXPECT_LE((found.gates - expected.gates).abs().max().item<double>(), 1e-14);
    const Tensor dgates = at::randn_like(found.gates);
    const Tensor dx = route_rows_backward(dgates, outputs, found.chosen, options);
    const Tensor expected_dx =
        route_rows_backward_reference(dgates, outputs, found.chosen, options);
    EXPECT_LE((dx - expected_dx).abs().max().item<double>(), 1e-14);
  }
}

/// By the definition: experts of other ranks come last and get no place.
TEST(Experts, CopiesAreSortedIntoThePlacesOfExperts) {
  for (const int64_t last : {1, 3, 7}) {  // of experts that copies have chosen
    const int64_t experts = 5;
    const Tensor chosen = at::randint(last, {400}, at::kLong) * (last == 3 ? 2 : 1);
    const auto [sorted, copies] = chosen.clamp_max(experts).sort(true, 0, false);
    const PlacesOfCopies found = place_copies(sorted, copies, experts);
    for (int64_t e = 0; e < experts; ++e)
      EXPECT_EQ(found.ends[e].item<int64_t>(), (chosen <= e).sum().item<int64_t>()) << e;
    const Tensor places = at::arange(400).masked_fill(sorted == experts, -1);
    EXPECT_TRUE(found.places.index_select(0, copies).equal(places));
    const PlacesOfCopies expected = place_copies_reference(sorted, copies, experts);
    EXPECT_TRUE(found.places.equal(expected.places));
    EXPECT_TRUE(found.ends.equal(expected.ends));
  }
  const Tensor none = at::zeros({0}, at::kLong);
  EXPECT_TRUE(place_copies(none, none, 3).ends.equal(at::zeros({3}, at::kInt)));
}

TEST(Experts, OnlyRowsOfExpertsWithTokensAreAdded) {
  const Tensor made = at::randn({4, 3, 8}).to(at::kBFloat16);
  const Tensor ends = at::tensor({0, 5, 5, 9}, at::kInt);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensor target = at::randn({4, 3, 8}).to(type);
    const Tensor is_active = at::tensor({0, 1, 0, 1}).view({4, 1, 1});
    const Tensor expected = target + (made * is_active).to(type);
    add_active_rows(target, made, ends);
    EXPECT_TRUE(at::allclose(target, expected, 1e-2, 1e-2));
    EXPECT_TRUE(target[2].equal(expected[2]));
  }
}

/// Buffers have room for distinct experts alone.
TEST(Experts, ATokenWithoutScoresChoosesDistinctExperts) {
  const Tensor outputs = at::full({2, 6}, std::nan(""), doubles());
  outputs[1].fill_(1);
  outputs[1][2] = std::numeric_limits<double>::infinity();
  const Routes routes = route_rows(outputs, {}, {4, false, true, 0, 1});
  const Tensor expected = at::arange(4, at::kLong).expand({2, 4});
  EXPECT_TRUE(routes.chosen.equal(expected)) << routes.chosen;
  EXPECT_TRUE(routes.gates.isnan().all().item<bool>());
}

/// Compared with autograd of the definition, with each part alone and both.
TEST(Experts, LossesOfRoutersAreTheirDefinition) {
  at::manual_seed(3);
  const Tensor values = at::randn({7, 5}, doubles()), experts = at::rand({5}, doubles());
  for (const bool has_experts : {true, false})
    for (const double squares : {0.0, 0.3}) {
      const Tensor x = values.clone().requires_grad_(true), y = values.clone().requires_grad_(true);
      Tensor expected = x.logsumexp(1).square().sum() * squares;
      if (has_experts) expected = expected + (x.softmax(1) * experts).sum();
      const Tensor found = router_loss(y, {has_experts ? experts : Tensor(), squares, 0.5});
      EXPECT_NEAR(found.item<double>(), expected.item<double>(), 1e-12);
      (expected * 3).backward();
      (found * 3).backward();
      EXPECT_LE((y.grad() - x.grad() * 0.5).abs().max().item<double>(), 1e-12);
    }
  const Tensor none = at::zeros({0, 5}, doubles()).requires_grad_(true);
  const Tensor nothing = router_loss(none, {experts, 0.3, 1});
  EXPECT_EQ(nothing.item<double>(), 0);
  nothing.backward();
}

TEST(Experts, GatesAreScaledByTheElementsOfTheirExperts) {
  const Tensor gates = at::rand({4, 2}, doubles()).requires_grad_(true), dy = at::rand_like(gates);
  const Tensor chosen = at::tensor({2, 0, 1, 2, 0, 1, 2, 1}, at::kLong).view({4, 2});
  const Tensor values = at::rand({3}, doubles());
  Parameter scale = parameter_of("scale", values);
  const Tensor expected_scale = values.clone().requires_grad_(true);
  const Tensor copy = gates.detach().clone().requires_grad_(true);
  const Tensor expected = copy * expected_scale.index({chosen});
  expected.backward(dy);
  const Tensor found = scaled_gates(gates, chosen, scale);
  found.backward(dy);
  EXPECT_TRUE(at::allclose(found, expected));
  EXPECT_TRUE(at::allclose(gates.grad(), copy.grad()));
  EXPECT_TRUE(at::allclose(scale.gradient(), expected_scale.grad()));
}

/// The rows of experts times their matrices, and the gradients, expert by expert in fp64.
void expect_expert_gemms(const std::vector<int64_t>& counts, at::ScalarType type, WeightOrder order,
                         double tolerance) {
  constexpr int64_t kIn = 64, kOut = 48;
  const auto experts = std::ssize(counts);
  const bool is_in_out = order == WeightOrder::InOut;
  const Tensor ends = at::tensor(counts, at::kLong).cumsum(0);
  const int64_t all = ends[experts - 1].item<int64_t>();
  const Tensor x = at::randn({all, kIn}).to(type).requires_grad_(true);
  const Tensor dy = at::randn({all, kOut}).to(type);
  const Tensor matrices = at::randn({experts, is_in_out ? kIn : kOut, is_in_out ? kOut : kIn});
  Parameter weight("weight", matrices.sizes().vec(), true, at::kCPU);
  weight.set_value(matrices.to(type));
  weight.set_gradient(at::ones_like(matrices, type == at::kDouble ? at::kDouble : at::kFloat));
  const Tensor y = expert_linear(x, weight, ends, order);
  y.backward(dy);
  const auto wide = [](const Tensor& values) { return values.detach().to(at::kDouble); };
  const auto expect_near = [&](const Tensor& found, const Tensor& expected, const char* name) {
    EXPECT_LE((wide(found) - expected).abs().max().item<double>(),
              tolerance * expected.abs().max().item<double>())
        << name;
  };
  for (int64_t e = 0, begin = 0; e < experts; begin += counts[static_cast<size_t>(e++)]) {
    const int64_t rows = counts[static_cast<size_t>(e)];
    if (rows == 0) {
      EXPECT_TRUE(weight.gradient()[e].eq(1).all().item<bool>());
      continue;
    }
    const auto here = [&](const Tensor& values) { return wide(values.narrow(0, begin, rows)); };
    const Tensor matrix = is_in_out ? wide(weight.value()[e]) : wide(weight.value()[e]).t();
    expect_near(here(y), here(x).mm(matrix), "y");
    expect_near(here(x.grad()), here(dy).mm(matrix.t()), "dx");
    const Tensor gradient = here(x).t().mm(here(dy)) + 1;
    expect_near(weight.gradient()[e], is_in_out ? gradient : gradient.t(), "gradient");
  }
}

/// Experts without rows, with few, some dozens and many, of which threads take parts.
TEST(Experts, ThreadsShareTheirGemms) {
  at::manual_seed(11);
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 3})
    for (const WeightOrder order : {WeightOrder::OutIn, WeightOrder::InOut})
      for (const auto& [type, tolerance] :
           {std::pair{at::kDouble, 1e-14}, {at::kFloat, 1e-5}, {at::kBFloat16, 1.0 / 64}}) {
        SCOPED_TRACE(::testing::Message() << threads << " threads, " << at::toString(type)
                                          << (order == WeightOrder::InOut ? ", (in, out)" : ""));
        at::set_num_threads(threads);
        expect_expert_gemms({0, 900, 1, 17, 40, 130, 300}, type, order, tolerance);
        expect_expert_gemms({33}, type, order, tolerance);
      }
  at::set_num_threads(before);
}

TEST(Experts, RowsLieByExpertInTheOrderOfTokens) {
  const Tensor x = at::arange(4, doubles()).unsqueeze(1);
  const Tensor chosen = at::tensor({2, 0, 0, 2, 2, 1, 0, 1}, at::kLong).view({4, 2});
  const DispatchedRows sent = dispatch_to_experts(x, chosen, {0, 4, 4});
  EXPECT_TRUE(sent.ends.equal(at::tensor({3, 5, 8, 8}, at::kLong)));
  EXPECT_TRUE(sent.rows.flatten().equal(at::tensor({0., 1., 3., 2., 3., 0., 1., 2.}, doubles())));
}

TEST(Experts, ARankHasTheRowsOfItsExperts) {
  const Tensor x = at::arange(4, doubles()).unsqueeze(1);
  const Tensor chosen = at::tensor({2, 0, 0, 2, 2, 1, 0, 1}, at::kLong).view({4, 2});
  const DispatchedRows sent = dispatch_to_experts(x, chosen, {1, 2, 4});
  EXPECT_TRUE(sent.ends.equal(at::tensor({2, 5}, at::kLong)));
  EXPECT_TRUE(sent.rows.flatten().equal(at::tensor({2., 3., 0., 1., 2.}, doubles())));
  EXPECT_TRUE(sent.places.flatten().equal(at::tensor({2, -1, -1, 3, 4, 0, -1, 1}, at::kLong)));
  const DispatchedRows none = dispatch_to_experts(x, chosen, {3, 1, 4});
  EXPECT_EQ(none.rows.size(0), 0);
  EXPECT_EQ(
      combined(none.rows, at::ones({4, 2}, doubles()), none.places).abs().max().item<double>(), 0);
}

/// The sum of what ranks make of their experts, and of the gradients of x and gates, is that of one
/// rank.
TEST(Experts, PartsOfExpertsAddUp) {
  at::manual_seed(9);
  const Tensor order = std::get<1>(at::rand({11, 6}, doubles()).sort(1));
  const Tensor chosen = order.narrow(1, 0, 3).contiguous();
  const Tensor x_values = at::randn({11, kHidden}, doubles()), dy = at::randn_like(x_values);
  const Tensor gate_values = at::rand({11, 3}, doubles());
  const auto made = [&](const ExpertRange& range) {
    const Tensor x = x_values.clone().requires_grad_(true);
    const Tensor gates = gate_values.clone().requires_grad_(true);
    const DispatchedRows sent = dispatch_to_experts(x, chosen, range);
    const Tensor y = combined(sent.rows.tanh(), gates, sent.places);
    y.backward(dy);
    return std::array{y.detach(), x.grad(), gates.grad()};
  };
  const auto all = made({0, 6, 6});
  for (const int64_t count : {1, 2, 3}) {
    auto sum = made({0, count, 6});
    for (int64_t first = count; first < 6; first += count) {
      const auto part = made({first, count, 6});
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    for (size_t i = 0; i < sum.size(); ++i)
      EXPECT_LE((sum[i] - all[i]).abs().max().item<double>(), 1e-12) << count << ", " << i;
  }
}

TEST(Experts, StacksLieInEitherOrder) {
  at::manual_seed(4);
  const Tensor matrices = at::randn({3, kInner, kHidden}, doubles());
  const Tensor x = at::randn({5, kHidden}, doubles()), dy = at::randn({5, kInner}, doubles());
  const Tensor ends = at::tensor({2, 2, 5}, at::kLong);
  std::vector<Tensor> outputs, gradients;
  for (const auto order : {WeightOrder::OutIn, WeightOrder::InOut}) {
    const bool is_out_in = order == WeightOrder::OutIn;
    Parameter weight =
        parameter_of("up", is_out_in ? matrices : matrices.transpose(1, 2).contiguous());
    const Tensor input = x.clone().requires_grad_(true);
    const Tensor y = expert_linear(input, weight, ends, order);
    y.backward(dy);
    outputs.push_back(at::cat({y.detach(), input.grad()}, 1));
    gradients.push_back(is_out_in ? weight.gradient() : weight.gradient().transpose(1, 2));
  }
  EXPECT_TRUE(at::allclose(outputs[0], outputs[1], 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(gradients[0], gradients[1], 1e-12, 1e-12));
  EXPECT_GT(gradients[0].abs().max().item<double>(), 0);
}

TEST(Experts, LinearsHaveBiasesOfTheirOwn) {
  at::manual_seed(6);
  Parameter weight = parameter_of("up", at::randn({3, kHidden, kInner}, doubles()));
  Parameter bias = parameter_of("bias", at::randn({3, kInner}, doubles()));
  const Tensor x = at::randn({5, kHidden}, doubles()), dy = at::randn({5, kInner}, doubles());
  const Tensor ends = at::tensor({2, 2, 5}, at::kLong), experts = at::tensor({0, 0, 2, 2, 2});
  const Tensor without = expert_linear(x, weight, ends, WeightOrder::InOut);
  const Tensor y =
      expert_linear(x.clone().requires_grad_(true), weight, ends, WeightOrder::InOut, &bias);
  EXPECT_TRUE(at::allclose(y.detach(),
                           without.detach() + bias.value().index_select(0, experts.to(at::kLong)),
                           1e-12, 1e-12));
  y.backward(dy);
  const Tensor expected = at::zeros({3, kInner}, doubles());
  expected.index_add_(0, experts.to(at::kLong), dy);
  EXPECT_TRUE(at::allclose(bias.gradient(), expected, 1e-12, 1e-12));
}

TEST(Experts, NoRowsAreNoRows) {
  Parameter weight = parameter_of("up", at::randn({3 * kInner, kHidden}, doubles()));
  const Tensor x = at::zeros({0, kHidden}, doubles()).requires_grad_(true);
  const DispatchedRows sent = dispatch_to_experts(x, at::zeros({0, 2}, at::kLong), {0, 3, 3});
  const Tensor y = expert_linear(sent.rows, weight, sent.ends);
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{0, kInner}));
  y.sum().backward();
  EXPECT_EQ(weight.gradient().abs().max().item<double>(), 0);
}

TEST(Experts, KernelsEqualTheirReferences) {
  at::manual_seed(8);
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const double bound = type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : 0.04;
    const auto wide_type = type == at::kDouble ? at::kDouble : at::kFloat;
    for (const int64_t width : {8, 600}) {
      const Tensor x = at::randn({9, width}, doubles()).to(type);
      const Tensor places = at::randperm(27, at::TensorOptions(at::kLong)).view({9, 3});
      const Tensor gates = at::rand({9, 3}, at::TensorOptions(wide_type));
      const Tensor y = send_rows(x, places, 27);
      EXPECT_TRUE(y.equal(send_rows_reference(x, places, 27)));
      const auto expect_near = [&](const Tensor& a, const Tensor& b) {
        EXPECT_LE((a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>(),
                  bound * std::sqrt(static_cast<double>(width)));
      };
      expect_near(combine_rows(y, places, gates), combine_rows_reference(y, places, gates));
      expect_near(combine_rows(y, places, {}), combine_rows_reference(y, places, {}));
      const CombinedGradients found = combine_rows_backward(x, y, places, gates);
      const CombinedGradients expected = combine_rows_backward_reference(x, y, places, gates);
      expect_near(found.dy, expected.dy);
      expect_near(found.dgates, expected.dgates);
      // The last rows are of experts on another rank.
      const Tensor here = places.masked_fill(places >= 16, -1), few = y.narrow(0, 0, 16);
      EXPECT_TRUE(send_rows(x, here, 16).equal(send_rows_reference(x, here, 16)));
      expect_near(combine_rows(few, here, gates), combine_rows_reference(few, here, gates));
      const CombinedGradients part = combine_rows_backward(x, few, here, gates);
      const CombinedGradients wanted = combine_rows_backward_reference(x, few, here, gates);
      expect_near(part.dy, wanted.dy);
      expect_near(part.dgates, wanted.dgates);
    }
  }
}

}  // namespace
}  // namespace zea::test_experts
