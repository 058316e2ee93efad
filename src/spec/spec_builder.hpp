// SPDX-License-Identifier: Apache-2.0
// Collects the units and parameters of a model in walking order.
#pragma once

#include <string>
#include <vector>

#include "spec/model_spec.hpp"

namespace zea::detail {

/// Cut by outputs (dim 0), by inputs (dim 1), and a vocabulary.
inline TpCut cut_outputs(int64_t blocks) {
  return {.dim = 0, .blocks = blocks};
}
inline TpCut cut_inputs(int64_t blocks) {
  return {.dim = 1, .blocks = blocks};
}
inline TpCut cut_vocabulary() {
  return {.dim = 0, .pads = true};
}

/// What a family calls the parameters of a transformer block after the layer's name, without
/// ".weight" and ".bias"; empty: it has none of the kind.
struct BlockNames {
  std::string attention_norm;
  std::string q, k, v;
  std::string qkv = {};                  ///< in place of these: one matrix of all three
  std::string q_norm = {}, k_norm = {};  ///< of each head, or of all
  std::string out;
  std::string attention_post_norm = {};
  std::string attention_scale = {};  ///< of what attention gives, whole; and so mlp_scale
  std::string mlp_norm;
  std::string gate = {};  ///< of gated blocks
  std::string up, down;
  std::string mlp_post_norm = {};
  std::string mlp_scale = {};
};

/// Which projections of a block have biases.
struct BlockBiases {
  bool q = false, k = false, v = false, out = false, mlp = false;
};

/// Standard deviations of a block's initial matrices, and the initial numbers of layer scales.
struct BlockInit {
  double qkv, out, up, down, scale = 1;
};

/// What the blocks of a module have in common, and how each of them attends.
struct BlockFamily {
  BlockNames names;
  BlockBiases biases;
  BlockInit init;
  std::vector<int> attention = {};  ///< of each block: UnitSpec::attention; empty: all 0
};

class SpecBuilder {
 public:
  explicit SpecBuilder(ModelSpec& model) : model_(model) {}

  /// Starts a unit; what is added from now on is its.
  void start(const std::string& name, const std::string& module, UnitKind kind,
             std::vector<UnitInput> inputs);
  int last_unit() const { return static_cast<int>(model_.units.size()) - 1; }

  /// Adds the parameter `name`, which the unit's forward calls `role`. Returns its index. Weights
  /// of norms start as what makes them 1, other vectors as zeros, the rest as normal numbers of
  /// `std`.
  int add(const std::string& role, const std::string& name, Shape shape, bool trainable, double std,
          const TpCut& cut = {});
  /// Adds parameters that lie one after the other and have one role. Those of one name are the rows
  /// of one tensor in files.
  struct Part {
    std::string name;
    Shape shape;
    TpCut cut;
  };
  void add_fused(const std::string& role, const std::vector<Part>& parts, bool trainable,
                 double std);
  void add_norm(const std::string& role, const std::string& name, const NormSpec& norm,
                int64_t width, bool trainable, const TpCut& cut = {});
  /// Normal numbers, also where they are a vector.
  void add_class_token(const std::string& name, const Shape& shape, bool trainable, double std);
  /// Normal numbers of a deviation that makes the vector about as long as 1.
  void add_normal_vector(const std::string& role, const std::string& name, int64_t width,
                         bool trainable);
  /// A table of sines and cosines, which is never trained.
  void add_sinusoids(const std::string& name, int64_t positions, int64_t width);
  /// The unit reads a parameter that an earlier one has, too.
  void use(const std::string& role, int param);
  /// The parameters of a transformer block whose names begin with `layer`.
  void add_block(const BlockSpec& block, const BlockFamily& family, const std::string& layer,
                 bool trainable);
  /// Blocks called "<module>.layers.0" and so on, each reading the one before, the first one the
  /// last unit. `layers` begins the names of their parameters.
  void add_blocks(const std::string& module, int64_t count, const BlockSpec& block,
                  const BlockFamily& family, const std::string& layers, bool trainable);

 private:
  void add_attention(const BlockSpec& block, const BlockFamily& family, const std::string& layer,
                     bool trainable);
  void add_feed_forward(const BlockSpec& block, const BlockFamily& family, const std::string& layer,
                        bool trainable);
  void add_linear(const std::string& role, const std::string& name, const BlockSpec& block,
                  int64_t out, int64_t in, const TpCut& cut, bool bias, bool trainable, double std);

  ModelSpec& model_;
};

}  // namespace zea::detail
