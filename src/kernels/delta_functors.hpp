// SPDX-License-Identifier: Apache-2.0
// The parts of a gated delta rule that go token by token: the causal convolution with SiLU, norms
// of queries and keys, decays and betas, and the gated norm of outputs; forward and backward.
// Rows of wide elements lie like those of the in-projection's outputs: its channels' columns hold
// q, k and v, and those of betas and decays b and g; gradients lie likewise.
#pragma once

#include "kernels/delta_shape.hpp"
#include "kernels/lanes.hpp"
#include "kernels/row_functors.hpp"

namespace zea::detail {

/// Added to the squared norms of queries and keys.
inline constexpr double kDeltaNormEps = 1e-6;

/// softplus(x), and its slope; x itself beyond 20, as torch has it.
template <class W>
ZEA_FUNCTION W softplus(W x) {
  return x > W(20) ? x : std::log1p(std::exp(x));
}
template <class W>
ZEA_FUNCTION W softplus_slope(W x) {
  return x > W(20) ? W(1) : sigmoid(x);
}

/// The convolution of one head of a token, before its activation, into `target`.
template <class T>
struct ConvolveHead {
  const T *x, *conv;      ///< conv: (taps, channels)
  const int64_t* starts;  ///< of samples
  DeltaShape shape;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t token, const DeltaShape::Head& head,
                               Wide<T>* target) const {
    const T* row = x + token * shape.columns() + head.column;
    const T* weight = conv + (shape.taps - 1) * shape.channels() + head.channel;
    const auto first = [](Wide<T> x, Wide<T> w) ZEA_INLINE_LAMBDA { return x * w; };
    const auto more = [](Wide<T> sum, Wide<T> x, Wide<T> w)
                          ZEA_INLINE_LAMBDA { return sum + x * w; };
    const StoreTo<Wide<T>> write{target};
    lanes.each(head.dim, write, first, row, weight);
    for (int64_t back = 1; back < shape.taps && token - back >= starts[token]; ++back) {
      row -= shape.columns();
      weight -= shape.channels();
      lanes.each(head.dim, write, more, target, row, weight);
    }
  }
};

/// The heads of a token, and last its betas and decays.
template <class T>
struct MixDeltaToken {
  ConvolveHead<T> convolve;
  const T *decay, *step;
  Wide<T>* mixed;  ///< (tokens, columns)

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const DeltaShape& shape = convolve.shape;
    const int64_t token = item / (shape.heads() + 1), index = item % (shape.heads() + 1);
    Wide<T>* row = mixed + token * shape.columns();
    if (index == shape.heads()) return gates(lanes, convolve.x + token * shape.columns(), row);
    const DeltaShape::Head head = shape.head(index);
    Wide<T>* target = row + head.column;
    convolve(lanes, token, head, target);
    lanes.sync();  // from here on elements may be those of other lanes
    const StoreTo<Wide<T>> write{target};
    const auto silu = [](Wide<T> c) ZEA_INLINE_LAMBDA { return c * sigmoid(c); };
    lanes.each(head.dim, write, silu, target);
    if (!head.is_query && !head.is_key) return;
    const auto square = [](Wide<T> u) ZEA_INLINE_LAMBDA { return u * u; };
    const Wide<T> sum = lanes.template sum<Wide<T>>(head.dim, square, target);
    const Wide<T> scale = scale_of(shape, head, sum);
    lanes.each(
        head.dim, write, [=](Wide<T> u) ZEA_INLINE_LAMBDA { return u * scale; }, target);
  }

  /// 1 / norm, and of queries times 1 / sqrt(key_dim).
  ZEA_FUNCTION static Wide<T> scale_of(const DeltaShape& shape, const DeltaShape::Head& head,
                                       Wide<T> sum) {
    const Wide<T> scale = 1 / std::sqrt(sum + static_cast<Wide<T>>(kDeltaNormEps));
    return head.is_query ? scale / std::sqrt(static_cast<Wide<T>>(shape.key_dim)) : scale;
  }

 private:
  template <class Lanes>
  ZEA_FUNCTION void gates(const Lanes& lanes, const T* from, Wide<T>* to) const {
    const DeltaShape own = convolve.shape;
    const auto put = [=](int64_t head, const Values<Wide<T>, 2>& values) {
      to[own.beta(head)] = values.of[0];
      to[own.decay(head)] = values.of[1];
    };
    const auto value = [=](int64_t head, Wide<T> a_log, Wide<T> bias) {
      const Wide<T> a = load(from[own.decay(head)]) + bias;
      return Values<Wide<T>, 2>{sigmoid(load(from[own.beta(head)])),
                                -std::exp(a_log) * softplus(a)};
    };
    lanes.each(own.value_heads, put, OfPlace{value}, decay, step);
  }
};

/// Turns gradients of q, k and v into those of the convolution's outputs, in place. Of betas
/// and decays the gradients come as those of the betas' logits and of g: both go to dx, and in
/// their places stay the terms of the gradients of A_log and dt_bias.
template <class T>
struct MixDeltaTokenBackward {
  ConvolveHead<T> convolve;
  const T *decay, *step;
  Wide<T>* dmixed;
  Wide<T>* convolved;  ///< (tokens, columns), spare
  T* dx;               ///< (tokens, columns)

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const DeltaShape& shape = convolve.shape;
    const int64_t token = item / (shape.heads() + 1), index = item % (shape.heads() + 1);
    const int64_t row = token * shape.columns();
    if (index == shape.heads()) return gates(lanes, row);
    const DeltaShape::Head head = shape.head(index);
    Wide<T>*d = dmixed + row + head.column, *c = convolved + row + head.column;
    convolve(lanes, token, head, c);
    lanes.sync();
    const StoreTo<Wide<T>> write{d};
    if (head.is_query || head.is_key) {
      const auto square = [](Wide<T> c) ZEA_INLINE_LAMBDA {
        const Wide<T> u = c * sigmoid(c);
        return u * u;
      };
      const auto along = [](Wide<T> d, Wide<T> c) ZEA_INLINE_LAMBDA { return d * c * sigmoid(c); };
      const Wide<T> sum = lanes.template sum<Wide<T>>(head.dim, square, c);
      const Wide<T> scale = MixDeltaToken<T>::scale_of(shape, head, sum);
      const Wide<T> slope = lanes.template sum<Wide<T>>(head.dim, along, d, c) /
                            (sum + static_cast<Wide<T>>(kDeltaNormEps));
      const auto gradient = [=](Wide<T> d, Wide<T> c) ZEA_INLINE_LAMBDA {
        const auto silu = SiluGate::at(c);
        return scale * (d - c * silu.gate * slope) * silu.slope;
      };
      lanes.each(head.dim, write, gradient, d, c);
      return;
    }
    const auto gradient = [](Wide<T> d, Wide<T> c)
                              ZEA_INLINE_LAMBDA { return d * SiluGate::at(c).slope; };
    lanes.each(head.dim, write, gradient, d, c);
  }

 private:
  template <class Lanes>
  ZEA_FUNCTION void gates(const Lanes& lanes, int64_t row) const {
    const DeltaShape own = convolve.shape;
    const T* from = convolve.x + row;
    Wide<T>* d = dmixed + row;
    T* to = dx + row;
    const auto put = [=](int64_t head, const Values<Wide<T>, 2>& values) {
      store(to[own.beta(head)], d[own.beta(head)]);
      store(to[own.decay(head)], values.of[1]);
      d[own.beta(head)] = values.of[0];
      d[own.decay(head)] = values.of[1];
    };
    const auto value = [=](int64_t head, Wide<T> a_log, Wide<T> bias) {
      const Wide<T> a = load(from[own.decay(head)]) + bias;
      const Wide<T> slope = -std::exp(a_log) * d[own.decay(head)];
      return Values<Wide<T>, 2>{slope * softplus(a), slope * softplus_slope(a)};
    };
    lanes.each(own.value_heads, put, OfPlace{value}, decay, step);
  }
};

/// A head of `part_tokens` tokens: the gradient of x, from those of the convolution's outputs, and
/// sums for that of its weight.
template <class T>
struct ConvolveBackward {
  const T *x, *conv;      ///< conv: (taps, channels)
  const int64_t* starts;  ///< of samples
  const Wide<T>* dmixed;
  T* dx;
  Wide<T>* sums;     ///< (parts, taps, channels)
  Wide<T>* scratch;  ///< (parts, channels)
  DeltaShape shape;
  int64_t tokens, part_tokens;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const int64_t part = item / shape.heads(), first = part * part_tokens;
    const int64_t end = first + part_tokens < tokens ? first + part_tokens : tokens;
    const DeltaShape::Head head = shape.head(item % shape.heads());
    for (int64_t tap = 0; tap < shape.taps; ++tap) {
      Wide<T>* sum = sums + (part * shape.taps + tap) * shape.channels() + head.channel;
      lanes.each(
          head.dim, StoreTo<Wide<T>>{sum}, [](Wide<T>) ZEA_INLINE_LAMBDA { return Wide<T>(0); },
          sum);
    }
    for (int64_t token = first; token < end; ++token) {
      add_to_weight(lanes, part, token, head);
      add_to_input(lanes, part, token, head);
    }
  }

 private:
  template <class Lanes>
  ZEA_FUNCTION void add_to_weight(const Lanes& lanes, int64_t part, int64_t token,
                                  const DeltaShape::Head& head) const {
    const auto more = [](Wide<T> sum, Wide<T> d, Wide<T> x)
                          ZEA_INLINE_LAMBDA { return sum + d * x; };
    const Wide<T>* d = dmixed + token * shape.columns() + head.column;
    for (int64_t back = 0; back < shape.taps && token - back >= starts[token]; ++back) {
      const int64_t tap = shape.taps - 1 - back;
      Wide<T>* target = sums + (part * shape.taps + tap) * shape.channels() + head.channel;
      const T* row = x + (token - back) * shape.columns() + head.column;
      lanes.each(head.dim, StoreTo<Wide<T>>{target}, more, target, d, row);
    }
  }
  template <class Lanes>
  ZEA_FUNCTION void add_to_input(const Lanes& lanes, int64_t part, int64_t token,
                                 const DeltaShape::Head& head) const {
    const auto first = [](Wide<T> d, Wide<T> w) ZEA_INLINE_LAMBDA { return d * w; };
    const auto more = [](Wide<T> sum, Wide<T> d, Wide<T> w)
                          ZEA_INLINE_LAMBDA { return sum + d * w; };
    Wide<T>* sum = scratch + part * shape.channels() + head.channel;
    const StoreTo<Wide<T>> write{sum};
    const Wide<T>* d = dmixed + token * shape.columns() + head.column;
    const T* weight = conv + (shape.taps - 1) * shape.channels() + head.channel;
    lanes.each(head.dim, write, first, d, weight);
    for (int64_t on = 1; on < shape.taps && token + on < tokens; ++on) {
      if (starts[token + on] != starts[token]) break;
      d += shape.columns();
      weight -= shape.channels();
      lanes.each(head.dim, write, more, sum, d, weight);
    }
    lanes.sync();
    lanes.each(
        head.dim, StoreTo<T>{dx + token * shape.columns() + head.column},
        [](Wide<T> sum) ZEA_INLINE_LAMBDA { return sum; }, sum);
    lanes.sync();
  }
};

/// y = n weight silu(z), n = o / sqrt(mean(o^2) + eps), of a head of a token.
template <class T>
struct GatedNormHead {
  const T *o, *x, *weight;
  T* y;
  DeltaShape shape;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const int64_t token = item / shape.value_heads, head = item % shape.value_heads;
    const T* source = o + item * shape.value_dim;
    const T* gates = x + token * shape.columns() + shape.gate(head);
    const Wide<T> scale = scale_of(lanes, source, shape);
    const auto value = [=](Wide<T> o, Wide<T> w, Wide<T> z)
                           ZEA_INLINE_LAMBDA { return o * scale * w * z * sigmoid(z); };
    lanes.each(shape.value_dim, StoreTo<T>{y + item * shape.value_dim}, value, source, weight,
               gates);
  }

  template <class Lanes>
  ZEA_FUNCTION static Wide<T> scale_of(const Lanes& lanes, const T* source,
                                       const DeltaShape& shape) {
    const auto square = [](Wide<T> o) ZEA_INLINE_LAMBDA { return o * o; };
    const Wide<T> sum = lanes.template sum<Wide<T>>(shape.value_dim, square, source);
    return 1 /
           std::sqrt(sum / static_cast<Wide<T>>(shape.value_dim) + static_cast<Wide<T>>(shape.eps));
  }
};

/// `part_heads` heads, one after the other: gradients of o and z, and sums for that of the weight.
template <class T>
struct GatedNormBackward {
  const T *dy, *o, *x, *weight;
  Wide<T>* d_o;
  T* dx;
  Wide<T>* sums;  ///< (parts, value_dim)
  DeltaShape shape;
  int64_t heads, part_heads;  ///< of all tokens

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t part) const {
    const int64_t first = part * part_heads;
    const int64_t end = first + part_heads < heads ? first + part_heads : heads;
    for (int64_t item = first; item < end; ++item)
      of_head(lanes, item, sums + part * shape.value_dim, item > first);
  }

 private:
  template <class Lanes>
  ZEA_FUNCTION void of_head(const Lanes& lanes, int64_t item, Wide<T>* sum, bool adds) const {
    const int64_t dim = shape.value_dim, begin = item * dim;
    const int64_t gates =
        item / shape.value_heads * shape.columns() + shape.gate(item % shape.value_heads);
    const T *d = dy + begin, *source = o + begin, *z = x + gates;
    const Wide<T> scale = GatedNormHead<T>::scale_of(lanes, source, shape);
    const auto along = [](Wide<T> d, Wide<T> o, Wide<T> w, Wide<T> z)
                           ZEA_INLINE_LAMBDA { return d * o * w * z * sigmoid(z); };
    const Wide<T> slope = lanes.template sum<Wide<T>>(dim, along, d, source, weight, z) * scale *
                          scale / static_cast<Wide<T>>(dim);
    const auto terms = [=](Wide<T> sum, Wide<T> d, Wide<T> o, Wide<T> z) ZEA_INLINE_LAMBDA {
      return (adds ? sum : Wide<T>(0)) + d * o * scale * z * sigmoid(z);
    };
    lanes.each(dim, StoreTo<Wide<T>>{sum}, terms, sum, d, source, z);
    const auto of_gate = [=](Wide<T> d, Wide<T> o, Wide<T> w, Wide<T> z) ZEA_INLINE_LAMBDA {
      return d * o * scale * w * SiluGate::at(z).slope;
    };
    lanes.each(dim, StoreTo<T>{dx + gates}, of_gate, d, source, weight, z);
    const auto of_output = [=](Wide<T> d, Wide<T> o, Wide<T> w, Wide<T> z) ZEA_INLINE_LAMBDA {
      return scale * (d * w * z * sigmoid(z) - o * slope);
    };
    lanes.each(dim, StoreTo<Wide<T>>{d_o + begin}, of_output, d, source, weight, z);
  }
};

}  // namespace zea::detail
