// SPDX-License-Identifier: Apache-2.0
// Attention over slices and its distribution over cp ranks, on one thread in fp32. Times are of the
// thread, forward and backward, so that other load disturbs them little. "paper" times nothing: it
// counts the work of ranks, over several rows.
//   bench_attention [memory] [packed] [lengths] [planner] [small] [paper] [balance] [causal]
//   (all without a word)
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <time.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <string>

#include "layout/context_plan.hpp"
#include "model/attention.hpp"
#include "parallel/device_memory.hpp"

namespace {

using namespace zea;
using at::Tensor;
using Words = std::vector<MaskWord>;
using Owned = std::vector<std::vector<TokenRange>>;

constexpr int64_t kHeads = 1, kDim = 64, kBlock = 128;
constexpr int64_t kRowTokens = 65536;
constexpr TokenDistribution kKinds[] = {TokenDistribution::Uniform, TokenDistribution::Zigzag,
                                        TokenDistribution::MakespanMin};
constexpr const char* kKindNames[] = {"uniform", "zigzag", "makespan_min"};
/// Bounds of a distribution: its costliest rank's work over the mean, its speedup over the others
/// from cp 4 on, and the time to distribute a million tokens.
constexpr double kMostWork = 1.03, kOverZigzag = 1.10, kOverUniform = 1.35, kMostPlannerMs = 50;
/// Bound over zigzag on causal rows, which zigzag balances as well: less is noise.
constexpr double kNoSlower = 0.95;
constexpr uint64_t kSeed = 1, kSeeds = 8;
/// Linear layers of a token of Llama 3.2 1B, in tiles: the weights of a layer over 2 x 2048 x
/// kBlock^2.
constexpr double kLlamaLinear = 60.8e6 / (2.0 * 2048 * kBlock * kBlock);

double milliseconds(const std::function<void()>& call) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
  };
  const double start = now();
  call();
  return now() - start;
}

double best_of(int rounds, const std::function<void()>& call) {
  double best = 1e30;
  for (int round = 0; round < rounds; ++round) best = std::min(best, milliseconds(call));
  return best;
}

/// Packed samples of text with images and clips that see themselves both ways. Sizes are those of
/// a row of 64k tokens, in proportion for others.
Words multimodal_row(int64_t tokens, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  const auto scaled = [&](int64_t length) {
    return std::max<int64_t>(length * tokens / kRowTokens, 4);
  };
  Words words;
  for (int64_t sample = 0; static_cast<int64_t>(words.size()) < tokens; ++sample) {
    const int64_t items = between(0, 5);
    const auto add = [&](int64_t length, int64_t modality, int64_t item) {
      words.insert(words.end(), scaled(length), make_mask_word(sample, modality, item));
    };
    add(between(50, 1500), kModalityText, 0);
    for (int64_t item = 1; item <= items; ++item) {
      const bool is_clip = between(0, 3) == 0;
      add(is_clip ? 256 * between(8, 32) : 576 * between(1, 5), kModalityImage, item);
      add(between(50, 1500), kModalityText, 0);
    }
  }
  words.resize(tokens);
  return words;
}

Words causal_row(int64_t tokens) {
  return Words(tokens, make_mask_word(0, kModalityText, 0));
}

AttentionMask all_slices(const Visibility& row) {
  const std::vector<TokenRange> all{{0, row.tokens()}};
  return AttentionMask(attention_slices(row, all, all));
}

void train(const Tensor& qkv, const Tensor& dy, const AttentionMask& slices, int64_t heads) {
  const Tensor input = qkv.detach().requires_grad_();
  torch::autograd::grad({attention(input, slices, heads, heads)}, {input}, {dy});
}

void measure_memory() {
  std::printf("\n| tokens | peak MiB | bytes per token | ms |\n|---|---|---|---|\n");
  TensorBytes bytes;
  for (int64_t tokens = 1024; tokens <= 16384; tokens *= 2) {
    const auto slices = all_slices(visible_text(multimodal_row(tokens, 1), true));
    const Tensor qkv = at::randn({tokens, 3 * kHeads, kDim}),
                 dy = at::randn({tokens, kHeads * kDim});
    const int64_t before = bytes.now();
    bytes.reset_peak();
    const double time = milliseconds([&] { train(qkv, dy, slices, kHeads); });
    const auto peak = static_cast<double>(bytes.peak() - before);
    std::printf("| %ld | %.2f | %.0f | %.1f |\n", tokens, peak / 1048576,
                peak / static_cast<double>(tokens), time);
  }
}

/// A sample of about `length` tokens: text, an image of a third of it, text.
Words short_sample(int64_t sample, int64_t length, bool ragged) {
  const int64_t image = length / 3, before = ragged ? 2 + sample % 5 : 4;
  const int64_t after = length - image - before + (ragged ? sample % 7 : 0);
  Words words(before, make_mask_word(sample, kModalityText, 0));
  words.insert(words.end(), image, make_mask_word(sample, kModalityImage, 1));
  words.insert(words.end(), after, make_mask_word(sample, kModalityText, 0));
  return words;
}

void measure_packed() {
  constexpr int64_t kSamples = 16, kPackedHeads = 6, kPackedDim = 32;
  std::printf("\n| 16 samples of | packed ms | one by one ms | ratio |\n|---|---|---|---|\n");
  for (int64_t length : {40, 200, 1000})
    for (bool ragged : {false, true}) {
      Words packed;
      std::vector<Words> samples;
      for (int64_t sample = 0; sample < kSamples; ++sample) {
        samples.push_back(short_sample(sample, length, ragged));
        packed.insert(packed.end(), samples.back().begin(), samples.back().end());
      }
      const auto inputs = [](const Words& words) {
        const auto tokens = static_cast<int64_t>(words.size());
        return std::pair{at::randn({tokens, 3 * kPackedHeads, kPackedDim}),
                         at::randn({tokens, kPackedHeads * kPackedDim})};
      };
      const auto [qkv, dy] = inputs(packed);
      const auto slices = all_slices(visible_text(packed, true));
      const int rounds = length < 500 ? 20 : 4;
      std::vector<std::function<void()>> calls;
      for (const Words& sample : samples)
        calls.push_back([part = inputs(sample), own = all_slices(visible_text(sample, true))] {
          train(part.first, part.second, own, kPackedHeads);
        });
      const double together =
          best_of(rounds, [&, &qkv = qkv, &dy = dy] { train(qkv, dy, slices, kPackedHeads); });
      const double apart = best_of(rounds, [&] {
        for (const auto& call : calls) call();
      });
      std::printf("| %ld tokens%s | %.2f | %.2f | %.2f |\n", length, ragged ? ", ragged" : "",
                  together, apart, together / apart);
    }
}

/// Our kernels against libtorch's on segments of one length, with qkv as a linear gives it. The
/// library's are given fp32, gathered, padded nowhere.
void measure_lengths() {
  constexpr int64_t kTokens = 4096, kSome = 6;
  std::printf("\n| type | dim | length | ours ms | libtorch ms |\n|---|---|---|---|---|\n");
  for (at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (int64_t dim : {32, 64})
      for (int64_t length : {17, 32, 40, 64, 100, 128, 192, 256, 512}) {
        const int64_t segments = kTokens / length, tokens = segments * length;
        const Tensor qkv = at::randn({tokens, 3 * kSome, dim}).to(type);
        const Tensor dy = at::randn({tokens, kSome, dim}).to(type);
        std::vector<AttentionSlice> slices;
        for (int64_t i = 0; i < segments; ++i)
          slices.push_back({i * length, length, i * length, length, SliceMask::Causal});
        const auto part = [&](const Tensor& x, int64_t i) { return x.narrow(1, i * kSome, kSome); };
        const AttentionInputs in{part(qkv, 0), part(qkv, 1), part(qkv, 2)};
        const Tensor dqkv = at::empty_like(qkv);
        const AttentionSums sums{at::empty_like(dy), at::empty({tokens, kSome})};
        const double ours = best_of(10, [&] {
          tiled_attention_forward(in, slices, sums, AttentionResult::Written);
          tiled_attention_backward(in, dy, sums, slices,
                                   {part(dqkv, 0), part(dqkv, 1), part(dqkv, 2)},
                                   AttentionResult::Written);
        });
        const auto gathered = [&](const Tensor& x) {
          return x.to(at::kFloat).view({segments, length, kSome, dim}).transpose(1, 2).contiguous();
        };
        const double theirs = best_of(10, [&] {
          const Tensor q = gathered(in.q), k = gathered(in.k), v = gathered(in.v);
          const auto [out, lse] =
              at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true);
          at::_scaled_dot_product_flash_attention_for_cpu_backward(gathered(dy), q, k, v, out, lse,
                                                                   0.0, true);
        });
        std::printf("| %s | %ld | %ld | %.2f | %.2f |\n", at::toString(type), dim, length, ours,
                    theirs);
      }
}

struct RankTimes {
  double slowest = 0, mean = 0;
};

double largest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Attention of a rank's tokens to all keys.
double attention_time(const Visibility& row, const std::vector<TokenRange>& runs, const Tensor& k,
                      const Tensor& v) {
  const AttentionMask slices(attention_slices(row, runs, {{0, row.tokens()}}));
  int64_t tokens = 0;
  for (const TokenRange& run : runs) tokens += run.length();
  const AttentionInputs in{at::randn({tokens, kHeads, kDim}), k, v};
  const Tensor dout = at::randn_like(in.q);
  return milliseconds([&] {
    AttentionSums sums = no_attention(in.q);
    add_attention(sums, in, slices);
    const AttentionGradients gradients{at::zeros_like(in.q), at::zeros_like(k), at::zeros_like(v)};
    add_attention_gradients(gradients, in, dout, sums, slices);
  });
}

/// The least time of each rank under each distribution, in rounds in turn.
std::vector<std::vector<double>> times_of_ranks(const Visibility& row,
                                                const std::vector<Owned>& dealt, int rounds) {
  const Tensor k = at::randn({row.tokens(), kHeads, kDim}), v = at::randn_like(k);
  std::vector<std::vector<double>> times(dealt.size(), std::vector<double>(dealt[0].size(), 1e30));
  for (int round = 0; round < rounds; ++round)
    for (size_t rank = 0; rank < dealt[0].size(); ++rank)
      for (size_t kind = 0; kind < dealt.size(); ++kind)
        times[kind][rank] =
            std::min(times[kind][rank], attention_time(row, dealt[kind][rank], k, v));
  return times;
}

std::string verdict(bool holds) {
  return holds ? "yes" : "NO";
}

/// "yes" or "NO" for each bar; those of speed hold from cp 4 on.
std::string verdicts(int cp, double work, double over_uniform, double over_zigzag,
                     double zigzag_bar) {
  const std::string none = "-";
  return verdict(work <= kMostWork) + " | " +
         (cp < 4 ? none : verdict(over_uniform >= kOverUniform)) + " | " +
         (cp < 4 ? none : verdict(over_zigzag >= zigzag_bar));
}

void print_balance_head(const std::string& rows, double zigzag_bar) {
  std::printf(
      "\n%s\n| tokens | cp | distribution | work max/mean | time max/mean | makespan ms | "
      "faster than uniform | than zigzag | work <= %.2f | uniform >= %.2f | zigzag >= %.2f |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n",
      rows.c_str(), kMostWork, kOverUniform, zigzag_bar);
}

void measure_balance(const Words& words, const std::vector<int>& cp_sizes, int rounds,
                     double zigzag_bar) {
  const Visibility row = visible_text(words, true);
  for (int cp : cp_sizes) {
    ContextOptions options{
        .ranks = cp, .inner = 1, .exchange = KvExchange::Gather, .distribution = {.block = kBlock}};
    std::vector<Owned> dealt;
    for (TokenDistribution kind : kKinds) {
      options.distribution.kind = kind;
      dealt.push_back(shard_tokens(row, options));
    }
    const auto times = times_of_ranks(row, dealt, rounds);
    for (size_t kind = 0; kind < dealt.size(); ++kind) {
      const std::vector<double> work = costs_of_ranks(row, dealt[kind], options.distribution);
      const double span = largest(times[kind]);
      const double over_mean = largest(work) / mean(work);
      const double over_uniform = largest(times[0]) / span, over_zigzag = largest(times[1]) / span;
      const bool is_judged = kKinds[kind] == TokenDistribution::MakespanMin;
      std::printf("| %ld | %d | %s | %.3f | %.3f | %.1f | %.2f | %.2f | %s |\n", row.tokens(), cp,
                  kKindNames[kind], over_mean, span / mean(times[kind]), span, over_uniform,
                  over_zigzag,
                  is_judged ? verdicts(cp, over_mean, over_uniform, over_zigzag, zigzag_bar).c_str()
                            : "- | - | -");
    }
    std::fflush(stdout);
  }
}

/// The costliest rank's visible pairs and linear layers over the mean, of each distribution.
std::vector<double> work_over_mean(const Visibility& row, int cp, double linear) {
  std::vector<double> work;
  for (TokenDistribution kind : kKinds) {
    const ContextOptions options{
        .ranks = cp,
        .inner = 1,
        .exchange = KvExchange::Gather,
        .distribution = {.kind = kind, .block = kBlock, .linear_tiles_per_token = linear}};
    const DistributionOptions pairs{.block = 1, .linear_tiles_per_token = linear * kBlock * kBlock};
    const std::vector<double> costs = costs_of_ranks(row, shard_tokens(row, options), pairs);
    work.push_back(largest(costs) / mean(costs));
  }
  return work;
}

/// The speedup of makespan_min over another distribution, over several rows. No distribution is
/// faster than it by more than its own work over the mean.
class Gain {
 public:
  void add(double others, double own) {
    sum_ += others / own;
    ++rows_;
    if (others / own >= least_) return;
    least_ = others / own;
    possible_ = others;
  }
  std::string text() const {
    char text[64];
    std::snprintf(text, sizeof text, "%.2f of %.2f, mean %.2f", least_, possible_, sum_ / rows_);
    return text;
  }
  std::string against(double bar, int cp) const {
    if (cp < 4) return "-";
    return possible_ < bar ? "no dealing can" : verdict(least_ >= bar);
  }

 private:
  double least_ = 1e30, possible_ = 0, sum_ = 0, rows_ = 0;
};

/// Balance by counting, so that it is not one row's luck.
void count_work() {
  std::printf(
      "\nMultimodal rows of %ld tokens, seeds 1 to %ld, by visible pairs and linear layers: worst "
      "seed, what that allows\n"
      "| linear tiles per token | cp | makespan_min max/mean | faster than uniform | than zigzag | "
      "work <= %.2f | uniform >= %.2f | zigzag >= %.2f |\n|---|---|---|---|---|---|---|---|\n",
      kRowTokens, static_cast<int64_t>(kSeeds), kMostWork, kOverUniform, kOverZigzag);
  for (double linear : {0.0, kLlamaLinear})
    for (int cp : {2, 4, 8, 16}) {
      double most = 0;
      Gain uniform, zigzag;
      for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        const Visibility row = visible_text(multimodal_row(kRowTokens, seed), true);
        const std::vector<double> work = work_over_mean(row, cp, linear);
        most = std::max(most, work[2]);
        uniform.add(work[0], work[2]);
        zigzag.add(work[1], work[2]);
      }
      std::printf("| %.2f | %d | %.4f | %s | %s | %s | %s | %s |\n", linear, cp, most,
                  uniform.text().c_str(), zigzag.text().c_str(), verdict(most <= kMostWork).c_str(),
                  uniform.against(kOverUniform, cp).c_str(),
                  zigzag.against(kOverZigzag, cp).c_str());
    }
}

void measure_small_rows() {
  print_balance_head("Multimodal rows of fewer tokens, seed 2", kOverZigzag);
  for (int64_t tokens = 1024; tokens <= 16384; tokens *= 2)
    measure_balance(multimodal_row(tokens, 2), {4, 16}, 5, kOverZigzag);
}

void measure_planner() {
  std::printf("\n| 1M tokens, cp 16 | ms | < %.0f ms |\n|---|---|---|\n", kMostPlannerMs);
  const Words words = [] {
    Words all;
    for (uint64_t part = 0; part < 16; ++part) {
      const int64_t sample = static_cast<int64_t>(part) << 10;
      for (MaskWord word : multimodal_row(kRowTokens, part))
        all.push_back(word + make_mask_word(sample, 0, 0));
    }
    return all;
  }();
  struct Way {
    const char* name;
    int inner;
    KvExchange exchange;
  };
  for (const Way& way :
       {Way{"allgather_kv", 1, KvExchange::Gather}, Way{"ring", 1, KvExchange::Ring},
        Way{"ulysses", 16, KvExchange::Gather}, Way{"two-level", 4, KvExchange::Ring}}) {
    const ContextOptions options{.ranks = 16,
                                 .inner = way.inner,
                                 .exchange = way.exchange,
                                 .distribution = {.block = kBlock}};
    const double time = best_of(3, [&] {
      const Visibility row = visible_text(words, true);
      make_context_plan(row, shard_tokens(row, options), options, 5);
    });
    std::printf("| %s | %.1f | %s |\n", way.name, time, verdict(time < kMostPlannerMs).c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::vector<std::string> wanted(argv + 1, argv + argc);
  const auto is_wanted = [&](const char* table) {
    return wanted.empty() || std::find(wanted.begin(), wanted.end(), table) != wanted.end();
  };
  if (is_wanted("memory")) measure_memory();
  if (is_wanted("packed")) measure_packed();
  if (is_wanted("lengths")) measure_lengths();
  if (is_wanted("planner")) measure_planner();
  if (is_wanted("small")) measure_small_rows();
  if (is_wanted("paper")) count_work();
  if (is_wanted("balance")) {
    print_balance_head("Multimodal rows, seed " + std::to_string(kSeed), kOverZigzag);
    measure_balance(multimodal_row(kRowTokens, kSeed), {2, 4, 8, 16}, 5, kOverZigzag);
  }
  if (is_wanted("causal")) {
    print_balance_head("Purely causal rows", kNoSlower);
    measure_balance(causal_row(kRowTokens / 4), {2, 4, 8, 16}, 5, kNoSlower);
  }
  return 0;
}
