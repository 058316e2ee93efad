// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/frozen_origin.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "checkpoint/held_boxes.hpp"
#include "core/dtype.hpp"
#include "core/error.hpp"
#include "zea/copy.hpp"

namespace zea::detail {
namespace {

/// In its type in files.
std::vector<char> read_again(const WeightsSource& source, const OwnPiece& piece, int64_t first,
                             int64_t count) {
  const Piece asked{piece.param->name, kStateParameter, piece.extent, piece.dtype, "", "", {}};
  std::vector<char> values(static_cast<size_t>(count) * element_bytes(piece.dtype));
  read_part(source, nullptr, asked, first, count, values.data());
  return values;
}

}  // namespace

bool keeps_values(DType from, DType to) {
  return from == to || element_bytes(from) < element_bytes(to);
}

FrozenOrigin::FrozenOrigin(const Plan& plan, const WeightsSource& source)
    : source_(source), master_(plan.precision.master) {}

DType FrozenOrigin::type_of(const std::string& param, DType held) const {
  const std::vector<TensorInfo>& tensors = source_.tensors();
  const auto given = std::ranges::lower_bound(tensors, param, {}, &TensorInfo::name);
  if (given == tensors.end() || given->name != param) return held;
  return element_bytes(given->dtype) > element_bytes(master_) ? master_ : given->dtype;
}

/// What is read must be what was read before: others may have written to the file since.
bool FrozenOrigin::restore(const OwnPiece& piece, int64_t first, int64_t count, const char* held,
                           char* target) const {
  const DType held_type = dtype_of(piece.values);
  convert_elements(held_type, held, piece.dtype, target, count);
  if (keeps_values(piece.dtype, held_type)) return true;
  try {
    const std::vector<char> given = read_again(source_, piece, first, count);
    std::vector<char> again(static_cast<size_t>(count) * element_bytes(held_type));
    convert_elements(piece.dtype, given.data(), held_type, again.data(), count);
    if (std::memcmp(again.data(), held, again.size()) != 0) return false;
    std::memcpy(target, given.data(), given.size());
    return true;
  } catch (const WeightsError&) {
    return false;
  }
}

}  // namespace zea::detail
