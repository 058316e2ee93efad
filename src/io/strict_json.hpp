// SPDX-License-Identifier: Apache-2.0
// JSON from files that may be damaged or hostile: duplicate keys and deep nesting are refused,
// numbers are checked for sign and range. (nlohmann-json alone keeps the last duplicate, and turns
// -1 and 2^64 into other numbers.)
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <nlohmann/json.hpp>

namespace zea {

/// A list that is too long to be kept as JSON: `use` gets each element of the root's member `list`,
/// which stays empty.
struct JsonElements {
  std::string list = {};
  std::function<void(const nlohmann::json& element)> use = {};
};

/// Throws WeightsError naming `where`.
nlohmann::json parse_strict_json(const std::string& text, const std::string& where,
                                 const JsonElements& elements = {});

/// Member `key` of `object`; throws unless it is there.
const nlohmann::json& json_member(const nlohmann::json& object, const char* key,
                                  const std::string& where);
std::string json_text(const nlohmann::json& object, const char* key, const std::string& where);
bool json_bool(const nlohmann::json& object, const char* key, const std::string& where);
/// A whole number from 0 to 2^63 - 1.
int64_t json_count(const nlohmann::json& value, const std::string& where);

/// Throws unless `name` is the name of a file in the same directory: no separators, not "." or
/// "..".
void check_plain_name(const std::string& name, const std::string& where);

}  // namespace zea
