// SPDX-License-Identifier: Apache-2.0
#include "io/weights_file.hpp"

#include <algorithm>

#include <unistd.h>

#include "files/durable_file.hpp"
#include "io/companions.hpp"
#include "io/strict_json.hpp"
#include "io/tensor_request.hpp"

namespace zea {
namespace {

const std::string kCompanionGroup = "__files__/";

void check_format(const H5File& file) {
  const std::string format = file.text_attribute("format").value_or("");
  const std::string version = file.text_attribute("version").value_or("");
  if (format != kWeightsFormat)
    throw WeightsError(file.path() + ": format is \"" + format + "\", not \"" + kWeightsFormat +
                       "\"; make a weights file with zea-import");
  if (version != kWeightsVersion)
    throw WeightsError(file.path() + ": version is \"" + version + "\"; this zea reads version \"" +
                       kWeightsVersion + "\"");
}

bool is_state(const std::string& dataset) {
  return dataset == kStateManifest || dataset.starts_with(kOptimizerGroup);
}

class WeightsFile : public WeightsSource {
 public:
  explicit WeightsFile(const std::string& path) : file_(H5File::open(path)) {
    check_format(file_);
    config_ = file_.text_attribute("config").value_or("");
    for (const H5DatasetInfo& dataset : file_.datasets()) {
      if (dataset.name.starts_with(kCompanionGroup))
        add_companion(dataset.name.substr(kCompanionGroup.size()));
      else if (!is_state(dataset.name))
        tensors_.push_back({dataset.name, dataset.shape, dataset.dtype});
    }
  }

  std::string describe() const override { return file_.path(); }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return config_; }

  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    const TensorInfo& tensor = find_tensor(tensors_, name, describe());
    check_request(tensor, shape, extent, dtype, describe());
    read_converted(tensor, extent, dtype, target, describe(),
                   [&](const Extent& box, void* into) { file_.read(name, box, into); });
  }

  std::vector<std::string> companions() const override { return companions_; }

  std::string companion(const std::string& name) const override {
    if (std::find(companions_.begin(), companions_.end(), name) == companions_.end())
      return WeightsSource::companion(name);
    const std::vector<uint8_t> bytes = file_.read_all<uint8_t>(kCompanionGroup + name);
    return {bytes.begin(), bytes.end()};
  }

 private:
  /// Of other names there is none: they would become files, of whatever place they say.
  void add_companion(std::string name) {
    if (is_companion(name)) companions_.push_back(std::move(name));
  }

  H5File file_;
  std::string config_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::string> companions_;
};

H5File create_anew(const std::string& path) {
  remove_file(path);
  return H5File::create(path);
}

}  // namespace

std::string state_dataset(const std::string& tensor, const std::string& state) {
  return state == kStateParameter ? tensor : kOptimizerGroup + state + "/" + tensor;
}

std::unique_ptr<WeightsSource> open_weights_file(const std::string& path) {
  return std::make_unique<WeightsFile>(path);
}

WeightsWriter::WeightsWriter(const std::string& path, const std::string& config_json)
    : path_(path), file_(create_anew(path + ".tmp")) {
  file_.write_text_attribute("format", kWeightsFormat);
  file_.write_text_attribute("version", kWeightsVersion);
  file_.write_text_attribute("config", config_json);
}

WeightsWriter::~WeightsWriter() {
  if (!finished_) ::unlink(file_.path().c_str());
}

void WeightsWriter::add(const TensorInfo& tensor) {
  file_.create_dataset(tensor.name, tensor.shape, tensor.dtype);
}

void WeightsWriter::write(const std::string& name, int64_t first, int64_t count, const void* data) {
  file_.write_range(name, first, count, data);
}

void WeightsWriter::add_state(const Manifest& manifest) {
  check_coverage(manifest);
  const std::string text = manifest_text(manifest);
  file_.write(kStateManifest, {static_cast<int64_t>(text.size())}, DType::UInt8, text.data());
}

void WeightsWriter::add_companion(const std::string& name, const std::string& text) {
  check_plain_name(name, path_);
  file_.write(kCompanionGroup + name, {static_cast<int64_t>(text.size())}, DType::UInt8,
              text.data());
}

void WeightsWriter::finish() {
  file_.close_and_sync();
  rename_durably(path_ + ".tmp", path_);
  finished_ = true;
}

}  // namespace zea
