// SPDX-License-Identifier: Apache-2.0
#include "h5/reader.hpp"

#include <algorithm>

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

namespace {

constexpr int kMaxGroupDepth = 32;

[[noreturn]] void refuse_link(const H5Site& site, const std::string& name) {
  throw_error(site.code, site.path + ": \"" + name +
                             "\" is a soft or external link; only data in this file is read");
}

/// Reads an element type. A named type is in another object, to which the message points (IV.A.2,
/// "shared message").
H5Type read_type(const H5Object& object) {
  constexpr const char* kType = "datatype";
  constexpr uint64_t kInAnObject = 2;
  const auto message = std::ranges::find(object.messages(), H5Tag::Datatype, &H5Message::tag);
  if (!message->is_shared)
    return parse_h5_type(cursor_of(object.file(), *object.find(H5Tag::Datatype, kType), kType));
  H5Cursor cursor = cursor_of(object.file(), *message, kType);
  const uint64_t version = cursor.number(1), kind = cursor.number(1);
  if (version < 1 || version > 3 || (version == 3 && kind != kInAnObject))
    cursor.refuse("is kept elsewhere in the file");
  if (version == 1) cursor.skip(6);
  const H5Object named(object.file(), cursor.address());
  const H5Message* kept = named.find(H5Tag::Datatype, kType);
  if (kept == nullptr) cursor.refuse("is not where it says");
  return parse_h5_type(cursor_of(object.file(), *kept, kType));
}

}  // namespace

H5Reader::H5Reader(int descriptor, int64_t file_bytes, const H5Site& site)
    : file_(descriptor, file_bytes, site), root_(read_h5_superblock(file_)) {}

const H5Object& H5Reader::object(uint64_t address) {
  if (!last_ || last_->first != address) last_.emplace(address, H5Object(file_, address));
  return last_->second;
}

H5Reader::Entry& H5Reader::entry(uint64_t address) {
  const auto known = entries_.find(address);
  if (known != entries_.end()) return known->second;
  const H5Object& found = object(address);
  Entry entry;
  entry.is_group = is_h5_group(found);
  if (entry.is_group) entry.links = read_h5_links(found);
  entry.is_dataset = !entry.is_group && found.has(H5Tag::Dataspace) && found.has(H5Tag::Datatype);
  if (entry.is_dataset) {
    const auto cursor = [&](H5Tag tag, const char* what) {
      const H5Message* message = found.find(tag, what);
      if (message == nullptr) file_.refuse("dataset", address, std::string("has no ") + what);
      return cursor_of(file_, *message, what);
    };
    entry.type = read_type(found);
    entry.space = parse_h5_space(cursor(H5Tag::Dataspace, "dataspace"));
    entry.layout = parse_h5_layout(cursor(H5Tag::Layout, "layout"));
    entry.has_external_files = found.has(H5Tag::ExternalFiles);
    if (const H5Message* filters = found.find(H5Tag::Filters, "filters"))
      entry.has_filters = filters->bytes.size() < 2 || filters->bytes[1] != 0;
  }
  return entries_.emplace(address, std::move(entry)).first->second;
}

std::optional<uint64_t> H5Reader::find(const std::string& name) {
  uint64_t address = root_;
  if (name == "/") return address;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = name.find('/', begin);
    const auto& links = entry(address).links;  // of a dataset: none
    const auto link = links.find(name.substr(begin, end - begin));
    if (link == links.end()) return std::nullopt;
    if (!link->second.is_hard) refuse_link(file_.site(), name.substr(0, end));
    address = link->second.address;
  }
  return address;
}

/// Walks the groups by their hard links, each group once.
class H5Reader::Walk {
 public:
  explicit Walk(H5Reader& reader) : reader_(reader) {}

  std::vector<std::string> datasets() {
    visit("", reader_.root_, 0);
    std::ranges::sort(found_);
    return std::move(found_);
  }

 private:
  [[noreturn]] void refuse(const std::string& name, const std::string& why) const {
    const H5Site& site = reader_.file_.site();
    throw_error(site.code, site.path + ": \"" + name + "\" " + why);
  }

  void visit(const std::string& name, uint64_t address, int depth) {
    const Entry& entry = reader_.entry(address);
    if (entry.is_dataset) found_.push_back(name);
    if (!entry.is_group) return;
    if (depth > kMaxGroupDepth) refuse(name, "lies too deep; at most 32 groups are nested");
    if (!groups_.emplace(address, true).second)
      refuse(name, "is a second link to a group (a loop?)");
    for (const auto& [link_name, link] : entry.links) {
      const std::string path = name.empty() ? link_name : name + "/" + link_name;
      if (!link.is_hard) refuse_link(reader_.file_.site(), path);
      visit(path, link.address, depth + 1);
    }
  }

  H5Reader& reader_;
  std::unordered_map<uint64_t, bool> groups_;
  std::vector<std::string> found_;
};

std::vector<std::string> H5Reader::datasets() {
  return Walk(*this).datasets();
}

H5Reader::Entry& H5Reader::dataset_entry(const std::string& name) {
  const H5Site& site = file_.site();
  const std::optional<uint64_t> address = find(name);
  if (!address) throw_error(site.code, site.path + ": has no dataset \"" + name + "\"");
  Entry& found = entry(*address);
  if (!found.is_dataset) throw_error(site.code, site.path + ": \"" + name + "\" is no dataset");
  using Kind = H5Layout::Kind;
  if (found.layout.kind == Kind::Virtual)
    refuse_h5_dataset(site, name, "is virtual: its data lies in other files");
  if (found.layout.kind == Kind::Compact)
    refuse_h5_dataset(site, name, "is neither contiguous nor chunked");
  if (found.has_external_files) refuse_h5_dataset(site, name, "keeps its data in external files");
  if (found.has_filters)
    refuse_h5_dataset(site, name, "has filters (compression, checksum); rewrite it without");
  return found;
}

bool H5Reader::holds_text(const std::string& name) {
  return dataset_entry(name).type.is_text();
}

const H5Stored& H5Reader::dataset(const std::string& name) {
  Entry& found = dataset_entry(name);
  if (!found.stored)
    found.stored = std::make_unique<H5Stored>(
        place_h5_dataset(file_, {found.type, found.space, found.layout}, name));
  return *found.stored;
}

std::optional<H5Attribute> H5Reader::attribute(const std::string& object_name,
                                               const std::string& name) {
  const std::optional<uint64_t> address = find(object_name);
  if (!address)
    throw_error(file_.site().code, file_.site().path + ": attribute \"" + name + "\" of \"" +
                                       object_name + "\" cannot be read: no such object");
  return find_h5_attribute(object(*address), name);
}

}  // namespace zea
