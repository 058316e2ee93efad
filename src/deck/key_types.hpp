// SPDX-License-Identifier: Apache-2.0
// The types of deck keys, and the declaration of a key. A choice is an enum next to the names of
// its values, from which parsing, help, the echo and messages take them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace zea {

/// The numbers that a key takes.
struct KeyRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
};

/// The declaration of a key, beyond its type and default, which the member carries.
struct KeyInfo {
  const char* name;
  const char* help;  ///< one sentence; with units where they are not obvious
  KeyRange range = {};
  std::vector<std::string> allowed = {};  ///< values of a string; empty: any; words of AutoOption
};

/// The value of a key whose default follows from other keys: "auto", true, false, or where the key
/// allows these a count or "selective".
class AutoOption {
 public:
  AutoOption() = default;  ///< "auto"
  static AutoOption of(bool value) { return AutoOption(value ? Kind::Yes : Kind::No, 0); }
  static AutoOption of_count(int64_t count) { return AutoOption(Kind::Count, count); }
  static AutoOption selective() { return AutoOption(Kind::Selective, 0); }

  bool is_auto() const { return kind_ == Kind::Auto; }
  bool is_yes() const { return kind_ == Kind::Yes; }
  bool is_no() const { return kind_ == Kind::No; }
  bool is_count() const { return kind_ == Kind::Count; }
  bool is_selective() const { return kind_ == Kind::Selective; }
  int64_t count() const { return count_; }
  /// Returns true, false, or `fallback` for "auto". Not for counts.
  bool value_or(bool fallback) const { return is_auto() ? fallback : is_yes(); }

  bool operator==(const AutoOption&) const = default;

 private:
  enum class Kind { Auto, No, Yes, Count, Selective };
  AutoOption(Kind kind, int64_t count) : kind_(kind), count_(count) {}

  Kind kind_ = Kind::Auto;
  int64_t count_ = 0;
};

struct DataSource {
  std::string path;
  double weight = 1;  ///< samples are drawn from it in proportion

  bool operator==(const DataSource&) const = default;
};

struct DataSources {
  std::vector<DataSource> sets;

  DataSources() = default;
  /// One set, or none where `path` is empty.
  DataSources(std::string path) {
    if (!path.empty()) sets.push_back({std::move(path)});
  }
  DataSources(const char* path) : DataSources(std::string(path)) {}

  bool empty() const { return sets.empty(); }
  bool operator==(const DataSources&) const = default;
};

/// The names of the values of an enum, in their order.
template <class Enum>
inline constexpr std::array<const char*, 0> kDeckNames{};

/// A choice among named values, of any enum.
class AnyChoice {
 public:
  std::span<const char* const> names() const { return names_; }
  std::string name() const { return names_[index_]; }
  /// Throws InternalError where no value has this name.
  void choose(const std::string& name) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) throw InternalError("no value is called " + name);
    index_ = static_cast<size_t>(found - names_.begin());
  }

  bool operator==(const AnyChoice& other) const { return index_ == other.index_; }
  friend std::string operator+(const std::string& text, const AnyChoice& choice) {
    return text + choice.name();
  }

 protected:
  AnyChoice(std::span<const char* const> names, size_t index) : names_(names), index_(index) {}

  std::span<const char* const> names_;
  size_t index_;
};

/// A choice that compares and switches like its enum; made from a value or from its name.
template <class Enum>
class Choice : public AnyChoice {
 public:
  Choice(Enum value) : AnyChoice(kDeckNames<Enum>, static_cast<size_t>(value)) {}
  Choice(const std::string& name) : Choice(Enum{}) { choose(name); }
  Choice(const char* name) : Choice(std::string(name)) {}

  operator Enum() const { return static_cast<Enum>(index_); }
};

enum class RunMode { Train, Evaluate, Generate };
template <>
inline constexpr std::array kDeckNames<RunMode>{"train", "evaluate", "generate"};

enum class LayoutSource { Deck, Auto };
template <>
inline constexpr std::array kDeckNames<LayoutSource>{"deck", "auto"};

enum class DeviceKind { Cpu, Cuda };
template <>
inline constexpr std::array kDeckNames<DeviceKind>{"cpu", "cuda"};

enum class ImageAttention { Auto, Causal, Bidirectional };
template <>
inline constexpr std::array kDeckNames<ImageAttention>{"auto", "causal", "bidirectional"};

/// The experts among which router_aux_loss_coef wants an even load: those of all layers by their
/// number, or those of each layer.
enum class RouterLossScope { Pooled, Layer };
template <>
inline constexpr std::array kDeckNames<RouterLossScope>{"pooled", "layer"};

enum class ImageBackend { Auto, Pil, Torchvision };
template <>
inline constexpr std::array kDeckNames<ImageBackend>{"auto", "pil", "torchvision"};

enum class BadItems { Stop, Mask };
template <>
inline constexpr std::array kDeckNames<BadItems>{"stop", "mask"};

enum class OptimizerKind { Adamw, Adam, Sgd, Muon, Adamw8Bit };
template <>
inline constexpr std::array kDeckNames<OptimizerKind>{"adamw", "adam", "sgd", "muon", "adamw_8bit"};

enum class RateDecay {
  Cosine,
  Linear,
  Constant,
  Wsd,         ///< constant, then linear over the last steps (arXiv:2404.06395, arXiv:2405.18392)
  InverseSqrt  ///< by the inverse root of the step (arXiv:1706.03762, section 5.3)
};
template <>
inline constexpr std::array kDeckNames<RateDecay>{"cosine", "linear", "constant", "wsd",
                                                  "inverse_sqrt"};

/// The factor of the learning rate of a matrix (a, b) under Muon.
enum class MuonRate {
  MatchRmsAdamw,  ///< 0.2 sqrt(max(a, b)): updates as large as AdamW's (arXiv:2502.16982)
  Original,       ///< sqrt(max(1, a / b))
};
template <>
inline constexpr std::array kDeckNames<MuonRate>{"match_rms_adamw", "original"};

enum class NonFiniteStep { Stop, Skip };
template <>
inline constexpr std::array kDeckNames<NonFiniteStep>{"stop", "skip"};

enum class SaveFailure { Stop, Continue };
template <>
inline constexpr std::array kDeckNames<SaveFailure>{"stop", "continue"};

enum class ModulePlacement { Shared, Colocated, Disjoint };
template <>
inline constexpr std::array kDeckNames<ModulePlacement>{"shared", "colocated", "disjoint"};

/// The order of the passes of several microbatches.
enum class PipelineSchedule {
  GPipe,        ///< all forwards, then all backwards (arXiv:1811.06965)
  OneFOneB,     ///< at most as many microbatches in flight as stages follow (arXiv:1806.03377)
  Interleaved,  ///< 1F1B over several stages per rank group (arXiv:2104.04473)
  ZeroBubble,   ///< ZB-H1: weight gradients fill the gaps of 1F1B (arXiv:2401.10241)
};
template <>
inline constexpr std::array kDeckNames<PipelineSchedule>{"gpipe", "1f1b", "interleaved_1f1b",
                                                         "zero_bubble"};

enum class ShardingStrategy { FullShard, ShardGradOp, NoShard, HybridShard, HybridShardZero2 };
template <>
inline constexpr std::array kDeckNames<ShardingStrategy>{"full_shard", "shard_grad_op", "no_shard",
                                                         "hybrid_shard", "hybrid_shard_zero2"};

/// When the next buffer is gathered: on demand, before the current unit, or after it.
enum class Prefetch { None, Pre, Post };
template <>
inline constexpr std::array kDeckNames<Prefetch>{"none", "pre", "post"};

enum class CpMode { AllGatherKv, Ring, Ulysses, UlyssesRing };
template <>
inline constexpr std::array kDeckNames<CpMode>{"allgather_kv", "ring", "ulysses", "ulysses_ring"};

/// The way in which cp ranks scan for a mixer that carries a state along the tokens of a sample.
enum class CpScan { Auto, Ulysses, States };
template <>
inline constexpr std::array kDeckNames<CpScan>{"auto", "ulysses", "states"};

/// The way in which tokens reach the ranks that share experts; auto: by bytes.
enum class EpDispatch { Auto, AllGather, AllToAll };
template <>
inline constexpr std::array kDeckNames<EpDispatch>{"auto", "allgather", "alltoall"};

enum class TokenDistribution {
  /// Blocks by their cost, costliest first onto the least loaded rank: the makespan is at most 4/3
  /// -
  /// 1/(3 ranks) times the best (Graham 1969).
  MakespanMin,
  Zigzag,   ///< one from the front and one from the back: balanced for one causal sample
  Uniform,  ///< contiguous runs of equal length
};
template <>
inline constexpr std::array kDeckNames<TokenDistribution>{"makespan_min", "zigzag", "uniform"};

enum class PrecisionPreset { Fp32, Bf16, Fp64 };
template <>
inline constexpr std::array kDeckNames<PrecisionPreset>{"fp32", "bf16", "fp64"};

/// An element type; Preset: the one that the preset gives.
enum class DTypeOption { Preset, Fp32, Bf16 };
template <>
inline constexpr std::array kDeckNames<DTypeOption>{"preset", "fp32", "bf16"};

}  // namespace zea
