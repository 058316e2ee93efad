// SPDX-License-Identifier: Apache-2.0
#include "io/strict_json.hpp"

#include <utility>
#include <vector>

#include "core/error.hpp"

namespace zea {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxDepth = 64;
/// Open containers around an element of a list that is a member of the whole.
constexpr size_t kElementDepth = 2;

/// Builds the values that the parser meets. (The library's own parser with a callback looks through
/// the whole list around an object when that ends.)
class StrictBuilder : public nlohmann::json_sax<Json> {
 public:
  StrictBuilder(const std::string& where, const JsonElements& elements)
      : where_(where), elements_(elements) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(Json::binary(std::move(value))); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    const auto [member, is_new] = open_.back()->emplace(value, nullptr);
    if (!is_new) throw WeightsError(where_ + ": JSON has the key " + Json(value).dump() + " twice");
    member_ = &*member;
    if (open_.size() == 1) top_key_ = std::move(value);
    return true;
  }
  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    throw WeightsError(where_ + ": " + error.what());
  }

 private:
  Json& place(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    if (open_.back()->is_object()) return *member_ = std::move(value);
    open_.back()->push_back(std::move(value));
    return open_.back()->back();
  }
  bool add(Json value) {
    place(std::move(value));
    if (open_.size() == kElementDepth) hand_over();
    return true;
  }
  bool open(Json container) {
    if (open_.size() >= kMaxDepth) throw WeightsError(where_ + ": JSON is nested too deeply");
    open_.push_back(&place(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    if (open_.size() == kElementDepth) hand_over();
    return true;
  }
  /// Gives away the element that has just ended.
  void hand_over() {
    Json& list = *open_.back();
    if (!elements_.use || !list.is_array() || elements_.list != top_key_) return;
    elements_.use(list.back());
    list.clear();
  }

  const std::string& where_;
  const JsonElements& elements_;
  Json root_;
  std::vector<Json*> open_;  ///< containers; only the last element of one is changed
  Json* member_ = nullptr;   ///< of the innermost object, whose value comes next
  std::string top_key_;
};

}  // namespace

Json parse_strict_json(const std::string& text, const std::string& where,
                       const JsonElements& elements) {
  StrictBuilder builder(where, elements);
  Json::sax_parse(text, &builder);
  return builder.take();
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
