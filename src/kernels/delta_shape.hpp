// SPDX-License-Identifier: Apache-2.0
// The heads of a gated delta rule and their columns among the outputs of its in-projection.
#pragma once

#include <cstdint>

#include "kernels/element_math.hpp"

namespace zea {

struct DeltaShape {
  int64_t key_heads, value_heads, key_dim, value_dim, taps;
  bool by_key_head;  ///< queries, keys, values and gates lie together by key head
  double eps;        ///< of the norm of outputs

  ZEA_FUNCTION int64_t group() const { return value_heads / key_heads; }
  ZEA_FUNCTION int64_t keys() const { return key_heads * key_dim; }
  ZEA_FUNCTION int64_t values() const { return value_heads * value_dim; }
  ZEA_FUNCTION int64_t channels() const { return 2 * keys() + values(); }
  ZEA_FUNCTION int64_t columns() const { return channels() + values() + 2 * value_heads; }
  /// Heads of the convolution's channels: queries, keys, values.
  ZEA_FUNCTION int64_t heads() const { return 2 * key_heads + value_heads; }

  // First columns of heads.
  ZEA_FUNCTION int64_t query(int64_t key_head) const {
    return key_head * (by_key_head ? columns_of_key_head() : key_dim);
  }
  ZEA_FUNCTION int64_t key(int64_t key_head) const {
    return query(key_head) + (by_key_head ? key_dim : keys());
  }
  ZEA_FUNCTION int64_t value(int64_t head) const {
    return by_key_head ? query(head / group()) + 2 * key_dim + head % group() * value_dim
                       : 2 * keys() + head * value_dim;
  }
  ZEA_FUNCTION int64_t gate(int64_t head) const {
    return value(head) + (by_key_head ? group() * value_dim : values());
  }
  ZEA_FUNCTION int64_t beta(int64_t head) const {
    const int64_t first = channels() + values();
    return by_key_head ? first + head / group() * 2 * group() + head % group() : first + head;
  }
  ZEA_FUNCTION int64_t decay(int64_t head) const {
    return beta(head) + (by_key_head ? group() : value_heads);
  }

  /// A head of the channels: its columns, its channels in the convolution's weight, and whether it
  /// is one of queries or of keys.
  struct Head {
    int64_t column, channel, dim;
    bool is_query, is_key;
  };
  ZEA_FUNCTION Head head(int64_t index) const {
    if (index < key_heads) return {query(index), index * key_dim, key_dim, true, false};
    if (index < 2 * key_heads)
      return {key(index - key_heads), index * key_dim, key_dim, false, true};
    const int64_t of_values = index - 2 * key_heads;
    return {value(of_values), 2 * keys() + of_values * value_dim, value_dim, false, false};
  }

 private:
  ZEA_FUNCTION int64_t columns_of_key_head() const { return 2 * (key_dim + group() * value_dim); }
};

}  // namespace zea
