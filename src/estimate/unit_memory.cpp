// SPDX-License-Identifier: Apache-2.0
// Estimates autograd's memory: the operations of a unit, in order, and then their backward. Tensors
// live while a value of the unit or the graph holds them; gradients are added in place if nothing
// else holds them, as in libtorch's engine.
#include "estimate/unit_memory.hpp"

#include <algorithm>
#include <utility>

#include "layout/item_row.hpp"
#include "layout/visibility.hpp"
#include "spec/recomputed_values.hpp"

namespace zea {
namespace {

using namespace detail;

class Tape {
 public:
  /// `last_readers`: of values that backward recomputes (last_readers_of_recomputed()), or empty.
  Tape(const UnitGraph& graph, bool keeps_graph, std::vector<int> last_readers)
      : keeps_graph_(keeps_graph),
        values_(static_cast<size_t>(graph.values), kNone),
        last_readers_(std::move(last_readers)) {}

  /// Runs the operation `number`.
  void run(int number, const Operation& op, const OperationNeeds& needs) {
    run(op, needs);
    if (last_readers_.empty()) return;
    if (last_readers_[op.output] >= 0 && values_[op.output] != kNone)
      mark_recomputed(tensors_[values_[op.output]], needs.memory.saved);
    for (const int value : op.inputs)
      if (value >= 0 && last_readers_[value] == number && is_recomputed(value)) drop(value);
  }

  /// The unit returns `value`; goes through the backward.
  UnitMemory finish(int value);

 private:
  static constexpr int kNone = -1;

  void run(const Operation& op, const OperationNeeds& needs) {
    for (const int value : op.dropped) drop(value);
    const bool is_read = op.inputs.empty() && needs.memory.output == 0;  // of the microbatch
    if (is_read || op.kind == OperationKind::Input) return add_input(op, needs);
    if (needs.is_view) {
      for (size_t i = 0; i < op.others.size(); ++i)
        if (values_[op.inputs[i + 1]] != kNone) hold(op.others[i], values_[op.inputs[i + 1]]);
      return hold(op.output, values_[op.inputs[0]]);
    }
    if (op.kind == OperationKind::SplitGates || op.kind == OperationKind::SplitColumns) {
      // Their gradient is freed after that of the input is made of both.
      const int64_t bytes = tensors_[values_[op.inputs[0]]].bytes - needs.memory.output;
      hold(op.others[0], call({.output = bytes}, {}, needs.has_gradient));
    }
    if (op.kind != OperationKind::NormSum) {
      hold(op.output, call(needs.memory, tensors_of(op), needs.has_gradient));
      return;
    }
    hold(op.others[0], add(op, needs.input_has_gradient));
    hold(op.output, call(needs.memory, {values_[op.others[0]]}, needs.has_gradient));
  }

  struct Tensor {
    int64_t bytes = 0;
    bool needs_gradient = false;
    bool is_input = false;       ///< the caller holds it throughout
    bool is_changed = false;     ///< it is another now, which counts its bytes
    int values = 0;              ///< of the unit that are this tensor
    int holders = 0;             ///< the unit's values together, the graph
    int gradient = kNone;        ///< index in gradients_
    bool is_recomputed = false;  ///< freed after its last reader, recomputed in backward
    int64_t recompute_peak = 0;  ///< while it is recomputed
    int future_holders = 0;      ///< nodes of the graph that hold it then
  };
  struct Gradient {
    int64_t bytes = 0;
    int holders = 0;
  };
  struct Node {
    FunctionMemory function;
    std::vector<int> inputs;
    int output;
  };

  bool is_recomputed(int value) const {
    return values_[value] != kNone && tensors_[values_[value]].is_recomputed;
  }
  /// `statistics`: bytes that a norm makes in addition to its output.
  static void mark_recomputed(Tensor& tensor, int64_t statistics) {
    tensor.is_recomputed = tensor.needs_gradient;
    tensor.recompute_peak = tensor.bytes + statistics;
  }
  void add_input(const Operation& op, const OperationNeeds& needs) {
    if (needs.is_absent) return;
    tensors_.push_back({.bytes = needs.memory.output,
                        .needs_gradient = keeps_graph_ && needs.has_gradient,
                        .is_input = true});
    hold(op.output, static_cast<int>(tensors_.size()) - 1);
  }
  /// The sum of a NormSum, which without a second term is the first one.
  int add(const Operation& op, bool has_gradient) {
    if (op.inputs[1] < 0) return values_[op.inputs[0]];
    const int64_t bytes = tensors_[values_[op.inputs[0]]].bytes;
    return call({.output = bytes, .passes_gradient = true}, tensors_of(op), has_gradient);
  }
  std::vector<int> tensors_of(const Operation& op) const {
    std::vector<int> tensors;
    for (const int value : op.inputs)
      if (value >= 0 && values_[value] != kNone) tensors.push_back(values_[value]);
    return tensors;
  }
  void hold(int value, int tensor) {
    values_[value] = tensor;
    ++tensors_[tensor].values;
  }
  void drop(int value) {
    const int tensor = std::exchange(values_[value], kNone);
    if (tensor == kNone || --tensors_[tensor].values > 0) return;
    if (!tensors_[tensor].is_input) let_go(tensor);
  }

  int call(const FunctionMemory& function, const std::vector<int>& inputs, bool has_gradient);
  void run_backward(const Node& node);
  void recompute(Tensor& tensor);
  void add_gradient(int tensor, int gradient);
  void take(int64_t bytes);
  void touch(int64_t bytes, int64_t scratch = 0);
  void let_go(int tensor);
  int new_gradient(int64_t bytes);
  void let_go_gradient(int gradient);

  const bool keeps_graph_;
  std::vector<int> values_;  ///< of the unit: the tensor that each is
  const std::vector<int> last_readers_;
  std::vector<Tensor> tensors_;
  std::vector<Gradient> gradients_;
  std::vector<Node> nodes_;
  int64_t live_ = 0, peak_ = 0;
  int64_t scratch_ = 0;  ///< of GEMM libraries, at the peak
};

int Tape::call(const FunctionMemory& function, const std::vector<int>& inputs, bool has_gradient) {
  if (function.changes_input) {
    tensors_[inputs[0]].is_changed = true;
    live_ -= tensors_[inputs[0]].bytes;
  }
  touch(std::max(function.forward_peak, function.output + function.saved), function.scratch);
  const int output = static_cast<int>(tensors_.size());
  const bool differentiates = keeps_graph_ && has_gradient;
  tensors_.push_back({.bytes = function.output, .needs_gradient = differentiates, .holders = 1});
  take(function.output);
  if (!differentiates) return output;
  take(function.saved);
  if (function.saves_input) {
    Tensor& input = tensors_[inputs[0]];
    ++(input.is_recomputed ? input.future_holders : input.holders);
  }
  if (function.saves_output) ++tensors_[output].holders;
  nodes_.push_back({function, inputs, output});
  return output;
}

UnitMemory Tape::finish(int value) {
  const int output = values_[value];
  for (size_t other = 0; other < values_.size(); ++other)
    if (static_cast<int>(other) != value) drop(static_cast<int>(other));
  UnitMemory memory;
  memory.output_bytes = tensors_[output].bytes;
  memory.forward_peak_bytes = peak_;
  memory.forward_scratch_bytes = std::exchange(scratch_, 0);
  // From here on the output is the caller's, and it is all that is left of what the unit held.
  live_ -= tensors_[output].bytes;
  tensors_[output].is_input = true;
  memory.saved_bytes = peak_ = live_;
  for (const Tensor& tensor : tensors_)
    memory.recomputed_bytes += tensor.is_recomputed ? tensor.bytes : 0;
  // Its gradient too: the caller is one of its two holders.
  gradients_.push_back({.bytes = tensors_[output].bytes, .holders = 2});
  tensors_[output].gradient = 0;
  for (size_t n = nodes_.size(); n-- > 0;) run_backward(nodes_[n]);
  for (int t = 0; t < static_cast<int>(tensors_.size()); ++t) {
    const Tensor& tensor = tensors_[t];
    if (!tensor.is_input || t == output) continue;
    const bool has = tensor.gradient >= 0;
    // A leaf keeps a gradient that nobody else holds, and copies one that somebody does.
    if (has && gradients_[tensor.gradient].holders > 1) take(tensor.bytes);
    memory.input_gradient_bytes.push_back(has ? tensor.bytes : 0);
  }
  memory.backward_peak_bytes = peak_;
  memory.backward_scratch_bytes = scratch_;
  return memory;
}

void Tape::run_backward(const Node& node) {
  const int own = tensors_[node.output].gradient;
  if (own < 0) return;
  const FunctionMemory& function = node.function;
  if (function.saves_input) recompute(tensors_[node.inputs[0]]);
  std::vector<int> made(node.inputs.size(), -1);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!tensors_[node.inputs[i]].needs_gradient) continue;
    const int64_t bytes = tensors_[node.inputs[i]].bytes;
    const bool passes = function.changes_input
                            ? i == 0
                            : function.passes_gradient && bytes == gradients_[own].bytes;
    made[i] = passes ? own : new_gradient(bytes);
    ++gradients_[made[i]].holders;
  }
  touch(function.backward_working, function.scratch);
  if (std::any_of(made.begin(), made.end(), [](int gradient) { return gradient >= 0; }))
    touch(function.gradient_working, function.scratch);
  let_go_gradient(own);
  live_ -= function.saved;
  if (function.saves_input) let_go(node.inputs[0]);
  if (function.saves_output) let_go(node.output);
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (made[i] >= 0) add_gradient(node.inputs[i], made[i]);
}

/// Before the first of the nodes that read it.
void Tape::recompute(Tensor& tensor) {
  if (tensor.future_holders == 0) return;
  touch(tensor.recompute_peak);
  take(tensor.bytes);
  tensor.holders = std::exchange(tensor.future_holders, 0);
}

/// `gradient` comes with a holder, which becomes the tensor's.
void Tape::add_gradient(int tensor, int gradient) {
  const int before = tensors_[tensor].gradient;
  if (before < 0) {
    tensors_[tensor].gradient = gradient;
    return;
  }
  int sum = before;
  if (gradients_[before].holders > 1) {
    sum = new_gradient(tensors_[tensor].bytes);
    ++gradients_[sum].holders;
    let_go_gradient(before);
  }
  let_go_gradient(gradient);
  tensors_[tensor].gradient = sum;
}

void Tape::take(int64_t bytes) {
  live_ += bytes;
  touch(0);
}

void Tape::touch(int64_t bytes, int64_t scratch) {
  if (live_ + bytes <= peak_) return;
  peak_ = live_ + bytes;
  scratch_ = scratch;
}

void Tape::let_go(int tensor) {
  Tensor& held = tensors_[tensor];
  if (--held.holders == 0 && !held.is_input && !held.is_changed) live_ -= held.bytes;
}

int Tape::new_gradient(int64_t bytes) {
  gradients_.push_back({.bytes = bytes});
  take(bytes);
  return static_cast<int>(gradients_.size()) - 1;
}

void Tape::let_go_gradient(int gradient) {
  Gradient& held = gradients_[gradient];
  if (--held.holders == 0) live_ -= held.bytes;
}

int64_t part_of(int64_t count, int64_t parts) {
  return (count + parts - 1) / parts;
}

/// The rows of a unit on one of the ranks that share them.
class Shares {
 public:
  Shares(const ModelSpec& model, const MicrobatchSizes& sizes, const UnitShare& share)
      : model_(model), sizes_(sizes), share_(share) {}

  UnitSizes of(const UnitSpec& unit) const {
    UnitSizes rows;
    rows.all_tokens = all_tokens(unit);
    rows.tokens = share_of(rows.all_tokens);
    rows.targets = share_of(sizes_.targets);
    rows.expert_tokens = sizes_.expert_tokens;
    for (const UnitInput& input : unit.inputs) {
      const UnitSpec& source = model_.units[input.unit];
      const RowCounts made =
          share_of(model_.makes_features(input.unit) ? sizes_.encoders[source.encoder].features
                                                     : all_tokens(source));
      rows.inputs.push_back(source.kind == UnitKind::Keys ? made.all : made.here);
    }
    if (unit.encoder < 0) {
      rows.attention = sizes_.text;
      return rows;
    }
    const EncoderSizes& items = sizes_.encoders[unit.encoder];
    rows.features = share_of(items.features);
    rows.projected = share_of(items.features + items.beyond);
    rows.resamples = items.beyond > 0;
    if (items.tokens > 0) rows.patches = rows.tokens.here * items.patches / items.tokens;
    if (unit.kind == UnitKind::Block) rows.attention = items.attention.at(unit.mixer);
    return rows;
  }

 private:
  int64_t all_tokens(const UnitSpec& unit) const {
    return unit.encoder < 0 ? sizes_.tokens : sizes_.encoders[unit.encoder].tokens;
  }
  RowCounts share_of(int64_t rows) const {
    const int64_t all = part_of(rows, share_.cp);
    if (!share_.sequence_parallel) return RowCounts::whole(all);
    const int64_t here = part_of(all, share_.tp);
    return {all, here, here * share_.tp};
  }

  const ModelSpec& model_;
  const MicrobatchSizes& sizes_;
  const UnitShare& share_;
};

std::vector<AttentionSizes> attention_sizes(const std::vector<Segment>& segments, bool causal) {
  std::vector<AttentionSizes> sizes;
  for (const SegmentBatch& batch : batch_segments(segments, allowed_padding(causal))) {
    sizes.push_back({static_cast<int64_t>(batch.segments.size()), batch.length, 0});
    for (const Segment& segment : batch.segments) sizes.back().tokens += segment.length;
  }
  return sizes;
}

EncoderSizes encoder_sizes(const EncoderSpec& encoder, const std::vector<ItemShape>& items) {
  EncoderSizes sizes{.items = static_cast<int64_t>(items.size())};
  for (const ItemShape& item : items) {
    sizes.tokens += item.tokens;
    sizes.features += item.features;
    sizes.beyond += item.projected() / item.merge - item.features;
    sizes.columns += item.mel_columns;
    if (encoder.modality() != Modality::Image) continue;
    const PatchInput& input = encoder.patches();
    const bool are_all = input.learned_tokens() == 0;  // ends of rows, too
    sizes.patches += are_all ? item.tokens : item.tiles * input.patches_of(item);
  }
  for (const AttentionSpec& way : encoder.block.attentions())
    sizes.attention.push_back(attention_sizes(segments_of_items(items, way.window > 0), false));
  return sizes;
}

/// Tells whether a window of the text hides nothing of the longest sample.
bool sees_all(const AttentionSpec& spec, const std::vector<AttentionSizes>& batches) {
  return spec.window == 0 || std::ranges::all_of(batches, [&](const AttentionSizes& batch) {
           return spec.window >= batch.length;
         });
}

}  // namespace

UnitMemory unit_memory(const ModelSpec& model, const UnitSpec& unit, const MicrobatchSizes& sizes,
                       const UnitTypes& types, const UnitCall& call, const UnitShare& share) {
  const UnitPart part{.sizes = Shares(model, sizes, share).of(unit),
                      .share = share,
                      .types = types,
                      .keeps_graph = call.keeps_graph,
                      .inputs_need_gradient = call.inputs_need_gradient,
                      .inputs_present = call.inputs_present};
  const std::vector<OperationNeeds> needs = operation_needs(model, unit, part);
  Tape tape(unit.graph, call.keeps_graph,
            call.is_selective ? last_readers_of_recomputed(model, unit) : std::vector<int>());
  for (size_t i = 0; i < needs.size(); ++i)
    tape.run(static_cast<int>(i), unit.graph.operations[i], needs[i]);
  return tape.finish(unit.graph.output);
}

int64_t microbatch_bytes(const ModelSpec& model, const MicrobatchSizes& sizes,
                         const std::map<std::string, UnitTypes>& types_of_modules) {
  constexpr int64_t kIndex = 8;
  const auto rows_of = [](const std::vector<AttentionSizes>& batches) {
    int64_t rows = 0;
    for (const AttentionSizes& batch : batches)
      rows += batch.padded_tokens() + (batch.padded() ? 2 : 1) * batch.tokens;
    return rows;
  };
  const auto element_bytes = [&](const std::string& module) {
    return ElementBytes(types_of_modules.at(module)).param;
  };
  int64_t bytes = 0;
  if (types_of_modules.contains(kDecoder)) {
    const BlockSpec& block = model.decoder.block;
    int64_t tables = 0;  // elements of a token
    for (const AttentionSpec& kind : block.attentions())
      tables += 2 * kind.rope.pairs(kind.heads.dim);
    const bool are_batched = std::ranges::any_of(
        block.attentions(), [&](const AttentionSpec& spec) { return sees_all(spec, sizes.text); });
    bytes += kIndex * (sizes.tokens + 2 * sizes.targets + sizes.samples);
    if (are_batched) bytes += kIndex * rows_of(sizes.text);
    if (model.has_dropout(kDecoder)) bytes += kIndex * sizes.tokens;
    if (block.carries_state()) bytes += kIndex * sizes.tokens;
    bytes += model.decoder.learned_positions ? kIndex * sizes.tokens
                                             : tables * sizes.tokens * element_bytes(kDecoder);
  }
  for (size_t e = 0; e < model.encoders.size(); ++e) {
    const EncoderSpec& encoder = model.encoders[e];
    if (!types_of_modules.contains(encoder.name)) continue;
    const EncoderSizes& items = sizes.encoders[e];
    int64_t rows = 0;
    for (const auto& batches : items.attention) rows += rows_of(batches);
    const int64_t element = element_bytes(encoder.name);
    if (model.has_dropout(encoder.name)) bytes += kIndex * (items.tokens + items.features);
    if (encoder.is_cached) {
      bytes += kIndex * (items.features + items.tokens) +
               items.tokens * model.feature_width(static_cast<int>(e)) * element;
    } else if (encoder.modality() == Modality::Image) {
      const PatchInput& input = encoder.patches();
      const BlockSpec& block = encoder.block;
      const auto tables = block.rotary ? std::ssize(block.attentions()) : 0;
      bytes += kIndex * (items.features + rows) + items.patches * input.values() * element +
               items.tokens * tables * block.attention().heads.dim * element;
      if (input.table_side > 0)
        bytes += items.tokens * input.most_table_shares() * (kIndex + element);
    } else {
      // Positions, features, placeholders and the rows that convolutions read.
      const MelInput& input = encoder.mels();
      bytes += kIndex * (3 * items.tokens + rows);
      const auto taps_of = [&](int64_t convolution) {
        return input.columns_after(convolution, items.tokens) * input.bins_after(convolution) *
               Subsampling::kTaps;
      };
      if (input.subsampling) {
        bytes += element * taps_of(1);
        for (int64_t i = 2; i <= input.halvings(); ++i) bytes += kIndex * taps_of(i);
      } else {
        bytes += kIndex * 3 * items.tokens + element * items.columns * 3 * input.mel_bins;
      }
      if (input.chunk > 0) bytes += element * input.chunk_positions() * encoder.block.hidden;
    }
  }
  return bytes;
}

MicrobatchSizes with_items(const ModelSpec& model, const MicrobatchSizes& sizes,
                           const ItemList& items) {
  MicrobatchSizes other = sizes;
  other.items = items;
  other.encoders.clear();
  for (size_t e = 0; e < model.encoders.size(); ++e) {
    const EncoderSpec& encoder = model.encoders[e];
    other.encoders.push_back(encoder_sizes(encoder, items.shapes(static_cast<int>(e), encoder)));
  }
  return other;
}

ItemList largest_share(const ModelSpec& model, const ItemList& items, int encoder, int takers) {
  const EncoderSpec& spec = model.encoders[static_cast<size_t>(encoder)];
  const std::vector<ItemShape> all = items.shapes(encoder, spec);
  int64_t most = -1;
  ItemList largest;
  for (const std::vector<int64_t>& share : distribute_items(all, model, encoder, takers)) {
    int64_t tokens = 0;
    for (const int64_t item : share) tokens += all[item].tokens;
    if (tokens <= most) continue;
    most = tokens;
    largest = {};
    for (const int64_t item : share) largest.add(encoder, 1, all[item]);
  }
  return largest;
}

MicrobatchSizes microbatch_sizes(const ModelSpec& model, const std::vector<SampleIndex>& samples) {
  MicrobatchSizes sizes;
  ItemList items;
  std::vector<Segment> text;
  for (const SampleIndex& sample : samples) {
    text.push_back({sizes.tokens, sample.tokens});
    sizes.tokens += sample.tokens;
    sizes.targets += sample.targets;
    items += sample.items;
  }
  sizes.samples = static_cast<int64_t>(samples.size());
  sizes.text = attention_sizes(text, true);
  return with_items(model, sizes, items);
}

}  // namespace zea
