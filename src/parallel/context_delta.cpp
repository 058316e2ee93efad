// SPDX-License-Identifier: Apache-2.0
#include "parallel/context_delta.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include "core/error.hpp"
#include "model/parameter_function.hpp"
#include "parallel/exchange_rows.hpp"
#include "parallel/token_exchange.hpp"

namespace zea {
namespace {

using namespace detail;

using Runs = std::vector<ColumnRun>;

int64_t width_of(const Runs& runs) {
  int64_t width = 0;
  for (const ColumnRun& run : runs) width += run.count;
  return width;
}

/// The columns of rows that each member of the group gets.
struct DealtColumns {
  const ExchangedTokens* tokens;
  Collectives* cp;
  int64_t width;  ///< of all
  std::vector<Runs> of_member;

  /// x (own tokens, all columns) -> (all tokens, own columns).
  Tensor to_group(const Tensor& x) const {
    const TokenExchange exchange(*tokens, *cp);
    return exchange.to_group(
        {width_of(of_member[cp->rank()])}, x.options(), [&](int64_t member, const Tensor& part) {
          int64_t place = 0;
          for (const ColumnRun& run : of_member[member]) {
            part.narrow(1, place, run.count).copy_(x.narrow(1, run.first, run.count));
            place += run.count;
          }
        });
  }
  /// The inverse.
  Tensor to_tokens(const Tensor& x) const {
    const TokenExchange exchange(*tokens, *cp);
    const Tensor all = at::empty({exchange.own_tokens(), width}, x.options());
    exchange.to_tokens(x, [&](int64_t member, const Tensor& part) {
      int64_t place = 0;
      for (const ColumnRun& run : of_member[member]) {
        all.narrow(1, run.first, run.count).copy_(part.narrow(1, place, run.count));
        place += run.count;
      }
    });
    return all;
  }
};

class SavedColumns : public torch::CustomClassHolder {
 public:
  explicit SavedColumns(DealtColumns columns) : columns(std::move(columns)) {}
  DealtColumns columns;
};

/// Moves x to the group, or back to its tokens; its gradient goes the other way.
template <bool kToGroup>
struct ExchangeColumnsFunction : Function<ExchangeColumnsFunction<kToGroup>> {
  static Tensor forward(Context* ctx, const Tensor& x, const DealtColumns& columns) {
    ctx->saved_data["columns"] =
        c10::IValue::make_capsule(c10::make_intrusive<SavedColumns>(columns));
    return kToGroup ? columns.to_group(x) : columns.to_tokens(x);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const auto saved =
        c10::static_intrusive_pointer_cast<SavedColumns>(ctx->saved_data.at("columns").toCapsule());
    const Tensor dy = outputs[0].contiguous();
    return {kToGroup ? saved->columns.to_tokens(dy) : saved->columns.to_group(dy), {}};
  }
};

/// Without backward, where cp ranks cannot share the heads: each computes all heads of all tokens.
Tensor decoded_by_all(const Tensor& x, const TokenScan& scan, const DeltaParameters& parameters,
                      const DeltaRuleSpec& rule, Collectives& cp, const DeltaDecoding& decoding) {
  const DealtColumns inputs{&*scan.cp, &cp, rule.columns(),
                            std::vector<Runs>(cp.size(), {{0, rule.columns()}})};
  Tensor y = delta_rule(inputs.to_group(x), scan, parameters, rule, {}, &decoding);
  const IndexList& order = scan.cp->order;
  if (!order.empty()) y = at::empty_like(y).index_copy_(0, order.on(y.device()), y);
  return rows_of_member(y, scan.cp->tokens, cp.rank());
}

}  // namespace

at::Tensor context_delta_rule(const at::Tensor& x, const TokenScan& scan,
                              const DeltaParameters& parameters, const DeltaRuleSpec& rule,
                              Collectives& cp, const DeltaDecoding* decoding) {
  ZEA_ASSERT(scan.cp);
  if (rule.key_heads % cp.size() != 0 && decoding)
    return decoded_by_all(x, scan, parameters, rule, cp, *decoding);
  ZEA_ASSERT(rule.key_heads % cp.size() == 0);
  DealtColumns inputs{&*scan.cp, &cp, rule.columns(), {}},
      outputs{&*scan.cp, &cp, rule.values(), {}};
  const int64_t values = rule.values() / cp.size();
  for (int member = 0; member < cp.size(); ++member) {
    inputs.of_member.push_back(columns_of(rule, {member, cp.size()}));
    outputs.of_member.push_back({{member * values, values}});
  }
  const Tensor of_group = ExchangeColumnsFunction<true>::apply(x, inputs);
  const Tensor y = delta_rule(of_group, scan, parameters, rule, {cp.rank(), cp.size()}, decoding);
  return ExchangeColumnsFunction<false>::apply(y, outputs);
}

}  // namespace zea
