// SPDX-License-Identifier: Apache-2.0
// Requests to a weights source: finds the tensor or its nearest names, compares shapes, converts
// element types in bounded memory, and refuses values that are not finite.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/extent.hpp"
#include "zea/weights.hpp"

namespace zea {

/// The tensor called `name` of a list in name order. Throws WeightsError with the nearest names.
const TensorInfo& find_tensor(const std::vector<TensorInfo>& tensors, const std::string& name,
                              const std::string& where);

/// Throws WeightsError unless `shape` is the tensor's and `extent` lies in it, and `dtype` can be
/// had.
void check_request(const TensorInfo& tensor, const Shape& shape, const Extent& extent, DType dtype,
                   const std::string& where);

/// Position of the first element that is not finite, or -1.
int64_t find_non_finite(DType dtype, const void* values, int64_t count);

/// Throws WeightsError when one of the packed values of `extent` is not finite, naming its index in
/// the tensor. Infinite clipping bounds of linears (sign_of_unbounded()) are allowed.
void check_finite(const TensorInfo& tensor, const Extent& extent, DType dtype, const void* values,
                  const std::string& where);

/// Fills packed `target` with box `extent` as `dtype`, given a function that reads boxes in the
/// tensor's own dtype.
void read_converted(const TensorInfo& tensor, const Extent& extent, DType dtype, void* target,
                    const std::string& where,
                    const std::function<void(const Extent&, void*)>& read_box);

}  // namespace zea
