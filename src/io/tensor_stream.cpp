// SPDX-License-Identifier: Apache-2.0
#include "zea/io/tensor_stream.hpp"

#include <algorithm>

namespace zea {

int64_t total_bytes(const std::vector<TensorInfo>& tensors) {
  int64_t bytes = 0;
  for (const TensorInfo& tensor : tensors)
    bytes += num_elements(tensor.shape) * static_cast<int64_t>(element_bytes(tensor.dtype));
  return bytes;
}

void stream_tensor(const WeightsSource& source, const TensorInfo& tensor, DType dtype,
                   std::vector<char>& buffer, const TakeElements& take) {
  const auto size = static_cast<int64_t>(element_bytes(dtype));
  const int64_t elements = num_elements(tensor.shape);
  const int64_t most = std::max<int64_t>(1, static_cast<int64_t>(buffer.size()) / size);
  buffer.resize(std::max(buffer.size(), static_cast<size_t>(size)));
  for (int64_t first = 0; first < elements; first += most) {
    const int64_t end = std::min(elements, first + most);
    char* position = buffer.data();
    for (const Extent& box : boxes_of_range(tensor.shape, first, end)) {
      source.read(tensor.name, tensor.shape, box, dtype, position);
      position += box.elements() * size;
    }
    take(first, end - first, buffer.data());
  }
}

}  // namespace zea
