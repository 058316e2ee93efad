// SPDX-License-Identifier: Apache-2.0
#include "files/event_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string_view>

#include "core/error.hpp"
#include "core/system.hpp"
#include "core/text.hpp"
#include "files/durable_file.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNamePrefix = "events.out.tfevents.";

/// CRC-32C (Castagnoli) of every byte, lowest bit first.
constexpr std::array<uint32_t, 256> make_crc_table() {
  constexpr uint32_t kPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

/// The format's checksum: rotated and shifted, so that a checksum of data that holds checksums is
/// still a good one.
uint32_t masked_crc(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_crc_table();
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(byte)) & 255];
  return std::rotr(~crc, 15) + 0xa282ead8u;
}

template <class Word>
void append_little_endian(std::string& out, Word word) {
  for (size_t byte = 0; byte < sizeof word; ++byte)
    out += static_cast<char>((word >> (8 * byte)) & 255);
}

std::string record(std::string_view bytes) {
  std::string out;
  append_little_endian(out, static_cast<uint64_t>(bytes.size()));
  append_little_endian(out, masked_crc(out));
  out += bytes;
  append_little_endian(out, masked_crc(bytes));
  return out;
}

/// A message in protobuf's encoding: each field after a key of its number and how it is written.
class Message {
 public:
  void add_varint(int field, uint64_t value) {
    append_key(field, 0);
    append_varint(value);
  }
  void add_double(int field, double value) {
    append_key(field, 1);
    append_little_endian(bytes_, std::bit_cast<uint64_t>(value));
  }
  void add_bytes(int field, std::string_view bytes) {
    append_key(field, 2);
    append_varint(bytes.size());
    bytes_ += bytes;
  }
  void add_float(int field, float value) {
    append_key(field, 5);
    append_little_endian(bytes_, std::bit_cast<uint32_t>(value));
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void append_key(int field, int encoding) {
    append_varint(static_cast<uint64_t>(field) << 3 | encoding);
  }
  void append_varint(uint64_t value) {
    for (; value > 127; value >>= 7) bytes_ += static_cast<char>(value | 128);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// Numbers of fields in TensorBoard's event.proto and summary.proto.
namespace event_field {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace summary_field {
constexpr int kValue = 1, kTag = 1, kSimpleValue = 2;
}
namespace session_field {
constexpr int kStatus = 1;
constexpr uint64_t kStart = 1;
}  // namespace session_field

Message event_at(double wall_seconds, int64_t step) {
  Message event;
  event.add_double(event_field::kWallTime, wall_seconds);
  event.add_varint(event_field::kStep, static_cast<uint64_t>(step));
  return event;
}

/// The seconds since 1970 in an event file's name; 0 for other names.
int64_t seconds_in_name(const std::string& name) {
  int64_t seconds = 0;
  if (name.starts_with(kNamePrefix))
    std::from_chars(name.data() + kNamePrefix.size(), name.data() + name.size(), seconds);
  return seconds;
}

/// A name behind those of all earlier starts, also where clocks differ or a second has not passed.
std::string next_name(const std::string& directory) {
  int64_t seconds = static_cast<int64_t>(calendar_seconds());
  std::error_code code;
  for (fs::directory_iterator entry(directory, code), end; !code && entry != end;
       entry.increment(code))
    seconds = std::max(seconds, seconds_in_name(entry->path().filename().string()) + 1);
  if (code) throw_storage_error("list", directory, code.value());
  return std::string(kNamePrefix) + formatted("%010lld", static_cast<long long>(seconds)) + "." +
         host_name() + "." + std::to_string(getpid());
}

}  // namespace

std::string event_record(const Event& event) {
  Message summary;
  for (const EventScalar& scalar : event.scalars) {
    Message value;
    value.add_bytes(summary_field::kTag, scalar.tag);
    value.add_float(summary_field::kSimpleValue, static_cast<float>(scalar.value));
    summary.add_bytes(summary_field::kValue, value.bytes());
  }
  Message message = event_at(event.wall_seconds, event.step);
  message.add_bytes(event_field::kSummary, summary.bytes());
  return record(message.bytes());
}

std::string event_file_header(double wall_seconds, int64_t first_step) {
  Message version;
  version.add_double(event_field::kWallTime, wall_seconds);
  version.add_bytes(event_field::kFileVersion, "brain.Event:2");
  Message session;
  session.add_varint(session_field::kStatus, session_field::kStart);
  Message start = event_at(wall_seconds, first_step);
  start.add_bytes(event_field::kSessionLog, session.bytes());
  return record(version.bytes()) + record(start.bytes());
}

EventFile::EventFile(std::string directory, int64_t first_step)
    : directory_(std::move(directory)), first_step_(first_step) {}

void EventFile::append(int64_t step, const std::vector<EventScalar>& scalars) {
  const double now = calendar_seconds();
  const bool is_first = written_bytes_ == 0;
  if (!file_.is_open()) open();
  write((is_first ? event_file_header(now, first_step_) : "") +
        event_record({.wall_seconds = now, .step = step, .scalars = scalars}));
}

void EventFile::open() {
  std::error_code code;
  fs::create_directories(directory_, code);
  if (code) throw_storage_error("create", directory_, code.value());
  const std::string path = directory_ + "/" + next_name(directory_);
  file_ = Descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file_.is_open()) throw_storage_error("create", path, errno);
  path_ = path;
}

/// All of the bytes or, where that fails, none: what follows half a record could not be read.
void EventFile::write(const std::string& bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::pwrite(file_.number(), bytes.data() + done, bytes.size() - done,
                                 written_bytes_ + static_cast<int64_t>(done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      const int error_number = put < 0 ? errno : EIO;
      const int truncated = ::ftruncate(file_.number(), written_bytes_);
      static_cast<void>(truncated);  // the next write begins at the same place
      throw_storage_error("write", path_, error_number, static_cast<int64_t>(bytes.size()));
    }
    done += static_cast<size_t>(put);
  }
  written_bytes_ += static_cast<int64_t>(bytes.size());
}

}  // namespace zea
