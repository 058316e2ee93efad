// SPDX-License-Identifier: Apache-2.0
#include "io/open_source.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "files/durable_file.hpp"
#include "io/model_files.hpp"
#include "spec/model_spec.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSafetensors =
    "zea reads safetensors: load the model with from_pretrained() of transformers and write it "
    "with save_pretrained(), or download the model's *.safetensors";

/// The end of a name, and what a file of it is.
struct Ending {
  const char *ending, *what;
};
constexpr std::array<Ending, 9> kEndings{{{".bin", "holds pickled tensors of PyTorch (*.bin)"},
                                          {".pth", "holds pickled tensors of PyTorch (*.pth)"},
                                          {".pt", "holds pickled tensors of PyTorch (*.pt)"},
                                          {".ckpt", "holds pickled tensors of PyTorch (*.ckpt)"},
                                          {".gguf", "holds weights of llama.cpp (*.gguf)"},
                                          {".msgpack", "holds weights of Flax (*.msgpack)"},
                                          {".onnx", "holds a model in ONNX (*.onnx)"},
                                          {".npz", "holds arrays of NumPy (*.npz)"},
                                          {"tf_model.h5", "holds weights of TensorFlow"}}};

/// By a file's name; a trainer's own files are called alike. Null: of none.
const Ending* ending_of(const std::string& name) {
  for (const char* own : {"training_args", "optimizer", "scheduler", "scaler", "rng_state"})
    if (name.starts_with(own)) return nullptr;
  const auto ends = [&](const Ending& one) { return name.ends_with(one.ending); };
  const auto found = std::ranges::find_if(kEndings, ends);
  return found == kEndings.end() ? nullptr : &*found;
}

bool is_shard(const std::string& name) {
  return name.starts_with("model-") && name.ends_with(".safetensors");
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code fault;
  for (fs::directory_iterator entry(directory, fault), end; !fault && entry != end;
       entry.increment(fault))
    names.push_back(entry->path().filename().string());
  std::ranges::sort(names);
  return names;
}

/// The text of a key; empty: the file or the key is not there.
std::string text_in(const std::string& path, const char* key) {
  std::string text;
  try {
    text = read_model_text(path);
  } catch (const Error&) {
    return "";
  }
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const auto found = json.find(key);
  return json.is_object() && found != json.end() && found->is_string() ? found->get<std::string>()
                                                                       : "";
}

std::string adapter_advice(const std::string& directory) {
  const std::string base = text_in(directory + "/adapter_config.json", "base_model_name_or_path");
  return "holds an adapter of PEFT, not a model; name it in model." + kDecoder +
         ".lora.weights, and the model that it was trained on" +
         (base.empty() ? "" : " (" + base + ")") + " in model.weights";
}

/// The directories of the hub's cache have models--OWNER--NAME/snapshots/COMMIT.
std::string snapshot_in(const std::string& directory) {
  const std::vector<std::string> commits = names_in(directory + "/snapshots");
  return commits.empty() ? "" : directory + "/snapshots/" + commits.back();
}

}  // namespace

std::string foreign_text(std::string_view begin) {
  if (begin.starts_with("version https://git-lfs"))
    return "is a pointer of git-lfs, not the file itself; fetch the files with git lfs pull, or "
           "download them again with huggingface-cli download";
  const size_t first = begin.find_first_not_of(" \t\r\n");
  const std::string_view text = first == std::string_view::npos ? "" : begin.substr(first);
  if (text.starts_with("<!DOCTYPE") || text.starts_with("<!doctype") || text.starts_with("<html"))
    return "is a page of HTML, as a download without the right to the file leaves it; download it "
           "again with huggingface-cli download, after huggingface-cli login";
  return "";
}

std::string foreign_bytes(std::string_view begin) {
  if (begin.starts_with("GGUF")) return std::string(kEndings[4].what) + "; " + kSafetensors;
  if (begin.starts_with("PK\x03\x04") || begin.starts_with("\x80\x02"))
    return std::string("was written by torch.save, whatever it is called; ") + kSafetensors;
  return foreign_text(begin);
}

std::string foreign_file(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  if (name.starts_with("adapter_model.")) return adapter_advice(parent_directory(path));
  if (name == "tokenizer.model")
    return "is a tokenizer, not weights; name the directory of the model";
  if (path.ends_with(".json"))
    return "is a text, not weights; name the directory of the model, or a config.json in "
           "model.config";
  if (const Ending* of = ending_of(name)) return std::string(of->what) + "; " + kSafetensors;
  std::error_code fault;
  if (!fs::is_regular_file(path, fault)) return "";
  std::ifstream file(path, std::ios::binary);
  std::string begin(kBeginBytes, '\0');
  file.read(begin.data(), kBeginBytes);
  begin.resize(static_cast<size_t>(file.gcount()));
  return foreign_bytes(begin);
}

std::string foreign_directory(const std::string& path) {
  const std::vector<std::string> names = names_in(path);
  const auto has = [&](const std::string& name) { return std::ranges::count(names, name) > 0; };
  if (has("adapter_config.json")) return adapter_advice(path);
  if (std::ranges::any_of(names, is_shard))
    return "has files of a model in several (model-*.safetensors) without their index; download "
           "model.safetensors.index.json as well";
  if (has("consolidated.safetensors"))
    return "holds weights in Mistral's own form (consolidated.safetensors); download the "
           "model*.safetensors of transformers as well";
  for (const std::string& name : names)
    if (const Ending* of = ending_of(name)) {
      const std::string type = text_in(path + "/config.json", "model_type");
      return std::string(of->what) + ", as " + name + "; " + kSafetensors +
             (type.starts_with("llava_") ? type_advice(type) : "");
    }
  if (const std::string snapshot = snapshot_in(path); !snapshot.empty())
    return "is a model's place in the hub's cache; name " + snapshot;
  if (has("config.json"))
    return "holds a config.json and no weights; download the rest of the model: huggingface-cli "
           "download OWNER/NAME --local-dir " +
           path + " (zea -n plans without them)";
  if (has("tokenizer.model") || has("tokenizer.json"))
    return "holds a tokenizer and neither config.json nor weights; name the directory of the model";
  return "";
}

std::string hub_advice(const std::string& path) {
  if (path.starts_with("~")) return "; ~ is no home directory here, so write the whole path";
  constexpr const char* kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  const size_t slash = path.find('/');
  const std::string name = path.substr(slash + 1);
  const bool is_name = slash != std::string::npos && slash > 0 && path[0] != '.' &&
                       name.find_first_not_of(kLetters) == std::string::npos && !name.empty() &&
                       !name.ends_with(".h5") && !name.ends_with(".safetensors");
  if (!is_name) return "";
  return "; if it is a model on the Hugging Face hub, download it first: huggingface-cli "
         "download " +
         path + " --local-dir " + name + ", and name that directory";
}

bool is_config_alone(const std::string& directory) {
  const std::vector<std::string> names = names_in(directory);
  const auto holds_weights = [](const std::string& name) {
    return name.ends_with(".safetensors") || name.ends_with(".index.json") ||
           name == "adapter_config.json" || ending_of(name) != nullptr;
  };
  return std::ranges::count(names, "config.json") > 0 && std::ranges::none_of(names, holds_weights);
}

}  // namespace zea
