// SPDX-License-Identifier: Apache-2.0
// The embedding and the head of a vocabulary that is sharded over tp ranks: each has some of its
// rows. If the ranks do not divide it, the last ones have fewer, and padding that is never read.
#include "kernels/matmul.hpp"
#include "model/logit_tiles.hpp"
#include "parallel/tp_row_comm.hpp"

namespace zea::detail {
namespace {

/// Rows of the table here for `ids`, and which ids belong to other ranks. Those read any row and
/// count for nothing, since a host that runs ahead of its device does not know how many they are.
struct OwnIds {
  Tensor indices;    ///< (rows)
  Tensor elsewhere;  ///< (rows, 1)
};

OwnIds own_ids(const Tensor& ids, const VocabularyRange& range) {
  const Tensor indices = ids.sub(range.begin);
  const Tensor elsewhere = indices.lt(0).logical_or_(indices.ge(range.count)).unsqueeze(1);
  // Spread over the rows: zeros that are all added to one would wait for each other.
  return {indices.remainder(std::max<int64_t>(1, range.count)), elsewhere};
}

struct EmbeddingFunction : Function<EmbeddingFunction> {
  static Tensor forward(Context* ctx, const Tensor& anchor, const TpRowComm* rows,
                        const Tensor& ids, Parameter* weight, int64_t vocabulary) {
    (void)anchor;
    remember(ctx, {weight});
    remember_rows(ctx, *rows);
    const OwnIds own = own_ids(ids, vocabulary_range(rows->tp(), *weight, vocabulary));
    ctx->save_for_backward({own.indices, own.elsewhere});
    const Tensor& table = weight->value();
    Tensor found = rows->partial(ids.size(0), table.size(1), table.options());
    at::index_select_out(found, table, 0, own.indices);
    found.masked_fill_(own.elsewhere, 0);
    return rows->sum(found).take();
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    const OwnIds own{saved[0], saved[1]};
    const Tensor dy = recall_rows(ctx).gather(outputs[0]).take();
    Tensor& gradient = recall(ctx, 0)->gradient();
    const Tensor counted =
        dy.to(gradient.scalar_type(), false, true).masked_fill_(own.elsewhere, 0);
    gradient.index_add_(0, own.indices, counted);
    return {{}, {}, {}, {}, {}};
  }
};

/// The log-sum-exp of each row over all ranks' logits, and its target's logit.
struct Normalized {
  Tensor lse, picked;
};

/// (2, rows) of the logits here: log-sum-exp, -inf where there are none, and the target's logit, 0
/// where another rank has it.
Tensor normalize_here(const Tensor& x, const Tensor& matrix, const Tensor& targets,
                      const VocabularyRange& range, double softcap) {
  if (range.count == 0) {
    Tensor none = at::zeros({2, x.size(0)}, wide(x.narrow(0, 0, 0)).options());
    none[0].fill_(-std::numeric_limits<double>::infinity());
    return none;
  }
  const RowLogits rows = row_logits(x, matrix, targets.sub(range.begin), softcap);
  return at::stack({rows.lse, rows.picked});
}

Normalized normalize(Collectives& tp, const Tensor& here) {
  Tensor all = at::empty({tp.size(), 2, here.size(1)}, here.options());
  tp.all_gather(here.const_data_ptr(), all.mutable_data_ptr(), Counts(tp.size(), here.numel()),
                dtype_of(here))
      .wait();
  return {all.select(1, 0).logsumexp(0), all.select(1, 1).sum(0)};
}

struct CrossEntropyFunction : Function<CrossEntropyFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor, const TpRowComm* rows,
                        const Tensor& targets, Parameter* weight, const LogitSpec& spec) {
    (void)anchor;
    remember(ctx, {weight});
    remember_rows(ctx, *rows);
    ctx->saved_data["vocabulary"] = spec.vocabulary;
    ctx->saved_data["softcap"] = spec.softcap;
    const VocabularyRange range = vocabulary_range(rows->tp(), *weight, spec.vocabulary);
    Tensor lse = at::empty({0}, wide(x.narrow(0, 0, 0)).options());
    Tensor loss = at::zeros({}, x.options().dtype(at::kDouble));
    if (targets.size(0) > 0) {
      const Tensor matrix = weight->value().narrow(0, 0, range.count);
      const Normalized all = normalize(
          rows->tp(), normalize_here(rows->gather(x).take(), matrix, targets, range, spec.softcap));
      loss = all.lse.sub(all.picked).sum(at::kDouble);
      lse = all.lse;
    }
    ctx->save_for_backward({x, targets, lse});
    return loss;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    const TpRowComm rows = recall_rows(ctx);
    Parameter* weight = recall(ctx, 0);
    const VocabularyRange range =
        vocabulary_range(rows.tp(), *weight, ctx->saved_data.at("vocabulary").toInt());
    const Tensor x = rows.gather(saved[0]).take();
    const bool needs_dx = ctx->needs_input_grad(0);
    const Tensor dx = needs_dx ? rows.partial(x.size(0), x.size(1), x.options()).zero_() : Tensor();
    if (range.count > 0)
      add_gradients(x, saved[1], saved[2], outputs[0], *weight, range,
                    ctx->saved_data.at("softcap").toDouble(), dx);
    return {needs_dx ? rows.sum(dx).take() : Tensor(), {}, {}, {}, {}, {}};
  }

  /// Adds the logits' here to the weight's gradient and, where it is defined, writes dx.
  static void add_gradients(const Tensor& x, const Tensor& targets, const Tensor& lse,
                            const Tensor& dloss, Parameter& weight, const VocabularyRange& range,
                            double softcap, const Tensor& dx) {
    const Tensor dweight =
        weight.trainable() ? weight.gradient().narrow(0, 0, range.count) : Tensor();
    add_logit_gradients(x, weight.value().narrow(0, 0, range.count), targets.sub(range.begin), lse,
                        dloss.to(lse.scalar_type()), softcap, {dx, dweight});
  }
};

}  // namespace

at::Tensor tp_embedding(const TpRowComm& rows, const at::Tensor& ids, Parameter& weight,
                        int64_t vocabulary) {
  return EmbeddingFunction::apply(weight.anchor(), &rows, ids, &weight, vocabulary);
}

at::Tensor tp_cross_entropy(const TpRowComm& rows, const at::Tensor& x, Parameter& weight,
                            const at::Tensor& targets, const LogitSpec& spec) {
  return CrossEntropyFunction::apply(x, weight.anchor(), &rows, targets, &weight, spec);
}

at::Tensor tp_logits(const TpRowComm& rows, const at::Tensor& x, Parameter& weight,
                     const LogitSpec& spec) {
  const at::Tensor all = rows.gather(x.detach()).take();
  const at::Tensor here = product(all, weight.value().t());
  cap_logits(here, spec.softcap);
  const int ranks = rows.tp().size();
  at::Tensor parts = at::empty({ranks, here.size(0), here.size(1)}, here.options());
  if (here.numel() > 0)
    rows.tp()
        .all_gather(here.const_data_ptr(), parts.mutable_data_ptr(), Counts(ranks, here.numel()),
                    dtype_of(here))
        .wait();
  return parts.transpose(0, 1).flatten(1).narrow(1, 0, spec.vocabulary).contiguous();
}

}  // namespace zea::detail
