// SPDX-License-Identifier: Apache-2.0
#include "support/files.hpp"
#include "target.hpp"
#include "watch.hpp"

namespace zea::fuzz {
namespace {

/// A directory with the input, and with files that it may name and must not reach.
class Room {
 public:
  Room() {
    for (const char* name : {"other.h5", "other.raw"}) write_bytes(directory_ / name, "secret");
  }
  std::string put(const Bytes& bytes) const {
    const std::string path = directory_ / "input";
    write_bytes(path, {bytes.begin(), bytes.end()});
    return std::filesystem::canonical(path).string();  // as readers that resolve links open it
  }

 private:
  TemporaryDirectory directory_;
};

Input input_of(const Target& target, const Bytes& bytes) {
  static const Room room;
  return {bytes, target.reads_file ? room.put(bytes) : ""};
}

/// Returns the exception, unless it is the allowed refusal.
std::string thrown_by(const Target& target, const Input& input) {
  try {
    target.take(input);
  } catch (const Error&) {
  } catch (const std::exception& error) {
    return std::string("threw something other than a zea::Error: ") + error.what();
  }
  return "";
}

}  // namespace

std::string feed(const Target& target, const Bytes& bytes) {
  const Input input = input_of(target, bytes);
  start_watching();
  const std::string thrown = thrown_by(target, input);
  const Seen seen = stop_watching();
  if (!thrown.empty()) return thrown;
  const int64_t most = kFixedBytes + target.memory_factor * static_cast<int64_t>(bytes.size());
  if (seen.peak_bytes > most)
    return "took " + std::to_string(seen.peak_bytes) + " bytes of memory for an input of " +
           std::to_string(bytes.size()) + "; allowed: " + std::to_string(most);
  if (seen.seconds > kMaxSeconds) return "took " + std::to_string(seen.seconds) + " s";
  for (const std::string& path : seen.opened)
    if (path != input.path) return "opened " + path;
  if (target.reads_file && seen.opened.empty()) return "was not seen to open its file";
  return "";
}

std::string refusal_of(const Target& target, const Bytes& bytes) {
  try {
    target.take(input_of(target, bytes));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace zea::fuzz
