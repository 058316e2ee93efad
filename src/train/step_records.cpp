// SPDX-License-Identifier: Apache-2.0
#include "train/step_records.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "core/error.hpp"
#include "core/mixed_bits.hpp"
#include "data/sampler.hpp"
#include "model/index_tensor.hpp"
#include "spec/parameter_names.hpp"
#include "train/train_step.hpp"
#include "train/training_data.hpp"

namespace zea {
namespace {

using Ids = std::vector<int64_t>;

/// Returns pseudo-random signs (n, kProjections) of the elements `index` (n) int64: a row of a
/// table by a hash of index and seed, the same on every device.
at::Tensor signs_of(const at::Tensor& index, uint64_t seed) {
  constexpr int64_t kRows = 1 << 16;
  static const at::Tensor kTable = [] {
    std::vector<double> signs;
    for (int64_t row = 0; row < kRows; ++row)
      for (int i = 0; i < kProjections; ++i)
        signs.push_back(mixed(static_cast<uint64_t>(row)) >> i & 1 ? 1 : -1);
    return at::tensor(signs, at::kDouble).view({kRows, kProjections});
  }();
  const at::Tensor row = index.mul(static_cast<int64_t>(kGoldenGamma))
                             .add_(static_cast<int64_t>(seed))
                             .bitwise_right_shift_(40)
                             .bitwise_and_(kRows - 1);
  return kTable.to(index.device()).index_select(0, row);
}

/// A part of a buffer's shard, and the parameter's elements that it holds.
struct OwnedPart {
  const ShardedBuffer& buffer;
  FlatPart part;
  int param;  ///< buffers list the experts of the first ep rank, of which others have their own
  std::vector<PieceBox> boxes;

  int64_t first_in_shard() const { return part.flat_begin - buffer.range().begin; }
};

std::vector<OwnedPart> parts_of(const Plan& plan, Engine& engine) {
  std::vector<OwnedPart> parts;
  for (const auto& buffer : engine.buffers()) {
    if (!buffer) continue;
    const int piece = plan.piece_rank(engine.world_rank(), buffer->index());
    for (const FlatPart& part : parts_in_range(buffer->layout(), buffer->range())) {
      const ParamShard& cut = plan.cuts[part.param];
      const int param = cut.param_of(part.param, piece);
      std::vector<PieceBox> boxes = boxes_of_piece(
          plan.model.params[param], cut, piece, part.param_begin, part.param_begin + part.elements);
      if (!boxes.empty()) parts.push_back({*buffer, part, param, std::move(boxes)});
    }
  }
  return parts;
}

/// Calls `use(begin, elements)` for runs of a part in its shard, with the elements' indices in the
/// whole tensor of the parameter.
template <class Use>
void for_chunks(const ParamSpec& param, const OwnedPart& part, const Use& use) {
  constexpr size_t kMost = 1 << 22;
  const Extent all = whole(param.tensor_shape());
  for (const PieceBox& box : part.boxes) {
    int64_t begin = part.first_in_shard() + box.begin - part.part.param_begin;
    Ids chunk;
    const auto flush = [&] {
      if (!chunk.empty()) use(begin, chunk);
      begin += std::ssize(chunk);
      chunk.clear();
    };
    for (const CopyRun& run : copy_runs(box.extent, box.extent, all))
      for (int64_t i = 0; i < run.elements; ++i) {
        chunk.push_back(run.target_element + i);
        if (chunk.size() == kMost) flush();
      }
    flush();
  }
}

ValueSums sums_of(const ParamSpec& param, const OwnedPart& part, const at::Tensor& shard) {
  ValueSums sums;
  for_chunks(param, part, [&](int64_t begin, const Ids& elements) {
    const at::Tensor signs =
        signs_of(index_tensor(elements).to(shard.device()), mixed_name(0, param.name));
    at::Tensor values = shard.narrow(0, begin, std::ssize(elements)).to(at::kDouble);
    if (sign_of_unbounded(param.name) != 0)
      values = at::where(values.isinf(), values.sgn(), values);
    // sum() adds sums of parts; mv() adds element after element, which rounds more.
    const at::Tensor signed_sums = signs.mul_(values.unsqueeze(1)).sum(0);
    const at::Tensor more = at::cat({signed_sums, values.dot(values).view(1)}).cpu();
    for (int i = 0; i < kProjections; ++i) sums.projections[i] += more.const_data_ptr<double>()[i];
    sums.squares += more.const_data_ptr<double>()[kProjections];
  });
  return sums;
}

/// Counts elements by half of their exponent, which is biased by 1023.
void count_magnitudes(PartRecord& record, const OwnedPart& part, const at::Tensor& shard) {
  const at::Tensor values =
      shard.narrow(0, part.first_in_shard(), part.part.elements).to(at::kDouble);
  const at::Tensor bins = values.view(at::kLong).bitwise_right_shift(53).bitwise_and_(0x3ff);
  const at::Tensor counts = bins.bincount({}, 1024).to(at::kDouble).cpu();
  constexpr int64_t kFirst = 1024 / 2 - 32;
  for (int64_t bin = 1; bin < counts.numel(); ++bin)  // zeros are in bin 0
    record.magnitudes[static_cast<size_t>(std::clamp<int64_t>(bin - kFirst, 0, 63))] +=
        counts.const_data_ptr<double>()[bin];
}

}  // namespace

RunUnit StepRecorder::observed(RunUnit run) {
  return [this, run = std::move(run)](const UnitArguments& call) {
    const UnitOutput made = run(call);
    if (!microbatches_ || !made.value.defined()) return made;
    const int unit = call.unit_index();
    const int number = static_cast<int>(&call.microbatch - microbatches_->data());
    record_rows(unit, number, RowsOf::Output, made.value.detach());
    if (made.value.requires_grad())
      made.value.register_hook([this, unit, number](const at::Tensor& gradient) {
        record_rows(unit, number, RowsOf::Gradient, gradient);
      });
    return made;
  };
}

void StepRecorder::begin(const std::vector<Microbatch>& microbatches, std::vector<RowNames> names) {
  microbatches_ = &microbatches;
  names_ = std::move(names);
  step_ = {};
}

/// Returns the names of the rows of a unit's output; null: they have none.
const std::vector<RowName>* StepRecorder::names_of(const UnitSpec& unit, int microbatch) const {
  if (unit.kind == UnitKind::Keys) return nullptr;  // tp shards its columns
  const RowNames& names = names_.at(static_cast<size_t>(microbatch));
  if (unit.encoder < 0) return &names.text;
  const RowNames::Encoder& encoder = names.encoders.at(static_cast<size_t>(unit.encoder));
  if (unit.kind != UnitKind::Projector) return &encoder.tokens;
  // Features may be interpolated from rows of several ranks, which then make parts of them.
  const bool interpolates =
      std::ranges::count(unit.graph.operations, OperationKind::Resample, &Operation::kind) > 0;
  return interpolates ? nullptr : &encoder.features;
}

const at::Tensor& StepRecorder::signs_of_columns(const at::Tensor& rows) {
  at::Tensor& signs = signs_[rows.size(1)];
  if (!signs.defined())
    signs = signs_of(at::arange(rows.size(1), rows.options().dtype(at::kLong)), 0);
  return signs;
}

void StepRecorder::record_rows(int unit, int microbatch, RowsOf which, const at::Tensor& rows) {
  const at::NoGradGuard no_graph;
  const std::vector<RowName>* const names = names_of(plan_.model.units[unit], microbatch);
  if (!names) {
    step_.unnamed_units.insert(unit);
    return;
  }
  ZEA_ASSERT(std::ssize(*names) == rows.size(0));
  const at::Tensor sums = rows.to(at::kDouble).matmul(signs_of_columns(rows)).cpu().contiguous();
  const double* values = sums.const_data_ptr<double>();
  std::vector<RowRecord>& records = step_.rows[{unit, which}];
  for (const RowName& name : *names) {
    RowRecord& record = records.emplace_back(RowRecord{name, microbatch, {}});
    std::copy_n(values, kProjections, record.values.begin());
    values += kProjections;
  }
}

void StepRecorder::record_gradients(Engine& engine) {
  const std::vector<OwnedPart> parts = parts_of(plan_, engine);
  if (values_.empty()) record_values(engine);
  for (size_t p = 0; p < parts.size(); ++p) {
    const OwnedPart& part = parts[p];
    const ParamSpec& spec = plan_.model.params[part.param];
    const Extent& box = part.boxes.front().extent;
    PartRecord& record = step_.parts.emplace_back(
        PartRecord{.param = part.param,
                   .first = copy_runs(box, box, whole(spec.tensor_shape())).front().target_element,
                   .elements = part.part.elements,
                   .value_squares = values_[p].squares});
    if (!part.buffer.trainable()) continue;
    const at::Tensor& gradient = part.buffer.gradient();
    const ValueSums sums = sums_of(spec, part, gradient);
    record.gradient = sums.projections;
    record.gradient_squares = sums.squares;
    count_magnitudes(record, part, gradient);
  }
}

void StepRecorder::record_values(Engine& engine) {
  values_.clear();
  for (const OwnedPart& part : parts_of(plan_, engine))
    values_.push_back(sums_of(plan_.model.params[part.param], part, part.buffer.master()));
}

StepRecord StepRecorder::finish(Engine& engine) {
  if (!step_.parts.empty()) {
    const std::vector<ValueSums> before = std::move(values_);
    record_values(engine);
    for (size_t p = 0; p < step_.parts.size(); ++p)
      for (int i = 0; i < kProjections; ++i)
        step_.parts[p].update[i] = values_[p].projections[i] - before[p].projections[i];
  }
  microbatches_ = nullptr;
  names_.clear();
  return std::exchange(step_, {});
}

std::vector<StepRecord> record_steps(Engine& engine, StepRecorder& recorder, Collectives& control,
                                     const Dataset& dataset, const LoaderOptions& loading,
                                     int64_t steps) {
  const Plan& plan = engine.plan();
  Optimizer optimizer(engine);
  TrainStep train_step(engine, optimizer, control, [&] { recorder.record_gradients(engine); });
  Sampler sampler = make_sampler(plan.options, dataset);
  TrainPosition position;
  std::vector<StepRecord> records;
  for (; position.step < steps; ++position.step) {
    train_step.begin();
    const RankStep step = plan.rank_step(
        plan.step_plan(position.step, sampler.global_batch(position.step), dataset.index()),
        engine.world_rank());
    const MicrobatchOptions options = engine.microbatch_options(position.step);
    std::vector<Microbatch> microbatches;
    std::vector<RowNames> names;
    for (const MicrobatchPlan& part : step.microbatches) {
      const ActionRecord::Action action(engine.mesh().record(), "load");
      LoadedMicrobatch loaded = load_microbatch(dataset, loading, part.samples);
      loaded.expert_tokens = part.expert_tokens;
      microbatches.push_back(make_microbatch(loaded, plan.model, options));
      names.push_back(names_of_rows(loaded, microbatches.back().words, plan.model, options));
    }
    recorder.begin(microbatches, std::move(names));
    train_step.run(step, microbatches, 0, {}, position);
    const std::optional<StepReport> report = train_step.finish(position);
    StepRecord record = recorder.finish(engine);
    record.loss = report->loss;
    record.grad_norm = report->grad_norm;
    record.lr = report->lr;
    record.targets = report->targets;
    record.skipped = report->skipped;
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace zea
