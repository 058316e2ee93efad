// SPDX-License-Identifier: Apache-2.0
#include "h5/reader.hpp"

#include <algorithm>

#include "h5/superblock.hpp"

namespace zea {
namespace {

constexpr int kMaxGroupDepth = 32;

[[noreturn]] void refuse_link(const H5Site& site, const std::string& name) {
  throw_error(site.code, site.path + ": \"" + name +
                             "\" is a soft or external link; only data in this file is read");
}

/// Of a type with a name of its own, which is in another object, a message says where (IV.A.2,
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
