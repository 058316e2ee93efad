// SPDX-License-Identifier: Apache-2.0
#include "io/strict_json.hpp"

#include <set>
#include <vector>

#include "core/error.hpp"

namespace zea {
namespace {

constexpr size_t kMaxDepth = 64;

/// Follows the parser through objects and remembers the keys of each open one.
class KeyGuard {
 public:
  explicit KeyGuard(const std::string& where) : where_(where) {}

  bool operator()(int, nlohmann::json::parse_event_t event, const nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) open();
    if (event == Event::object_end || event == Event::array_end) keys_.pop_back();
    if (event == Event::key && !keys_.back().insert(parsed.get<std::string>()).second)
      throw WeightsError(where_ + ": JSON has the key " + parsed.dump() + " twice");
    return true;
  }

 private:
  void open() {
    if (keys_.size() >= kMaxDepth) throw WeightsError(where_ + ": JSON is nested too deeply");
    keys_.emplace_back();
  }

  std::string where_;
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

nlohmann::json parse_strict_json(const std::string& text, const std::string& where) {
  try {
    return nlohmann::json::parse(text, KeyGuard(where));
  } catch (const nlohmann::json::exception& error) {
    throw WeightsError(where + ": " + error.what());
  }
}

const nlohmann::json& json_member(const nlohmann::json& object, const char* key,
                                  const std::string& where) {
  if (!object.is_object()) throw WeightsError(where + ": expected a JSON object");
  const auto found = object.find(key);
  if (found == object.end()) throw WeightsError(where + ": member \"" + key + "\" is missing");
  return *found;
}

std::string json_text(const nlohmann::json& object, const char* key, const std::string& where) {
  const nlohmann::json& value = json_member(object, key, where);
  if (!value.is_string()) throw WeightsError(where + ": \"" + key + "\" is not a string");
  return value.get<std::string>();
}

bool json_bool(const nlohmann::json& object, const char* key, const std::string& where) {
  const nlohmann::json& value = json_member(object, key, where);
  if (!value.is_boolean()) throw WeightsError(where + ": \"" + key + "\" is not true or false");
  return value.get<bool>();
}

int64_t json_count(const nlohmann::json& value, const std::string& where) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    throw WeightsError(where + ": " + value.dump() + " is not a whole number from 0 to 2^63 - 1");
  return value.get<int64_t>();
}

void check_plain_name(const std::string& name, const std::string& where) {
  const bool plain = !name.empty() && name != "." && name != ".." &&
                     name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
  if (!plain) throw WeightsError(where + ": file \"" + name + "\" is not a plain name beside it");
}

}  // namespace zea
