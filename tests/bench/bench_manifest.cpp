// SPDX-License-Identifier: Apache-2.0
// Measures what a rank takes to write, to read and to open the manifest of a checkpoint of many
// ranks: FSDP over all of them, with a part of every tensor and two states on each. Makes a
// directory with empty shards in FOLDER.
//   bench_manifest FOLDER [RANKS [TENSORS]]
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>

#include "files/durable_file.hpp"
#include "io/checkpoint.hpp"
#include "io/manifest.hpp"

namespace zea {
namespace {

Manifest made(int64_t ranks, int64_t tensors) {
  Manifest manifest;
  manifest.run_id = "run";
  manifest.config = "{}";
  manifest.world_size = static_cast<int>(ranks);
  for (int64_t rank = 0; rank < ranks; ++rank)
    manifest.files.push_back({"shard-" + std::to_string(rank) + ".h5", std::string(32, 'a')});
  for (int64_t t = 0; t < tensors; ++t) {
    const std::string name =
        "model.layers." + std::to_string(t / 8) + ".mlp.part" + std::to_string(t % 8) + ".weight";
    manifest.tensors.push_back({name, {ranks * 4, 4096}, DType::Float32, true});
    for (int64_t rank = 0; rank < ranks; ++rank)
      for (const char* state : {"parameter", "exp_avg", "exp_avg_sq"})
        manifest.pieces.push_back({name,
                                   state,
                                   {{rank * 4, 0}, {4, 4096}},
                                   DType::Float32,
                                   manifest.files[static_cast<size_t>(rank)].name,
                                   name + "." + state,
                                   {std::string(32, 'b')}});
  }
  return manifest;
}

/// Runs and prints the processor seconds, and how much the process grows meanwhile, at most.
template <class Work>
void measure(const char* what, const Work& work) {
  const auto peak_mib = [] {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("VmHWM:")) return std::strtod(line.c_str() + 6, nullptr) / 1024;
    return 0.0;
  };
  std::ofstream("/proc/self/clear_refs") << "5";  // forgets the peak
  const double before = peak_mib();
  const std::clock_t begin = std::clock();
  work();
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  std::printf("%-28s %6.2f s %8.0f MiB\n", what, seconds, peak_mib() - before);
}

void run(const std::string& folder, int64_t ranks, int64_t tensors) {
  const Manifest manifest = made(ranks, tensors);
  std::filesystem::create_directories(folder);
  for (const ManifestFile& file : manifest.files) std::ofstream(folder + "/" + file.name);
  std::printf("%lld ranks, %zu pieces\n", static_cast<long long>(ranks), manifest.pieces.size());
  std::string text;
  measure("check the pieces", [&] { check_coverage(manifest); });
  measure("make the text", [&] { text = manifest_text(manifest); });
  measure("write it", [&] { write_text_durably(folder + "/" + kManifestFile, text); });
  measure("read and check it", [&] { parse_manifest(text, folder); });
  measure("open the checkpoint", [&] { CheckpointSource source(folder); });
}

}  // namespace
}  // namespace zea

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_manifest FOLDER [RANKS [TENSORS]]\n");
    return 2;
  }
  zea::run(argv[1], argc > 2 ? std::atoll(argv[2]) : 1024, argc > 3 ? std::atoll(argv[3]) : 228);
}
