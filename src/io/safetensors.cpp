// SPDX-License-Identifier: Apache-2.0
// Reading safetensors: one file, or the files that a directory's index names.
#include "io/safetensors.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <sys/stat.h>

#include "core/error.hpp"
#include "core/system.hpp"
#include "core/text.hpp"
#include "files/read_at.hpp"
#include "io/companions.hpp"
#include "io/foreign_weights.hpp"
#include "io/model_config.hpp"
#include "io/strict_json.hpp"
#include "io/tensor_request.hpp"

namespace zea {
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

  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    const TensorInfo& tensor = find_tensor(tensors_, name, describe());
    const Location& location = locations_.at(name);
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
    if (names_entry(inside(kConfigName))) config_ = read_model_config(inside(kConfigName));
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
      check_plain_name(file, where);
      if (!opened.contains(file)) opened[file] = &add_shard(file, where);
      if (!has_tensor(*opened[file], name)) lacking.push_back('"' + name + "\" of " + file);
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
        file.entries(), name, {}, [](const SafetensorsEntry& entry) { return entry.tensor.name; });
  }

  static std::string some_of(std::vector<std::string> names) {
    constexpr size_t kMost = 8;
    const size_t more = names.size() - std::min(names.size(), kMost);
    names.resize(names.size() - more);
    return join(names) + (more > 0 ? " and " + std::to_string(more) + " more" : "");
  }

  std::string path_, config_, note_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Location> locations_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace

std::unique_ptr<WeightsSource> open_safetensors(const std::string& path) {
  return std::make_unique<SafetensorsSource>(path);
}

}  // namespace zea
