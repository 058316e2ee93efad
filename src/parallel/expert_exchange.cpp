// SPDX-License-Identifier: Apache-2.0
#include "parallel/expert_exchange.hpp"

#include <numeric>

#include "kernels/row_kernels.hpp"
#include "model/parameter_function.hpp"
#include "parallel/exchange_rows.hpp"
#include "parallel/torch_dtype.hpp"

namespace zea::detail {
namespace {

Tensor exchanged(Collectives& ranks, const Tensor& x, const Counts& sent, const Counts& received) {
  const int64_t rows = std::accumulate(received.begin(), received.end(), int64_t{0});
  const Tensor made = at::empty({rows, x.size(1)}, x.options());
  ranks
      .all_to_all(x.const_data_ptr(), elements_of(sent, x.size(1)), made.mutable_data_ptr(),
                  elements_of(received, x.size(1)), dtype_of(x))
      .wait();
  return made;
}

Tensor send(const ExpertDispatch& way, const Tensor& x) {
  return exchanged(*way.ranks, x.index_select(0, way.tokens), way.sent, way.received);
}

Tensor send_back(const ExpertDispatch& way, const Tensor& x) {
  return combine_rows(exchanged(*way.ranks, x.contiguous(), way.received, way.sent), way.places,
                      {});
}

void remember_way(Context* ctx, const ExpertDispatch& way) {
  ctx->saved_data["ranks"] = reinterpret_cast<int64_t>(way.ranks);
  ctx->saved_data["places"] = way.places;
  ctx->saved_data["tokens"] = way.tokens;
  ctx->saved_data["sent"] = way.sent;
  ctx->saved_data["received"] = way.received;
}

ExpertDispatch recall_way(Context* ctx) {
  const auto saved = [&](const char* name) { return ctx->saved_data.at(name); };
  return {reinterpret_cast<Collectives*>(saved("ranks").toInt()), saved("places").toTensor(),
          saved("tokens").toTensor(), saved("sent").toIntVector(), saved("received").toIntVector()};
}

struct SendToExpertsFunction : Function<SendToExpertsFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const ExpertDispatch* way) {
    remember_way(ctx, *way);
    return send(*way, x);
  }
  static Tensors backward(Context* ctx, const Tensors& outputs) {
    return {send_back(recall_way(ctx), outputs[0]), {}};
  }
};

struct ReturnFromExpertsFunction : Function<ReturnFromExpertsFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const ExpertDispatch* way) {
    remember_way(ctx, *way);
    return send_back(*way, x);
  }
  static Tensors backward(Context* ctx, const Tensors& outputs) {
    return {send(recall_way(ctx), outputs[0]), {}};
  }
};

}  // namespace

ExpertDispatch make_dispatch(Collectives& ranks, const at::Tensor& members) {
  const int64_t count = ranks.size(), tokens = members.size(0);
  const Tensor goes = at::zeros({tokens, count + 1}, members.options().dtype(at::kBool))
                          .scatter_(1, members, true)
                          .narrow(1, 0, count)
                          .t()
                          .contiguous();  // (ranks, tokens)
  const Tensor counts = goes.sum(1), of_others = at::empty_like(counts);
  const Counts ones(static_cast<size_t>(count), 1);
  ranks.all_to_all(counts.const_data_ptr(), ones, of_others.mutable_data_ptr(), ones, DType::Int64)
      .wait();
  const Tensor both = at::cat({counts, of_others}).cpu();  // here the host waits
  const int64_t* first = both.const_data_ptr<int64_t>();
  ExpertDispatch way{&ranks, {}, {}, {first, first + count}, {first + count, first + 2 * count}};
  const int64_t rows = std::accumulate(way.sent.begin(), way.sent.end(), int64_t{0});
  const Tensor stays = goes.flatten().logical_not(), rows_of = goes.flatten().cumsum(0) - 1;
  way.places = rows_of.masked_fill(stays, -1).view({count, tokens}).t().contiguous();
  // Pairs of token and rank without a message all write to one extra row, which is then left out.
  way.tokens = at::empty({rows + 1}, members.options())
                   .scatter_(0, rows_of.masked_fill(stays, rows),
                             at::arange(tokens, members.options()).repeat({count}))
                   .narrow(0, 0, rows);
  return way;
}

at::Tensor sent_along(const ExpertDispatch& way, const at::Tensor& x) {
  return SendToExpertsFunction::apply(x, &way);
}

at::Tensor returned_along(const ExpertDispatch& way, const at::Tensor& x) {
  return ReturnFromExpertsFunction::apply(x, &way);
}

}  // namespace zea::detail
