// SPDX-License-Identifier: Apache-2.0
#include "estimate/peak_tflops.hpp"

#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>

namespace zea {
namespace {

struct Gpu {
  const char* words;  ///< in its name
  double bf16, fp32;
};

/// NVIDIA's data sheets, rounded down; where they tell rates with sparsity, half of these. The
/// first whose words are all there counts.
constexpr Gpu kGpus[] = {
    {"GB200", 2500, 80},    {"B200", 2250, 75},    {"GH200", 989, 67},     {"H200 NVL", 835, 60},
    {"H200", 989, 67},      {"H100 NVL", 835, 60}, {"H100 PCIe", 756, 51}, {"H100", 989, 67},
    {"H800 PCIe", 756, 51}, {"H800", 989, 67},     {"A100", 312, 19.5},    {"A800", 312, 19.5},
    {"A40", 149, 37},       {"A30", 165, 10.3},    {"A10", 125, 31},       {"L40S", 362, 91},
    {"L40", 181, 90},       {"L4", 121, 30},
};

std::set<std::string> words_of(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return std::isalnum(c) == 0; }, ' ');
  std::istringstream words(text);
  std::set<std::string> all;
  for (std::string word; words >> word;) all.insert(word);
  return all;
}

}  // namespace

double data_sheet_tflops(const std::string& name, DType compute) {
  const std::set<std::string> words = words_of(name);
  const auto is_it = [&](const Gpu& gpu) {
    return std::ranges::includes(words, words_of(gpu.words));
  };
  const auto found = std::ranges::find_if(kGpus, is_it);
  if (found == std::end(kGpus) || words.contains("MIG")) return 0;
  if (compute == DType::BFloat16) return found->bf16;
  return compute == DType::Float32 ? found->fp32 : 0;
}

double peak_tflops(const Plan& plan, const std::string& gpu) {
  const RunOptions& run = plan.options.run;
  if (run.peak_tflops > 0) return run.peak_tflops;
  const auto computes_alike = [&](const std::string& module) {
    return plan.precision_of(module).param == plan.precision.param;
  };
  if (run.ranks_per_gpu > 1 || !std::ranges::all_of(plan.model.modules(), computes_alike)) return 0;
  return data_sheet_tflops(gpu, plan.precision.param);
}

}  // namespace zea
