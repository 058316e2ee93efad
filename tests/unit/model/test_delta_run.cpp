// SPDX-License-Identifier: Apache-2.0
// The gated delta rule of a row that is cut into runs, between which states pass, compared in fp64
// with its definition on the whole row: outputs and all gradients, for cuts at every position.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/kernel_sizes.hpp"
#include "kernels/delta_run.hpp"
#include "layout/scan_plan.hpp"
#include "model/delta_rule.hpp"
#include "support/delta_recurrence.hpp"

namespace zea::test_delta_run {
namespace {

using at::Tensor;

using Lengths = std::vector<int64_t>;

int64_t sum_of(const Lengths& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

/// Outputs, and the gradients of x and all parameters.
using Results = std::vector<Tensor>;

/// Keeps what each rank began to send, from which later ranks take it.
class Passing : public StatePassing {
 public:
  Passing(std::vector<Tensor>& sent, int rank, const std::vector<int>& sources)
      : sent_(sent), rank_(rank), sources_(sources) {}

  void begin(const Tensor& own) override { sent_[rank_] = own; }
  Tensor end() override {
    std::vector<Tensor> received;
    for (const int source : sources_) received.push_back(sent_[source]);
    return passed_state(received);
  }

 private:
  std::vector<Tensor>& sent_;
  int rank_;
  const std::vector<int>& sources_;
};

/// A row and its results by the definition.
class Row {
 public:
  Row(Lengths lengths, const DeltaRuleSpec& rule)
      : samples_(samples_in_turn(lengths)),
        rule_(rule),
        leaves_(random_delta_leaves(sum_of(lengths), rule)),
        dy_(at::randn({sum_of(lengths), rule.values()}, at::kDouble)) {
    DeltaLeaves leaves = leaves_;
    for (Tensor* leaf : leaves.all()) *leaf = leaf->detach().clone().requires_grad_(true);
    const Tensor y = delta_recurrence(leaves, samples_, rule);
    y.backward(dy_);
    expected_.push_back(y.detach());
    for (const Tensor* leaf : leaves.all()) expected_.push_back(leaf->grad());
  }

  int64_t tokens() const { return dy_.size(0); }

  /// Compares it with runs that end at `ends`, which ascend.
  void compare(const Lengths& ends) const {
    const Results got = computed(ends);
    constexpr const char* kNames[] = {"y", "dx", "dconv", "ddecay", "dstep", "dnorm"};
    for (size_t i = 0; i < got.size(); ++i) {
      const double size = std::max(1.0, expected_[i].abs().max().item<double>());
      EXPECT_LE((got[i] - expected_[i]).abs().max().item<double>(), 1e-12 * size) << kNames[i];
    }
  }

 private:
  Results computed(const Lengths& ends) const {
    std::vector<TokenRuns> owned;
    for (size_t r = 0; r < ends.size(); ++r) {
      const int64_t begin = r == 0 ? 0 : ends[r - 1];
      owned.push_back(begin < ends[r] ? TokenRuns{{begin, ends[r]}} : TokenRuns{});
    }
    const DeltaShape shape = shape_of(rule_);
    const DeltaWeights weights{leaves_.conv, leaves_.decay, leaves_.step, leaves_.norm};
    const auto zeros = [](const Tensor& like) { return at::zeros_like(like); };
    const DeltaGradients gradients{zeros(leaves_.conv), zeros(leaves_.decay), zeros(leaves_.step),
                                   zeros(leaves_.norm)};
    Results results{zeros(dy_),      zeros(leaves_.x), gradients.conv,
                    gradients.decay, gradients.step,   gradients.norm};
    struct Part {
      ScanPlan plan;
      DeltaRun run;
      Tensor x;
      DeltaRunOutputs out;
    };
    std::vector<Part> parts;
    std::vector<Tensor> sent(ends.size()), sent_back(ends.size());
    for (int r = 0; r < static_cast<int>(ends.size()); ++r) {
      const ScanPlan plan = make_scan_plan(samples_, owned, rule_.taps, r);
      EXPECT_TRUE(plan.scans_own_tokens);
      Part part{plan, {plan.bounds, plan.halo, plan.continues(), plan.goes_on()}, {}, {}};
      part.x = leaves_.x.narrow(0, plan.run.begin - plan.halo, plan.run.length() + plan.halo);
      Passing passing(sent, r, plan.before);
      part.out = delta_run_forward(part.x, part.run, weights, shape, passing);
      results[0].narrow(0, plan.run.begin, plan.run.length()).copy_(part.out.y);
      parts.push_back(std::move(part));
    }
    for (int r = static_cast<int>(ends.size()) - 1; r >= 0; --r) {
      const auto& [plan, run, x, out] = parts[r];
      Passing passing(sent_back, r, plan.after);
      const Tensor dy = dy_.narrow(0, plan.run.begin, plan.run.length());
      const Tensor dx = delta_run_backward(dy, x, run, out, weights, shape, gradients, passing);
      results[1].narrow(0, plan.run.begin - plan.halo, dx.size(0)).add_(dx);
    }
    return results;
  }

  std::vector<Segment> samples_;
  DeltaRuleSpec rule_;
  DeltaLeaves leaves_;
  Tensor dy_;
  Results expected_;
};

class DeltaRuns : public ::testing::Test {
 protected:
  void SetUp() override { at::manual_seed(11); }
};

TEST_F(DeltaRuns, IsTheRowForACutAtEveryPosition) {
  for (const bool by_key_head : {false, true}) {
    DeltaRuleSpec rule = kSmallDeltaRule;
    rule.by_key_head = by_key_head;
    const Row row({2, kDeltaChunk + 9, 1, 5, 30}, rule);
    for (int64_t cut = 0; cut <= row.tokens(); ++cut) {
      SCOPED_TRACE(cut);
      row.compare({cut, row.tokens()});
    }
  }
}

TEST_F(DeltaRuns, PassesStatesThroughRunsInsideASample) {
  const Row row({3, 2 * kDeltaChunk + 20, 4}, kSmallDeltaRule);
  for (int64_t first = 1; first < row.tokens(); first += 7)
    for (int64_t length = 1; first + 3 * length < row.tokens(); length += 11) {
      SCOPED_TRACE(std::to_string(first) + " + 3 x " + std::to_string(length));
      row.compare({first, first + length, first + 2 * length, first + 3 * length, row.tokens()});
    }
}

TEST_F(DeltaRuns, TakesRunsOfFewTokensAndOfNone) {
  const Row row({1, 2, 9, 1, 6}, kSmallDeltaRule);
  Lengths ends;
  for (int64_t end = 1; end <= row.tokens(); ++end) ends.push_back(end);
  row.compare(ends);
  row.compare({0, 5, 5, 6, 6, 8, row.tokens(), row.tokens()});
  const Row one({7}, {.key_heads = 1, .value_heads = 1, .key_dim = 4, .value_dim = 7, .taps = 6});
  one.compare({1, 2, 2, 3, 4, 7});
}

TEST_F(DeltaRuns, CorrectsTheStatesThatItKeeps) {
  const Row row({5, 2 * kDeltaStateTokens + 70, 3}, kSmallDeltaRule);
  row.compare({10, row.tokens()});
  row.compare({20, 2 * kDeltaStateTokens + 60, row.tokens()});
  row.compare({kDeltaStateTokens + 9, row.tokens()});
}

}  // namespace
}  // namespace zea::test_delta_run
