// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file, event by event: no document is built, so that memory stays near
// the text's size, and every value is checked where it stands.
#include "io/safetensors.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/extent.hpp"
#include "core/system.hpp"
#include "core/text.hpp"
#include "files/durable_file.hpp"
#include "io/decoded_source.hpp"
#include "io/model_files.hpp"
#include "io/open_source.hpp"
#include "io/strict_json.hpp"
#include "io/tensor_request.hpp"
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

constexpr const char* kFloat8 = "F8_E4M3";

constexpr size_t kMaxDims = 32;

/// The members that each tensor has.
constexpr std::array<std::string_view, 3> kMembers{"dtype", "shape", "data_offsets"};

/// A tensor's members, in the order of the text.
struct Pending {
  std::string name;
  std::array<bool, kMembers.size()> seen{};
  DType dtype = DType::Float32;
  bool is_readable = true, is_float8 = false;
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
    const auto known = static_cast<size_t>(std::ranges::find(kMembers, text) - kMembers.begin());
    if (!in_metadata() && known == kMembers.size()) refuse("has the unknown key \"" + text + "\"");
    const bool is_new =
        in_metadata() ? metadata_.insert(text).second : !std::exchange(pending_.seen[known], true);
    if (!is_new) refuse("has the key \"" + text + "\" twice");
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
    if (text == kFloat8) return (pending_.dtype = DType::UInt8, pending_.is_float8 = true, true);
    const bool is_quantized = text.starts_with("F") || text == "I8";
    refuse("has dtype \"" + text + "\"; allowed: F64, F32, F16, BF16, I64, I32, U8, " + kFloat8 +
           (is_quantized ? std::string("; such weights are quantized: ") + kDequantizeAdvice : ""));
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
    if (std::ranges::count(pending_.seen, false) > 0)
      refuse("lacks one of dtype, shape, data_offsets");
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
    entries_.push_back({{pending_.name, pending_.shape, pending_.dtype},
                        begin,
                        pending_.is_readable,
                        pending_.is_float8});
    --depth_;
  }

  std::vector<SafetensorsEntry>& entries_;
  int64_t data_bytes_;
  std::string where_;
  int depth_ = 0;
  bool in_list_ = false;
  std::string member_;
  Pending pending_;
  std::set<std::string> metadata_;  ///< its keys
  std::unordered_set<std::string> names_;
};

int64_t bytes_of(const SafetensorsEntry& entry) {
  return num_elements(entry.tensor.shape) * static_cast<int64_t>(element_bytes(entry.tensor.dtype));
}

/// Every byte of the data belongs to exactly one tensor.
void check_cover(std::vector<SafetensorsEntry>& entries, int64_t data_bytes,
                 const std::string& where) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : bytes_of(a) < bytes_of(b);
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

// Reading safetensors: one file, or the files that a directory's index names.
namespace {

constexpr int64_t kMaxHeaderBytes = int64_t{100} * 1000 * 1000;
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kConfigName = "config.json";

/// One open file with its checked header. Symbolic links are followed: hub caches consist of them.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path)
      : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (!file_.is_open()) throw WeightsError(path + ": cannot open: " + std::strerror(errno));
    read_header();
  }

  const std::string& path() const { return path_; }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }

  void read_box(const SafetensorsEntry& entry, const Extent& box, char* target) const {
    const auto size = static_cast<int64_t>(element_bytes(entry.tensor.dtype));
    if (box.length == entry.tensor.shape)
      return read_at(data_begin_ + entry.begin, target, bytes_of(entry));
    for (const CopyRun& run : copy_runs(box, whole(entry.tensor.shape), box))
      read_at(data_begin_ + entry.begin + run.source_element * size,
              target + run.target_element * size, run.elements * size);
  }

 private:
  void read_at(int64_t offset, char* target, int64_t bytes) const {
    if (const char* fault = zea::read_at(file_.number(), offset, target, bytes, "it was cut short"))
      throw WeightsError(path_ + ": cannot be read: " + fault);
  }

  void read_header() {
    struct stat status {};
    if (::fstat(file_.number(), &status) != 0 || !S_ISREG(status.st_mode))
      throw WeightsError(path_ + ": not a regular file");
    if (status.st_size < 10) throw WeightsError(path_ + ": too short for a safetensors file");
    std::string begin(std::min(status.st_size, kBeginBytes), '\0');
    read_at(0, begin.data(), static_cast<int64_t>(begin.size()));
    if (const std::string found = foreign_bytes(begin); !found.empty())
      throw WeightsError(path_ + ": " + found);
    if (begin.starts_with("\x89HDF"))
      throw WeightsError(path_ +
                         ": is HDF5, not safetensors; a file that zea-import or "
                         "zea-consolidate wrote needs no import: name it in model.weights");
    uint64_t length = 0;
    for (int i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(begin[i]);
    const uint64_t most = std::min<uint64_t>(kMaxHeaderBytes, status.st_size - 8);
    if (length < 2 || length > most)
      throw WeightsError(path_ + ": header length is " + std::to_string(length) +
                         "; allowed here: 2 to " + std::to_string(most) +
                         "; it is cut short, or no safetensors file");
    std::string header(length, '\0');
    read_at(8, header.data(), static_cast<int64_t>(length));
    data_begin_ = 8 + static_cast<int64_t>(length);
    entries_ = parse_safetensors_header(header, status.st_size - data_begin_, path_);
  }

  std::string path_;
  Descriptor file_;
  int64_t data_begin_ = 0;
  std::vector<SafetensorsEntry> entries_;
};

/// Where a tensor of the whole model lies.
struct Location {
  const SafetensorsFile* file;
  const SafetensorsEntry* entry;
};

class SafetensorsSource : public WeightsSource {
 public:
  explicit SafetensorsSource(const std::string& path) : path_(path) {
    std::error_code fault;
    if (std::filesystem::is_directory(path, fault)) {
      open_directory();
    } else {
      add_file(path);
    }
    for (const auto& [name, location] : locations_) tensors_.push_back(location.entry->tensor);
  }

  std::string describe() const override { return path_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return config_; }
  std::string config_file(const std::string& key) const override {
    return file_of_config_key(inside(kConfigName), key);
  }
  std::string note() const override { return note_; }
  const std::optional<Quantization>& quantization() const { return quantization_; }
  /// Returns the names of E4M3 tensors.
  std::set<std::string> float8() const {
    std::set<std::string> names;
    for (const auto& [name, location] : locations_)
      if (location.entry->is_float8) names.insert(name);
    return names;
  }

  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    const auto found = locations_.find(name);
    if (found == locations_.end()) find_tensor(tensors_, name, describe());  // throws
    const Location& location = found->second;
    const TensorInfo& tensor = location.entry->tensor;
    check_request(tensor, shape, extent, dtype, location.file->path());
    read_converted(tensor, extent, dtype, target, location.file->path(),
                   [&](const Extent& box, void* into) {
                     location.file->read_box(*location.entry, box, static_cast<char*>(into));
                   });
  }

  std::vector<std::string> companions() const override { return companion_names(path_); }

  std::string companion(const std::string& name) const override {
    check_plain_name(name, path_);
    return read_model_text(inside(name));
  }

 private:
  std::string inside(const std::string& name) const { return path_ + "/" + name; }

  const SafetensorsFile& add_file(const std::string& path) {
    files_.push_back(std::make_unique<SafetensorsFile>(path));
    const SafetensorsFile& file = *files_.back();
    for (const SafetensorsEntry& entry : file.entries()) {
      if (!entry.is_readable) continue;
      const auto [place, is_new] =
          locations_.try_emplace(entry.tensor.name, Location{&file, &entry});
      if (!is_new)
        throw WeightsError(path + ": tensor \"" + entry.tensor.name + "\" is also in " +
                           place->second.file->path());
    }
    return file;
  }

  void open_directory() {
    if (names_entry(inside(kConfigName))) {
      config_ = read_model_config(inside(kConfigName));
      quantization_ = read_quantization(inside(kConfigName));
    }
    const bool has_index = names_entry(inside(kIndexName));
    const bool has_single = names_entry(inside(kSingleName));
    if (!has_index && !has_single) {
      const std::string found = foreign_directory(path_);
      throw WeightsError(
          path_ + ": has neither " + kSingleName + " nor " + kIndexName + ": it " +
          (found.empty() ? "is no model that save_pretrained of transformers wrote" : found));
    }
    // As transformers: what is saved in one file leaves the index of an earlier save behind.
    if (has_single) {
      add_file(inside(kSingleName));
    } else {
      open_index();
    }
  }

  void open_index() {
    const std::string where = inside(kIndexName);
    const nlohmann::json index = parse_strict_json(read_model_text(where), where);
    const nlohmann::json& map = json_member(index, "weight_map", where);
    if (!map.is_object()) throw WeightsError(where + ": \"weight_map\" is not an object");
    std::map<std::string, const SafetensorsFile*> opened;
    std::vector<std::string> lacking, beside;
    for (const auto& [name, unused] : map.items()) {
      const std::string file = json_text(map, name.c_str(), where);
      const SafetensorsFile*& shard = opened[file];
      if (shard == nullptr) {
        check_plain_name(file, where);
        shard = &add_shard(file, where);
      }
      if (!has_tensor(*shard, name)) lacking.push_back('"' + name + "\" of " + file);
    }
    if (!lacking.empty())
      throw WeightsError(where + ": names " + std::to_string(lacking.size()) +
                         " tensors that its files do not hold: " + some_of(lacking) +
                         "; the files are of another save, so download or write all of them again");
    for (const auto& [name, location] : locations_)
      if (!map.contains(name)) beside.push_back('"' + name + '"');
    if (!beside.empty())
      note_ = where + ": its files hold " + std::to_string(beside.size()) +
              " tensors that it does not name, which are read as well: " + some_of(beside);
  }

  const SafetensorsFile& add_shard(const std::string& file, const std::string& index) {
    if (!names_entry(inside(file)))
      throw WeightsError(inside(file) + ": is not there, and " + index +
                         " names it; download the model's other files as well");
    return add_file(inside(file));
  }

  /// Also one that is passed over.
  static bool has_tensor(const SafetensorsFile& file, const std::string& name) {
    return std::ranges::binary_search(
        file.entries(), name, {},
        [](const SafetensorsEntry& entry) -> const std::string& { return entry.tensor.name; });
  }

  static std::string some_of(std::vector<std::string> names) {
    constexpr size_t kMost = 8;
    const size_t more = names.size() - std::min(names.size(), kMost);
    names.resize(names.size() - more);
    return join(names) + (more > 0 ? " and " + std::to_string(more) + " more" : "");
  }

  std::string path_, config_, note_;
  std::optional<Quantization> quantization_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Location> locations_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace

std::unique_ptr<WeightsSource> open_safetensors(const std::string& path) {
  auto source = std::make_unique<SafetensorsSource>(path);
  const std::optional<Quantization> quantization = source->quantization();
  const std::set<std::string> float8 = source->float8();
  return with_decoded_tensors(std::move(source), float8, quantization);
}

}  // namespace zea
