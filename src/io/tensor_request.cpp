// SPDX-License-Identifier: Apache-2.0
#include "io/tensor_request.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/extent.hpp"
#include "core/text.hpp"
#include "spec/parameter_names.hpp"

namespace zea {
namespace {

constexpr int64_t kConvertedElements = int64_t{1} << 20;

std::string nearest_names(const std::vector<TensorInfo>& tensors, const std::string& name) {
  std::vector<std::pair<size_t, std::string>> ranked;
  for (const TensorInfo& tensor : tensors)
    ranked.emplace_back(edit_distance(name, tensor.name), tensor.name);
  const size_t shown = std::min<size_t>(3, ranked.size());
  std::partial_sort(ranked.begin(), ranked.begin() + shown, ranked.end());
  std::string text;
  for (size_t i = 0; i < shown; ++i) text += (i == 0 ? "\"" : ", \"") + ranked[i].second + "\"";
  return text.empty() ? "it has no tensors" : "nearest: " + text;
}

/// Non-finite means: all exponent bits set, which no other value's exponent is as large as. `Bits`
/// are signed: processors compare those in vectors.
template <class Bits>
int64_t find_full_exponent(const void* values, int64_t count, Bits mask) {
  const char* bytes = static_cast<const char*>(values);
  const auto exponent = [&](int64_t i) {
    Bits bits;
    std::memcpy(&bits, bytes + i * sizeof(Bits), sizeof(Bits));
    return static_cast<Bits>(bits & mask);
  };
  constexpr int64_t kBlock = 1024;  // without a branch, so that many are looked at at once
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(count, begin + kBlock);
    Bits largest = 0;
    for (int64_t i = begin; i < end; ++i) largest = std::max(largest, exponent(i));
    if (largest != mask) continue;
    for (int64_t i = begin; i < end; ++i)
      if (exponent(i) == mask) return i;
  }
  return -1;
}

/// Index in the tensor of element `position` of the packed box `extent`.
Shape index_in_tensor(const Extent& extent, int64_t position) {
  Shape index = extent.offset;
  for (size_t d = index.size(); d-- > 0;) {
    index[d] += position % extent.length[d];
    position /= extent.length[d];
  }
  return index;
}

bool is_inside(const Extent& extent, const Shape& shape) {
  if (extent.offset.size() != shape.size() || extent.length.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t begin = extent.offset[d], length = extent.length[d];
    if (begin < 0 || length < 0 || begin > shape[d] || length > shape[d] - begin) return false;
  }
  return true;
}

}  // namespace

std::string WeightsSource::config_file(const std::string&) const {
  return describe();
}

std::string WeightsSource::companion(const std::string& name) const {
  throw WeightsError(describe() + ": has no file \"" + name + "\"");
}

const TensorInfo& find_tensor(const std::vector<TensorInfo>& tensors, const std::string& name,
                              const std::string& where) {
  const auto found = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const TensorInfo& tensor, const std::string& wanted) { return tensor.name < wanted; });
  if (found != tensors.end() && found->name == name) return *found;
  throw WeightsError(where + ": has no tensor \"" + name + "\"; " + nearest_names(tensors, name));
}

const TensorInfo& find_tensor(const WeightsSource& source, const std::string& name) {
  return find_tensor(source.tensors(), name, source.describe());
}

void check_request(const TensorInfo& tensor, const Shape& shape, const Extent& extent, DType dtype,
                   const std::string& where) {
  const auto about = [&] { return where + ": tensor \"" + tensor.name + "\" "; };
  if (tensor.shape != shape)
    throw WeightsError(about() + "has shape " + shape_text(tensor.shape) + "; the model wants " +
                       shape_text(shape));
  if (!is_inside(extent, shape))
    throw WeightsError(about() + "is asked for elements outside its shape " + shape_text(shape));
  if (tensor.dtype != dtype && !(is_floating(tensor.dtype) && is_floating(dtype)))
    throw WeightsError(about() + "has elements of type " + dtype_name(tensor.dtype) +
                       ", which cannot be read as " + dtype_name(dtype));
}

int64_t find_non_finite(DType dtype, const void* values, int64_t count) {
  switch (dtype) {
    case DType::Float64:
      return find_full_exponent(values, count, int64_t{0x7ff0000000000000});
    case DType::Float32:
      return find_full_exponent(values, count, int32_t{0x7f800000});
    case DType::BFloat16:
      return find_full_exponent(values, count, int16_t{0x7f80});
    case DType::Float16:
      return find_full_exponent(values, count, int16_t{0x7c00});
    default:
      return -1;
  }
}

void check_finite(const TensorInfo& tensor, const Extent& extent, DType dtype, const void* values,
                  const std::string& where) {
  const int64_t position = find_non_finite(dtype, values, extent.elements());
  if (position < 0) return;
  double value = 0;
  const char* bytes = static_cast<const char*>(values);
  convert_elements(dtype, bytes + position * static_cast<int64_t>(element_bytes(dtype)),
                   DType::Float64, &value, 1);
  if (tensor.shape.empty() && std::isinf(value) && value * sign_of_unbounded(tensor.name) > 0)
    return;
  throw WeightsError(where + ": tensor \"" + tensor.name + "\" is " +
                     (std::isnan(value) ? "nan" : "infinite") + " at index " +
                     shape_text(index_in_tensor(extent, position)) + " (read as " +
                     dtype_name(dtype) + ")");
}

void read_converted(const TensorInfo& tensor, const Extent& extent, DType dtype, void* target,
                    const std::string& where,
                    const std::function<void(const Extent&, void*)>& read_box) {
  if (extent.empty()) return;
  if (tensor.dtype == dtype) {
    read_box(extent, target);
    check_finite(tensor, extent, dtype, target, where);
    return;
  }
  const int64_t elements = extent.elements();
  const auto from_bytes = static_cast<int64_t>(element_bytes(tensor.dtype));
  std::vector<char> raw(static_cast<size_t>(std::min(elements, kConvertedElements) * from_bytes));
  for (int64_t first = 0; first < elements; first += kConvertedElements) {
    const int64_t end = std::min(elements, first + kConvertedElements);
    char* position = raw.data();
    if (end - first == elements)
      read_box(extent, position);
    else
      for (const Extent& box : boxes_inside(extent, first, end)) {
        read_box(box, position);
        position += box.elements() * from_bytes;
      }
    convert_elements(
        tensor.dtype, raw.data(), dtype,
        static_cast<char*>(target) + first * static_cast<int64_t>(element_bytes(dtype)),
        end - first);
  }
  check_finite(tensor, extent, dtype, target, where);
}

std::string shape_text(const Shape& shape) {
  std::string text = "(";
  for (size_t d = 0; d < shape.size(); ++d) text += (d == 0 ? "" : ", ") + std::to_string(shape[d]);
  return text + ")";
}

}  // namespace zea
