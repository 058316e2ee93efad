// SPDX-License-Identifier: Apache-2.0
#include "h5/object.hpp"

#include <algorithm>
#include <functional>

#include "h5/structures.hpp"

namespace zea {
namespace {

constexpr const char* kObjectHeader = "object header";
constexpr const char* kObjectSignature = "OHDR";
constexpr uint64_t kOldPrefix = 16, kOldMessage = 8;
constexpr uint64_t kLastTag = 0x18;
constexpr uint64_t kSharedMessage = 0x02, kMustBeKnown = 0x80;  ///< flags of a message

}  // namespace

H5Object::H5Object(const H5Bytes& file, uint64_t address) : file_(file) {
  is_new_ = file.at(address, 4, kObjectHeader) == kObjectSignature;
  if (is_new_) {
    read_new(address);
  } else {
    read_old(address);
  }
  while (!next_.empty()) {
    const Chunk chunk = next_.back();
    next_.pop_back();
    parts_.add(file, kObjectHeader, chunk.begin, chunk.bytes);
    if (is_new_) {
      const std::string bytes = file.checked(chunk.begin, chunk.bytes, kObjectHeader);
      H5Cursor cursor(file, kObjectHeader, chunk.begin, bytes);
      cursor.expect("OCHK");
      add_messages(chunk.begin + 4, cursor.take(cursor.left()));
    } else {
      add_messages(chunk.begin, file.at(chunk.begin, chunk.bytes, kObjectHeader));
    }
  }
}

void H5Object::read_old(uint64_t address) {
  const std::string prefix = file_.at(address, kOldPrefix, kObjectHeader);
  H5Cursor cursor(file_, kObjectHeader, address, prefix);
  cursor.expect_version(1);
  cursor.skip(7);  // reserved, number of messages, number of links to it
  const uint64_t bytes = cursor.number(4);
  if (bytes > 0) next_.push_back({address + kOldPrefix, bytes});
}

void H5Object::read_new(uint64_t address) {
  constexpr uint64_t kFlags = 6;
  const std::string begin = file_.at(address, kFlags, kObjectHeader);
  H5Cursor cursor(file_, kObjectHeader, address, begin);
  cursor.expect(kObjectSignature);
  cursor.expect_version(2);
  const uint64_t flags = cursor.number(1);
  has_order_ = (flags & 0x04) != 0;
  const uint64_t width = uint64_t{1} << (flags & 3);
  const uint64_t place = kFlags + ((flags & 0x20) != 0 ? 16 : 0) + ((flags & 0x10) != 0 ? 4 : 0);
  const std::string size = file_.at(address + place, width, kObjectHeader);
  const uint64_t bytes = H5Cursor(file_, kObjectHeader, address, size).number(width);
  file_.position(address + place + width, bytes, kObjectHeader);
  const uint64_t prefix = place + width;
  parts_.add(file_, kObjectHeader, address, prefix + bytes + kH5Sum);
  const std::string chunk = file_.checked(address, prefix + bytes + kH5Sum, kObjectHeader);
  add_messages(address + prefix, std::string_view(chunk).substr(prefix));
}

/// Adds the messages in `bytes`; a rest that is too short for a message is a gap.
void H5Object::add_messages(uint64_t address, std::string_view bytes) {
  const uint64_t head = is_new_ ? (has_order_ ? 6 : 4) : kOldMessage;
  H5Cursor cursor(file_, kObjectHeader, address, bytes);
  while (cursor.left() >= head) {
    const uint64_t place = address + bytes.size() - cursor.left();
    const uint64_t tag = cursor.number(is_new_ ? 1 : 2), size = cursor.number(2);
    const uint64_t flags = cursor.number(1);
    cursor.skip(head - (is_new_ ? 4 : 5));
    const std::string_view body = cursor.take(size);
    if (tag > kLastTag && (flags & kMustBeKnown) != 0)
      cursor.refuse("has message " + std::to_string(tag) + ", which is in no specification");
    const H5Message message{H5Tag{tag}, (flags & kSharedMessage) != 0, place, std::string(body)};
    if (message.tag == H5Tag::Continuation) add_continuation(message);
    if (message.tag != H5Tag::Null) messages_.push_back(message);
  }
}

void H5Object::add_continuation(const H5Message& message) {
  H5Cursor cursor = cursor_of(file_, message, "continuation of an object header");
  const uint64_t begin = cursor.address(), bytes = cursor.number(8);
  if (is_new_ && bytes < 4 + kH5Sum) cursor.refuse("is too short");
  next_.push_back({begin, bytes});
}

bool H5Object::has(H5Tag tag) const {
  return std::ranges::any_of(messages_, [&](const H5Message& m) { return m.tag == tag; });
}

const H5Message* H5Object::find(H5Tag tag, const char* what) const {
  const H5Message* found = nullptr;
  for (const H5Message& message : messages_) {
    if (message.tag != tag) continue;
    if (found != nullptr) file_.refuse(what, message.address, "is there twice");
    if (message.is_shared) file_.refuse(what, message.address, "is kept elsewhere in the file");
    found = &message;
  }
  return found;
}

H5Cursor cursor_of(const H5Bytes& file, const H5Message& message, const char* what) {
  return {file, what, message.address, message.bytes};
}

namespace {

constexpr const char* kLinkMessage = "link";
constexpr const char* kAttributeMessage = "attribute";
constexpr const char* kSymbols = "table of symbols";

using Links = std::map<std::string, H5Link>;

void add_link(const H5Bytes& file, uint64_t address, H5Link link, Links& links) {
  const std::string name = link.name;
  if (name == "." || name.find('/') != std::string::npos ||
      !links.emplace(name, std::move(link)).second)
    file.refuse(kLinkMessage, address, "has the name of another, or of none");
}

/// Calls `take` with every object of a heap that tree `type` lists, with ids at `place` of records.
void for_each_dense(const H5Bytes& file, uint64_t heap_address, uint64_t tree, H5BTree2 type,
                    size_t place, const std::function<void(const std::string&)>& take) {
  H5FractalHeap heap(file, heap_address);
  for (const std::string& record : read_h5_records(file, tree, type, place + heap.id_bytes()))
    take(heap.object(std::string_view(record).substr(place, heap.id_bytes())));
}

/// The heap and the tree by name of a message that tells where links or attributes are; of none.
std::optional<std::pair<uint64_t, uint64_t>> dense_place(const H5Object& object, H5Tag tag,
                                                         const char* what, size_t order_bytes) {
  const H5Message* message = object.find(tag, what);
  if (message == nullptr) return std::nullopt;
  H5Cursor cursor = cursor_of(object.file(), *message, what);
  cursor.expect_version(0);
  const uint64_t flags = cursor.number(1);
  if ((flags & 1) != 0) cursor.skip(order_bytes);
  const uint64_t heap = cursor.address(), tree = cursor.address();
  if (heap == kH5Undefined) return std::nullopt;
  return std::pair(heap, tree);
}

void add_symbols(const H5Bytes& file, uint64_t address, H5LocalHeap& names, Links& links) {
  constexpr uint64_t kHead = 8, kEntry = 40, kSoft = 2;
  const std::string head = file.at(address, kHead, kSymbols);
  H5Cursor cursor(file, kSymbols, address, head);
  cursor.expect("SNOD");
  cursor.expect_version(1);
  cursor.skip(1);
  const uint64_t count = cursor.number(2);
  const std::string entries = file.at(address, kHead + count * kEntry, kSymbols);
  H5Cursor symbols(file, kSymbols, address, std::string_view(entries).substr(kHead));
  for (uint64_t s = 0; s < count; ++s) {
    const uint64_t name = symbols.number(8), object = symbols.address();
    const bool is_hard = symbols.number(4) != kSoft;
    symbols.skip(20);  // what is cached of the object
    add_link(file, address, {names.name(name), is_hard, object}, links);
  }
}

void add_table(const H5Object& group, const H5Message& message, Links& links) {
  constexpr size_t kKey = 8;
  const H5Bytes& file = group.file();
  H5Cursor cursor = cursor_of(file, message, kSymbols);
  const uint64_t tree = cursor.address();
  H5LocalHeap names(file, cursor.address());
  for (const H5Leaf& leaf : read_h5_leaves(file, tree, H5BTree1::Group, kKey))
    add_symbols(file, leaf.child, names, links);
}

}  // namespace

bool is_h5_group(const H5Object& object) {
  return object.has(H5Tag::SymbolTable) || object.has(H5Tag::LinkInfo);
}

std::map<std::string, H5Link> read_h5_links(const H5Object& group) {
  constexpr size_t kHash = 4;
  const H5Bytes& file = group.file();
  Links links;
  for (const H5Message& message : group.messages())
    if (message.tag == H5Tag::Link)
      add_link(file, message.address, parse_h5_link(cursor_of(file, message, kLinkMessage)), links);
  const auto dense = dense_place(group, H5Tag::LinkInfo, "list of links", 8);
  if (dense)
    for_each_dense(file, dense->first, dense->second, H5BTree2::Links, kHash,
                   [&](const std::string& bytes) {
                     const H5Cursor cursor(file, kLinkMessage, dense->first, bytes);
                     add_link(file, dense->first, parse_h5_link(cursor), links);
                   });
  if (const H5Message* table = group.find(H5Tag::SymbolTable, kSymbols))
    add_table(group, *table, links);
  return links;
}

std::optional<H5Attribute> find_h5_attribute(const H5Object& object, const std::string& name) {
  const H5Bytes& file = object.file();
  std::optional<H5Attribute> found;
  for (const H5Message& message : object.messages()) {
    if (found || message.tag != H5Tag::Attribute || message.is_shared) continue;
    found = parse_h5_attribute(cursor_of(file, message, kAttributeMessage), name);
  }
  const auto dense = dense_place(object, H5Tag::AttributeInfo, "list of attributes", 2);
  if (found || !dense) return found;
  for_each_dense(file, dense->first, dense->second, H5BTree2::Attributes, 0,
                 [&](const std::string& bytes) {
                   const H5Cursor cursor(file, kAttributeMessage, dense->first, bytes);
                   if (!found) found = parse_h5_attribute(cursor, name);
                 });
  return found;
}

}  // namespace zea
