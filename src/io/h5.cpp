// SPDX-License-Identifier: Apache-2.0
// Opening, closing, and what a file contains. Reading is in h5_read.cpp, writing in h5_write.cpp.
#include "zea/io/h5.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include <sys/stat.h>
#include <unistd.h>

#include "h5_state.hpp"
#include "zea/io/durable_file.hpp"

namespace zea {
namespace {

constexpr int kMaxGroupDepth = 32;
constexpr size_t kMaxOpenDatasets = 1024;

/// Checksummed metadata, the plain POSIX driver, and no file locks: many clusters have them off,
/// zea relies on none.
H5Handle file_access(const H5Site& site) {
  H5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, site, "H5Pcreate failed");
  const std::string what = "cannot set the file's access properties";
  check_h5(H5Pset_libver_bounds(*access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST), site, what);
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

struct Link {
  std::string name;
  bool hard;
};

herr_t collect_link(hid_t, const char* name, const H5L_info_t* info, void* links) {
  static_cast<std::vector<Link>*>(links)->push_back({name, info->type == H5L_TYPE_HARD});
  return 0;
}

/// Walks the groups of a file by its hard links, each group once.
class Walk {
 public:
  explicit Walk(const H5File::State& state) : state_(state) {}

  std::vector<std::string> datasets() {
    descend("/", "", 0);
    std::sort(found_.begin(), found_.end());
    return std::move(found_);
  }

 private:
  [[noreturn]] void refuse(const std::string& name, const std::string& why) const {
    throw_error(state_.site.code, state_.site.path + ": \"" + name + "\" " + why);
  }

  std::vector<Link> links_of(const std::string& group_path) const {
    const H5Handle group(H5Gopen2(*state_.file, group_path.c_str(), H5P_DEFAULT), H5Gclose,
                         state_.site, "cannot open group \"" + group_path + "\"");
    std::vector<Link> links;
    check_h5(H5Literate(*group, H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_link, &links),
             state_.site, "cannot list group \"" + group_path + "\"");
    return links;
  }

  void descend(const std::string& group_path, const std::string& prefix, int depth) {
    if (depth > kMaxGroupDepth) refuse(group_path, "lies too deep; at most 32 groups are nested");
    for (const Link& link : links_of(group_path)) {
      const std::string name = prefix + link.name;
      if (!link.hard) refuse(name, "is a soft or external link; only data in this file is read");
      visit(name, depth);
    }
  }

  void visit(const std::string& name, int depth) {
    H5O_info_t info;
    // No more than asked for: the rest is read from heaps that may be damaged (h5_layout.hpp).
    check_h5(H5Oget_info_by_name2(*state_.file, name.c_str(), &info, H5O_INFO_BASIC, H5P_DEFAULT),
             state_.site, "cannot read object \"" + name + "\"");
    if (info.type == H5O_TYPE_DATASET) found_.push_back(name);
    if (info.type != H5O_TYPE_GROUP) return;
    if (!groups_.insert(info.addr).second) refuse(name, "is a second link to a group (a loop?)");
    descend(name, name + "/", depth + 1);
  }

  const H5File::State& state_;
  std::set<haddr_t> groups_;
  std::vector<std::string> found_;
};

bool holds_text(hid_t dataset, const H5Site& site, const std::string& name) {
  const H5Handle type(H5Dget_type(dataset), H5Tclose, site, "cannot read type of " + name);
  return H5Tget_class(*type) == H5T_STRING;
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
  const H5Lock lock;
  auto state = std::make_unique<State>();
  state->site = {path, code};
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    throw_error(code, path + ": cannot open: " + std::strerror(errno));
  if (!S_ISREG(status.st_mode)) throw_error(code, path + ": not a regular file");
  state->file_bytes = status.st_size;
  state->file = H5Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, *file_access(state->site)), H5Fclose,
                         state->site, "cannot open as HDF5: not HDF5, damaged, or cut short");
  state->descriptor = descriptor_of(*state->file, state->site);
  return H5File(std::move(state));
}

H5File H5File::create(const std::string& path) {
  const H5Lock lock;
  auto state = std::make_unique<State>();
  state->site = {path, ExitCode::Storage};
  state->file_bytes = INT64_MAX;  // it grows: its size says nothing about what it may hold
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

bool H5File::State::has_hard_link(const std::string& name) const {
  for (size_t end = 0; end != std::string::npos;) {
    end = name.find('/', end + 1);
    const std::string prefix = name.substr(0, end);
    const htri_t exists = H5Lexists(*file, prefix.c_str(), H5P_DEFAULT);
    if (check_h5(exists, site, "cannot look up \"" + prefix + "\"") == 0) return false;
    H5L_info_t info;
    check_h5(H5Lget_info(*file, prefix.c_str(), &info, H5P_DEFAULT), site,
             "cannot look up \"" + prefix + "\"");
    if (info.type != H5L_TYPE_HARD)
      throw_error(site.code, site.path + ": \"" + prefix +
                                 "\" is a soft or external link; only data in this file is read");
  }
  return true;
}

void H5File::State::close_datasets() {
  for (auto& [name, dataset] : open_datasets)
    dataset.handle.close(site, "cannot close dataset \"" + name + "\"");
  open_datasets.clear();
}

H5Dataset& H5File::State::keep(const std::string& name, H5Dataset dataset) {
  if (open_datasets.size() >= kMaxOpenDatasets) close_datasets();
  return open_datasets.insert_or_assign(name, std::move(dataset)).first->second;
}

bool H5File::has(const std::string& name) const {
  const H5Lock lock;
  return state_->has_hard_link(name);
}

std::vector<H5DatasetInfo> H5File::datasets() const {
  const H5Lock lock;
  std::vector<H5DatasetInfo> found;
  for (const std::string& name : Walk(*state_).datasets()) {
    const H5Handle dataset = open_h5_dataset(*state_, name);
    if (!holds_text(*dataset, state_->site, name)) found.push_back(info(name));
  }
  return found;
}

H5DatasetInfo H5File::info(const std::string& name) const {
  const H5Lock lock;
  return state_->dataset(name).info;
}

void H5File::close_and_sync() {
  const H5Site site = state_->site;
  {
    const H5Lock lock;
    state_->close_datasets();
    check_h5(H5Fflush(*state_->file, H5F_SCOPE_LOCAL), site, "cannot flush");
    state_->file.close(site, "cannot close");
    state_->close_direct();
  }
  sync_file(site.path);  // without the lock: it may take long, and others want HDF5
}

}  // namespace zea
