// SPDX-License-Identifier: Apache-2.0
#include "io/composed_source.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/model_files.hpp"
#include "io/model_source.hpp"
#include "io/strict_json.hpp"
#include "io/tensor_request.hpp"
#include "io/tokenizer.hpp"
#include "spec/model_spec.hpp"
#include "spec/parameter_names.hpp"

namespace zea {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson config_of(const ComposedPart& part) {
  const std::string text = part.source->config_json();
  if (text.empty())
    throw WeightsError(part.source->describe() + ": has no config.json, and " + part.name +
                       " is of the family that it names");
  const std::string file = part.source->config_file("config");
  parse_strict_json(text, file);
  OrderedJson config = OrderedJson::parse(text);
  const bool is_config =
      config.is_object() && (!config.contains("model_type") || config["model_type"].is_string());
  if (!is_config) throw WeightsError(file + ": is no JSON object with a model_type that is a text");
  return config;
}

std::optional<int64_t> number_of(const std::string& text) {
  int64_t number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || fault != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

std::string family_of(const OrderedJson& config) {
  return config.value("model_type", "");
}

/// Hands out ids of placeholders: those of the tokenizer, which gets new tokens, or, where there is
/// none, new rows after the vocabulary.
class Placeholders {
 public:
  Placeholders(const WeightsSource& decoder, int64_t vocabulary)
      : source_(decoder), known_(vocabulary), vocabulary_(vocabulary) {}

  int64_t of(const ComposedPart& part) {
    const std::string& text = part.placeholder;
    const std::optional<int64_t> number = number_of(text);
    if (number && (*number < 0 || *number >= known_))
      throw WeightsError("model." + part.name + ".placeholder = " + text + "; the vocabulary of " +
                         source_.describe() + " has the ids 0 to " + std::to_string(known_ - 1) +
                         "; use one of them, or a token's text, which is added where it is new");
    if (number) return *number;
    if (!tokens_ && has(kTokenizer))
      tokens_.emplace(source_.companion(kTokenizer), source_.describe() + "/" + kTokenizer);
    const int64_t id =
        tokens_ ? tokens_->id_of(text) : rows_.try_emplace(text, vocabulary_).first->second;
    vocabulary_ = std::max(vocabulary_, id + 1);
    return id;
  }

  /// Rows that the model has: at least those that it came with.
  int64_t vocabulary() const { return vocabulary_; }
  /// Files of the tokenizer that differ from those of the source.
  std::map<std::string, std::string> texts() const {
    std::map<std::string, std::string> texts;
    if (!tokens_ || !tokens_->has_new()) return texts;
    texts[kTokenizer] = tokens_->text();
    if (has(kTokenizerConfig))
      texts[kTokenizerConfig] = tokens_->with_new(source_.companion(kTokenizerConfig),
                                                  source_.describe() + "/" + kTokenizerConfig);
    return texts;
  }

 private:
  static constexpr const char* kTokenizer = "tokenizer.json";
  static constexpr const char* kTokenizerConfig = "tokenizer_config.json";

  bool has(const std::string& name) const {
    const std::vector<std::string> names = source_.companions();
    return std::ranges::find(names, name) != names.end();
  }

  const WeightsSource& source_;
  const int64_t known_;
  int64_t vocabulary_;
  std::optional<TokenizerTokens> tokens_;
  std::map<std::string, int64_t> rows_;  ///< of texts without a tokenizer
};

/// Models for classes have none.
bool has_pooler(const ComposedPart& part) {
  return !part.source->has_weights() ||
         std::ranges::any_of(part.source->tensors(), [](const TensorInfo& tensor) {
           return tensor.name.ends_with("pooler.dense.weight");
         });
}

/// As LLaVA's config says it of its encoder.
OrderedJson encoder_config(const ComposedPart& part, int64_t placeholder) {
  OrderedJson config = config_of(part);
  const OrderedJson processor = config.value(kImageProcessor, OrderedJson());
  config.erase(kImageProcessor);
  config.erase(kVideoProcessor);
  config.erase(kFeatureExtractor);
  config.erase(kGenerationConfig);
  config.erase(kWeightsFiles);
  const bool of_sound = is_audio_family(family_of(config));
  if (config.contains("vision_config")) config = config["vision_config"];  // next to a text's
  OrderedJson encoder;
  encoder[of_sound ? "audio_config" : "vision_config"] = config;
  encoder[of_sound ? "audio_token_index" : "image_token_index"] = placeholder;
  encoder["placeholder"] = part.placeholder;
  encoder["projector"] = part.projector;
  if (of_sound) return encoder;
  if (!processor.is_null()) encoder[kImageProcessor] = processor;
  encoder["vision_feature_layer"] = part.feature_layer;
  if (part.feature_norm) encoder["vision_feature_norm"] = true;
  const ImageEncoderFacts facts =
      image_encoder_facts(config.dump(), "config.encoders." + part.name + ".vision_config");
  encoder["vision_feature_select_strategy"] = facts.select;
  if (facts.has_pooler && !has_pooler(part)) encoder["vision_config"]["add_pooling_layer"] = false;
  return encoder;
}

/// A part's tensors by their names in the model.
std::map<std::string, TensorInfo> named_in_model(const ComposedPart& part,
                                                 const std::string& family) {
  std::map<std::string, TensorInfo> tensors;
  for (const TensorInfo& tensor : part.source->tensors()) {
    if (part.name == kDecoder) {
      tensors.emplace(part.name + "." + canonical_parameter_name(family, tensor.name), tensor);
      continue;
    }
    const std::string name = tower_parameter_name(tensor.name, is_audio_family(family));
    tensors.emplace(part.name + ".encoder." + name, tensor);
  }
  return tensors;
}

class ComposedSource : public WeightsSource {
 public:
  ComposedSource(std::vector<ComposedPart> parts, uint64_t seed) : parts_(std::move(parts)) {
    name_placeholders();
    compose_config();
    drawn_ = make_initial_weights(config_, seed);
    for (const ComposedPart& part : parts_) take_tensors(part);
    if (model_.decoder.tied_embeddings && decoder().source->has_weights())
      check_tied_head(*decoder().source, places_.at(embedding_of(model_)).tensor);
    std::ranges::sort(tensors_, {}, &TensorInfo::name);
  }

  std::string describe() const override {
    return join(parts_, ", ", [](const ComposedPart& part) {
      return part.name + " of " + part.source->describe();
    });
  }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return config_; }
  bool has_weights() const override {
    return std::ranges::all_of(parts_, [](const auto& part) { return part.source->has_weights(); });
  }
  std::string note() const override {
    std::string notes;
    for (const ComposedPart& part : parts_)
      if (const std::string note = part.source->note(); !note.empty())
        notes += (notes.empty() ? "" : "\n") + note;
    return notes;
  }
  /// Returns the config file of the part that the key came from.
  std::string config_file(const std::string& key) const override {
    for (const ComposedPart& part : parts_) {
      const std::string processor = part.name + ".";
      const bool is_of_part = key.starts_with("config.encoders." + part.name + ".") ||
                              (part.name == kDecoder && key.starts_with("config.text_config"));
      if (is_of_part) return part.source->config_file("config");
      if (key.starts_with(processor)) return part.source->config_file(key.substr(processor.size()));
    }
    return decoder().source->config_file(key);
  }

  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    check_request(find_tensor(tensors_, name, describe()), shape, extent, dtype, describe());
    const auto& [source, tensor] = places_.at(name);
    const int64_t rows = tensor.shape[0], begin = extent.offset[0];
    const int64_t known = std::clamp<int64_t>(rows - begin, 0, extent.length[0]);
    if (known > 0)
      source->read(tensor.name, tensor.shape, rows_of(extent, 0, known), dtype, target);
    if (known == extent.length[0]) return;
    const int64_t bytes =
        extent.elements() / extent.length[0] * known * static_cast<int64_t>(element_bytes(dtype));
    drawn_->read(name, shape, rows_of(extent, known, extent.length[0] - known), dtype,
                 static_cast<char*>(target) + bytes);
  }

  /// Returns the decoder's companions, and the processors of encoders with the encoder's name
  /// before their own.
  std::vector<std::string> companions() const override {
    std::vector<std::string> names = decoder().source->companions();
    for (const ComposedPart& part : parts_)
      for (const std::string& name : part.source->companions())
        if (part.name != kDecoder && name.ends_with("processor_config.json"))
          names.push_back(part.name + "." + name);
    return names;
  }
  std::string companion(const std::string& name) const override {
    const auto changed = texts_.find(name);
    if (changed != texts_.end()) return changed->second;
    const std::vector<std::string> of_decoder = decoder().source->companions();
    if (std::ranges::find(of_decoder, name) != of_decoder.end())
      return decoder().source->companion(name);
    for (const ComposedPart& part : parts_)
      if (part.name != kDecoder && name.starts_with(part.name + "."))
        return part.source->companion(name.substr(part.name.size() + 1));
    return WeightsSource::companion(name);
  }

 private:
  struct Place {
    const WeightsSource* source;
    TensorInfo tensor;  ///< as the source has it
  };

  /// So many rows of a box, from one on.
  static Extent rows_of(Extent extent, int64_t first, int64_t rows) {
    extent.offset[0] += first;
    extent.length[0] = rows;
    return extent;
  }

  const ComposedPart& decoder() const {
    return *std::ranges::find(parts_, kDecoder, &ComposedPart::name);
  }

  /// Gives the first encoder of a modality its usual name, and others their own.
  void name_placeholders() {
    std::set<std::string> taken;
    for (const ComposedPart& part : parts_) taken.insert(part.placeholder);
    for (ComposedPart& part : parts_) {
      if (part.name == kDecoder || !part.placeholder.empty()) continue;
      part.placeholder = is_audio_family(family_of(config_of(part))) ? "<audio>" : "<image>";
      if (!taken.insert(part.placeholder).second) part.placeholder = "<" + part.name + ">";
    }
  }

  void compose_config() {
    OrderedJson text = config_of(decoder());
    text.erase(kImageProcessor);
    text.erase(kVideoProcessor);
    text.erase(kFeatureExtractor);
    family_ = family_of(text);
    const ModelSpec alone =
        naming_file(*decoder().source, [&] { return make_model_spec(text.dump()); });
    known_rows_ = alone.decoder.vocabulary;
    if (decoder().source->has_weights())
      text = OrderedJson::parse(with_weights_files(text.dump(), alone, *decoder().source));
    Placeholders placeholders(*decoder().source, known_rows_);
    OrderedJson encoders = OrderedJson::object();
    for (const ComposedPart& part : parts_)
      if (part.name != kDecoder)
        encoders[part.name] =
            naming_file(*part.source, [&] { return encoder_config(part, placeholders.of(part)); });
    text["vocab_size"] = placeholders.vocabulary();
    texts_ = placeholders.texts();
    const OrderedJson ends = text.value(kGenerationConfig, OrderedJson());
    text.erase(kGenerationConfig);
    OrderedJson files = text.value(kWeightsFiles, OrderedJson::object());
    text.erase(kWeightsFiles);
    OrderedJson config{{"model_type", "composed"}, {"text_config", text}, {"encoders", encoders}};
    if (!ends.is_null()) config[kGenerationConfig] = ends;
    files.erase("carried");  // composed models leave these out
    if (!files.empty()) config[kWeightsFiles] = files;
    config_ = config.dump();
    model_ = model_spec_of(*this);
  }

  /// Whether a tensor of a part can be the parameter: it may lack the rows of new placeholders.
  bool fits(const Shape& found, const Shape& wanted) const {
    if (found == wanted) return true;
    Shape grown = found;
    if (grown.empty() || grown[0] != known_rows_) return false;
    grown[0] = model_.decoder.vocabulary;
    return grown == wanted;
  }

  void take_tensors(const ComposedPart& part) {
    if (!part.source->has_weights()) return;
    const std::string prefix = part.name == kDecoder ? part.name + "." : part.name + ".encoder.";
    const std::string family = part.name == kDecoder ? family_ : family_of(config_of(part));
    const auto named = named_in_model(part, family);
    std::string faults;
    for (const ParamSpec& param : model_.params) {
      if (!param.begins_tensor() || !param.name.starts_with(prefix)) continue;
      const auto found = named.find(param.name);
      if (found == named.end())
        faults += "\n  missing: " + param.name.substr(prefix.size());
      else if (!fits(found->second.shape, param.tensor_shape()))
        faults += "\n  wrong shape: " + found->second.name + " is " +
                  shape_text(found->second.shape) + "; the model wants " +
                  shape_text(param.tensor_shape());
      else
        take(param, part, found->second);
    }
    if (!faults.empty())
      throw WeightsError(part.source->describe() + ": is no " + part.name +
                         " of the family that its config.json names:" + faults);
  }

  void take(const ParamSpec& param, const ComposedPart& part, const TensorInfo& tensor) {
    tensors_.push_back({param.name, param.tensor_shape(), tensor.dtype});
    places_.emplace(param.name, Place{part.source.get(), tensor});
  }

  std::vector<ComposedPart> parts_;
  std::string config_, family_;
  std::map<std::string, std::string> texts_;  ///< of the decoder's tokenizer, with new tokens
  int64_t known_rows_ = 0;                    ///< of the decoder's vocabulary as it came
  ModelSpec model_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, Place> places_;
  std::unique_ptr<WeightsSource> drawn_;
};

}  // namespace

std::unique_ptr<WeightsSource> compose_source(std::vector<ComposedPart> parts, uint64_t seed) {
  return std::make_unique<ComposedSource>(std::move(parts), seed);
}

}  // namespace zea
