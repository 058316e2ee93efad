// SPDX-License-Identifier: Apache-2.0
#include "io/model_source.hpp"

#include <map>
#include <set>

#include "io/model_files.hpp"
#include "io/tensor_request.hpp"
#include "spec/adapters.hpp"

namespace zea {
namespace {

/// A tensor of weights and its adapter.
struct Merge {
  std::string a, b;
  Shape a_shape, b_shape;
  double scale;
  WeightOrder order;
  int64_t expert = 0;     ///< index in stacks A (experts, rank, in) and B (experts, out, rank)
  int64_t first_out = 0;  ///< the row of B for the first output of the tensor
};

class MergedSource : public SourceOver {
 public:
  explicit MergedSource(std::unique_ptr<WeightsSource> source)
      : SourceOver(*source),
        source_(std::move(source)),
        config_(without_adapters(source_->config_json())) {
    const ModelSpec model = model_spec_of(*source_);
    for (const UnitSpec& unit : model.units)
      for (const Adapter& adapter : unit.adapters) add(model, unit, adapter);
    for (const TensorInfo& tensor : source_->tensors())
      if (!adapters_.contains(tensor.name)) tensors_.push_back(tensor);
  }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return config_; }

  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    const auto found = merges_.find(name);
    if (found == merges_.end()) return source_->read(name, shape, extent, dtype, target);
    check_request(find_tensor(tensors_, name, describe()), shape, extent, dtype, describe());
    read_converted({name, shape, DType::Float64}, extent, dtype, target, describe(),
                   [&](const Extent& box, void* into) {
                     source_->read(name, shape, box, DType::Float64, into);
                     add_product(found->second, box, static_cast<double*>(into));
                   });
  }

 private:
  void add(const ModelSpec& model, const UnitSpec& unit, const Adapter& adapter) {
    for (const AdapterParams& params : params_of_adapter(model, unit, adapter)) {
      const ParamSpec &a = model.params[params.a], &b = model.params[params.b];
      adapters_.insert({a.name, b.name});
      const Merge merge{a.name,           b.name,        a.tensor_shape(),
                        b.tensor_shape(), adapter.scale, adapter.order};
      const ParamSpec& base = model.params[params.base];
      if (adapter.stacks_experts && !base.stacks_experts)
        add_experts(model, model.params_of(unit, adapter.role + ".weight"), adapter, merge);
      else
        merges_[base.name] = merge;
    }
  }
  /// Merges stacked adapters into weights of single experts; gate and up read the same rows of A.
  void add_experts(const ModelSpec& model, const std::vector<int>& bases, const Adapter& adapter,
                   Merge merge) {
    const int64_t parts = std::ssize(bases) / adapter.experts;
    for (size_t i = 0; i < bases.size(); ++i) {
      const ParamSpec& base = model.params[bases[i]];
      merge.expert = static_cast<int64_t>(i) / parts;
      merge.first_out = static_cast<int64_t>(i) % parts * base.shape[0];
      merges_[base.name] = merge;
    }
  }

  /// Returns a box of a matrix, or of one expert's matrix in a stack.
  std::vector<double> values(const std::string& name, const Shape& shape, int64_t expert,
                             Extent extent) const {
    if (shape.size() == 3) {
      extent.offset.insert(extent.offset.begin(), expert);
      extent.length.insert(extent.length.begin(), 1);
    }
    std::vector<double> values(static_cast<size_t>(extent.elements()));
    source_->read(name, shape, extent, DType::Float64, values.data());
    return values;
  }

  /// Adds scale B A to the packed weights of `box`, in their order, expert by expert.
  void add_product(const Merge& merge, const Extent& box, double* weights) const {
    if (box.length.size() == 2) return add_matrix(merge, box, weights);
    Merge one = merge;
    const Extent matrix{{box.offset[1], box.offset[2]}, {box.length[1], box.length[2]}};
    for (int64_t e = 0; e < box.length[0]; ++e, weights += matrix.elements()) {
      one.expert = box.offset[0] + e;
      add_matrix(one, matrix, weights);
    }
  }
  void add_matrix(const Merge& merge, const Extent& box, double* weights) const {
    const bool is_out_in = merge.order == WeightOrder::OutIn;
    const int out_dim = is_out_in ? 0 : 1, in_dim = 1 - out_dim;
    const int64_t rank = merge.b_shape.back(), outs = box.length[out_dim], ins = box.length[in_dim];
    const std::vector<double> a =
        values(merge.a, merge.a_shape, merge.expert, {{0, box.offset[in_dim]}, {rank, ins}});
    const std::vector<double> b =
        values(merge.b, merge.b_shape, merge.expert,
               {{merge.first_out + box.offset[out_dim], 0}, {outs, rank}});
    for (int64_t o = 0; o < outs; ++o)
      for (int64_t r = 0; r < rank; ++r) {
        const double factor = merge.scale * b[o * rank + r];
        const int64_t begin = is_out_in ? o * ins : o, step = is_out_in ? 1 : outs;
        for (int64_t i = 0; i < ins; ++i) weights[begin + i * step] += factor * a[r * ins + i];
      }
  }

  std::unique_ptr<WeightsSource> source_;
  std::string config_;
  std::vector<TensorInfo> tensors_;
  std::set<std::string> adapters_;       ///< names of their tensors
  std::map<std::string, Merge> merges_;  ///< by the name of the weight
};

}  // namespace

std::unique_ptr<WeightsSource> merge_adapters(std::unique_ptr<WeightsSource> source) {
  if (!has_adapters(source->config_json())) return source;
  return std::make_unique<MergedSource>(std::move(source));
}

}  // namespace zea
