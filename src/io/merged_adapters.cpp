// SPDX-License-Identifier: Apache-2.0
#include "io/model_source.hpp"

#include <map>
#include <set>

#include "io/model_files.hpp"
#include "io/tensor_request.hpp"
#include "spec/adapters.hpp"

namespace zea {
namespace {

/// A tensor of weights and the adapter beside it.
struct Merge {
  std::string a, b;
  Shape a_shape, b_shape;
  double scale;
  WeightOrder order;
};

class MergedSource : public WeightsSource {
 public:
  explicit MergedSource(std::unique_ptr<WeightsSource> source)
      : source_(std::move(source)), config_(without_adapters(source_->config_json())) {
    const ModelSpec model = model_spec_of(*source_);
    for (const UnitSpec& unit : model.units)
      for (const Adapter& adapter : unit.adapters) add(model, adapter);
    for (const TensorInfo& tensor : source_->tensors())
      if (!adapters_.contains(tensor.name)) tensors_.push_back(tensor);
  }

  std::string describe() const override { return source_->describe(); }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return config_; }
  std::string config_file(const std::string& key) const override {
    return source_->config_file(key);
  }
  std::string note() const override { return source_->note(); }
  std::vector<std::string> companions() const override { return source_->companions(); }
  std::string companion(const std::string& name) const override { return source_->companion(name); }

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
  void add(const ModelSpec& model, const Adapter& adapter) {
    const ParamSpec& base = model.params[adapter.base];
    const ParamSpec &a = model.params[adapter.a], &b = model.params[adapter.b];
    adapters_.insert({a.name, b.name});
    merges_[base.name] = {a.name,           b.name,        a.tensor_shape(),
                          b.tensor_shape(), adapter.scale, adapter.order};
  }

  std::vector<double> values(const std::string& name, const Shape& shape,
                             const Extent& extent) const {
    std::vector<double> values(static_cast<size_t>(extent.elements()));
    source_->read(name, shape, extent, DType::Float64, values.data());
    return values;
  }

  /// To the packed weights of `box` that of B A, which lies as they do.
  void add_product(const Merge& merge, const Extent& box, double* weights) const {
    const bool is_out_in = merge.order == WeightOrder::OutIn;
    const int out_dim = is_out_in ? 0 : 1, in_dim = 1 - out_dim;
    const int64_t rank = merge.a_shape[0], outs = box.length[out_dim], ins = box.length[in_dim];
    const std::vector<double> a =
        values(merge.a, merge.a_shape, {{0, box.offset[in_dim]}, {rank, ins}});
    const std::vector<double> b =
        values(merge.b, merge.b_shape, {{box.offset[out_dim], 0}, {outs, rank}});
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
