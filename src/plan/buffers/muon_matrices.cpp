// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/buffers/muon_matrices.hpp"

#include <algorithm>
#include <numeric>

namespace zea {
namespace {

/// Five steps of three products, of the short side with itself and with the matrix; or two with the
/// matrix and 17 of the short side.
int64_t multiplications(const MuonMatrix& matrix) {
  const int64_t least = std::min(matrix.shape[0], matrix.shape[1]), square = least * least;
  const bool is_long = matrix.elements() >= kMuonLong * square;
  return least *
         (is_long ? 2 * matrix.elements() + 17 * square : 5 * (2 * matrix.elements() + square));
}

void deal(std::vector<MuonMatrix>& matrices, int ranks) {
  std::vector<size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return multiplications(matrices[a]) > multiplications(matrices[b]);
  });
  std::vector<int64_t> loads(static_cast<size_t>(ranks), 0);
  for (const size_t m : order) {
    const auto least = std::ranges::min_element(loads);
    *least += multiplications(matrices[m]);
    matrices[m].owner = static_cast<int>(least - loads.begin());
  }
}

}  // namespace

std::vector<MuonMatrix> muon_matrices(const ModelSpec& model, const FlatBuffer& buffer,
                                      const std::vector<ParamRule>& rules, int ranks) {
  std::vector<MuonMatrix> matrices;
  std::map<std::string, size_t> of_tensor;
  if (!buffer.trainable) return matrices;
  for (const FlatParam& member : buffer.params) {
    const ParamSpec& param = model.params[member.param];
    const ParamRule& rule = rules[member.param];
    if (!rule.orthogonalises) continue;
    const auto [found, is_new] = of_tensor.emplace(param.name, matrices.size());
    if (is_new) matrices.push_back({param.tensor_shape(), {}, rule.frozen_updates});
    matrices[found->second].members.push_back(member);
  }
  deal(matrices, ranks);
  return matrices;
}

}  // namespace zea
