// SPDX-License-Identifier: Apache-2.0
#include "h5/state.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "files/durable_file.hpp"

namespace zea {
namespace {

std::recursive_mutex& library_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

/// Process-wide settings of the library: a file may not make it open other files or load code.
bool secure_library() {
  // HDF5's own clean-up at exit crashes after a close that failed (a full disk): the exit code
  // would be lost. Where the library is in use already this cannot be switched off any more, which
  // harms nothing else.
  H5dont_atexit();
  const bool ok = H5open() >= 0 && H5PLset_loading_state(0) >= 0;
  if (ok && H5Lis_registered(H5L_TYPE_EXTERNAL) > 0) return H5Lunregister(H5L_TYPE_EXTERNAL) >= 0;
  return ok;
}

/// HDF5 puts line ends into some reasons; a message of ours is one line.
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

herr_t collect_reason(unsigned, const H5E_error2_t* error, void* reasons) {
  if (error->desc != nullptr && *error->desc != '\0')
    static_cast<std::vector<std::string>*>(reasons)->push_back(one_line(error->desc));
  return 0;
}

/// The innermost reason first, which is the cause; then what the outermost call says of itself.
std::string take_reasons() {
  std::vector<std::string> reasons;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect_reason, &reasons);
  H5Eclear2(H5E_DEFAULT);
  if (reasons.empty()) return "HDF5 gives no reason";
  if (reasons.size() == 1 || reasons.back() == reasons.front()) return reasons.front();
  return reasons.front() + "; " + reasons.back();
}

/// The errno of a failed system call; 0: the failure was none. HDF5 has it in its text alone.
int errno_in(const std::string& reasons) {
  constexpr std::string_view kName = "errno = ";
  const size_t begin = reasons.find(kName);
  return begin == std::string::npos ? 0 : std::atoi(reasons.c_str() + begin + kName.size());
}

/// Sign, exponent and mantissa of a floating type.
struct FloatFields {
  size_t sign, exponent, exponent_bits, mantissa, mantissa_bits, bias;
};

constexpr FloatFields kHalf{15, 10, 5, 0, 10, 15};
constexpr FloatFields kBFloat16{15, 7, 8, 0, 7, 127};

/// A 16-bit IEEE-like type is made of the 32-bit one. HDF5 checks after every step that all fields
/// fit.
H5Handle make_16_bit_float(const FloatFields& fields, const H5Site& site) {
  const std::string what = "cannot make a 16-bit floating type";
  H5Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose, site, what);
  check_h5(H5Tset_fields(*type, fields.sign, fields.exponent, fields.exponent_bits, fields.mantissa,
                         fields.mantissa_bits),
           site, what);
  check_h5(H5Tset_precision(*type, 16), site, what);
  check_h5(H5Tset_size(*type, 2), site, what);
  check_h5(H5Tset_ebias(*type, fields.bias), site, what);
  return type;
}

}  // namespace

H5Lock::H5Lock() : lock_(library_mutex()) {
  static const bool secured = secure_library();
  thread_local const bool quiet = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
  if (!secured || !quiet) throw InternalError("HDF5 cannot be set up: " + take_reasons());
}

void throw_h5(const H5Site& site, const std::string& what, int64_t needed_bytes) {
  std::string reasons = take_reasons();
  const int error_number = site.code == ExitCode::Storage ? errno_in(reasons) : 0;
  // HDF5's own text has addresses, and sizes of -1.
  if (error_number != 0) reasons = describe_storage_error(error_number, site.path, needed_bytes);
  throw_error(site.code, site.path + ": " + what + " (" + reasons + ")");
}

H5Handle make_h5_type(DType dtype, const H5Site& site) {
  auto copy = [&](hid_t type) { return H5Handle(H5Tcopy(type), H5Tclose, site, "H5Tcopy failed"); };
  switch (dtype) {
    case DType::Float64:
      return copy(H5T_IEEE_F64LE);
    case DType::Float32:
      return copy(H5T_IEEE_F32LE);
    case DType::BFloat16:
      return make_16_bit_float(kBFloat16, site);
    case DType::Float16:
      return make_16_bit_float(kHalf, site);
    case DType::Int64:
      return copy(H5T_STD_I64LE);
    case DType::Int32:
      return copy(H5T_STD_I32LE);
    case DType::UInt8:
      return copy(H5T_STD_U8LE);
  }
  throw InternalError("unknown dtype");
}

H5Handle make_h5_space(const Shape& shape, const H5Site& site) {
  if (shape.empty()) return {H5Screate(H5S_SCALAR), H5Sclose, site, "H5Screate failed"};
  const std::vector<hsize_t> dims(shape.begin(), shape.end());
  return {H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose, site,
          "H5Screate_simple failed"};
}

void select_extent(hid_t space, const Extent& extent, const H5Site& site) {
  if (extent.offset.empty()) return;
  if (extent.empty()) {
    check_h5(H5Sselect_none(space), site, "H5Sselect_none failed");
    return;
  }
  const std::vector<hsize_t> start(extent.offset.begin(), extent.offset.end());
  const std::vector<hsize_t> count(extent.length.begin(), extent.length.end());
  check_h5(H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr),
           site, "H5Sselect_hyperslab failed");
}

}  // namespace zea
