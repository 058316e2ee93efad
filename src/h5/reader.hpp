// SPDX-License-Identifier: Apache-2.0
// The objects of an HDF5 file that was opened for reading, found by path and parsed once each. The
// HDF5 library, which trusts the addresses in a file, is not used.
#pragma once

#include <memory>
#include <unordered_map>

#include "h5/bytes.hpp"
#include "h5/object.hpp"

namespace zea {

class H5Reader {
 public:
  /// Reads the superblock. `descriptor` must outlive it.
  H5Reader(int descriptor, int64_t file_bytes, const H5Site& site);

  /// False when there is none. Throws when a component of the path is a soft or external link.
  bool has(const std::string& name) { return find(name).has_value(); }
  /// All datasets by hard links, in name order.
  std::vector<std::string> datasets();
  /// Refuses one whose data is elsewhere, filtered, or not what it says.
  const H5Stored& dataset(const std::string& name);
  bool holds_text(const std::string& name);
  /// Returns an attribute of dataset or group `object`; "/" is the root group.
  std::optional<H5Attribute> attribute(const std::string& object, const std::string& name);

 private:
  struct Entry {
    bool is_group = false, is_dataset = false;
    std::map<std::string, H5Link> links;
    H5Type type;
    H5Space space;
    H5Layout layout;
    bool has_filters = false, has_external_files = false;
    std::unique_ptr<H5Stored> stored;
  };
  class Walk;

  const H5Object& object(uint64_t address);
  Entry& entry(uint64_t address);
  std::optional<uint64_t> find(const std::string& name);
  Entry& dataset_entry(const std::string& name);

  H5Bytes file_;
  uint64_t root_;
  std::optional<std::pair<uint64_t, H5Object>> last_;  ///< often asked again
  std::unordered_map<uint64_t, Entry> entries_;
};

// Where an HDF5 file begins: its superblock, of all versions (II.A).

/// The address of the root group's object. Sets the file's base. Throws where the file is none of
/// HDF5's, was cut short, or never closed.
uint64_t read_h5_superblock(H5Bytes& file);

}  // namespace zea
