// SPDX-License-Identifier: Apache-2.0
// The row functors as a device's teams of lanes run them, with a thread of the host for each lane,
// against libtorch's operations: which lane has what, tails, sums over lanes, and that no lane
// overwrites what another has not read.
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <limits>
#include <thread>

#include "elements.hpp"
#include "flat_functors.hpp"
#include "logit_functors.hpp"
#include "row_functors.hpp"
#include "zea/kernels/flat_kernels.hpp"
#include "zea/kernels/logit_kernels.hpp"
#include "zea/kernels/row_kernels.hpp"

namespace zea::detail {
namespace {

struct SharedTeam {
  explicit SharedTeam(int lanes) : barrier(lanes), parts(lanes) {}
  std::barrier<> barrier;
  std::vector<double> parts;
};

/// The first lane comes late to an item, the last one late out of a sync: what relies on the order
/// of lanes between syncs fails.
void linger() {
  std::this_thread::sleep_for(std::chrono::microseconds(200));
}

class ThreadTeam {
 public:
  ThreadTeam(SharedTeam& team, int lane) : team_(&team), lane_(lane) {}
  int lane() const { return lane_; }
  int lanes() const { return static_cast<int>(team_->parts.size()); }
  void sync() const {
    team_->barrier.arrive_and_wait();
    if (lane_ == lanes() - 1) linger();
  }

  template <class W, class Join>
  W all(W value, const Join& join) const {
    team_->parts[lane_] = value;
    sync();
    W joined = static_cast<W>(team_->parts[0]);
    for (int lane = 1; lane < lanes(); ++lane)
      joined = join(joined, static_cast<W>(team_->parts[lane]));
    sync();
    return joined;
  }

 private:
  SharedTeam* team_;
  int lane_;
};

class TeamLanes : public ::testing::TestWithParam<std::tuple<at::ScalarType, int>> {
 protected:
  void SetUp() override { at::manual_seed(11); }

  template <class Functor>
  static void run(const Functor& functor, int64_t items) {
    SharedTeam team(std::get<1>(GetParam()));
    std::vector<std::jthread> threads;
    for (size_t lane = 0; lane < team.parts.size(); ++lane)
      threads.emplace_back([&, lane] {
        const TeamLane<ThreadTeam> own(ThreadTeam(team, static_cast<int>(lane)));
        for (int64_t item = 0; item < items; ++item) {
          if (lane == 0) linger();
          functor(own, item);
        }
      });
  }

  static at::ScalarType type() { return std::get<0>(GetParam()); }
  static at::ScalarType wide_type() { return type() == at::kDouble ? at::kDouble : at::kFloat; }
  static at::Tensor random(at::IntArrayRef shape, double scale = 1) {
    return at::randn(shape, at::kDouble).mul_(scale).to(type());
  }
  static void expect_close(const at::Tensor& found, const at::Tensor& expected, double factor = 1) {
    const double tolerance = found.scalar_type() == at::kDouble  ? 1e-14
                             : found.scalar_type() == at::kFloat ? 4e-6
                                                                 : 6e-3;
    ASSERT_EQ(found.sizes(), expected.sizes());
    const at::Tensor difference = (found.to(at::kDouble) - expected).abs();
    const at::Tensor allowed = expected.abs().add(0.1).mul(tolerance * factor);
    EXPECT_TRUE((difference <= allowed).all().item<bool>()) << difference.max();
  }
};

at::Tensor exact(const at::Tensor& x) {
  return x.to(at::kDouble);
}

TEST_P(TeamLanes, RmsNorm) {
  for (int64_t hidden : {1, 7, 37, 192}) {
    const at::Tensor x = random({3, hidden}), weight = random({hidden}), dy = random({3, hidden});
    const at::Tensor y = at::empty_like(x), dx = at::empty_like(x),
                     scale = at::empty({3}, wide_type());
    with_element_type(x, [&]<class T>(T) {
      T *in = elements<T>(x), *w = elements<T>(weight), *d = elements<T>(dy);
      Wide<T>* r = elements<Wide<T>>(scale);
      run(NormaliseRow<T>{in, w, elements<T>(y), r, hidden, Wide<T>(1e-5)}, 3);
      run(NormaliseRowBackward<T>{d, in, w, r, elements<T>(dx), hidden}, 3);
    });
    const auto [y_exact, r_exact] = rms_norm_forward_reference(exact(x), exact(weight), 1e-5);
    expect_close(y, y_exact, 2);
    expect_close(scale, r_exact);
    expect_close(
        dx, rms_norm_backward_reference(exact(dy), exact(x), r_exact, exact(weight), true, {}), 8);
  }
}

/// Parts of rows and blocks of columns that do not divide.
TEST_P(TeamLanes, WeightGradient) {
  const int64_t rows = 11, hidden = 43, part_rows = 4, part_columns = 16;
  const at::Tensor x = random({rows, hidden}), dy = random({rows, hidden});
  const at::Tensor scale = at::rand({rows}, wide_type());
  const at::Tensor sums = at::full({3, hidden}, std::nan(""), wide_type());
  with_element_type(x, [&]<class T>(T) {
    run(SumWeightGradient<T>{elements<T>(dy), elements<T>(x), elements<Wide<T>>(scale),
                             elements<Wide<T>>(sums), rows, hidden, part_rows, part_columns},
        3 * 3);
  });
  const at::Tensor sum = at::zeros({hidden}, at::kDouble);
  rms_norm_backward_reference(exact(dy), exact(x), exact(scale), at::ones({hidden}, at::kDouble),
                              false, sum);
  expect_close(sums.sum(0), sum, 8);
}

TEST_P(TeamLanes, Activations) {
  for (int64_t width : {1, 13, 65}) {
    const at::Tensor x = random({3, 2 * width}, 3), dy = random({3, width});
    const at::Tensor y = at::empty_like(dy), dx = at::empty_like(x);
    with_element_type(x, [&]<class T>(T) {
      run(SwigluRow<T>{elements<T>(x), elements<T>(y), width}, 3);
      run(SwigluRowBackward<T>{elements<T>(dy), elements<T>(x), elements<T>(dx), width}, 3);
    });
    expect_close(y, swiglu_forward_reference(exact(x)));
    expect_close(dx, swiglu_backward_reference(exact(dy), exact(x)), 2);
  }
  const int64_t elements_in_all = kChunkElements + 77;
  const at::Tensor x = random({elements_in_all}, 3), dy = random({elements_in_all});
  const at::Tensor y = at::empty_like(x), dx = at::empty_like(x);
  with_element_type(x, [&]<class T>(T) {
    run(QuickGeluChunk<T>{elements<T>(x), elements<T>(y), elements_in_all}, 2);
    run(QuickGeluChunkBackward<T>{elements<T>(dy), elements<T>(x), elements<T>(dx),
                                  elements_in_all},
        2);
  });
  expect_close(y, quick_gelu_forward_reference(exact(x)));
  expect_close(dx, quick_gelu_backward_reference(exact(dy), exact(x)), 2);
}

TEST_P(TeamLanes, Rotary) {
  const int64_t tokens = 4, all = 5, dim = 26;
  const at::Tensor x = random({tokens, all, dim}), angles = random({tokens, dim / 2}, 10);
  const at::Tensor cosines = angles.cos(), sines = angles.sin();
  for (bool backwards : {false, true}) {
    const at::Tensor y = at::empty_like(x);
    with_element_type(x, [&]<class T>(T) {
      run(RotateHead<T>{elements<T>(x), elements<T>(cosines), elements<T>(sines), elements<T>(y),
                        Wide<T>(backwards ? -1 : 1), all, 3, dim},
          tokens * all);
    });
    expect_close(y, rotate_heads_reference(exact(x), exact(cosines), exact(sines), 3, backwards),
                 4);
  }
}

TEST_P(TeamLanes, Logits) {
  const int64_t rows = 5, columns = 101;
  const at::Tensor first = random({rows, columns}, 4), second = random({rows, columns}, 4);
  const at::Tensor targets = at::tensor({0, 128, 100, 101, 201}, at::kLong);
  const at::TensorOptions wide = at::TensorOptions(wide_type());
  const LogitSums sums(rows, wide), expected(rows, at::kDouble);
  with_element_type(first, [&]<class T>(T) {
    const auto add = [&](const at::Tensor& tile, int64_t column) {
      run(AddLogitRow<T>{{elements<T>(tile), targets.data_ptr<int64_t>(), column, columns},
                         elements<Wide<T>>(sums.maxima),
                         elements<Wide<T>>(sums.sums),
                         elements<Wide<T>>(sums.picked)},
          rows);
      add_logits_reference(exact(tile), targets, column, expected);
    };
    add(first, 0);
    add(second, columns);
  });
  expect_close(sums.maxima, expected.maxima);
  expect_close(sums.sums, expected.sums, 4);
  expect_close(sums.picked, expected.picked);

  const at::Tensor lse = sums.maxima + sums.sums.log(), scale = at::full({}, 0.25, wide);
  const at::Tensor gradient = exact(second);
  logits_to_gradient_reference(gradient, targets, columns, exact(lse), exact(scale));
  with_element_type(second, [&]<class T>(T) {
    run(LogitRowGradient<T>{{elements<T>(second), targets.data_ptr<int64_t>(), columns, columns},
                            elements<Wide<T>>(lse),
                            elements<Wide<T>>(scale)},
        rows);
  });
  expect_close(second, gradient, 4);
}

TEST_P(TeamLanes, FlatBuffers) {
  if (type() == at::kBFloat16) return;  // masters and gradients are fp32 or fp64
  const int64_t count = 2 * kChunkElements + 5;
  const at::Tensor p = random({count}), g = random({count}), m = random({count}, 0.1);
  const at::Tensor v = random({count}).square_(), sums = at::empty({3}, at::kDouble);
  const at::Tensor p2 = p.clone(), m2 = m.clone(), v2 = v.clone();
  // What constants_of makes of an update of step 1 with these numbers.
  const AdamwUpdate update{.lr = 1e-2, .beta1 = 0.5, .beta2 = 0.75, .weight_decay = 0.5};
  const auto step = [&]<class T>(T) {
    const AdamwConstants<T> constants{T(1 - 5e-3), 0, T(0.5), T(0.75), 1, T(2e-2), 2, T(1e-8)};
    run(AdamwChunk<T>{elements<T>(p), elements<T>(g), elements<T>(m), elements<T>(v), count,
                      constants},
        3);
    run(SquaresOfChunk<T>{elements<T>(g), elements<double>(sums), count}, 3);
  };
  type() == at::kDouble ? step(double{}) : step(float{});
  adamw_reference(p2, g, m2, v2, update);
  for (const auto& [found, expected] : {std::pair{p, p2}, {m, m2}, {v, v2}})
    expect_close(found, exact(expected), 4);
  expect_close(sums.sum(), sum_of_squares_reference(g), 10);
}

INSTANTIATE_TEST_SUITE_P(TypesAndLanes, TeamLanes,
                         ::testing::Combine(::testing::Values(at::kDouble, at::kFloat,
                                                              at::kBFloat16),
                                            ::testing::Values(1, 4, 7)),
                         [](const auto& info) {
                           return at::toString(std::get<0>(info.param)) + std::string("Lanes") +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace zea::detail
