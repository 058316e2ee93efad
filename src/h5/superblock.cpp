// SPDX-License-Identifier: Apache-2.0
#include "h5/superblock.hpp"

namespace zea {
namespace {

constexpr const char* kSuperblock = "superblock";
constexpr std::string_view kH5Signature = "\x89HDF\r\n\x1a\n";

[[noreturn]] void refuse_file(const H5Bytes& file, const std::string& why) {
  throw_error(file.site().code, file.site().path + ": cannot open as HDF5: " + why);
}

/// At the beginning, or behind something else at 512, 1024, 2048 ...
uint64_t find_superblock(const H5Bytes& file) {
  const uint64_t bytes = kH5Signature.size();
  for (uint64_t place = 0; place + bytes < file.file_bytes(); place = place == 0 ? 512 : 2 * place)
    if (file.at(place, bytes, kSuperblock) == kH5Signature) return place;
  refuse_file(file, "not HDF5, damaged, or cut short");
}

void check_end(const H5Bytes& file, uint64_t end) {
  if (end > file.file_bytes())
    refuse_file(file, "cut short: it has " + std::to_string(file.file_bytes()) + " bytes of " +
                          std::to_string(end));
}

uint64_t read_old(const H5Bytes& file, uint64_t version, uint64_t place) {
  constexpr uint64_t kBytes = 80;
  const std::string bytes = file.at(place, kBytes + (version == 1 ? 4 : 0), kSuperblock);
  H5Cursor cursor(file, kSuperblock, place, bytes);
  cursor.skip(kH5Signature.size() + 1);
  cursor.expect_version(0);  // of the list of free space
  cursor.expect_version(0);  // of the root group
  cursor.skip(1);
  cursor.expect_version(0);  // of shared messages
  cursor.expect(8, 1, "addresses of bytes");
  cursor.expect(8, 1, "lengths of bytes");
  cursor.skip(version == 1 ? 13 : 9);  // sizes of trees, flags
  cursor.expect(place, 8, "base address");
  cursor.skip(8);  // free space
  check_end(file, cursor.address());
  cursor.expect(kH5Undefined, 8, "driver at");
  cursor.skip(8);  // the root's name
  return cursor.address();
}

uint64_t read_new(const H5Bytes& file, uint64_t place) {
  constexpr uint64_t kBytes = 48;
  const std::string bytes = file.checked(place, kBytes, kSuperblock);
  H5Cursor cursor(file, kSuperblock, place, bytes);
  cursor.skip(kH5Signature.size() + 1);
  cursor.expect(8, 1, "addresses of bytes");
  cursor.expect(8, 1, "lengths of bytes");
  if (cursor.number(1) != 0) cursor.refuse("says that its writer never closed the file");
  cursor.expect(place, 8, "base address");
  cursor.skip(8);  // more of it, which readers need not know
  check_end(file, cursor.address());
  return cursor.address();
}

}  // namespace

uint64_t read_h5_superblock(H5Bytes& file) {
  const uint64_t place = find_superblock(file);
  const std::string version = file.at(place + kH5Signature.size(), 1, kSuperblock);
  const auto number = static_cast<uint8_t>(version[0]);
  if (number > 3) file.refuse(kSuperblock, place, "has version " + std::to_string(number));
  const uint64_t root = number < 2 ? read_old(file, number, place) : read_new(file, place);
  file.set_base(place);
  return root;
}

}  // namespace zea
