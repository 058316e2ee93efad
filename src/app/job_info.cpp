// SPDX-License-Identifier: Apache-2.0
#include "app/job_info.hpp"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "app/answer.hpp"
#include "checkpoint/checkpoint_writer.hpp"
#include "comm/agree.hpp"
#include "deck/deck.hpp"
#include "files/durable_file.hpp"
#include "io/manifest.hpp"
#include "io/sampled_hash.hpp"
#include "io/strict_json.hpp"
#include "preflight/measure_nodes.hpp"

namespace zea {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "zea.job_info 1";
constexpr int64_t kMostBytes = int64_t{64} << 20;

std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

/// Returns the variables that libraries, MPI and zea itself read to choose how to compute.
Json environment() {
  constexpr const char* kPrefixes[] = {"ZEA_",   "OMP_",  "MKL_",  "ONEDNN_", "DNNL_", "ATEN",
                                       "TORCH_", "NCCL_", "CUDA_", "CUBLAS_", "KMP_",  "PYTORCH_"};
  Json found = Json::object();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (std::ranges::any_of(kPrefixes, [&](const char* p) { return text.starts_with(p); }))
      found[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  return found;
}

Json slurm_job() {
  Json job = Json::object();
  for (const char* name : {"SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST",
                           "SLURM_JOB_PARTITION", "SLURM_RESTART_COUNT"})
    if (const char* value = std::getenv(name)) job[name] = value;
  return job;
}

Json data_sets(const Dataset& dataset, const std::vector<std::string>& paths) {
  Json sets = Json::array();
  const std::vector<int64_t> samples = dataset.set_samples();
  const std::vector<std::string> hashes = dataset.set_hashes();
  for (size_t set = 0; set < hashes.size(); ++set)
    sets.push_back({{"path", paths.at(set)}, {"samples", samples[set]}, {"hash", hashes[set]}});
  return sets;
}

/// The files that the values of the first start come from.
Json weights_of(const Options& options) {
  std::vector<std::string> paths = {options.model.weights, options.llm.weights,
                                    options.llm.lora.weights};
  for (const auto& [encoder, section] : options.encoders) {
    paths.push_back(section.weights);
    paths.push_back(section.lora.weights);
  }
  std::erase(paths, "");
  Json all = Json::array();
  for (const std::string& path : paths) {
    const std::string checkpoint = find_checkpoint(path);
    all.push_back({{"path", path}, {"hash", sampled_hash(checkpoint.empty() ? path : checkpoint)}});
  }
  return all;
}

/// The resolved deck but for the run directory, in which runs may differ.
std::string hash_deck(Options options) {
  options.run.directory.clear();
  return hash_text(echo_deck(options));
}

/// Returns the different values of a fact, in the order of the ranks.
Json distinct(const std::vector<Json>& ranks, const char* fact) {
  Json values = Json::array();
  for (const Json& rank : ranks)
    if (!rank[fact].empty() && rank[fact] != "" &&
        std::ranges::find(values, rank[fact]) == values.end())
      values.push_back(rank[fact]);
  return values;
}

std::string dumped(const Json& json, int indent = -1) {
  // Names in the system need not be UTF-8.
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string describe_job(const JobParts& parts, Collectives& control) {
  const Options& options = parts.plan.options;
  const RankFacts facts = facts_of_host(static_cast<int>(options.run.threads), version());
  const std::vector<std::string> texts =
      gather_texts(control, dumped({{"host", facts.name},
                                    {"processor", facts.processor},
                                    {"kernel", facts.kernel},
                                    {"program", facts.build},
                                    {"libtorch", facts.libtorch},
                                    {"gpu", parts.gpu}}));
  std::string text;
  agree_on_root(control, [&] {
    std::vector<Json> ranks;
    for (const std::string& of_rank : texts) ranks.push_back(Json::parse(of_rank));
    Json build = {{"zea", version()}, {"program", distinct(ranks, "program")}};
    for (const BuildFact& fact : build_facts()) build[fact.name] = fact.value;
    const StateSource* const checkpoint = parts.start.checkpoint.get();
    std::vector<std::string> paths;
    for (const DataSource& set : options.data.train.sets) paths.push_back(set.path);
    Json shared = {{"build", build},
                   {"loaded libtorch", distinct(ranks, "libtorch")},
                   {"processors", distinct(ranks, "processor")},
                   {"kernel releases", distinct(ranks, "kernel")},
                   {"gpus", distinct(ranks, "gpu")},
                   {"ranks", control.size()},
                   {"threads", options.run.threads},
                   {"layout", describe_mesh(parts.plan)},
                   {"environment", environment()},
                   {"deck", hash_deck(options)},
                   {"config", hash_text(parts.start.config_json)},
                   {"data", data_sets(parts.train, paths)},
                   {"weights", checkpoint ? Json::array() : weights_of(options)}};
    if (parts.eval) shared["eval data"] = data_sets(*parts.eval, {options.data.eval});
    if (checkpoint)
      shared["checkpoint"] = {{"path", checkpoint->describe()},
                              {"hash", sampled_hash(checkpoint->describe())}};
    text = dumped({{"time", time_text()},
                   {"from_step", parts.from_step},
                   {"hosts", distinct(ranks, "host")},
                   {"slurm", slurm_job()},
                   {"facts", shared}});
  });
  return text;
}

std::vector<nlohmann::json> read_starts(const std::string& run) {
  const std::string path = run + "/" + kJobInfoFile;
  const nlohmann::json file = parse_strict_json(read_text(path, kMostBytes), path);
  if (json_text(file, "format", path) != kFormat)
    throw WeightsError(path + ": its format is not \"" + kFormat + "\"");
  std::vector<nlohmann::json> starts;
  for (const nlohmann::json& start : json_member(file, "starts", path)) {
    json_member(start, "facts", path);
    json_count(json_member(start, "from_step", path), path);
    starts.push_back(start);
  }
  if (starts.empty()) throw WeightsError(path + ": it lists no start");
  return starts;
}

void add_start(const std::string& run, const std::string& entry) {
  const std::string path = run + "/" + kJobInfoFile;
  Json starts = Json::array();
  if (std::filesystem::exists(std::filesystem::symlink_status(path))) {
    read_starts(run);
    starts = Json::parse(read_text(path, kMostBytes))["starts"];
  }
  starts.push_back(Json::parse(entry));
  write_text_durably(path, dumped({{"format", kFormat}, {"starts", starts}}, 2) + "\n");
}

std::string describe_differences(const nlohmann::json& then, const nlohmann::json& now) {
  const nlohmann::json was = then.at("facts").flatten(), is = now.at("facts").flatten();
  std::set<std::string> keys;
  for (const auto& [key, value] : was.items()) keys.insert(key);
  for (const auto& [key, value] : is.items()) keys.insert(key);
  std::string text;
  for (const std::string& key : keys) {
    const auto value = [&](const nlohmann::json& facts) {
      return facts.contains(key) ? facts[key].dump() : "absent";
    };
    if (value(was) != value(is))
      text += "  " + key.substr(1) + ": was " + value(was) + ", is " + value(is) + "\n";
  }
  return text;
}

}  // namespace zea
