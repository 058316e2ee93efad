// SPDX-License-Identifier: Apache-2.0
#include "parallel/passed_delta.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "model/parameter_function.hpp"
#include "parallel/exchange_rows.hpp"
#include "parallel/torch_dtype.hpp"

namespace zea {
namespace {

using namespace detail;

/// Passes states between this rank and others, of which `sources` and `targets` are in order of
/// nearness. What comes from the farthest source is a state (or its gradient), what comes from the
/// others has the matrix, too, by which that of the next one is multiplied.
class CpStates : public StatePassing {
 public:
  CpStates(Collectives& cp, const std::vector<int>& sources, const std::vector<int>& targets,
           const DeltaShape& shape, const at::TensorOptions& wide)
      : cp_(cp), targets_(targets) {
    for (const int source : sources) {
      const int64_t width = shape.value_dim + (source == sources.back() ? 0 : shape.key_dim);
      received_.push_back(at::empty({shape.value_heads, shape.key_dim, width}, wide));
      receives_.push_back(message_of(received_.back(), source));
    }
  }

  void begin(const Tensor& own) override {
    std::vector<Message> sends;
    if (own.defined()) {
      own_ = own.contiguous();
      for (const int target : targets_) sends.push_back(message_of(own_, target));
    }
    pending_ = cp_.exchange(std::move(sends), std::move(receives_));
  }

  Tensor end() override {
    pending_.wait();
    return passed_state(received_);
  }

 private:
  static Message message_of(const Tensor& state, int peer) {
    return {state.mutable_data_ptr(), state.numel(), dtype_of(state), peer};
  }

  Collectives& cp_;
  const std::vector<int>& targets_;
  Tensor own_;
  std::vector<Tensor> received_;
  std::vector<Message> receives_;
  Pending pending_;
};

/// x (own rows, ...) -> (rows afterwards, ...).
Tensor moved(const Tensor& x, const MovedRows& rows, Collectives& cp) {
  const int64_t own = x.size(0);
  const Tensor all = at::empty({own + rows.received, x.size(1)}, x.options());
  const Tensor sent = x.index_select(0, rows.sent.on(x.device()));
  Pending pending =
      cp.exchange(rows_of_others(sent, rows.sent_counts, cp),
                  rows_of_others(all.narrow(0, own, rows.received), rows.received_counts, cp));
  all.narrow(0, 0, own).copy_(x);
  pending.wait();
  return all.index_select(0, rows.order.on(x.device()));
}

/// The gradient of x, of `own` rows, for that of moved(x), `d`.
Tensor moved_back(const Tensor& d, int64_t own, const MovedRows& rows, Collectives& cp) {
  const Tensor all = at::zeros({own + rows.received, d.size(1)}, d.options());
  all.index_copy_(0, rows.order.on(d.device()), d);
  const Tensor& sent = rows.sent.on(d.device());
  const Tensor received = at::empty({sent.numel(), d.size(1)}, d.options());
  cp.exchange(rows_of_others(all.narrow(0, own, rows.received), rows.received_counts, cp),
              rows_of_others(received, rows.sent_counts, cp))
      .wait();
  return all.narrow(0, 0, own).index_add_(0, sent, received);
}

struct MoveRowsFunction : Function<MoveRowsFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const MovedRows& rows, Collectives& cp) {
    ctx->saved_data["rows"] = reinterpret_cast<int64_t>(&rows);
    ctx->saved_data["cp"] = reinterpret_cast<int64_t>(&cp);
    ctx->saved_data["own"] = x.size(0);
    return moved(x, rows, cp);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const auto* rows = reinterpret_cast<const MovedRows*>(ctx->saved_data.at("rows").toInt());
    auto* cp = reinterpret_cast<Collectives*>(ctx->saved_data.at("cp").toInt());
    const int64_t own = ctx->saved_data.at("own").toInt();
    return {moved_back(outputs[0].contiguous(), own, *rows, *cp), {}, {}};
  }
};

class SavedRule : public torch::CustomClassHolder {
 public:
  explicit SavedRule(const DeltaShape& shape) : shape(shape) {}
  DeltaShape shape;
};

struct PassedDeltaFunction : Function<PassedDeltaFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor, const PassedScan& scan,
                        const DeltaParameters& parameters, const DeltaShape& shape,
                        Collectives& cp) {
    (void)anchor;
    remember(ctx, {&parameters.conv, &parameters.decay, &parameters.step, &parameters.norm});
    ctx->saved_data["scan"] = reinterpret_cast<int64_t>(&scan);
    ctx->saved_data["cp"] = reinterpret_cast<int64_t>(&cp);
    ctx->saved_data["rule"] = c10::IValue::make_capsule(c10::make_intrusive<SavedRule>(shape));
    CpStates passing(cp, scan.plan.before, scan.plan.after, shape, wide_options(x));
    DeltaRunOutputs out = delta_run_forward(x, scan.run, values_of(parameters), shape, passing);
    Tensors saved{x, out.mixed, out.first, out.seen, out.move};
    saved.insert(saved.end(), out.states.begin(), out.states.end());
    ctx->save_for_backward(std::move(saved));
    return out.y;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    const auto& scan = *reinterpret_cast<const PassedScan*>(ctx->saved_data.at("scan").toInt());
    auto& cp = *reinterpret_cast<Collectives*>(ctx->saved_data.at("cp").toInt());
    const DeltaShape& shape =
        c10::static_intrusive_pointer_cast<SavedRule>(ctx->saved_data.at("rule").toCapsule())
            ->shape;
    const DeltaParameters parameters{*recall(ctx, 0), *recall(ctx, 1), *recall(ctx, 2),
                                     *recall(ctx, 3)};
    CpStates passing(cp, scan.plan.after, scan.plan.before, shape, wide_options(saved[0]));
    const Tensor dx =
        delta_run_backward(outputs[0].contiguous(), saved[0], scan.run,
                           {.y = {},
                            .mixed = saved[1],
                            .states = {saved.begin() + 5, saved.end()},
                            .first = saved[2],
                            .seen = saved[3],
                            .move = saved[4]},
                           values_of(parameters), shape, gradients_of(parameters), passing);
    return {dx, {}, {}, {}, {}, {}};
  }

 private:
  static at::TensorOptions wide_options(const Tensor& x) {
    return x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  }
};

}  // namespace

at::Tensor passed_delta_rule(const at::Tensor& x, const PassedScan& scan,
                             const DeltaParameters& parameters, const DeltaRuleSpec& rule,
                             Collectives& cp) {
  const Tensor rows = MoveRowsFunction::apply(x, scan.inputs, cp);
  const Tensor y = PassedDeltaFunction::apply(rows, parameters.conv.anchor(), scan, parameters,
                                              shape_of(rule), cp);
  return scan.plan.scans_own_tokens ? y : MoveRowsFunction::apply(y, scan.outputs, cp);
}

}  // namespace zea
