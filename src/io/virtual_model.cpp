// SPDX-License-Identifier: Apache-2.0
// HDF5 virtual datasets over the shards: a view for people. A shard that is missing shows as NaN,
// not as zeros.
#include <limits>
#include <map>

#include "files/durable_file.hpp"
#include "h5/call.hpp"
#include "io/checkpoint_source.hpp"
#include "io/file_rest.hpp"

namespace zea {
namespace {

using Pieces = std::map<std::string, std::vector<const Piece*>>;

/// In the names of virtual sources '%' starts a pattern.
std::string escaped(const std::string& name) {
  std::string text;
  for (const char letter : name) text += letter == '%' ? "%%" : std::string(1, letter);
  return text;
}

void fill_with_nan(hid_t creation, DType dtype, hid_t type, const H5Site& site) {
  if (!is_floating(dtype)) return;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  char value[sizeof(double)] = {};
  convert_elements(DType::Float64, &nan, dtype, value, 1);
  check_h5(H5Pset_fill_value(creation, type, value), site, "H5Pset_fill_value failed");
}

void write_tensor(hid_t file, const ManifestTensor& tensor, const std::vector<const Piece*>& pieces,
                  const H5Site& site) {
  const std::string what = "cannot make virtual dataset \"" + tensor.name + "\"";
  const H5Handle type = make_h5_type(tensor.dtype, site);
  const H5Handle space = make_h5_space(tensor.shape, site);
  const H5Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, site, "H5Pcreate failed");
  fill_with_nan(*creation, tensor.dtype, *type, site);
  for (const Piece* piece : pieces) {
    if (piece->extent.empty()) continue;
    const H5Handle target = make_h5_space(tensor.shape, site);
    select_extent(*target, piece->extent, site);
    const H5Handle source = make_h5_space(piece->extent.length, site);
    check_h5(H5Pset_virtual(*creation, *target, escaped(piece->file).c_str(),
                            escaped(piece->dataset).c_str(), *source),
             site, what);
  }
  const hid_t id =
      H5Dcreate2(file, tensor.name.c_str(), *type, *space, H5P_DEFAULT, *creation, H5P_DEFAULT);
  H5Handle dataset(id, H5Dclose, site, what);
  dataset.close(site, what);
}

void write_virtual_model(const std::string& path, const Manifest& manifest) {
  const H5Lock lock;
  const H5Site site{path + ".tmp", ExitCode::Storage};
  Pieces pieces;
  for (const Piece& piece : manifest.pieces)
    if (piece.state == kStateParameter) pieces[piece.tensor].push_back(&piece);
  const H5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, site, "H5Pcreate failed");
  check_h5(H5Pset_libver_bounds(*access, H5F_LIBVER_V110, H5F_LIBVER_V110), site,
           "H5Pset_libver_bounds failed");
  check_h5(H5Pset_file_locking(*access, false, true), site, "H5Pset_file_locking failed");
  H5Handle file(H5Fcreate(site.path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, *access), H5Fclose, site,
                "cannot create");
  // A virtual dataset has dims: a scalar tensor has none and is left to the shards.
  for (const ManifestTensor& tensor : manifest.tensors)
    if (!tensor.shape.empty()) write_tensor(*file, tensor, pieces[tensor.name], site);
  check_h5(H5Fflush(*file, H5F_SCOPE_LOCAL), site, "cannot flush");
  file.close(site, "cannot close");
  sync_file(site.path);
  rename_durably(site.path, path);
}

}  // namespace

void complete_checkpoint(const std::string& directory, Manifest manifest) {
  check_coverage(manifest);
  const std::string view = directory + "/" + kViewFile;
  write_virtual_model(view, manifest);
  manifest.view_hash = hash_rest(view, {}, ExitCode::Storage);
  write_text_durably(directory + "/" + kManifestFile, manifest_text(manifest));
}

}  // namespace zea
