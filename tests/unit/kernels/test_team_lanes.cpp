// SPDX-License-Identifier: Apache-2.0
// The row functors as a device's teams of lanes run them, with a thread of the host for each lane,
// against libtorch's operations: the elements of each lane, tails, sums over lanes, and that no
// lane overwrites data that another has not read. The same as Kokkos runs them on the host, by the
// code that launches them on a device of Kokkos.
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>

#include "kernels/device/kokkos/kokkos_items.hpp"
#include "kernels/elements.hpp"
#include "kernels/flat_functors.hpp"
#include "kernels/flat_kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/norm_functors.hpp"
#include "kernels/row_functors.hpp"
#include "kernels/row_kernels.hpp"
#include "support/thread_team.hpp"

namespace zea::detail::test_team_lanes {
namespace {

using testing::run_by_threads;

/// In place of a number of lanes: Kokkos' threads have an item each, or its teams.
constexpr int kKokkosThreads = 0, kKokkosTeams = -1;

class TeamLanes : public ::testing::TestWithParam<std::tuple<at::ScalarType, int>> {
 protected:
  static void SetUpTestSuite() { Kokkos::initialize(); }
  static void TearDownTestSuite() { Kokkos::finalize(); }
  void SetUp() override { at::manual_seed(11); }

  static int lanes() { return std::get<1>(GetParam()); }
  static bool is_by_kokkos() { return lanes() <= 0; }

  template <class Functor>
  static void run(const Functor& functor, int64_t items) {
    if (!is_by_kokkos()) return run_by_threads(lanes(), functor, items);
    run_items_by_kokkos(Kokkos::DefaultHostExecutionSpace(), functor, items,
                        kMostThreadPacks + (lanes() == kKokkosTeams ? 1 : 0));
    Kokkos::fence();
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
  return x.defined() ? x.to(at::kDouble) : x;
}

/// One norm, in tensors that a case need not have.
struct NormCase {
  at::Tensor x, added, weight, bias, dy, before;
  double offset = 0;
};

template <class T>
T* elements_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? elements<T>(tensor) : nullptr;
}

template <class T>
NormalizeRow<T> norm_of(const NormCase& c, const NormRows& out) {
  return {elements<T>(c.x),
          elements_or_null<T>(c.added),
          elements<T>(c.weight),
          elements_or_null<T>(c.bias),
          elements<T>(out.x),
          elements<T>(out.y),
          elements_or_null<Wide<T>>(out.mean),
          elements<Wide<T>>(out.scale),
          c.x.size(1),
          Wide<T>(1e-5),
          Wide<T>(c.offset)};
}

template <class T>
NormalizeRowBackward<T> gradient_of(const NormCase& c, const NormRows& rows, const at::Tensor& dx) {
  return {elements<T>(c.dy),
          elements<T>(rows.x),
          elements<T>(c.weight),
          elements_or_null<T>(c.before),
          elements_or_null<Wide<T>>(rows.mean),
          elements<Wide<T>>(rows.scale),
          elements<T>(dx),
          c.x.size(1),
          Wide<T>(c.offset)};
}

TEST_P(TeamLanes, Norms) {
  for (bool is_layer_norm : {false, true})
    for (bool adds : {false, true})
      for (int64_t hidden : {1, 7, 37, 192}) {
        if (is_layer_norm && hidden == 1) continue;  // its slope is a difference of equal numbers
        const auto rows = [&] { return random({3, hidden}); };
        const NormCase c{rows(),           adds ? rows() : at::Tensor(),
                         random({hidden}), is_layer_norm ? random({hidden}) : at::Tensor(),
                         rows(),           adds ? rows() : at::Tensor(),
                         adds ? 1. : 0.};
        const NormRows found{adds ? at::empty_like(c.x) : c.x, at::empty_like(c.x),
                             is_layer_norm ? at::empty({3}, wide_type()) : at::Tensor(),
                             at::empty({3}, wide_type())};
        const at::Tensor dx = at::empty_like(c.x);
        with_element_type(c.x, [&]<class T>(T) {
          run(norm_of<T>(c, found), 3);
          run(gradient_of<T>(c, found, dx), 3);
        });
        if (adds) expect_close(found.x, exact(c.x) + exact(c.added));
        const NormParameters wide{exact(c.weight), exact(c.bias), 1e-5, c.offset};
        const NormRows expected = norm_forward_reference(exact(found.x), {}, wide);
        expect_close(found.y, expected.y, 4);
        expect_close(found.scale, expected.scale, 2);
        if (is_layer_norm) expect_close(found.mean, expected.mean, 2);
        expect_close(dx, norm_backward_reference(exact(c.dy), exact(c.before), expected, wide, {}),
                     16);
      }
}

/// Parts of rows and blocks of columns that do not divide; and rows added one by one.
TEST_P(TeamLanes, GradientsOfNorms) {
  const int64_t rows = 11, hidden = 43, part_rows = 4, part_columns = 16;
  const at::Tensor x = random({rows, hidden}), dy = random({rows, hidden});
  const at::Tensor scale = at::rand({rows}, wide_type()), mean = at::rand({rows}, wide_type());
  for (bool is_layer_norm : {false, true}) {
    const int64_t kinds = is_layer_norm ? 2 : 1;
    const at::Tensor sums = at::full({3, kinds, hidden}, std::nan(""), wide_type());
    const at::Tensor one_by_one = at::zeros({3, kinds, hidden}, wide_type());
    with_element_type(x, [&]<class T>(T) {
      SumNormGradients<T> functor{elements<T>(dy),
                                  elements<T>(x),
                                  is_layer_norm ? elements<Wide<T>>(mean) : nullptr,
                                  elements<Wide<T>>(scale),
                                  elements<Wide<T>>(sums),
                                  rows,
                                  hidden,
                                  part_rows,
                                  part_columns};
      run(functor, 3 * 3);
      functor.sums = elements<Wide<T>>(one_by_one);
      const auto add = [=](const auto& lane, int64_t row) { functor.add_row(lane, row); };
      run_by_threads(is_by_kokkos() ? 1 : lanes(), add, rows);  // Kokkos keeps no order of items
    });
    const at::Tensor centred = is_layer_norm ? exact(x) - exact(mean).unsqueeze(1) : exact(x);
    const at::Tensor weight = (exact(dy) * centred * exact(scale).unsqueeze(1)).sum(0);
    for (const at::Tensor& found : {sums.sum(0), one_by_one.sum(0)}) {
      expect_close(found[0], weight, 8);
      if (is_layer_norm) expect_close(found[1], exact(dy).sum(0), 8);
    }
  }
}

TEST_P(TeamLanes, Activations) {
  for (int64_t width : {1, 13, 64, 65}) {
    const at::Tensor x = random({3, 2 * width}, 3), dy = random({3, width});
    const at::Tensor y = at::empty_like(dy), dx = at::empty_like(x);
    const auto check = [&]<class Gate>(Gate, Gating gating, double factor) {
      with_element_type(x, [&]<class T>(T) {
        run(GatedRow<Gate, T>{elements<T>(x), elements<T>(y), width}, 3);
        run(GatedRowBackward<Gate, T>{elements<T>(dy), elements<T>(x), elements<T>(dx), width}, 3);
      });
      expect_close(y, gated_forward_reference(exact(x), gating), factor);
      expect_close(dx, gated_backward_reference(exact(dy), exact(x), gating), 2 * factor);
    };
    check(SiluGate{}, Gating::Silu, 1);
    check(ErfGate{}, Gating::Gelu, 24);  // as GELU, times values of 3
    check(TanhGate{}, Gating::GeluTanh, 24);
  }
}

/// Tokens that do not divide into parts; values pass.
TEST_P(TeamLanes, NormsOfHeads) {
  const int64_t tokens = 5, part_tokens = 2;
  for (int64_t dim : {37, 40})
    for (bool norms_values : {false, true}) {
      const HeadsOfToken heads{3, 2, 2, dim};
      const at::Tensor x = random({tokens, heads.all(), heads.dim}), dy = random(x.sizes());
      const at::Tensor query = random({heads.dim}), key = random({heads.dim});
      const at::Tensor value = norms_values ? random({heads.dim}) : at::Tensor();
      const at::Tensor y = at::empty_like(x), dx = at::empty_like(x);
      const at::Tensor scale = at::empty({tokens, heads.all()}, wide_type());
      const at::Tensor sums = at::zeros({3, 2, heads.dim}, wide_type());
      with_element_type(x, [&]<class T>(T) {
        const HeadWeights<T> weights{elements<T>(query), elements<T>(key),
                                     norms_values ? elements<T>(value) : nullptr};
        auto* scales = elements<Wide<T>>(scale);
        run(NormalizeHead<T>{elements<T>(x), weights, elements<T>(y), scales, heads, Wide<T>(1e-5),
                             Wide<T>(1)},
            tokens * heads.all());
        run(NormalizeHeadBackward<T>{elements<T>(dy), elements<T>(x), weights, scales,
                                     elements<T>(dx), heads, Wide<T>(1)},
            tokens * heads.all());
        run(SumHeadNormGradients<T>{elements<T>(dy), elements<T>(x), scales,
                                    elements<Wide<T>>(sums), heads, tokens, part_tokens},
            6);
      });
      const HeadNormParameters wide{exact(query),
                                    exact(key),
                                    heads.queries,
                                    heads.keys,
                                    1e-5,
                                    1,
                                    norms_values ? exact(value) : value};
      const HeadNorms expected = head_norms_forward_reference(exact(x), wide);
      expect_close(y, expected.y, 4);
      const HeadNormGradients gradients{at::zeros({heads.dim}, at::kDouble),
                                        at::zeros({heads.dim}, at::kDouble)};
      expect_close(
          dx, head_norms_backward_reference(exact(dy), exact(x), expected.scale, wide, gradients),
          16);
      expect_close(sums.sum(0)[0], gradients.query, 16);
      expect_close(sums.sum(0)[1], gradients.key, 16);
    }
}

template <class Gate>
struct GateOf {
  Gelu kind;
};

/// Rows with a bias, and runs of which the last is short.
TEST_P(TeamLanes, Gelus) {
  const auto check = [&]<class Gate>(GateOf<Gate> gate) {
    for (bool has_bias : {false, true}) {
      const int64_t rows = 5, columns = has_bias ? 40 : 31, count = rows * columns;
      const int64_t width = has_bias ? columns : 48;
      const at::Tensor x = random({rows, columns}, 3), dy = random({rows, columns});
      const at::Tensor bias = has_bias ? random({columns}) : at::Tensor();
      const at::Tensor y = at::empty_like(x), dx = at::empty_like(x);
      with_element_type(x, [&]<class T>(T) {
        T *in = elements<T>(x), *b = elements_or_null<T>(bias), *d = elements<T>(dy);
        const int64_t items = (count + width - 1) / width;
        run(GeluRun<Gate, T>{in, b, elements<T>(y), count, width}, items);
        run(GeluRunBackward<Gate, T>{d, in, b, elements<T>(dx), count, width}, items);
      });
      expect_close(y, gelu_forward_reference(exact(x), exact(bias), gate.kind), 8);
      expect_close(dx, gelu_backward_reference(exact(dy), exact(x), exact(bias), gate.kind, {}),
                   16);
    }
  };
  check(GateOf<ErfGate>{Gelu::Erf});
  check(GateOf<TanhGate>{Gelu::Tanh});
  check(GateOf<QuickGate>{Gelu::Quick});
}

TEST_P(TeamLanes, Rotary) {
  const int64_t tokens = 4, all = 5, dim = 32;
  const at::Tensor x = random({tokens, all, dim});
  for (const auto& rotation : {std::pair<bool, int64_t>{false, 16}, {true, 16}, {true, 5}}) {
    const bool backwards = rotation.first;
    const int64_t half = rotation.second;
    const at::Tensor angles = random({tokens, half}, 10);
    const at::Tensor cosines = angles.cos(), sines = angles.sin();
    const auto check = [&]<bool kOfNeighbors>() {
      const at::Tensor expected = exact(x.clone());
      rotate_heads_reference(expected, exact(cosines), exact(sines), 3, backwards, kOfNeighbors);
      for (const int64_t items : {1, 3}) {
        const at::Tensor found = x.clone();
        with_element_type(x, [&]<class T>(T) {
          run(RotateHeads<T, kOfNeighbors>{elements<T>(found), elements<T>(cosines),
                                           elements<T>(sines), Wide<T>(backwards ? -1 : 1), all,
                                           3 / items, items, dim, half},
              tokens * items);
        });
        expect_close(found, expected, 4);
      }
    };
    check.template operator()<false>();
    check.template operator()<true>();
  }
}

TEST_P(TeamLanes, Dropout) {
  const at::Tensor x = random({4, 37}), keys = at::arange(4, at::kLong), y = at::empty_like(x);
  with_element_type(x, [&]<class T>(T) {
    run(DropRow<T>{elements<T>(x), elements<int64_t>(keys), elements<T>(y), 9, uint64_t{1} << 52,
                   Wide<T>(2), 37, 3},
        4);
  });
  expect_close(y, drop_elements_reference(exact(x), keys, {0.5, 9, 3}));
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
  // These are the results of constants_of for an update of step 1 with these numbers.
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

/// Two updates of blocks, one of them of zeros; against cores of the host.
TEST_P(TeamLanes, MomentsInBlocks) {
  if (type() == at::kBFloat16) return;  // masters and gradients are fp32 or fp64
  const int64_t blocks = 3, block = 44;
  const auto codes_of = [](bool is_signed) {
    const std::array<double, kCodes>& codes = dynamic_codes(is_signed);
    return at::tensor(at::ArrayRef<double>(codes.data(), codes.size()), at::kDouble);
  };
  const at::Tensor signed_codes = codes_of(true), unsigned_codes = codes_of(false);
  const auto borders_of = [](const at::Tensor& codes) {
    return ((codes.slice(0, 1) + codes.slice(0, 0, -1)) / 2).to(type());
  };
  const at::Tensor values[] = {signed_codes.to(type()), unsigned_codes.to(type())};
  const at::Tensor borders[] = {borders_of(signed_codes), borders_of(unsigned_codes)};
  const auto moment = [&] {
    return BlockwiseMoment{at::zeros({blocks * block}, at::kByte), at::zeros({blocks}, type())};
  };
  const BlockwiseMoment moments[] = {moment(), moment()}, expected[] = {moment(), moment()};
  const at::Tensor p = random({blocks * block}), of_host = p.clone();
  for (int64_t step : {1, 2}) {
    at::Tensor g = random({blocks * block}).pow(3);
    g.slice(0, block, 2 * block).zero_();
    const AdamwUpdate update{.lr = 1e-2, .weight_decay = 0.1, .step = step};
    blockwise_adamw(of_host, g, expected[0], expected[1], update);
    const auto update_blocks = [&]<class T>(T) {
      const auto blocks_of = [&](int which) {
        return MomentBlocks<T>{elements<uint8_t>(moments[which].codes),
                               elements<T>(moments[which].scales), elements<T>(values[which]),
                               elements<T>(borders[which]), which};
      };
      const double step_size = 1e-2 / (1 - std::pow(update.beta1, step)),
                   root_correction = 1 / std::sqrt(1 - std::pow(update.beta2, step));
      const BlockwiseConstants<T> constants{T(1 - 1e-3),  T(update.beta1),    T(update.beta2), 1,
                                            T(step_size), T(root_correction), T(update.eps)};
      run(BlockwiseAdamwBlock<T>{elements<T>(p), elements<T>(g), blocks_of(0), blocks_of(1), block,
                                 constants, nullptr},
          blocks);
    };
    type() == at::kDouble ? update_blocks(double{}) : update_blocks(float{});
    expect_close(p, exact(of_host), 4);
    for (int which : {0, 1}) {
      expect_close(moments[which].scales, exact(expected[which].scales), 4);
      const at::Tensor differ = moments[which].codes != expected[which].codes;
      EXPECT_LE(differ.sum().item<int64_t>(), type() == at::kDouble ? 0 : 2);  // on a border
    }
  }
}

/// The buffers hold a part of a chunk or several chunks, and are as many as a launch takes.
TEST_P(TeamLanes, SeveralFlatBuffers) {
  if (type() == at::kBFloat16) return;
  std::vector<at::Tensor> flats;
  for (int i = 0; i < kFlatsAtOnce; ++i)
    flats.push_back(random({i % 3 == 0 ? 5 : 2 * kChunkElements + i}));
  const auto sums_of = [&]<class T>(T) {
    ChunksOfFlats<SquaresOfChunk<T>> all{};
    int64_t chunks = 0;
    for (const at::Tensor& flat : flats) chunks += num_chunks(flat.numel());
    const at::Tensor sums = at::full({chunks}, -1, at::kDouble);
    double* next = elements<double>(sums);
    for (const at::Tensor& flat : flats) {
      all.flats[all.count] = {elements<T>(flat), next, flat.numel()};
      next += num_chunks(flat.numel());
      all.ends[all.count++] = next - elements<double>(sums);
    }
    run(all, chunks);
    return sums;
  };
  const at::Tensor sums = type() == at::kDouble ? sums_of(double{}) : sums_of(float{});
  int64_t first = 0;
  for (const at::Tensor& flat : flats) {
    const int64_t chunks = num_chunks(flat.numel());
    expect_close(sums.narrow(0, first, chunks).sum(), sum_of_squares_reference(flat), 10);
    first += chunks;
  }
}

TEST_P(TeamLanes, KokkosOnTheHostIsOneLane) {
  if (!is_by_kokkos()) return;
  const int64_t rows = 9, columns = 37;
  const at::Tensor x = random({rows, columns}), weight = random({columns}),
                   bias = random({columns});
  const at::Tensor targets = at::randint(0, columns, {rows}, at::kLong);
  const auto results = [&](const auto& run_all) {
    const NormRows norm{x, at::empty_like(x), at::empty({rows}, wide_type()),
                        at::empty({rows}, wide_type())};
    const LogitSums sums(rows, at::TensorOptions(wide_type()));
    with_element_type(x, [&]<class T>(T) {
      run_all(norm_of<T>({x, {}, weight, bias, {}, {}}, norm));
      run_all(AddLogitRow<T>{{elements<T>(x), targets.data_ptr<int64_t>(), 0, columns},
                             elements<Wide<T>>(sums.maxima),
                             elements<Wide<T>>(sums.sums),
                             elements<Wide<T>>(sums.picked)});
    });
    return std::vector<at::Tensor>{norm.y, norm.mean, norm.scale, sums.maxima, sums.sums};
  };
  const auto found = results([&](const auto& functor) { run(functor, rows); });
  const auto expected = results([&](const auto& functor) { run_by_threads(1, functor, rows); });
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(
    TypesAndLanes, TeamLanes,
    ::testing::Combine(::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                       ::testing::Values(kKokkosTeams, kKokkosThreads, 1, 4, 7)),
    [](const auto& info) {
      const int lanes = std::get<1>(info.param);
      return at::toString(std::get<0>(info.param)) +
             (lanes == kKokkosTeams     ? std::string("KokkosTeams")
              : lanes == kKokkosThreads ? "KokkosThreads"
                                        : "Lanes" + std::to_string(lanes));
    });

}  // namespace
}  // namespace zea::detail::test_team_lanes
