// SPDX-License-Identifier: Apache-2.0
#include "train/cache_features.hpp"

#include <algorithm>
#include <optional>

#include "batch/make_microbatch.hpp"
#include "comm/agree.hpp"
#include "core/system.hpp"
#include "core/text.hpp"
#include "files/durable_file.hpp"
#include "parallel/exchange_rows.hpp"
#include "train/training_data.hpp"

namespace zea {
namespace {

constexpr double kProgressSeconds = 10;

std::string size_text(int64_t bytes) {
  return formatted("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

/// Samples whose items are encoded in one step.
struct Portion {
  size_t part = 0;
  int turn = 0;  ///< of the part among those of its replica
  MicrobatchPlan samples = {};
  bool begins = false, ends = false;  ///< the part
};

/// Computes the missing parts. They are distributed over replicas, each of which encodes the
/// items of one after the other.
class FeaturePass {
 public:
  FeaturePass(const CachedRun& run, const FeatureCache& cache, const std::vector<size_t>& lacking)
      : run_(run),
        plan_(run.engine.plan()),
        cache_(cache),
        module_(cache.format().spec.name),
        rank_(run.engine.world_rank()),
        portions_(static_cast<size_t>(plan_.mesh.replicas())) {
    for (size_t i = 0; i < lacking.size(); ++i)
      add_part(lacking[i], static_cast<int>(i) / plan_.mesh.replicas(),
               portions_[i % portions_.size()]);
    encodes_ = plan_.mesh.has(rank_, module_) &&
               plan_.mesh.coordinate(rank_, module_).pp == plan_.stage_of_unit(states().front());
    if (!encodes_) return;
    const std::vector<int> ranks = plan_.mesh.group(rank_, module_, stage_axes());
    for (const int rank : ranks) together_.in_replica.push_back(plan_.rank_in_replica(rank));
    together_.rank = static_cast<int>(std::ranges::find(ranks, rank_) - ranks.begin());
  }

  void run() {
    size_t most = 0;
    for (const auto& of_replica : portions_) most = std::max(most, of_replica.size());
    const Stopwatch clock;
    double told = 0;
    const size_t at_once = plan_.pipeline.stage_groups.size();
    for (size_t begin = 0; begin < most; begin += at_once) {
      run_step(begin, std::min(most, begin + at_once));
      if (clock.seconds() < told + kProgressSeconds) continue;
      told = clock.seconds();
      const double percent = 100.0 * static_cast<double>(begin) / static_cast<double>(most);
      run_.log.progress(
          "features of " + module_ + formatted(": %.0f %% after %.0f s", percent, told), false);
    }
    run_.control.barrier();  // all parts are there before any is read
  }

 private:
  /// In pieces like the microbatches of a step: they take no more memory, and where a microbatch
  /// is one sample what is made of it has the same bits. Samples without items are left out.
  void add_part(size_t part, int turn, std::vector<Portion>& portions) const {
    const DataOptions& data = plan_.options.data;
    const auto is_full = [&](const MicrobatchPlan& samples, const SampleIndex& next) {
      return data.packing
                 ? samples.tokens + next.tokens > data.row_tokens * data.rows_per_microbatch
                 : std::ssize(samples.samples) == data.rows_per_microbatch;
    };
    const size_t first = portions.size();
    for (int64_t id = cache_.parts()[part].first; id < cache_.parts()[part].end; ++id) {
      const SampleIndex& sample = run_.train.index()[static_cast<size_t>(id)];
      if (sample.items.of(cache_.format().encoder) == 0) continue;
      if (portions.size() == first || is_full(portions.back().samples, sample))
        portions.push_back({.part = part, .turn = turn});
      MicrobatchPlan& samples = portions.back().samples;
      samples.rows = 1;
      samples.samples.push_back(id);
      samples.tokens += sample.tokens;
      samples.targets += sample.targets;
      samples.items += sample.items;
    }
    portions[first].begins = portions.back().ends = true;
  }

  std::vector<int> states() const {
    return plan_.model.read_by_projectors(cache_.format().encoder);
  }

  /// Portions [begin, end) of each replica; those that have fewer get empty microbatches.
  void run_step(size_t begin, size_t end) {
    std::vector<std::vector<MicrobatchPlan>> dealt(portions_.size());
    for (size_t r = 0; r < portions_.size(); ++r)
      for (size_t p = begin; p < end; ++p)
        dealt[r].push_back(p < portions_[r].size() ? portions_[r][p].samples : MicrobatchPlan{});
    const RankStep step =
        plan_.rank_step(count_step(dealt, plan_.mesh.dp_shard), rank_, StepKind::Encode);
    std::vector<LoadedMicrobatch> loaded;
    std::vector<Microbatch> microbatches;
    for (const MicrobatchPlan& samples : step.microbatches) {
      const ActionRecord::Action action(run_.engine.mesh().record(), "load");
      loaded.push_back(load_microbatch(run_.train, run_.loading, samples.samples));
      microbatches.push_back(
          make_microbatch(loaded.back(), plan_.model, run_.engine.microbatch_options()));
    }
    const EngineResult made = run_.engine.run(step.schedule.actions, microbatches);
    if (!encodes_) return;
    const auto& own = portions_[static_cast<size_t>(plan_.replica_of(rank_))];
    for (size_t p = begin; p < std::min(end, own.size()); ++p)
      take(own[p], loaded[p - begin], made, static_cast<int>(p - begin));
  }

  /// Sends features to the rank that writes the part; ranks that encode together take turns.
  void take(const Portion& portion, const LoadedMicrobatch& loaded, const EngineResult& made,
            int microbatch) {
    const FeatureFormat& format = cache_.format();
    const MicrobatchOptions options = run_.engine.microbatch_options();
    together_.taker = portion.turn % static_cast<int>(together_.in_replica.size());
    const RowTransfer transfer = gather_rows(loaded.items, plan_.model, format.encoder,
                                             options.replica, together_, options.device);
    std::vector<at::Tensor> held;
    for (const int unit : states())
      if (const auto found = made.unread.find({unit, microbatch}); found != made.unread.end())
        held.push_back(found->second);
    const at::Tensor rows = exchange_rows(run_.engine.mesh().along(module_, stage_axes()),
                                          held.empty() ? at::Tensor() : at::cat(held, 1), transfer,
                                          {format.width, format.dtype, options.device});
    if (together_.rank == together_.taker) write(portion, loaded, rows.cpu().contiguous());
  }

  void write(const Portion& portion, const LoadedMicrobatch& loaded, const at::Tensor& rows) {
    const ActionRecord::Action action(run_.engine.mesh().record(), "write features");
    if (portion.begins) writer_.emplace(cache_, portion.part);
    const auto* next = static_cast<const uint8_t*>(rows.const_data_ptr());
    for (const int64_t id : portion.samples.samples) {
      std::vector<int64_t> bad;
      for (const BadItem& item : loaded.bad)
        if (item.sample == id) bad.push_back(item.item);
      writer_->add(run_.train.read(id), bad, next);
      next += cache_.bytes_of(run_.train.index()[static_cast<size_t>(id)].items);
    }
    if (!portion.ends) return;
    writer_->finish();
    writer_.reset();
  }

  const CachedRun& run_;
  const Plan& plan_;
  const FeatureCache& cache_;
  const std::string module_;
  const int rank_;
  std::vector<std::vector<Portion>> portions_;  ///< of each replica
  bool encodes_ = false;                        ///< this rank holds a part of what is written
  GatheringRanks together_;                     ///< with these
  std::optional<FeatureWriter> writer_;
};

/// Looks at the folder on the root rank.
std::vector<size_t> lacking_parts(const CachedRun& run, const FeatureCache& cache) {
  std::vector<int64_t> lacks(cache.parts().size(), 0);
  agree_on_root(run.control, [&] {
    for (size_t part = 0; part < lacks.size(); ++part) lacks[part] = !cache.has(part);
    if (std::ranges::count(lacks, 1) > 0) remove_unfinished_parts(cache.format().folder);
  });
  run.control.all_reduce(lacks.data(), std::ssize(lacks), DType::Int64, ReduceOp::Max).wait();
  std::vector<size_t> parts;
  for (size_t part = 0; part < lacks.size(); ++part)
    if (lacks[part] > 0) parts.push_back(part);
  return parts;
}

void compute(const CachedRun& run, const FeatureCache& cache, const std::vector<size_t>& lacking) {
  const FeatureFormat& format = cache.format();
  int64_t items = 0, tokens = 0;
  for (const size_t part : lacking) {
    items += cache.parts()[part].items;
    tokens += cache.parts()[part].tokens;
  }
  const int64_t bytes = tokens * format.width * static_cast<int64_t>(element_bytes(format.dtype));
  agree_on_root(run.control, [&] { check_free_bytes(format.folder, bytes); });
  run.log.info("features of " + format.spec.name + ": " + std::to_string(items) + " items in " +
               std::to_string(lacking.size()) + " of " + std::to_string(cache.parts().size()) +
               " parts (" + size_text(bytes) + " of " + size_text(cache.bytes()) +
               ") are computed now, into " + format.folder);
  const Stopwatch clock;
  FeaturePass(run, cache, lacking).run();
  run.log.info("features of " + format.spec.name +
               formatted(": computed in %.2f s", clock.seconds()));
}

std::shared_ptr<const FeatureCache> cache_of(const CachedRun& run, int encoder) {
  const Plan& plan = run.engine.plan();
  const EncoderSpec& spec = plan.model.encoders[static_cast<size_t>(encoder)];
  const std::string folder = plan.options.data.cache_features + "/" + spec.name;
  const auto fingerprint = detail::feature_fingerprint(run, encoder);
  agree_on_root(run.control, [&] { detail::check_fingerprint(folder, fingerprint); });
  std::string text;
  for (const auto& [kind, hash] : fingerprint) text += kind + " " + hash + "\n";
  auto cache = std::make_shared<const FeatureCache>(
      FeatureFormat{.folder = folder,
                    .fingerprint = text,
                    .encoder = encoder,
                    .spec = spec,
                    .dtype = plan.precision_of(spec.name).param,
                    .width = plan.model.feature_width(encoder)},
      run.train.index());
  const std::vector<size_t> lacking = lacking_parts(run, *cache);
  if (!lacking.empty())
    compute(run, *cache, lacking);
  else
    run.log.info("features of " + spec.name + " are read from " + folder + " (" +
                 size_text(cache->bytes()) + ")");
  return cache;
}

}  // namespace

FeatureCaches cache_features(const CachedRun& run) {
  const std::vector<EncoderSpec>& encoders = run.engine.plan().model.encoders;
  FeatureCaches caches(encoders.size());
  for (size_t e = 0; e < encoders.size(); ++e)
    if (encoders[e].is_cached) caches[e] = cache_of(run, static_cast<int>(e));
  return caches;
}

LoaderOptions with_features(LoaderOptions loading, const FeatureCaches& caches, const Plan& plan,
                            int world_rank) {
  const ReplicaLayout replica = plan.replica_layout(world_rank);
  for (size_t e = 0; e < caches.size(); ++e) {
    if (!caches[e]) continue;
    loading.encoders[e].kept = caches[e];
    loading.encoders[e].taken =
        taken_on(plan, world_rank, static_cast<int>(e),
                 replica.has_features(replica.rank, plan.model.encoders[e].name));
  }
  return loading;
}

}  // namespace zea
