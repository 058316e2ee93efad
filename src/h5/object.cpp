// SPDX-License-Identifier: Apache-2.0
#include "h5/object.hpp"

#include <algorithm>

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

/// What is too short for a message is a gap.
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

}  // namespace zea
