// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file, event by event: no document is built, so that memory stays near
// the text's size, and every value is checked where it stands.
#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "io/safetensors.hpp"
#include "spec/parameter_names.hpp"

namespace zea {
namespace {

struct DTypeName {
  const char* name;
  DType dtype;
};
constexpr DTypeName kDTypes[] = {{"F64", DType::Float64}, {"F32", DType::Float32},
                                 {"F16", DType::Float16}, {"BF16", DType::BFloat16},
                                 {"I64", DType::Int64},   {"I32", DType::Int32},
                                 {"U8", DType::UInt8}};

/// Types that zea lacks, and types of their width.
constexpr DTypeName kOthers[] = {{"BOOL", DType::UInt8},    {"I8", DType::UInt8},
                                 {"F8_E4M3", DType::UInt8}, {"F8_E5M2", DType::UInt8},
                                 {"F8_E8M0", DType::UInt8}, {"I16", DType::Float16},
                                 {"U16", DType::Float16},   {"U32", DType::Int32},
                                 {"U64", DType::Int64},     {"C64", DType::Int64}};

constexpr size_t kMaxDims = 32;

/// A tensor's members as they stand in the text.
struct Pending {
  std::string name;
  std::set<std::string> seen;
  DType dtype = DType::Float32;
  bool is_readable = true;
  std::vector<int64_t> shape, offsets;
};

/// Depth 1 is the file's object, 2 a tensor or the metadata, 3 a list of a tensor.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(std::vector<SafetensorsEntry>& entries, int64_t data_bytes, std::string where)
      : entries_(entries), data_bytes_(data_bytes), where_(std::move(where)) {}

  bool start_object(size_t) override {
    ++depth_;
    const bool expected = depth_ == 1 || (depth_ == 2 && !in_list_);
    if (!expected) refuse("has an object where none belongs");
    return true;
  }
  bool end_object() override {
    if (depth_-- == 2 && !in_metadata()) finish_tensor();
    return true;
  }
  bool start_array(size_t) override {
    const bool expected = depth_ == 2 && !in_list_ && !in_metadata() &&
                          (member_ == "shape" || member_ == "data_offsets");
    if (!expected) refuse("has a list where none belongs");
    in_list_ = true;
    return true;
  }
  bool end_array() override {
    in_list_ = false;
    return true;
  }
  bool key(string_t& text) override {
    if (depth_ == 1) return start_tensor(text);
    member_ = text;
    if (!pending_.seen.insert(text).second) refuse("has the key \"" + text + "\" twice");
    if (!in_metadata() && text != "dtype" && text != "shape" && text != "data_offsets")
      refuse("has the unknown key \"" + text + "\"");
    return true;
  }
  bool string(string_t& text) override {
    if (depth_ == 2 && in_metadata()) return true;
    if (depth_ != 2 || in_list_ || member_ != "dtype") refuse("has text where none belongs");
    for (const DTypeName& known : kDTypes)
      if (text == known.name) return (pending_.dtype = known.dtype, true);
    if (is_computed_buffer(pending_.name))
      for (const DTypeName& other : kOthers)
        if (text == other.name)
          return (pending_.dtype = other.dtype, pending_.is_readable = false, true);
    const bool is_quantized = text.starts_with("F") || text == "I8";
    refuse("has dtype \"" + text + "\"; allowed: F64, F32, F16, BF16, I64, I32, U8" +
           (is_quantized
                ? "; such weights are quantized: take the model that they were made of, or "
                  "load them with transformers, call dequantize() and save_pretrained()"
                : ""));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_list_) refuse("has a number where none belongs");
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) refuse("has a number above 2^63 - 1");
    std::vector<int64_t>& list = member_ == "shape" ? pending_.shape : pending_.offsets;
    if (list.size() >= kMaxDims) refuse("has more than 32 dims");
    list.push_back(static_cast<int64_t>(value));
    return true;
  }
  bool number_integer(number_integer_t value) override {
    refuse("has the negative number " + std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    refuse("has " + text + ", which is no whole number below 2^63");
  }
  bool null() override { refuse("has null where none belongs"); }
  bool boolean(bool) override { refuse("has true or false where none belongs"); }
  bool binary(binary_t&) override { refuse("has binary data"); }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
    throw WeightsError(where_ + ": header is not valid JSON: " + error.what());
  }

 private:
  bool in_metadata() const { return pending_.name == "__metadata__"; }

  [[noreturn]] void refuse(const std::string& why) const {
    const std::string about = depth_ < 2 ? "header" : "header entry \"" + pending_.name + "\"";
    throw WeightsError(where_ + ": " + about + " " + why);
  }

  bool start_tensor(const std::string& name) {
    if (!names_.insert(name).second) refuse("has the tensor \"" + name + "\" twice");
    pending_ = Pending{};
    pending_.name = name;
    return true;
  }

  void finish_tensor() {
    ++depth_;  // for refuse(): still inside
    if (pending_.seen.size() != 3) refuse("lacks one of dtype, shape, data_offsets");
    if (pending_.offsets.size() != 2) refuse("does not have two data_offsets");
    const int64_t begin = pending_.offsets[0], end = pending_.offsets[1];
    if (begin > end || end > data_bytes_)
      refuse("has data_offsets " + std::to_string(begin) + ", " + std::to_string(end) +
             " outside the file's " + std::to_string(data_bytes_) + " bytes of data");
    auto bytes = static_cast<int64_t>(element_bytes(pending_.dtype));
    for (int64_t length : pending_.shape)
      if (__builtin_mul_overflow(bytes, length, &bytes)) refuse("has a shape beyond 2^63 bytes");
    if (bytes != end - begin)
      refuse("has " + std::to_string(end - begin) + " bytes; its shape and dtype make " +
             std::to_string(bytes));
    entries_.push_back(
        {{pending_.name, pending_.shape, pending_.dtype}, begin, pending_.is_readable});
    --depth_;
  }

  std::vector<SafetensorsEntry>& entries_;
  int64_t data_bytes_;
  std::string where_;
  int depth_ = 0;
  bool in_list_ = false;
  std::string member_;
  Pending pending_;
  std::set<std::string> names_;
};

int64_t bytes_of(const SafetensorsEntry& entry) {
  return num_elements(entry.tensor.shape) * static_cast<int64_t>(element_bytes(entry.tensor.dtype));
}

/// Every byte of the data belongs to exactly one tensor.
void check_cover(std::vector<SafetensorsEntry>& entries, int64_t data_bytes,
                 const std::string& where) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::make_pair(a.begin, bytes_of(a)) < std::make_pair(b.begin, bytes_of(b));
  });
  int64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != end)
      throw WeightsError(where + ": header entry \"" + entry.tensor.name + "\" starts at byte " +
                         std::to_string(entry.begin) + ", the one before it ends at " +
                         std::to_string(end) + ": tensors may neither overlap nor leave holes");
    end += bytes_of(entry);
  }
  if (end != data_bytes)
    throw WeightsError(where + ": the tensors end at byte " + std::to_string(end) + " of " +
                       std::to_string(data_bytes) +
                       " bytes of data: the file is cut short or has "
                       "bytes that belong to no tensor");
}

}  // namespace

std::vector<SafetensorsEntry> parse_safetensors_header(const std::string& header,
                                                       int64_t data_bytes,
                                                       const std::string& where) {
  if (header.empty() || header.front() != '{')
    throw WeightsError(where + ": header does not start with '{': not a safetensors file");
  std::vector<SafetensorsEntry> entries;
  HeaderReader reader(entries, data_bytes, where);
  nlohmann::json::sax_parse(header, &reader);
  check_cover(entries, data_bytes, where);
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.tensor.name < b.tensor.name; });
  return entries;
}

}  // namespace zea
