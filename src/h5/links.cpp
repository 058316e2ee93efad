// SPDX-License-Identifier: Apache-2.0
#include "h5/links.hpp"

#include <functional>

#include "h5/btree.hpp"
#include "h5/heap.hpp"

namespace zea {
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
