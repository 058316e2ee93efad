// SPDX-License-Identifier: Apache-2.0
// Layers shared by 1 to 4 tp ranks equal the plain ones on the whole parameters: outputs and every
// gradient, in fp64, for rows distributed evenly, in slices, unevenly or over some ranks only.
#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "layout/token_layout.hpp"
#include "model/parameter.hpp"
#include "parallel/tp_layers.hpp"
#include "support/mpi_main.hpp"
#include "support/strict_collectives.hpp"

namespace zea::testing::test_tp_layers {
namespace {

using at::Tensor;

constexpr double kTolerance = 1e-12;
constexpr int64_t kIn = 24, kOut = 36;  // 1 to 4 ranks divide them

/// The collectives of the ranks, and whether rows are distributed over them.
struct Setup {
  int tp;
  bool sequence_parallel;
  bool strict;
  int chunks = 1;
};

std::string name_of(const ::testing::TestParamInfo<Setup>& info) {
  const Setup& setup = info.param;
  return "Tp" + std::to_string(setup.tp) + (setup.sequence_parallel ? "Sequence" : "") +
         (setup.strict ? "Strict" : "Host") +
         (setup.chunks > 1 ? std::to_string(setup.chunks) + "Chunks" : "");
}

Tensor random(at::IntArrayRef shape) {
  return at::randn(shape, at::kDouble);
}

/// Some columns of x, or rows.
struct Piece {
  int64_t begin, count;

  Tensor rows_of(const Tensor& x) const { return x.narrow(0, begin, count); }
  Tensor columns_of(const Tensor& x) const { return x.narrow(1, begin, count); }
};

std::unique_ptr<Parameter> make_parameter(const Tensor& value, bool trains) {
  auto parameter = std::make_unique<Parameter>("tested", value.sizes().vec(), trains, at::kCPU);
  parameter->set_value(value.contiguous());
  if (trains) {
    const bool narrow = value.scalar_type() == at::kBFloat16;
    parameter->set_gradient(
        at::zeros(value.sizes(), value.options().dtype(narrow ? at::kFloat : at::kDouble)));
  }
  return parameter;
}

/// The results of a linear: its output and gradients.
struct Result {
  Tensor y, dx, dweight, dbias;
};

class TensorLayersTest : public ::testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    at::manual_seed(7);
    if (!takes_part()) return;
    tp_ = GetParam().strict ? make_strict_collectives(communicator_)
                            : make_host_collectives(communicator_);
    layers_ = std::make_unique<TpLayers>(
        TpLayersOptions{.tp = tp_.get(),
                        .tp_chunks = {.most = GetParam().chunks},
                        .sequence_parallel = GetParam().sequence_parallel});
  }

  bool takes_part() const { return communicator_.size() > 0; }
  int tp() const { return GetParam().tp; }
  int rank() const { return communicator_.rank(); }
  bool is_sequence_parallel() const { return GetParam().sequence_parallel; }

  /// Rows of each rank: alike, in slices, uneven with none on one, all on the last, in larger
  /// slices, none at all.
  std::vector<RowsPerTpRank> all_shares() const {
    RowsPerTpRank even(tp(), 3), uneven, last(tp(), 0);
    for (int r = 0; r < tp(); ++r) uneven.push_back((3 * r + 5) % 4);
    last.back() = 6;
    return {even, slice_rows(2 * tp() + 1, tp()),  uneven,
            last, slice_rows(10 * tp() - 1, tp()), RowsPerTpRank(tp(), 0)};
  }
  static int64_t total(const RowsPerTpRank& shares) {
    return std::accumulate(shares.begin(), shares.end(), int64_t{0});
  }
  /// Returns the rows per rank that the layers receive.
  RowsPerTpRank told(const RowsPerTpRank& shares) const {
    return is_sequence_parallel() ? shares : RowsPerTpRank{};
  }
  Piece local_rows(const RowsPerTpRank& shares) const {
    if (!is_sequence_parallel()) return {0, total(shares)};
    return {std::accumulate(shares.begin(), shares.begin() + rank(), int64_t{0}), shares[rank()]};
  }
  /// This rank's piece of a dim that tp divides.
  Piece piece_of(int64_t size) const { return {rank() * (size / tp()), size / tp()}; }

  /// Returns the sum over tp ranks of their contributions to a replicated gradient.
  Tensor summed_over_holders(const Tensor& gradient) {
    Tensor sum = gradient.clone();
    if (is_sequence_parallel())
      tp_->all_reduce(sum.data_ptr(), sum.numel(), DType::Float64, ReduceOp::Sum).wait();
    return sum;
  }

  static void expect_equal(const Tensor& got, const Tensor& want, const std::string& what) {
    ASSERT_EQ(got.sizes(), want.sizes()) << what;
    if (want.numel() == 0) return;
    const double worst = got.sub(want).abs().max().item<double>();  // NaN where any is
    EXPECT_TRUE(worst <= kTolerance) << what << ": off by " << worst;
  }

  Communicator communicator_ = first_ranks(GetParam().tp);
  std::unique_ptr<Collectives> tp_;
  std::unique_ptr<TpLayers> layers_;
};

/// A linear's whole values; weight as `order` has it.
struct LinearCase {
  RowsPerTpRank shares;
  WeightOrder order;
  bool has_bias, trains, needs_dx;

  std::string text() const {
    std::string text = "rows";
    for (int64_t rows : shares) text += " " + std::to_string(rows);
    return text + (order == WeightOrder::OutIn ? ", (out, in)" : ", (in, out)") +
           (has_bias ? ", bias" : "") + (trains ? "" : ", frozen") + (needs_dx ? "" : ", no dx");
  }
};

std::vector<LinearCase> linear_cases(const std::vector<RowsPerTpRank>& all_shares) {
  std::vector<LinearCase> cases;
  for (const RowsPerTpRank& shares : all_shares)
    for (WeightOrder order : {WeightOrder::OutIn, WeightOrder::InOut})
      for (bool has_bias : {true, false})
        for (const auto& [trains, needs_dx] : {std::pair(true, true), {true, false}, {false, true}})
          cases.push_back({shares, order, has_bias, trains, needs_dx});
  return cases;
}

struct LinearValues {
  Tensor x, weight, bias, dy;  ///< weight (out, in)
};

LinearValues linear_values(int64_t rows) {
  return {random({rows, kIn}), random({kOut, kIn}), random({kOut}), random({rows, kOut})};
}

/// When weight gradients are added.
enum class Adds { AtOnce, AfterAnotherBackward };

using CallLinear = std::function<Tensor(const Tensor&, Parameter&, Parameter*)>;

/// Forward and backward of `call` on `values`, weight gradients as (out, in).
Result run_linear(const LinearCase& asked, const LinearValues& values, const CallLinear& call,
                  Adds adds = Adds::AtOnce) {
  const bool swaps = asked.order == WeightOrder::InOut;
  const auto weight = make_parameter(swaps ? values.weight.t() : values.weight, asked.trains);
  const auto bias = make_parameter(values.bias, asked.trains);
  const Tensor x = values.x.detach().clone().set_requires_grad(asked.needs_dx);
  const Tensor y = call(x, *weight, asked.has_bias ? bias.get() : nullptr);
  DeferredGradients later;
  if (adds == Adds::AtOnce) {
    y.backward(values.dy);
  } else {
    const DeferringGradients deferring({weight.get(), bias.get()}, later);
    y.backward(values.dy);
  }
  Result result{y.detach(), x.grad(), {}, {}};
  if (adds == Adds::AfterAnotherBackward) {
    EXPECT_EQ(later.empty(), !asked.trains);
    const LinearValues others{random(values.x.sizes()), values.weight, values.bias, values.dy};
    run_linear(asked, others, call);  // takes the same buffers
    later.run();
  }
  if (!asked.trains) return result;
  result.dweight = swaps ? weight->gradient().t() : weight->gradient();
  result.dbias = bias->gradient();
  return result;
}

/// The plain layer on the whole parameters.
Result run_whole(const LinearCase& asked, const LinearValues& values) {
  return run_linear(asked, values, [&](const Tensor& x, Parameter& weight, Parameter* bias) {
    return Layers().column_linear(x, weight, bias, {}, asked.order);
  });
}

TEST_P(TensorLayersTest, ColumnLinearEqualsTheWholeOne) {
  if (!takes_part()) return;
  for (const LinearCase& asked : linear_cases(all_shares())) {
    const LinearValues whole = linear_values(total(asked.shares));
    const Piece rows = local_rows(asked.shares), out = piece_of(kOut);
    const LinearValues here{rows.rows_of(whole.x), out.rows_of(whole.weight),
                            out.rows_of(whole.bias), out.columns_of(whole.dy)};

    const Result want = run_whole(asked, whole);
    const Result got =
        run_linear(asked, here, [&](const Tensor& x, Parameter& weight, Parameter* bias) {
          return layers_->column_linear(x, weight, bias, told(asked.shares), asked.order);
        });

    SCOPED_TRACE(asked.text());
    expect_equal(got.y, out.columns_of(want.y), "y");
    if (asked.needs_dx) expect_equal(got.dx, rows.rows_of(want.dx), "dx");
    if (!asked.trains) continue;
    expect_equal(got.dweight, out.rows_of(want.dweight), "dweight");
    expect_equal(got.dbias, out.rows_of(want.dbias), "dbias");
  }
}

TEST_P(TensorLayersTest, RowLinearEqualsTheWholeOne) {
  if (!takes_part()) return;
  for (const LinearCase& asked : linear_cases(all_shares())) {
    const LinearValues whole = linear_values(total(asked.shares));
    const Piece rows = local_rows(asked.shares), in = piece_of(kIn);
    const LinearValues here{in.columns_of(whole.x), in.columns_of(whole.weight), whole.bias,
                            rows.rows_of(whole.dy)};

    const Result want = run_whole(asked, whole);
    const Result got =
        run_linear(asked, here, [&](const Tensor& x, Parameter& weight, Parameter* bias) {
          return layers_->row_linear(x, weight, bias, told(asked.shares), asked.order);
        });

    SCOPED_TRACE(asked.text());
    expect_equal(got.y, rows.rows_of(want.y), "y");
    if (asked.needs_dx) expect_equal(got.dx, in.columns_of(want.dx), "dx");
    if (!asked.trains) continue;
    expect_equal(got.dweight, in.columns_of(want.dweight), "dweight");
    expect_equal(summed_over_holders(got.dbias), want.dbias, "dbias");
  }
}

/// The norms of queries and keys side by side with values, and their gradients.
struct JointNorms {
  Tensor y, dx, dquery, dkey;

  JointNorms(const Layers& layers, const Tensor& qkv, const std::array<Tensor, 2>& weights,
             const Tensor& dy, bool trains, bool needs_dx) {
    const auto query = make_parameter(weights[0], trains), key = make_parameter(weights[1], trains);
    const Tensor x = qkv.detach().clone().set_requires_grad(needs_dx);
    // An eps and an offset that count.
    const Tensor normed =
        layers.joint_head_norms(x, *query, *key, {NormKind::Rms, /*eps=*/0.1, /*offset=*/0.3});
    normed.backward(dy);
    y = normed.detach();
    dx = x.grad();
    if (!trains) return;
    dquery = query->gradient();
    dkey = key->gradient();
  }
};

TEST_P(TensorLayersTest, NormsOfAllHeadsEqualTheWholeOnes) {
  if (!takes_part()) return;
  const Piece heads = piece_of(kIn);
  const auto here = [&](const Tensor& x) { return x.narrow(-1, heads.begin, heads.count); };
  for (int64_t rows : {int64_t{5}, int64_t{0}})
    for (const auto& [trains, needs_dx] : {std::pair(true, true), {true, false}, {false, true}}) {
      SCOPED_TRACE(std::to_string(rows) + " rows" + (trains ? "" : ", frozen") +
                   (needs_dx ? "" : ", no dx"));
      const Tensor qkv = random({rows, 3, kIn}), dy = random({rows, 3, kIn});
      const Tensor query = random({kIn}), key = random({kIn});

      const JointNorms want(Layers(), qkv, {query, key}, dy, trains, needs_dx);
      const JointNorms got(*layers_, here(qkv), {here(query), here(key)}, here(dy), trains,
                           needs_dx);

      expect_equal(got.y, here(want.y), "y");
      if (needs_dx) expect_equal(got.dx, here(want.dx), "dx");
      if (!trains) continue;
      expect_equal(got.dquery, here(want.dquery), "dquery");
      expect_equal(got.dkey, here(want.dkey), "dkey");
    }
}

void expect_same_bits(const LinearCase& asked, const LinearValues& values, const CallLinear& call) {
  const Result want = run_linear(asked, values, call);
  const Result got = run_linear(asked, values, call, Adds::AfterAnotherBackward);
  if (asked.needs_dx) {
    EXPECT_TRUE(got.dx.equal(want.dx)) << "dx";
  }
  if (!asked.trains) return;
  EXPECT_TRUE(got.dweight.equal(want.dweight)) << "dweight";
  EXPECT_TRUE(got.dbias.equal(want.dbias)) << "dbias";
}

TEST_P(TensorLayersTest, WeightGradientsThatArePutOffAreTheSameBits) {
  if (!takes_part()) return;
  for (const LinearCase& asked : linear_cases(all_shares())) {
    SCOPED_TRACE(asked.text());
    const LinearValues whole = linear_values(total(asked.shares));
    const Piece rows = local_rows(asked.shares), in = piece_of(kIn), out = piece_of(kOut);
    expect_same_bits(asked,
                     {rows.rows_of(whole.x), out.rows_of(whole.weight), out.rows_of(whole.bias),
                      out.columns_of(whole.dy)},
                     [&](const Tensor& x, Parameter& weight, Parameter* bias) {
                       return layers_->column_linear(x, weight, bias, told(asked.shares),
                                                     asked.order);
                     });
    expect_same_bits(
        asked,
        {in.columns_of(whole.x), in.columns_of(whole.weight), whole.bias, rows.rows_of(whole.dy)},
        [&](const Tensor& x, Parameter& weight, Parameter* bias) {
          return layers_->row_linear(x, weight, bias, told(asked.shares), asked.order);
        });
  }
}

TEST_P(TensorLayersTest, Bf16IsTheWholeOneButForRounding) {
  if (!takes_part()) return;
  const LinearCase asked{all_shares()[1], WeightOrder::OutIn, true, true, true};
  const LinearValues whole = linear_values(total(asked.shares));
  const Piece rows = local_rows(asked.shares), in = piece_of(kIn), out = piece_of(kOut);
  const auto narrow = [](const LinearValues& values) {
    return LinearValues{values.x.to(at::kBFloat16), values.weight.to(at::kBFloat16),
                        values.bias.to(at::kBFloat16), values.dy.to(at::kBFloat16)};
  };
  const auto expect_near = [](const Tensor& got, const Tensor& want, at::ScalarType type) {
    EXPECT_EQ(got.scalar_type(), type);
    EXPECT_TRUE(at::allclose(got.to(at::kDouble), want, 0.02, 0.1)) << got - want;
  };
  const Result want = run_whole(asked, whole);
  const Tensor qkv = random({5, 3, kIn}), weight = random({kIn});
  const JointNorms normed(Layers(), qkv, {weight, weight}, qkv, true, true);

  const auto here = [&](const Tensor& x) {
    return x.narrow(-1, in.begin, in.count).to(at::kBFloat16);
  };
  const JointNorms normed_here(*layers_, here(qkv), {here(weight), here(weight)}, here(qkv), true,
                               true);
  const Result column =
      run_linear(asked,
                 narrow({rows.rows_of(whole.x), out.rows_of(whole.weight), out.rows_of(whole.bias),
                         out.columns_of(whole.dy)}),
                 [&](const Tensor& x, Parameter& weight, Parameter* bias) {
                   return layers_->column_linear(x, weight, bias, told(asked.shares));
                 });
  const Result row = run_linear(asked,
                                narrow({in.columns_of(whole.x), in.columns_of(whole.weight),
                                        whole.bias, rows.rows_of(whole.dy)}),
                                [&](const Tensor& x, Parameter& weight, Parameter* bias) {
                                  return layers_->row_linear(x, weight, bias, told(asked.shares));
                                });

  expect_near(column.y, out.columns_of(want.y), at::kBFloat16);
  expect_near(column.dx, rows.rows_of(want.dx), at::kBFloat16);
  expect_near(column.dweight, out.rows_of(want.dweight), at::kFloat);
  expect_near(row.y, rows.rows_of(want.y), at::kBFloat16);
  expect_near(row.dx, in.columns_of(want.dx), at::kBFloat16);
  expect_near(row.dweight, in.columns_of(want.dweight), at::kFloat);
  expect_near(normed_here.y, here(normed.y).to(at::kDouble), at::kBFloat16);
  expect_near(normed_here.dx, here(normed.dx).to(at::kDouble), at::kBFloat16);
  expect_near(normed_here.dquery, here(normed.dquery).to(at::kDouble), at::kFloat);
}

/// A rank's rows of a vocabulary's matrix; padding is NaN, which whatever reads it shows.
struct VocabularyPiece {
  int64_t rows, begin, count;

  VocabularyPiece(int64_t vocabulary, int tp, int rank)
      : rows((vocabulary + tp - 1) / tp),
        begin(std::min(vocabulary, rank * rows)),
        count(std::min(rows, vocabulary - begin)) {}

  Tensor of(const Tensor& whole) const {
    Tensor piece = at::full({rows, whole.size(1)}, std::nan(""), whole.options());
    piece.narrow(0, 0, count).copy_(whole.narrow(0, begin, count));
    return piece;
  }
  void expect_gradient(const Tensor& got, const Tensor& whole) const {
    Tensor want = of(whole);
    want.narrow(0, count, rows - count).zero_();
    const double worst = got.sub(want).abs().max().item<double>();
    EXPECT_TRUE(worst <= kTolerance) << "dweight: off by " << worst;
  }
};

// tp 4 gives the last rank of 11 one row of padding, and of 5 nothing else.
const std::vector<int64_t> kVocabularies = {12, 11, 5};

TEST_P(TensorLayersTest, EmbeddingEqualsTheWholeOne) {
  if (!takes_part()) return;
  for (int64_t vocabulary : kVocabularies)
    for (const RowsPerTpRank& shares : all_shares()) {
      SCOPED_TRACE("vocabulary " + std::to_string(vocabulary));
      const Tensor table = random({vocabulary, kIn}), dy = random({total(shares), kIn});
      const Tensor ids = at::randint(vocabulary, {total(shares)}, at::kLong);
      const VocabularyPiece piece(vocabulary, tp(), rank());
      const auto whole = make_parameter(table, true), here = make_parameter(piece.of(table), true);
      const Piece rows = local_rows(shares);

      const Tensor want = Layers().embedding(ids, *whole, vocabulary, {});
      want.backward(dy);
      const Tensor got = layers_->embedding(ids, *here, vocabulary, told(shares));
      got.backward(rows.rows_of(dy));

      expect_equal(got.detach(), rows.rows_of(want.detach()), "rows");
      piece.expect_gradient(here->gradient(), whole->gradient());
    }
}

struct HeadCase {
  int64_t vocabulary, hidden;
  RowsPerTpRank shares;
  bool trains, needs_dx;
  double softcap = 0;
};

class TensorHeadTest : public TensorLayersTest {
 protected:
  void expect_head(const HeadCase& asked) {
    const int64_t rows = total(asked.shares);
    const Tensor x = random({rows, asked.hidden});
    const Tensor matrix = random({asked.vocabulary, asked.hidden});
    const Tensor targets = at::randint(asked.vocabulary, {rows}, at::kLong);
    const VocabularyPiece piece(asked.vocabulary, tp(), rank());
    const Piece own = local_rows(asked.shares);
    const auto whole = make_parameter(matrix, asked.trains);
    const auto here = make_parameter(piece.of(matrix), asked.trains);
    const Tensor x_all = x.clone().set_requires_grad(asked.needs_dx);
    const Tensor x_here = own.rows_of(x).clone().set_requires_grad(asked.needs_dx);

    const LogitSpec spec{asked.vocabulary, asked.softcap};
    const Tensor want = Layers().cross_entropy(x_all, *whole, targets, spec, {});
    want.backward(at::full({}, 0.3, at::kDouble));
    const Tensor got = layers_->cross_entropy(x_here, *here, targets, spec, told(asked.shares));
    got.backward(at::full({}, 0.3, at::kDouble));
    const Tensor logits = layers_->logits(x_here, *here, spec, told(asked.shares));

    // Sums of many terms round in other orders.
    const double scale = 1 + std::abs(want.item<double>());
    EXPECT_NEAR(got.item<double>(), want.item<double>(), kTolerance * scale);
    if (asked.needs_dx) expect_equal(x_here.grad(), own.rows_of(x_all.grad()), "dx");
    if (asked.trains) piece.expect_gradient(here->gradient(), whole->gradient());
    const Tensor plain = x.mm(matrix.t());
    expect_equal(logits.detach(),
                 asked.softcap > 0 ? (plain / asked.softcap).tanh() * asked.softcap : plain,
                 "logits");
  }
};

TEST_P(TensorHeadTest, CrossEntropyAndLogitsEqualTheWholeOnes) {
  if (!takes_part()) return;
  for (int64_t vocabulary : kVocabularies)
    for (const RowsPerTpRank& shares : all_shares())
      for (const auto& [trains, needs_dx] : {std::pair(true, true), {true, false}, {false, true}}) {
        SCOPED_TRACE("vocabulary " + std::to_string(vocabulary));
        expect_head({vocabulary, kIn, shares, trains, needs_dx});
        if (trains && needs_dx) expect_head({vocabulary, kIn, shares, true, true, 1.5});
      }
}

TEST_P(TensorHeadTest, RowsGoThroughInChunks) {
  if (!takes_part() || tp() != 2 || !is_sequence_parallel() || GetParam().strict) return;
  // 131072 logits and more per row leave 31 rows and fewer to a chunk.
  expect_head({270001, 3, {21, 19}, true, true});
}

const std::vector<Setup> kSetups = {
    {1, true, false},    {1, false, true},     {2, true, false},   {2, false, false},
    {2, true, true},     {2, false, true},     {3, true, false},   {3, false, false},
    {3, true, true},     {3, false, true},     {4, true, false},   {4, false, false},
    {4, true, true},     {4, false, true},     {2, true, true, 2}, {2, false, true, 2},
    {3, true, false, 4}, {3, false, false, 4}, {4, true, true, 4}, {4, false, true, 3},
    {4, true, false, 2},
};
INSTANTIATE_TEST_SUITE_P(Tp, TensorLayersTest, ::testing::ValuesIn(kSetups), name_of);
INSTANTIATE_TEST_SUITE_P(Tp, TensorHeadTest, ::testing::ValuesIn(kSetups), name_of);

}  // namespace
}  // namespace zea::testing::test_tp_layers
