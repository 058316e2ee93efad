// SPDX-License-Identifier: Apache-2.0
#include "train/step_replay.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "comm/agree.hpp"
#include "core/error.hpp"
#include "core/mixed_bits.hpp"
#include "core/system.hpp"
#include "core/text.hpp"
#include "train/training_data.hpp"

namespace zea {
namespace {

/// Orders values so that an error comes before those that follow from it: outputs of a microbatch,
/// then their gradients from the last unit to the first, then gradients of parameters.
auto order_of(const ValueHash& value) {
  const bool is_gradient = value.value == HashedValue::Gradient;
  const bool is_backward = value.value == HashedValue::OutputGradient;
  return std::tuple(is_gradient, value.microbatch, is_backward,
                    is_backward ? -value.index : value.index);
}

bool are_of_same_values(const ValueHash& a, const ValueHash& b) {
  return a.value == b.value && a.index == b.index && a.microbatch == b.microbatch;
}

/// Returns the first value that differs; the passes do differ.
ValueHash first_difference(const ValueHashes& a, const ValueHashes& b) {
  std::optional<ValueHash> first;
  bool is_comparable = a.size() == b.size();
  for (size_t i = 0; is_comparable && i < a.size(); ++i) {
    is_comparable = are_of_same_values(a[i], b[i]);
    if (a[i].hash != b[i].hash && (!first || order_of(a[i]) < order_of(*first))) first = a[i];
  }
  if (!is_comparable || !first)
    throw InternalError("a replay computed other kinds of values than the step");
  return *first;
}

struct PartVerdict {
  ReplayVerdict verdict;
  std::vector<int> ranks;
  bool is_undecided = false;
};

/// The first rank computed the same bits in both of its passes, and the replay has others.
PartVerdict judge_steady(const ReplayedPart& part) {
  if (part.replayed_again == part.first) return {ReplayVerdict::Transient, {part.replaying_rank}};
  if (part.replaying_rank == part.first_rank) return {ReplayVerdict::Software, {part.first_rank}};
  // The first rank is steady, so the other one's failing hardware does not repeat itself.
  if (part.replayed_again != part.replayed)
    return {ReplayVerdict::Persistent, {part.replaying_rank}};
  if (part.third_rank >= 0 && part.by_third == part.first)
    return {ReplayVerdict::Persistent, {part.replaying_rank}};
  if (part.third_rank >= 0 && part.by_third == part.replayed)
    return {ReplayVerdict::Persistent, {part.first_rank}};
  return {ReplayVerdict::Persistent,
          {std::min(part.first_rank, part.replaying_rank),
           std::max(part.first_rank, part.replaying_rank)},
          true};
}

PartVerdict judge_part(const ReplayedPart& part) {
  // Errors in two passes over one step: another part's was found first.
  if (part.first == part.replayed) return {ReplayVerdict::Persistent, {part.first_rank}};
  if (part.again == part.replayed) return {ReplayVerdict::Transient, {part.first_rank}};
  if (part.again == part.first) return judge_steady(part);
  const bool is_replay_steady =
      part.replaying_rank != part.first_rank && part.replayed_again == part.replayed;
  return {is_replay_steady ? ReplayVerdict::Persistent : ReplayVerdict::Software,
          {part.first_rank}};
}

std::string name_ranks(const ReplayFinding& finding) {
  std::string text = finding.ranks.size() > 1 ? "ranks " : "rank ";
  for (size_t i = 0; i < finding.ranks.size(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(finding.ranks[i]) +
            (finding.hosts.empty() ? "" : " (" + finding.hosts[i] + ")");
  return text;
}

std::string name_value(const ReplayFinding& finding) {
  if (finding.where.value == HashedValue::Gradient)
    return "the gradient of the parameters of " + finding.unit;
  return std::string(finding.where.value == HashedValue::Output ? "the output of "
                                                                : "the output's gradient of ") +
         finding.unit + " in microbatch " + std::to_string(finding.where.microbatch);
}

int64_t digest_of(const ValueHashes& hashes) {
  int64_t digest = 0;
  for (const ValueHash& value : hashes)
    digest = static_cast<int64_t>(
        mixed(static_cast<uint64_t>(digest) ^ static_cast<uint64_t>(value.hash)));
  return digest;
}

constexpr size_t kNumbersOfHash = 4;

}  // namespace

const char* replay_verdict_name(ReplayVerdict verdict) {
  switch (verdict) {
    case ReplayVerdict::Transient:
      return "transient";
    case ReplayVerdict::Persistent:
      return "persistent";
    case ReplayVerdict::Software:
      return "software";
  }
  throw InternalError("unknown verdict of a replay");
}

std::optional<ReplayFinding> judge_replay(const std::vector<ReplayedPart>& parts) {
  std::optional<ReplayFinding> found;
  for (const ReplayedPart& part : parts) {
    const bool is_same = part.first == part.replayed;
    if (is_same && part.again == part.first) continue;
    const PartVerdict judged = judge_part(part);
    const ValueHash where = first_difference(part.first, is_same ? part.again : part.replayed);
    if (found && judged.verdict < found->verdict) continue;
    const bool is_worse = found && judged.verdict > found->verdict;
    if (!found || is_worse || order_of(where) < order_of(found->where))
      found = {.verdict = judged.verdict,
               .ranks = judged.ranks,
               .is_undecided = judged.is_undecided,
               .where = where};
    else if (order_of(where) == order_of(found->where))
      found->ranks.insert(found->ranks.end(), judged.ranks.begin(), judged.ranks.end());
  }
  if (!found) return found;
  std::ranges::sort(found->ranks);
  const auto repeated = std::ranges::unique(found->ranks);
  found->ranks.erase(repeated.begin(), repeated.end());
  return found;
}

std::string describe(const ReplayFinding& finding) {
  const std::string start = "step " + std::to_string(finding.step) + ": " + name_value(finding);
  switch (finding.verdict) {
    case ReplayVerdict::Transient:
      return start + " had wrong bits once, on " + name_ranks(finding) +
             ": a transient error of a processor or memory. The step was recomputed, and training "
             "continues with the bits on which two passes agree; replace the node if it is named "
             "again (zea --check-node may name the fault)";
    case ReplayVerdict::Persistent:
      return start +
             (finding.is_undecided
                  ? " has different bits on " + name_ranks(finding) +
                        " in every pass: one of them computes wrong bits, or they have different "
                        "models of processors"
                  : " has wrong bits on " + name_ranks(finding) +
                        ", but not on other ranks: its processor or memory is faulty") +
             ". This step updated nothing, but steps since the last replay may have: resume with "
             "-r from a checkpoint before them, on other nodes; zea --check-node may name the "
             "faulty one. If ranks have different models of processors, leave run.replay_every out";
    case ReplayVerdict::Software:
      return start + " has different bits in every pass of " + name_ranks(finding) +
             ": nondeterministic software, or failing memory. This step updated nothing, but steps "
             "since the last replay may have: resume with -r from a checkpoint before them, on "
             "other nodes, and report a bug of zea if the error appears there, too";
  }
  throw InternalError("unknown verdict of a replay");
}

bool lie_alike(const std::vector<std::string>& hosts, int ranks) {
  std::vector<int> first;
  for (size_t begin = 0; begin < hosts.size(); begin += static_cast<size_t>(ranks)) {
    std::map<std::string, int> seen;
    std::vector<int> nodes;
    for (size_t rank = begin; rank < begin + static_cast<size_t>(ranks); ++rank)
      nodes.push_back(
          seen.try_emplace(hosts.at(rank), static_cast<int>(seen.size())).first->second);
    if (begin == 0) first = nodes;
    if (nodes != first) return false;
  }
  return true;
}

StepReplay::StepReplay(Engine& engine, PassHashes& hashes, Collectives& control,
                       const Dataset& dataset, LoaderOptions loading, Report report)
    : engine_(engine),
      hashes_(hashes),
      control_(control),
      dataset_(dataset),
      loading_(std::move(loading)),
      report_(std::move(report)),
      distance_(replay_distance(engine.plan().dealing)),
      sampler_(make_sampler(engine.plan().options, dataset)) {
  const std::vector<std::string> hosts = all_gather_texts(control_, host_name());
  lie_alike_ =
      distance_ == 0 || lie_alike(hosts, distance_ * engine.plan().mesh.ranks_per_replica());
  if (!lie_alike_) distance_ = 0;
}

bool StepReplay::is_due(int64_t step) const {
  const int64_t every = engine_.plan().options.run.replay_every;
  return every > 0 && step % every == 0;
}

StepLoss StepReplay::run(const RankStep& step, const std::vector<Microbatch>& microbatches,
                         const Walk& walk) {
  const Plan& plan = engine_.plan();
  std::optional<Work> other;
  if (distance_ > 0) other = load(step.step, distance_);
  const auto replay = [&] {
    return other ? pass(other->step, other->microbatches, walk) : pass(step, microbatches, walk);
  };
  const Pass replayed = replay();
  Pass first = pass(step, microbatches, walk);
  const auto has_same_digests = [&] {
    for (int rank = 0; rank < control_.size(); ++rank)
      if (first.digests[rank] != replayed.digests[rank_before(rank, distance_)]) return false;
    return true;
  };
  if (has_same_digests()) return first.loss;

  const Pass replayed_again = replay();
  other.reset();
  const bool has_third = distance_ > 0 && plan.dealing.replicas / distance_ > 2;
  std::vector<ValueHashes> by_third;
  if (has_third) {
    const Work third = load(step.step, 2 * distance_);
    by_third = of_all_ranks(pass(third.step, third.microbatches, walk).hashes);
  }
  const Pass again = pass(step, microbatches, walk);

  std::vector<ReplayedPart> parts(static_cast<size_t>(control_.size()));
  const std::vector<ValueHashes> firsts = of_all_ranks(first.hashes),
                                 replays = of_all_ranks(replayed.hashes),
                                 second_replays = of_all_ranks(replayed_again.hashes),
                                 agains = of_all_ranks(again.hashes);
  for (int rank = 0; rank < control_.size(); ++rank) {
    ReplayedPart& part = parts[rank];
    part.first_rank = rank;
    part.replaying_rank = rank_before(rank, distance_);
    part.first = firsts[rank];
    part.again = agains[rank];
    part.replayed = replays[part.replaying_rank];
    part.replayed_again = second_replays[part.replaying_rank];
    if (!has_third) continue;
    part.third_rank = rank_before(rank, 2 * distance_);
    part.by_third = by_third[part.third_rank];
  }
  std::optional<ReplayFinding> finding = judge_replay(parts);
  ZEA_ASSERT(finding);
  finding->step = step.step + 1;
  const auto index = static_cast<size_t>(finding->where.index);
  finding->unit = finding->where.value == HashedValue::Gradient ? plan.buffers[index].name
                                                                : plan.model.units[index].name;
  const std::vector<std::string> hosts = all_gather_texts(control_, host_name());
  for (const int rank : finding->ranks) finding->hosts.push_back(hosts[rank]);
  report_(*finding);
  if (finding->verdict != ReplayVerdict::Transient)
    throw Error(ExitCode::SickNode, describe(*finding));
  return again.loss;
}

StepReplay::Work StepReplay::load(int64_t step, int distance) {
  const Plan& plan = engine_.plan();
  const ActionRecord::Action action(engine_.mesh().record(), "load a replay");
  Work work{
      .step = plan.rank_step(
          moved(plan.step_plan(step, sampler_.global_batch(step), dataset_.index()), distance),
          engine_.world_rank()),
      .microbatches = {}};
  const MicrobatchOptions options = engine_.microbatch_options(step);
  for (const MicrobatchPlan& part : work.step.microbatches) {
    LoadedMicrobatch loaded = load_microbatch(dataset_, loading_, part.samples);
    loaded.expert_tokens = part.expert_tokens;
    work.microbatches.push_back(make_microbatch(loaded, plan.model, options));
  }
  return work;
}

StepReplay::Pass StepReplay::pass(const RankStep& step, const std::vector<Microbatch>& microbatches,
                                  const Walk& walk) {
  Pass pass;
  hashes_.begin(microbatches);
  pass.loss = walk(step, microbatches);
  pass.hashes = hashes_.end();
  const int64_t digest = digest_of(pass.hashes);
  pass.digests.resize(static_cast<size_t>(control_.size()));
  control_.all_gather(&digest, pass.digests.data(), Counts(control_.size(), 1), DType::Int64)
      .wait();
  return pass;
}

std::vector<ValueHashes> StepReplay::of_all_ranks(const ValueHashes& own) {
  const auto ranks = static_cast<size_t>(control_.size());
  std::vector<int64_t> sent;
  for (const ValueHash& value : own)
    sent.insert(sent.end(),
                {static_cast<int64_t>(value.value), value.index, value.microbatch, value.hash});
  const int64_t count = std::ssize(sent);
  Counts counts(ranks);
  control_.all_gather(&count, counts.data(), Counts(ranks, 1), DType::Int64).wait();
  int64_t total = 0;
  for (const int64_t of_rank : counts) total += of_rank;
  std::vector<int64_t> received(static_cast<size_t>(total));
  control_.all_gather(sent.data(), received.data(), counts, DType::Int64).wait();
  std::vector<ValueHashes> all(ranks);
  auto next = received.begin();
  for (size_t rank = 0; rank < ranks; ++rank)
    for (int64_t n = 0; n < counts[rank]; n += kNumbersOfHash, next += kNumbersOfHash)
      all[rank].push_back({static_cast<HashedValue>(next[0]), static_cast<int>(next[1]),
                           static_cast<int>(next[2]), next[3]});
  return all;
}

/// Returns the rank that does the work of `rank` when microbatches move by `distance`.
int StepReplay::rank_before(int rank, int distance) const {
  const int ranks = control_.size();
  return (rank - distance * engine_.plan().mesh.ranks_per_replica() % ranks + ranks) % ranks;
}

}  // namespace zea
