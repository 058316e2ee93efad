// SPDX-License-Identifier: Apache-2.0
// Attention over tokens distributed over cp ranks equals that of one rank, in fp64: every exchange
// of keys and heads, every distribution, and rows that are hard to distribute.
#include "parallel/context_attention.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <string>

#include "comm/mesh.hpp"
#include "support/dense_attention.hpp"
#include "support/mpi_main.hpp"
#include "support/random_row.hpp"
#include "support/strict_collectives.hpp"

namespace zea::test_context_attention {
namespace {

using at::Tensor;
using testing::dense_attention;
using testing::relative_difference;
using Owned = std::vector<std::vector<TokenRange>>;

constexpr double kTolerance = 1e-12;

struct Mode {
  const char* name;
  int ranks, inner;
  KvExchange exchange;
};

constexpr Mode kModes[] = {
    {"gather", 4, 1, KvExchange::Gather},       {"ring", 4, 1, KvExchange::Ring},
    {"ulysses", 4, 4, KvExchange::Gather},      {"two-level gather", 4, 2, KvExchange::Gather},
    {"two-level ring", 4, 2, KvExchange::Ring}, {"gather of 3", 3, 1, KvExchange::Gather},
    {"ring of 3", 3, 1, KvExchange::Ring},      {"ring of 2", 2, 1, KvExchange::Ring},
    {"ulysses of 2", 2, 2, KvExchange::Gather}, {"one rank", 1, 1, KvExchange::Gather},
};

constexpr TokenDistribution kKinds[] = {TokenDistribution::Uniform, TokenDistribution::Zigzag,
                                        TokenDistribution::MakespanMin};

struct Heads {
  int64_t query, key_value;
};

/// Groups of as many heads as ranks, of fewer KV heads than ranks, and of one KV head for all.
constexpr Heads kHeads[] = {{4, 4}, {8, 2}, {4, 1}};

struct Row {
  std::string name;
  std::vector<MaskWord> words;
  Visibility visible;
  ScoreSpec scores = {};
  bool has_sinks = false;
};

Row text_row(const std::string& name, const std::vector<MaskWord>& words, bool both_ways) {
  return {name, words, visible_text(words, both_ways)};
}

std::vector<Row> rows() {
  using testing::random_row;
  using testing::samples_of;
  std::vector<Row> rows{
      text_row("packed samples with images, both ways", random_row(150, 11, 3), true),
      text_row("packed samples with images, causal", random_row(131, 11, 4), false),
      text_row("one long sample", samples_of({97}), true),
      text_row("short samples", samples_of({5, 9, 1, 16, 8, 2}), true),
      text_row("fewer blocks than ranks", samples_of({13}), true),
      text_row("fewer tokens than ranks", samples_of({2}), true),
      text_row("one image on all ranks", std::vector<MaskWord>(70, make_mask_word(0, 1, 1)), true),
  };
  const std::vector<MaskWord> items = samples_of({40, 3, 25});
  const std::vector<MaskWord> packed = random_row(140, 11, 5), sample = samples_of({97});
  rows.push_back({"windows, images both ways", packed, visible_text(packed, true, 9)});
  rows.push_back({"a window of one sample", sample, visible_text(sample, true, 20)});
  rows.push_back(
      {"capped scores", packed, visible_text(packed, false), {.scale = 0.7, .softcap = 2}});
  rows.push_back({"windows and sinks", packed, visible_text(packed, false, 9), {}, true});
  rows.push_back({"sinks", sample, visible_text(sample, false), {}, true});
  rows.push_back({"items of an encoder", items, visible_segments(segments_of(items))});
  return rows;
}

/// A cp group of the first ranks of the test, with its two levels.
class CpGroup {
 public:
  CpGroup(const Mode& mode, const MakeCollectives& make) {
    const Communicator all = testing::first_ranks(mode.ranks);
    rank_ = all.size() > 0 ? all.rank() : -1;
    if (!is_member()) return;
    inner_ = make(all.split(rank_ / mode.inner, "inner"));
    outer_ = make(all.split(rank_ % mode.inner, "outer"));
  }

  bool is_member() const { return rank_ >= 0; }
  int rank() const { return rank_; }
  Collectives* inner() const { return inner_->size() > 1 ? inner_.get() : nullptr; }
  Collectives* outer() const { return outer_->size() > 1 ? outer_.get() : nullptr; }

 private:
  int rank_ = -1;
  std::unique_ptr<Collectives> inner_, outer_;
};

Tensor rows_of(const std::vector<TokenRange>& runs) {
  std::vector<int64_t> rows;
  for (const TokenRange& run : runs)
    for (int64_t t = run.begin; t < run.end; ++t) rows.push_back(t);
  return at::tensor(rows, at::kLong);
}

/// The whole row on one rank.
struct Reference {
  Reference(const Row& row, const Heads& heads, at::ScalarType type = at::kDouble,
            int64_t dim = 6) {
    at::manual_seed(row.visible.tokens() * 31 + heads.query);
    const int64_t tokens = row.visible.tokens(), all = heads.query + 2 * heads.key_value;
    qkv = at::randn({tokens, all, dim}, at::kDouble).to(type).to(at::kDouble).requires_grad_();
    dy = at::randn({tokens, heads.query * dim}, at::kDouble).to(type).to(at::kDouble);
    if (row.has_sinks) sinks = at::randn({heads.query}, at::kDouble).requires_grad_();
    const Tensor computed =
        dense_attention(qkv, row.visible, heads.query, heads.key_value, row.scores, sinks);
    computed.backward(dy);
    dqkv = qkv.grad();
    y = computed.detach();
  }

  Tensor qkv, dy, y, dqkv;
  Tensor sinks;  ///< (heads); undefined: none
};

/// The sinks of all heads, whose gradients ranks add up.
std::optional<Parameter> sinks_of(const Reference& reference) {
  if (!reference.sinks.defined()) return {};
  Parameter sinks("sinks", reference.sinks.sizes().vec(), true, at::kCPU);
  sinks.set_value(reference.sinks.detach().clone());
  sinks.set_gradient(at::zeros_like(sinks.value()));
  return sinks;
}

/// This rank's output and gradient against its rows of the reference's.
void expect_own_rows(const Reference& reference, const Row& row, const Heads& heads,
                     const ContextOptions& options, const Owned& owned, const CpGroup& group,
                     at::ScalarType type = at::kDouble, double tolerance = kTolerance) {
  const ContextPart part(make_context_plan(row.visible, owned, options, group.rank()));
  const Tensor own = rows_of(owned[group.rank()]);
  const auto mine = [&](const Tensor& x) { return x.detach().index_select(0, own); };

  const Tensor qkv = mine(reference.qkv).to(type).requires_grad_();
  std::optional<Parameter> sinks = sinks_of(reference);
  const Tensor y = context_attention(qkv, part, heads.query, heads.key_value, group.inner(),
                                     group.outer(), {row.scores, sinks ? &*sinks : nullptr});
  const Tensor dqkv = torch::autograd::grad({y}, {qkv}, {mine(reference.dy).to(type)})[0];

  EXPECT_EQ(y.scalar_type(), type);
  EXPECT_LE(relative_difference(y.detach(), mine(reference.y)), tolerance);
  EXPECT_LE(relative_difference(dqkv, mine(reference.dqkv)), tolerance);
  if (!sinks) return;
  const Tensor sum = sinks->gradient();
  for (Collectives* ranks : {group.inner(), group.outer()})
    if (ranks)
      ranks->all_reduce(sum.mutable_data_ptr(), sum.numel(), DType::Float64, ReduceOp::Sum).wait();
  EXPECT_LE(relative_difference(sum, reference.sinks.grad()), tolerance);
}

class ContextAttentionTest : public ::testing::TestWithParam<bool> {
 protected:
  static std::unique_ptr<Collectives> make(const Communicator& communicator) {
    return GetParam() ? make_strict_collectives(communicator) : make_host_collectives(communicator);
  }

  static ContextOptions options_of(const Mode& mode, TokenDistribution kind) {
    return {.ranks = mode.ranks,
            .inner = mode.inner,
            .exchange = mode.exchange,
            .distribution = {.kind = kind, .block = 8}};
  }
};

TEST_P(ContextAttentionTest, EqualsOneRank) {
  std::vector<CpGroup> groups;
  for (const Mode& mode : kModes) groups.emplace_back(mode, make);
  const std::vector<Row> all = rows();
  for (size_t r = 0; r < all.size(); ++r)
    for (size_t h = 0; h < std::size(kHeads); ++h) {
      const Reference reference(all[r], kHeads[h]);
      for (size_t m = 0; m < groups.size(); ++m) {
        // Every pair of row and mode, of row and heads, and of mode and heads.
        if (!groups[m].is_member() || (r + m) % std::size(kHeads) != h) continue;
        for (TokenDistribution kind : kKinds) {
          SCOPED_TRACE(std::string(kModes[m].name) + ", " + all[r].name + ", distribution " +
                       std::to_string(static_cast<int>(kind)));
          const ContextOptions options = options_of(kModes[m], kind);
          expect_own_rows(reference, all[r], kHeads[h], options,
                          shard_tokens(all[r].visible, options), groups[m]);
        }
      }
    }
}

TEST_P(ContextAttentionTest, TakesRanksOfAnyTokensAndOfNone) {
  const Row row = text_row("uneven", testing::random_row(60, 7, 6), true);
  const Owned owned{
      {{3, 7}, {20, 21}, {50, 58}}, {}, {{0, 3}, {7, 20}, {25, 50}}, {{21, 25}, {58, 60}}};
  for (const Mode& mode : kModes) {
    if (mode.ranks != 4) continue;
    SCOPED_TRACE(mode.name);
    const CpGroup group(mode, make);
    const Reference reference(row, kHeads[1]);
    expect_own_rows(reference, row, kHeads[1], options_of(mode, TokenDistribution::Uniform), owned,
                    group);
  }
}

TEST_P(ContextAttentionTest, GathersManyHeadsInParts) {
  const Row row = text_row("wide heads", testing::random_row(1000, 60, 5), true);
  const Heads heads{8, 4};
  const Reference reference(row, heads, at::kDouble, 288);
  for (const Mode& mode : kModes) {
    if (mode.exchange != KvExchange::Gather || mode.ranks != 4) continue;
    SCOPED_TRACE(mode.name);
    const CpGroup group(mode, make);
    const ContextOptions options = options_of(mode, TokenDistribution::MakespanMin);
    expect_own_rows(reference, row, heads, options, shard_tokens(row.visible, options), group);
  }
}

TEST_P(ContextAttentionTest, RoundsAsBfloat16Does) {
  const Row row = text_row("packed", testing::random_row(150, 11, 3), true);
  for (const Mode& mode : kModes) {
    const CpGroup group(mode, make);
    if (!group.is_member()) continue;
    SCOPED_TRACE(mode.name);
    const ContextOptions options = options_of(mode, TokenDistribution::MakespanMin);
    const Reference reference(row, kHeads[1], at::kBFloat16);
    expect_own_rows(reference, row, kHeads[1], options, shard_tokens(row.visible, options), group,
                    at::kBFloat16, 2e-2);
  }
}

INSTANTIATE_TEST_SUITE_P(Collectives, ContextAttentionTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "strict" : "host"; });

}  // namespace
}  // namespace zea::test_context_attention
