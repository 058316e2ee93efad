// SPDX-License-Identifier: Apache-2.0
// The manifest's text: one tensor or piece per line, so that people can read and compare it.
// Parsing checks it all against itself, since a checkpoint may have been copied, edited, or cut
// short.
#include "io/manifest.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "core/error.hpp"
#include "core/extent.hpp"
#include "files/durable_file.hpp"
#include "io/strict_json.hpp"
#include "layout/optimizer_spec.hpp"

namespace zea {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxManifestBytes = int64_t{4} << 30;
constexpr size_t kHashDigits = 32;
const std::string kDigestBegin = "\"digest\": \"";
const std::string kDigestEnd = "\"\n}\n";

template <class Items, class Line>
std::string list_text(const Items& items, Line line) {
  std::string text = "[";
  for (const auto& item : items) text += (text.size() > 1 ? ",\n  " : "\n  ") + line(item);
  return text + "\n]";
}

std::string quoted(const std::string& text) {
  return Json(text).dump();
}

/// A checkpoint has many pieces: as JSON objects they would take several times as long.
std::string piece_text(const Piece& piece) {
  const auto list = [](const auto& values, const auto& text_of) {
    std::string text = "[";
    for (const auto& value : values) text += (text.size() > 1 ? "," : "") + text_of(value);
    return text + "]";
  };
  const auto number = [](int64_t value) { return std::to_string(value); };
  std::string text = "{\"tensor\":" + quoted(piece.tensor) + ",\"state\":" + quoted(piece.state) +
                     ",\"offset\":" + list(piece.extent.offset, number) +
                     ",\"length\":" + list(piece.extent.length, number) + ",\"dtype\":\"" +
                     dtype_name(piece.dtype) + "\",\"file\":" + quoted(piece.file) +
                     ",\"dataset\":" + quoted(piece.dataset) +
                     ",\"hashes\":" + list(piece.block_hashes, quoted);
  if (piece.elements_of_each != 1)
    text += ",\"elements_of_each\":" + number(piece.elements_of_each);
  return text + "}";
}

std::string file_text(const ManifestFile& file) {
  return nlohmann::ordered_json{{"name", file.name}, {"rest_hash", file.rest_hash}}.dump();
}

std::string tensor_text(const ManifestTensor& tensor) {
  return nlohmann::ordered_json{{"name", tensor.name},
                                {"shape", tensor.shape},
                                {"dtype", dtype_name(tensor.dtype)},
                                {"trained", tensor.trained}}
      .dump();
}

std::string position_text(const TrainPosition& position) {
  nlohmann::ordered_json json{{"step", position.step},
                              {"optimizer_step", position.optimizer_step},
                              {"samples", position.samples},
                              {"tokens", position.tokens},
                              {"target_tokens", position.target_tokens}};
  if (position.data_samples > 0) json["data_samples"] = position.data_samples;
  if (!position.data_hashes.empty()) json["data_hashes"] = position.data_hashes;
  if (const StepHistory& history = position.history; history != StepHistory())
    json["history"] = {{"losses", history.losses},
                       {"grad_norms", history.grad_norms},
                       {"skipped_in_a_row", history.skipped_in_a_row}};
  return json.dump();
}

/// Throws unless the digest that ends the text is its own.
void check_digest(const std::string& text, const std::string& where) {
  const size_t tail = kDigestBegin.size() + kHashDigits + kDigestEnd.size();
  const std::string about = where + ": the manifest is damaged or cut short: ";
  if (text.size() < tail) throw WeightsError(about + "it is too short");
  const size_t body = text.size() - tail;
  const std::string digest = hash_bytes(text.data(), static_cast<int64_t>(body));
  if (text.substr(body) != kDigestBegin + digest + kDigestEnd)
    throw WeightsError(about + "its digest should be " + digest);
}

/// Format and version come first, so that a manifest of another version says so instead of
/// "damaged".
std::string checked_version(const std::string& text, const std::string& where) {
  const std::string start =
      "{\"format\": \"" + std::string(kManifestFormat) + "\", \"version\": \"";
  if (!text.starts_with(start))
    throw WeightsError(where + ": does not start as a manifest of format \"" + kManifestFormat +
                       "\"");
  std::string version = text.substr(start.size(), text.find('"', start.size()) - start.size());
  if (version != kManifestVersion && version != kFirstManifestVersion)
    throw WeightsError(where + ": format version is \"" + version.substr(0, 32) +
                       "\"; this zea reads version \"" + kManifestVersion + "\" and \"" +
                       kFirstManifestVersion + "\"");
  return version;
}

std::vector<int64_t> parse_counts(const Json& list, const std::string& where) {
  if (!list.is_array()) throw WeightsError(where + ": expected a list of numbers");
  std::vector<int64_t> counts;
  for (const Json& value : list) counts.push_back(json_count(value, where));
  return counts;
}

std::vector<std::string> parse_texts(const Json& list, const std::string& where) {
  if (!list.is_array()) throw WeightsError(where + ": expected a list of strings");
  std::vector<std::string> texts;
  for (const Json& value : list) {
    if (!value.is_string()) throw WeightsError(where + ": expected a list of strings");
    texts.push_back(value.get<std::string>());
  }
  return texts;
}

std::vector<ManifestFile> parse_files(const Json& list, const std::string& version,
                                      const std::string& where) {
  std::vector<ManifestFile> files;
  if (version == kFirstManifestVersion) {
    for (const std::string& name : parse_texts(list, where)) files.push_back({name, ""});
    return files;
  }
  for (const Json& value : list)
    files.push_back({json_text(value, "name", where), json_text(value, "rest_hash", where)});
  return files;
}

std::vector<double> parse_numbers(const Json& list, const std::string& where) {
  if (!list.is_array() || !std::ranges::all_of(list, &Json::is_number))
    throw WeightsError(where + ": expected a list of numbers");
  return list.get<std::vector<double>>();
}

StepHistory parse_history(const Json& value, const std::string& where) {
  StepHistory history{parse_numbers(json_member(value, "losses", where), where),
                      parse_numbers(json_member(value, "grad_norms", where), where),
                      json_count(json_member(value, "skipped_in_a_row", where), where)};
  if (history.losses.size() != history.grad_norms.size())
    throw WeightsError(where + ": the history has " + std::to_string(history.losses.size()) +
                       " losses and " + std::to_string(history.grad_norms.size()) +
                       " norms of gradients");
  return history;
}

TrainPosition parse_position(const Json& value, const std::string& where) {
  auto count = [&](const char* key) { return json_count(json_member(value, key, where), where); };
  return {count("step"),
          count("optimizer_step"),
          count("samples"),
          count("tokens"),
          count("target_tokens"),
          value.contains("history") ? parse_history(value["history"], where) : StepHistory(),
          value.contains("data_samples") ? count("data_samples") : 0,
          value.contains("data_hashes") ? parse_texts(value["data_hashes"], where)
                                        : std::vector<std::string>()};
}

/// Bytes of a tensor of this shape; throws when they go beyond 2^62.
int64_t checked_bytes(const Shape& shape, DType dtype, const std::string& where) {
  auto bytes = static_cast<int64_t>(element_bytes(dtype));
  for (int64_t length : shape)
    if (__builtin_mul_overflow(bytes, length, &bytes) || bytes > int64_t{1} << 62)
      throw WeightsError(where + ": a shape makes more than 2^62 bytes");
  return bytes;
}

ManifestTensor parse_tensor(const Json& value, const std::string& where) {
  ManifestTensor tensor{
      json_text(value, "name", where), parse_counts(json_member(value, "shape", where), where),
      dtype_from_name(json_text(value, "dtype", where)), json_bool(value, "trained", where)};
  checked_bytes(tensor.shape, tensor.dtype, where);
  return tensor;
}

Piece parse_piece(const Json& value, const std::string& where) {
  return {json_text(value, "tensor", where),
          json_text(value, "state", where),
          {parse_counts(json_member(value, "offset", where), where),
           parse_counts(json_member(value, "length", where), where)},
          dtype_from_name(json_text(value, "dtype", where)),
          json_text(value, "file", where),
          json_text(value, "dataset", where),
          parse_texts(json_member(value, "hashes", where), where),
          value.contains("elements_of_each") ? json_count(value["elements_of_each"], where) : 1};
}

bool is_optimizer_state(const std::string& name) {
  return std::ranges::any_of(optimizers(), [&](const OptimizerSpec& optimizer) {
    return std::ranges::count(optimizer.states, name, &StateSpec::name) > 0;
  });
}

using TensorsByName = std::map<std::string, const ManifestTensor*>;

bool ends_overflow(const Extent& box) {
  for (size_t d = 0; d < box.offset.size(); ++d)
    if (box.offset[d] > INT64_MAX - box.length[d]) return true;
  return false;
}

void check_piece(const Piece& piece, const TensorsByName& tensors,
                 const std::set<std::string>& files, const std::string& where) {
  const std::string about = where + ": piece \"" + piece.dataset + "\" of " + piece.file + " ";
  const auto tensor = tensors.find(piece.tensor);
  if (tensor == tensors.end())
    throw WeightsError(about + "is of tensor \"" + piece.tensor + "\", which is not listed");
  if (!files.contains(piece.file)) throw WeightsError(about + "is in a file that is not listed");
  const Shape& shape = tensor->second->shape;
  if (piece.elements_of_each < 1 ||
      (piece.elements_of_each > 1 && (shape.empty() || shape.back() % piece.elements_of_each != 0)))
    throw WeightsError(about + "has one for each " + std::to_string(piece.elements_of_each) +
                       " elements, of which the rows of tensor \"" + piece.tensor +
                       "\" have no whole number");
  const Extent all = whole(in_blocks(shape, piece.elements_of_each));
  if (piece.extent.offset.size() != all.offset.size() ||
      piece.extent.length.size() != all.offset.size() || ends_overflow(piece.extent) ||
      intersect(piece.extent, all) != piece.extent)
    throw WeightsError(about + "lies outside tensor \"" + piece.tensor + "\"");
  if (piece.state != kStateParameter && !is_optimizer_state(piece.state))
    throw WeightsError(about + "has the unknown state \"" + piece.state + "\"");
  const int64_t bytes = checked_bytes(piece.extent.length, piece.dtype, where);
  const auto blocks = static_cast<size_t>((bytes + kHashBlockBytes - 1) / kHashBlockBytes);
  if (piece.block_hashes.size() != blocks)
    throw WeightsError(about + "has " + std::to_string(piece.block_hashes.size()) + " hashes for " +
                       std::to_string(blocks) + " blocks");
}

void check_contents(const Manifest& manifest, const std::string& where) {
  TensorsByName tensors;
  for (const ManifestTensor& tensor : manifest.tensors)
    if (!tensors.emplace(tensor.name, &tensor).second)
      throw WeightsError(where + ": lists tensor \"" + tensor.name + "\" twice");
  std::set<std::string> files;
  for (const ManifestFile& file : manifest.files) {
    check_plain_name(file.name, where);
    if (!files.insert(file.name).second)
      throw WeightsError(where + ": lists file " + file.name + " twice");
  }
  for (const Piece& piece : manifest.pieces) check_piece(piece, tensors, files, where);
}

/// Whether boxes cover a tensor of `shape` once. Sorted by their first dim, so that only neighbours
/// are compared.
bool covers(const Shape& shape, std::vector<const Piece*> pieces) {
  const int64_t each = pieces.front()->elements_of_each;
  if (!std::ranges::all_of(pieces, [&](const Piece* p) { return p->elements_of_each == each; }))
    return false;
  auto begin = [](const Piece* piece) {
    return piece->extent.offset.empty() ? 0 : piece->extent.offset[0];
  };
  auto end = [](const Piece* piece) {
    return piece->extent.offset.empty() ? 1 : piece->extent.offset[0] + piece->extent.length[0];
  };
  std::sort(pieces.begin(), pieces.end(),
            [&](const Piece* a, const Piece* b) { return begin(a) < begin(b); });
  int64_t elements = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    elements += pieces[i]->extent.elements();
    for (size_t j = i + 1; j < pieces.size() && begin(pieces[j]) < end(pieces[i]); ++j)
      if (!intersect(pieces[i]->extent, pieces[j]->extent).empty()) return false;
  }
  return elements == num_elements(in_blocks(shape, each));
}

/// All that the optimizer keeps whose state is there; and the parameter itself.
std::vector<StateSpec> states_of(const std::vector<Piece>& pieces) {
  std::set<std::string> found;
  for (const Piece& piece : pieces) found.insert(piece.state);
  for (const OptimizerSpec& optimizer : optimizers()) {
    std::vector<StateSpec> states{{kStateParameter}};
    states.insert(states.end(), optimizer.states.begin(), optimizer.states.end());
    std::set<std::string> kept;
    for (const StateSpec& state : states) kept.insert(state.name);
    if (std::ranges::includes(kept, found)) return states;
  }
  throw WeightsError("the pieces hold the states of several optimizers");
}

}  // namespace

int64_t block_elements(DType dtype) {
  return kHashBlockBytes / static_cast<int64_t>(element_bytes(dtype));
}

std::string manifest_text(const Manifest& manifest) {
  std::string text = "{\"format\": \"" + std::string(kManifestFormat) + "\", \"version\": \"" +
                     kManifestVersion + "\",\n";
  text += "\"run_id\": " + quoted(manifest.run_id) + ",\n";
  text += "\"position\": " + position_text(manifest.position) + ",\n";
  text += "\"mesh\": " + quoted(manifest.mesh) + ",\n";
  text += "\"world_size\": " + std::to_string(manifest.world_size) + ",\n";
  text += "\"deck\": " + quoted(manifest.deck) + ",\n";
  text += "\"config\": " + quoted(manifest.config) + ",\n";
  if (!manifest.job_info.empty()) text += "\"job_info\": " + quoted(manifest.job_info) + ",\n";
  if (!manifest.view_hash.empty()) text += "\"view_hash\": " + quoted(manifest.view_hash) + ",\n";
  text += "\"files\": " + list_text(manifest.files, file_text) + ",\n";
  text += "\"tensors\": " + list_text(manifest.tensors, tensor_text) + ",\n";
  text += "\"pieces\": " + list_text(manifest.pieces, piece_text) + ",\n";
  const std::string digest = hash_bytes(text.data(), static_cast<int64_t>(text.size()));
  return text + kDigestBegin + digest + kDigestEnd;
}

Manifest parse_manifest(const std::string& text, const std::string& where) {
  Manifest manifest;
  manifest.version = checked_version(text, where);
  check_digest(text, where);
  manifest.pieces.reserve(static_cast<size_t>(std::ranges::count(text, '\n')));  // a line each
  const Json json = parse_strict_json(
      text, where,
      {"pieces", [&](const Json& value) { manifest.pieces.push_back(parse_piece(value, where)); }});
  manifest.run_id = json_text(json, "run_id", where);
  manifest.position = parse_position(json_member(json, "position", where), where);
  manifest.deck = json_text(json, "deck", where);
  manifest.config = json_text(json, "config", where);
  if (json.contains("job_info")) manifest.job_info = json_text(json, "job_info", where);
  manifest.mesh = json_text(json, "mesh", where);
  manifest.world_size = json_count(json_member(json, "world_size", where), where);
  if (json.contains("view_hash")) manifest.view_hash = json_text(json, "view_hash", where);
  manifest.files = parse_files(json_member(json, "files", where), manifest.version, where);
  for (const Json& value : json_member(json, "tensors", where))
    manifest.tensors.push_back(parse_tensor(value, where));
  if (!json_member(json, "pieces", where).is_array())
    throw WeightsError(where + ": \"pieces\" is not a list");
  check_contents(manifest, where);
  return manifest;
}

Manifest read_manifest(const std::string& directory) {
  const std::string path = directory + "/" + kManifestFile;
  return parse_manifest(read_text(path, kMaxManifestBytes), path);
}

void check_coverage(const Manifest& manifest) {
  std::map<std::pair<std::string, std::string>, std::vector<const Piece*>> pieces;
  for (const Piece& piece : manifest.pieces) pieces[{piece.tensor, piece.state}].push_back(&piece);
  const std::vector<StateSpec> states = states_of(manifest.pieces);
  for (const ManifestTensor& tensor : manifest.tensors) {
    const bool has_blocks = std::ranges::any_of(states, [&](const StateSpec& state) {
      return state.of == StateOf::Codes && pieces.contains({tensor.name, state.name});
    });
    for (const StateSpec& spec : states) {
      const std::string& state = spec.name;
      const bool wanted = state == kStateParameter ||
                          (tensor.trained && spec.elements_of_each(has_blocks ? 1 : 0) > 0);
      const auto found = pieces.find({tensor.name, state});
      const bool present = found != pieces.end();
      if (wanted && present && covers(tensor.shape, found->second)) continue;
      if (!wanted && !present) continue;
      throw WeightsError("the pieces of tensor \"" + tensor.name + "\" (" + state + ") " +
                         (wanted ? "do not cover it exactly once"
                                 : std::string("should not be there: it ") +
                                       (tensor.trained ? "has no such state" : "is not trained")));
    }
  }
}

}  // namespace zea

// XXH3-128 (xxHash, Yann Collet): as fast as memory, and wide enough that damage never goes unseen.

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

namespace zea {

std::string hash_bytes(const void* data, int64_t bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, static_cast<size_t>(bytes)));
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::vector<std::string> hash_blocks(const void* data, int64_t bytes) {
  std::vector<std::string> hashes;
  for (int64_t begin = 0; begin < bytes; begin += kHashBlockBytes)
    hashes.push_back(hash_bytes(static_cast<const char*>(data) + begin,
                                std::min(kHashBlockBytes, bytes - begin)));
  return hashes;
}

int64_t num_blocks(const Piece& piece) {
  const int64_t in_block = block_elements(piece.dtype);
  return (piece.extent.elements() + in_block - 1) / in_block;
}

void size_hashes(Piece& piece) {
  piece.block_hashes.resize(static_cast<size_t>(num_blocks(piece)));
}

void hash_part(Piece& piece, int64_t first, int64_t count, const void* data) {
  const int64_t in_block = block_elements(piece.dtype);
  ZEA_ASSERT(first % in_block == 0);
  auto number = static_cast<size_t>(first / in_block);
  const int64_t bytes = count * static_cast<int64_t>(element_bytes(piece.dtype));
  for (std::string& hash : hash_blocks(data, bytes))
    piece.block_hashes.at(number++) = std::move(hash);
}

}  // namespace zea
