// SPDX-License-Identifier: Apache-2.0
// Every target over its corpus, and over as many changes of it as there is time for: the same ones
// on every machine. libFuzzer finds new ones (the preset fuzz).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <string_view>

#include "fuzz/target.hpp"
#include "fuzz/watch.hpp"
#include "spec/model_spec.hpp"
#include "support/files.hpp"

namespace zea::test_corpus {
namespace {

using fuzz::Bytes, fuzz::Target;

constexpr int kChanges = 3000;       ///< tried on each target
constexpr int kFewestChanges = 100;  ///< however long they take
constexpr std::chrono::seconds kTime(4);

std::vector<std::filesystem::path> corpus_of(const Target& target) {
  std::vector<std::filesystem::path> paths;
  for (const auto& file :
       std::filesystem::directory_iterator(std::string(ZEA_FUZZ_CORPUS "/") + target.name))
    paths.push_back(file.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

Bytes bytes_of(const std::filesystem::path& path) {
  const std::string bytes = read_bytes(path.string());
  return {bytes.begin(), bytes.end()};
}

/// Changes inputs as files are damaged, and as people change them who want to do harm.
class Changer {
 public:
  Bytes changed(Bytes bytes) {
    for (size_t left = 1 + below(4); left > 0 && !bytes.empty(); --left) change(bytes);
    return bytes;
  }
  size_t below(size_t end) { return static_cast<size_t>(random_() % end); }

 private:
  void change(Bytes& bytes) {
    const size_t place = below(bytes.size());
    const auto at = bytes.begin() + static_cast<ptrdiff_t>(place);
    const auto end = at + static_cast<ptrdiff_t>(1 + below(std::min<size_t>(32, bytes.end() - at)));
    switch (below(6)) {
      case 0:
        *at = static_cast<uint8_t>(*at ^ (1 << below(8)));
        break;
      case 1:
        *at = static_cast<uint8_t>(below(256));
        break;
      case 2:
        std::fill(at, end, below(2) == 0 ? 0x00 : 0xff);
        break;
      case 3:
        bytes.erase(at, end);
        break;
      case 4: {
        const Bytes part(at, end);
        bytes.insert(at, part.begin(), part.end());
        break;
      }
      default:
        *at = static_cast<uint8_t>("0123456789[]{}\",:-"[below(18)]);
    }
  }

  std::mt19937_64 random_{7};
};

bool is_good(const std::filesystem::path& path) {
  return path.filename().string().starts_with("good");
}

class Corpus : public ::testing::TestWithParam<Target> {};

TEST_P(Corpus, IsReadOrRefused) {
  const std::vector<std::filesystem::path> paths = corpus_of(GetParam());

  EXPECT_GE(paths.size(), 3u);
  for (const auto& path : paths) {
    Bytes bytes = bytes_of(path);
    EXPECT_EQ(fuzz::feed(GetParam(), bytes), "") << path;
    if (GetParam().mend == nullptr) continue;
    GetParam().mend(bytes);
    EXPECT_EQ(fuzz::feed(GetParam(), bytes), "") << path << ", mended";
  }
}

/// A target that refuses all that it is given would find nothing.
TEST_P(Corpus, IsReadWhereItIsGood) {
  int good = 0;
  for (const auto& path : corpus_of(GetParam())) {
    if (!is_good(path)) continue;
    ++good;
    Bytes bytes = bytes_of(path);
    if (GetParam().mend != nullptr) GetParam().mend(bytes);
    EXPECT_EQ(fuzz::refusal_of(GetParam(), bytes), "") << path;
  }
  EXPECT_GE(good, 1);
}

TEST_P(Corpus, IsReadOrRefusedAfterChanges) {
  const Target& target = GetParam();
  std::vector<Bytes> inputs;
  for (const auto& path : corpus_of(target)) inputs.push_back(bytes_of(path));
  const auto end = std::chrono::steady_clock::now() + kTime;
  Changer changer;

  for (int i = 0; i < kChanges; ++i) {
    if (i >= kFewestChanges && std::chrono::steady_clock::now() >= end) break;
    Bytes bytes = changer.changed(inputs[static_cast<size_t>(i) % inputs.size()]);
    if (target.mend != nullptr && i % 4 != 0) target.mend(bytes);
    const std::string fault = fuzz::feed(target, bytes);
    if (fault.empty()) continue;
    const std::string kept = std::string("bad_") + target.name;
    write_bytes(kept, {bytes.begin(), bytes.end()});
    FAIL() << fault << "\nchange " << i << " is in " << std::filesystem::absolute(kept);
  }
}

using Json = nlohmann::json;

std::vector<Json> well_formed_configs() {
  const auto config = std::ranges::find(fuzz::targets(), "config", [](const Target& target) {
    return std::string_view(target.name);
  });
  std::vector<Json> found;
  for (const auto& path : corpus_of(*config))
    if (is_good(path)) found.push_back(Json::parse(read_bytes(path.string())));
  return found;
}

/// Returns the refusal of a config; empty: it is accepted.
std::string fault_of(const Json& config) {
  return error_of([&] { make_model_spec(config.dump()); });
}

/// Changes of a config that is refused at once would reach no reader. The refusal of an unknown
/// family names all known ones.
TEST(Configs, OfEveryFamilyAreAccepted) {
  std::set<std::string> families;
  for (const Json& config : well_formed_configs()) {
    EXPECT_EQ(fault_of(config), "") << config;
    families.insert(config.at("model_type"));
  }
  std::string names = fault_of({{"model_type", "none"}});
  names.erase(0, names.find("allowed: ") + std::string("allowed: ").size());
  std::istringstream all(names);
  for (std::string family; std::getline(all >> std::ws, family, ',');)
    EXPECT_TRUE(families.contains(family)) << family << " has no good_*.json in the corpus";
}

/// Objects with keys of other programs, which zea ignores as a whole, and names of tensors.
bool is_of_others(const std::string& key) {
  const std::set<std::string> keys{"auto_map",
                                   "code2wav_config",
                                   "carried",
                                   "crop_size",
                                   "id2label",
                                   "label2id",
                                   "patch_size",
                                   "size",
                                   "max_image_size",
                                   "perceiver_config",
                                   "pruned_heads",
                                   "talker_config",
                                   "task_specific_params",
                                   "video_sampling"};
  return keys.contains(key);
}

void find_objects(const Json& value, const Json::json_pointer& at,
                  std::vector<Json::json_pointer>& found) {
  if (!value.is_object()) return;
  found.push_back(at);
  for (const auto& [key, inner] : value.items())
    if (!is_of_others(key)) find_objects(inner, at / key, found);
}

/// As refusals call it: processors are said by themselves.
std::string path_of(const Json::json_pointer& at) {
  std::string path = "config" + at.to_string();
  std::ranges::replace(path, '/', '.');
  for (const char* alone : {kImageProcessor, kVideoProcessor, kFeatureExtractor})
    if (const size_t begin = path.find(alone); begin != std::string::npos) path.erase(0, begin);
  return path;
}

TEST(Configs, WithAKeyThatNobodyKnowsAreRefusedByItsName) {
  for (const Json& config : well_formed_configs()) {
    std::vector<Json::json_pointer> objects;
    find_objects(config, Json::json_pointer(), objects);
    for (const Json::json_pointer& at : objects) {
      Json odd = config;
      odd[at]["odd_key"] = 1;
      EXPECT_TRUE(contains(fault_of(odd), path_of(at / "odd_key") + " ")) << odd << "\n"
                                                                          << fault_of(odd);
    }
  }
}

/// So that nothing seen means that there was nothing.
TEST(Watch, SeesMemoryAndFiles) {
  fuzz::start_watching();
  void* volatile block = std::malloc(1 << 20);
  std::free(block);
  ::close(::open("/dev/null", O_RDONLY));
  const fuzz::Seen seen = fuzz::stop_watching();

  EXPECT_GE(seen.peak_bytes, 1 << 20);
  EXPECT_LT(seen.peak_bytes, 1 << 21);
  EXPECT_EQ(seen.opened, std::vector<std::string>{"/dev/null"});
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Corpus, ::testing::ValuesIn(fuzz::targets()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace zea::test_corpus
