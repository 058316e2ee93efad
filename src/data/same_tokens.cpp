// SPDX-License-Identifier: Apache-2.0
// A tokenizer.json spells tokens in its model's letters, a data set holds their bytes
// (jobs/token_bytes.py); which letters these are need not be known, as a token is the same when one
// reading of them is.
#include "data/same_tokens.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <set>
#include <string_view>

#include "core/error.hpp"

namespace zea {
namespace {

/// Byte-level BPE: printable Latin-1 is written as itself, U+0100 and on for the other bytes.
std::string byte_level_letter(int byte) {
  const auto is_printable = [](int b) {
    return (b >= 0x21 && b < 0x7f) || (b >= 0xa1 && b < 0xad) || b >= 0xae;
  };
  int letter = byte;
  if (!is_printable(byte)) {
    letter = 256;
    for (int other = 0; other < byte; ++other) letter += !is_printable(other);
  }
  if (letter < 0x80) return {static_cast<char>(letter)};
  return {static_cast<char>(0xc0 | letter >> 6), static_cast<char>(0x80 | (letter & 0x3f))};
}

std::string spelt_in_letters(const std::string& bytes) {
  static const std::array<std::string, 256> letters = [] {
    std::array<std::string, 256> all;
    for (int byte = 0; byte < 256; ++byte) all[static_cast<size_t>(byte)] = byte_level_letter(byte);
    return all;
  }();
  std::string text;
  for (const char byte : bytes) text += letters[static_cast<unsigned char>(byte)];
  return text;
}

/// SentencePiece: U+2581 is a space, <0x0A> a single byte.
bool is_piece(const std::string& text, const std::string& bytes) {
  if (bytes.size() == 1 && text.size() == 6 && text.starts_with("<0x") && text.ends_with('>'))
    return std::strtol(text.substr(3, 2).c_str(), nullptr, 16) ==
           static_cast<unsigned char>(bytes[0]);
  constexpr std::string_view kSpace = "\u2581";
  std::string read = text;
  for (size_t at = read.find(kSpace); at != std::string::npos; at = read.find(kSpace, at))
    read.replace(at, kSpace.size(), " ");
  return read == bytes;
}

bool is_same(const std::string& bytes, const std::string& text) {
  return bytes == text || spelt_in_letters(bytes) == text || is_piece(text, bytes);
}

std::string quoted(const std::string& text) {
  return "\"" + text + "\"";
}

/// The tokenizers side by side.
class Comparison {
 public:
  Comparison(const Dataset& dataset, const ModelTokens& model) : dataset_(dataset), model_(model) {
    const size_t ids =
        std::max(dataset.texts().token_bytes.size(), dataset.texts().special_texts.size());
    for (size_t id = 0; id < ids; ++id) {
      const std::string text = text_of(id);
      if (text.empty()) continue;
      const auto other = model.texts.find(static_cast<int64_t>(id));
      if (other != model.texts.end()) {
        ++both_;
        if (!is_same(text, other->second)) differ_.insert(static_cast<int32_t>(id));
      } else if (!model.named.contains(text)) {
        more_.insert(static_cast<int32_t>(id));
      }
    }
  }

  std::string judge(const std::function<void()>& moved) const {
    const auto used_differently = find_used(differ_, moved);
    if (used_differently) refuse(*used_differently);
    if (!differ_.empty())
      return head() + std::to_string(differ_.size()) + " of " + std::to_string(both_) +
             " tokens differ, none of which the data set holds; the first is " +
             difference(*differ_.begin());
    const auto used_beyond = find_used(more_, moved);
    if (!used_beyond) return "";
    return head() + "it has token " + std::to_string(used_beyond->token) + ", " +
           quoted(text_of(static_cast<size_t>(used_beyond->token))) + " (in " +
           dataset_.words(used_beyond->sample) +
           "), which the model's tokenizer lacks; all others that both have are the same";
  }

 private:
  struct Used {
    int32_t token;
    int64_t sample;
  };

  std::string text_of(size_t id) const {
    const auto at = [id](const std::vector<std::string>& texts) {
      return id < texts.size() ? texts[id] : "";
    };
    const std::string bytes = at(dataset_.texts().token_bytes);
    return bytes.empty() ? at(dataset_.texts().special_texts) : bytes;
  }

  std::string head() const {
    return dataset_.describe() + " was packed with another tokenizer than the model's (" +
           model_.where + "): ";
  }

  std::string difference(int32_t token) const {
    return std::to_string(token) + ", " + quoted(text_of(static_cast<size_t>(token))) +
           " in the data set and " + quoted(model_.texts.at(token)) + " in the model";
  }

  /// The first that a sample holds.
  std::optional<Used> find_used(const std::set<int32_t>& tokens,
                                const std::function<void()>& moved) const {
    if (tokens.empty() || *tokens.begin() > dataset_.max_token()) return std::nullopt;
    for (int64_t sample = 0; sample < std::ssize(dataset_.index()); ++sample) {
      if (sample % 1024 == 0) moved();
      for (const int32_t token : dataset_.tokens(sample))
        if (tokens.contains(token)) return Used{token, sample};
    }
    return std::nullopt;
  }

  [[noreturn]] void refuse(const Used& used) const {
    throw DataError(
        head() + std::to_string(differ_.size()) + " of " + std::to_string(both_) +
        " tokens differ, the first is " + difference(*differ_.begin()) + "; " +
        dataset_.words(used.sample) + " holds token " + difference(used.token) +
        ". Pack the data with the model's tokenizer (jobs/pack.py --model), or name the model that "
        "it was packed for as model.weights");
  }

  const Dataset& dataset_;
  const ModelTokens& model_;
  int64_t both_ = 0;                 ///< ids that have a text in both
  std::set<int32_t> differ_, more_;  ///< another one in both; one in the data set alone
};

}  // namespace

std::string compare_tokens(const Dataset& dataset, const ModelTokens& model,
                           const std::function<void()>& moved) {
  if (model.texts.empty()) return "";
  if (dataset.texts().token_bytes.empty())
    return dataset.describe() +
           " does not say what text its tokens have (token_bytes of jobs/dataset_writer.py), so it "
           "is not known whether they are those of the model's tokenizer";
  return Comparison(dataset, model).judge(moved);
}

}  // namespace zea
