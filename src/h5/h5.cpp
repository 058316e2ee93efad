// SPDX-License-Identifier: Apache-2.0
// Opening, closing, and what a file contains. Elements are read in h5_read.cpp, written in
// h5_write.cpp.
#include "h5/h5.hpp"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/durable_file.hpp"
#include "h5/state.hpp"

namespace zea {
namespace {

constexpr size_t kMaxOpenDatasets = 1024;

/// Checksummed metadata, the plain POSIX driver, and no file locks: many clusters have them off,
/// zea relies on none.
H5Handle file_access(const H5Site& site) {
  H5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, site, "H5Pcreate failed");
  const std::string what = "cannot set the file's access properties";
  // Later versions of the format are none that zea reads.
  check_h5(H5Pset_libver_bounds(*access, H5F_LIBVER_V110, H5F_LIBVER_V110), site, what);
  check_h5(H5Pset_fapl_sec2(*access), site, what);
  check_h5(H5Pset_file_locking(*access, false, true), site, what);
  check_h5(H5Pset_fclose_degree(*access, H5F_CLOSE_SEMI), site, what);
  return access;
}

int descriptor_of(hid_t file, const H5Site& site) {
  void* descriptor = nullptr;
  check_h5(H5Fget_vfd_handle(file, H5P_DEFAULT, &descriptor), site, "H5Fget_vfd_handle failed");
  return *static_cast<int*>(descriptor);
}

}  // namespace

H5File::H5File(std::unique_ptr<State> state) : state_(std::move(state)) {}
H5File::H5File(H5File&&) noexcept = default;
H5File& H5File::operator=(H5File&&) noexcept = default;
H5File::~H5File() = default;

const std::string& H5File::path() const {
  return state_->site.path;
}

H5File H5File::open(const std::string& path, ExitCode code) {
  auto state = std::make_unique<State>();
  state->site = {path, code};
  struct stat status {};
  const bool is_there = ::stat(path.c_str(), &status) == 0;
  // Opening something else than a regular file might wait forever.
  if (is_there && !S_ISREG(status.st_mode)) throw_error(code, path + ": not a regular file");
  if (is_there) state->descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (state->descriptor < 0 || ::fstat(state->descriptor, &status) != 0)
    throw_error(code, path + ": cannot open: " + std::strerror(errno));
  state->reader = std::make_unique<H5Reader>(state->descriptor, status.st_size, state->site);
  return H5File(std::move(state));
}

H5File H5File::create(const std::string& path) {
  const H5Lock lock;
  auto state = std::make_unique<State>();
  state->site = {path, ExitCode::Storage};
  const H5Handle access = file_access(state->site);
  // Large datasets start at pages, so that their elements can be written without buffering.
  check_h5(H5Pset_alignment(*access, 1 << 16, 4096), state->site, "H5Pset_alignment failed");
  const H5Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose, state->site, "H5Pcreate failed");
  check_h5(H5Pset_obj_track_times(*creation, false), state->site, "H5Pset_obj_track_times failed");
  state->file = H5Handle(H5Fcreate(path.c_str(), H5F_ACC_EXCL, *creation, *access), H5Fclose,
                         state->site, "cannot create");
  state->descriptor = descriptor_of(*state->file, state->site);
  return H5File(std::move(state));
}

// Who has a file has set the library up, after which no lock throws.
H5File::State::~State() {  // NOLINT(bugprone-exception-escape)
  if (file) {
    const H5Lock lock;
    made.clear();  // a file with open objects in it stays open
    file = H5Handle();
    descriptor = -1;
  }
  if (descriptor >= 0) ::close(descriptor);
  close_direct();
}

H5Made& H5File::State::find_made(const std::string& name) {
  const auto found = made.find(name);
  if (found == made.end()) throw_error(site.code, site.path + ": has no dataset \"" + name + "\"");
  return found->second;
}

void H5File::State::close_datasets() {
  for (auto& [name, dataset] : made)
    if (dataset.handle) dataset.handle.close(site, "cannot close dataset \"" + name + "\"");
  open_handles = 0;
}

H5Made& H5File::State::keep(H5Made dataset) {
  if (open_handles >= kMaxOpenDatasets) close_datasets();
  ++open_handles;
  return made.insert_or_assign(dataset.info.name, std::move(dataset)).first->second;
}

bool H5File::has(const std::string& name) const {
  const H5Lock lock;
  return state_->reader ? state_->reader->has(name) : state_->made.contains(name);
}

std::vector<H5DatasetInfo> H5File::datasets() const {
  const H5Lock lock;
  ZEA_ASSERT(state_->reader);
  std::vector<H5DatasetInfo> found;
  for (const std::string& name : state_->reader->datasets())
    if (!state_->reader->holds_text(name)) found.push_back(info(name));
  return found;
}

H5DatasetInfo H5File::info(const std::string& name) const {
  const H5Lock lock;
  if (!state_->reader) return state_->find_made(name).info;
  return h5_info(state_->reader->dataset(name), state_->site, name);
}

void H5File::close_and_sync() {
  const H5Site site = state_->site;
  {
    const H5Lock lock;
    state_->close_datasets();
    check_h5(H5Fflush(*state_->file, H5F_SCOPE_LOCAL), site, "cannot flush");
    state_->descriptor = -1;
    state_->file.close(site, "cannot close");
    state_->close_direct();
  }
  sync_file(site.path);  // without the lock: it may take long, and others want HDF5
}

}  // namespace zea
