// SPDX-License-Identifier: Apache-2.0
#include "target.hpp"

#include <exception>
#include <stdexcept>

#include "core/error.hpp"
#include "data/audio.hpp"
#include "data/dataset.hpp"
#include "data/folder_dataset.hpp"
#include "data/image.hpp"
#include "deck/deck.hpp"
#include "io/manifest.hpp"
#include "io/model_files.hpp"
#include "io/open_source.hpp"
#include "io/peft.hpp"
#include "io/safetensors.hpp"
#include "io/tokenizer.hpp"
#include "mend.hpp"
#include "spec/model_spec.hpp"

namespace zea::fuzz {
namespace {

constexpr int64_t kMaxPixels = int64_t{1} << 20;
constexpr int64_t kMaxSeconds = 60;

std::string text_of(const Input& input) {
  return {input.bytes.begin(), input.bytes.end()};
}

void read_image(const Input& input) {
  Item item;
  item.bytes = input.bytes;
  decode_image(item, kMaxPixels);
}

void read_clip(const Input& input) {
  decode_audio(input.bytes, kMaxSeconds);
}

void read_adapter(const Input& input) {
  const PeftConfig config(text_of(input), "input");
  config.lora();
  for (const char* linear : {"model.layers.0.self_attn.q_proj", "h.1.attn.c_attn", ""})
    config.alpha_of(linear);
  config.targets_parameter("model.layers.0.mlp.experts.gate_up_proj");
}

/// As a tokenizer.json, and as the tokenizer_config.json next to one.
void read_tokenizer(const Input& input) {
  const std::string text = text_of(input);
  TokenizerTokens known(R"({"model": {"vocab": {}}})", "tokenizer.json");
  known.id_of("<image>");
  known.with_new(text, "input");
  TokenizerTokens tokens(text, "input");
  for (const char* token : {"a", "<image>", "<audio>"}) tokens.id_of(token);
  tokens.with_new(R"({"added_tokens_decoder": {}})", "tokenizer_config.json");
  tokens.text();
  tokens.texts();
}

/// As a model's file, and if that is refused as the text that a weights file or a checkpoint has.
void read_config(const Input& input) {
  std::string text = text_of(input);
  try {
    text = read_model_config(input.path);
  } catch (const WeightsError&) {
  }
  make_model_spec(text).num_parameters();
}

void read_deck_text(const Input& input) {
  parse_deck(text_of(input), "input", {});
}

void read_manifest_text(const Input& input) {
  check_coverage(parse_manifest(text_of(input), "input"));
}

/// Reads every tensor, floating ones converted, and the texts. Throws the first refusal of a tensor
/// after trying all: the others may be readable.
void read_all(const WeightsSource& source) {
  source.config_json();
  for (const std::string& name : source.companions()) source.companion(name);
  std::exception_ptr refused;
  for (const TensorInfo& tensor : source.tensors()) {
    const DType dtype = is_floating(tensor.dtype) ? DType::Float64 : tensor.dtype;
    std::vector<char> values(static_cast<size_t>(num_elements(tensor.shape)) *
                             element_bytes(dtype));
    try {
      source.read(tensor.name, tensor.shape, whole(tensor.shape), dtype, values.data());
    } catch (const Error&) {
      if (!refused) refused = std::current_exception();
    }
  }
  if (refused) std::rethrow_exception(refused);
}

void read_safetensors(const Input& input) {
  read_all(*open_safetensors(input.path));
}

void read_weights(const Input& input) {
  read_all(*open_weights(input.path));
}

void read_samples(const std::string& path, int64_t held_bytes) {
  const std::unique_ptr<Dataset> dataset = open_dataset(path, held_bytes);
  for (size_t i = 0; i < dataset->index().size(); ++i)
    sample_words(dataset->read(static_cast<int64_t>(i)));
}

void read_dataset(const Input& input) {
  read_samples(input.path, kHeldBytes);
  read_samples(input.path, 0);
}

void read_index(const Input& input) {
  const detail::FolderIndex index(input.path);
  for (size_t i = 0; i < index.samples(); ++i) index.items.heads(i);
}

}  // namespace

const std::vector<Target>& targets() {
  // A JPEG, a PNG or a FLAC of one value says so in few bits: of a byte come up to 8,256 pixels, or
  // 5,461 samples.
  constexpr int64_t kPacked = 64 << 10;
  static const std::vector<Target> all{
      {.name = "adapter", .take = read_adapter},
      // A config of a kilobyte may describe 70,000 tensors of experts.
      {.name = "config", .take = read_config, .reads_file = true, .memory_factor = 1 << 16},
      {.name = "dataset", .take = read_dataset, .reads_file = true, .mend = mend_h5},
      {.name = "deck", .take = read_deck_text},
      {.name = "flac", .take = read_clip, .memory_factor = kPacked},
      {.name = "index", .take = read_index, .reads_file = true, .mend = mend_h5},
      {.name = "jpeg", .take = read_image, .memory_factor = kPacked},
      {.name = "manifest", .take = read_manifest_text, .mend = mend_manifest},
      {.name = "png", .take = read_image, .mend = mend_png, .memory_factor = kPacked},
      {.name = "safetensors",
       .take = read_safetensors,
       .reads_file = true,
       .mend = mend_safetensors},
      {.name = "tokenizer", .take = read_tokenizer},
      {.name = "wav", .take = read_clip},
      {.name = "weights", .take = read_weights, .reads_file = true, .mend = mend_h5}};
  return all;
}

const Target& target_of(const std::string& name) {
  for (const Target& target : targets())
    if (target.name == name) return target;
  throw std::out_of_range(name);
}

}  // namespace zea::fuzz
