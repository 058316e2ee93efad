// SPDX-License-Identifier: Apache-2.0
#include "app/measured_times.hpp"

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

namespace zea {

MeasuredTimes read_measured_times(const std::string& run_directory) {
  MeasuredTimes times;
  std::ifstream file(run_directory + "/metrics.jsonl");
  double sum = 0, clock = std::numeric_limits<double>::infinity();
  int saves = 0;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) continue;  // a line that a killed run did not end
    const std::string kind = json.value("kind", "");
    if (kind == "checkpoint" && json.contains("stall_seconds")) {
      sum += json["stall_seconds"].get<double>();
      ++saves;
    }
    if (kind != "train" || !json.contains("seconds")) continue;
    const double seconds = json["seconds"].get<double>();
    if (seconds < clock) {  // the first step of a start
      times.start = seconds;
      sum = saves = 0;
    }
    clock = seconds;
  }
  if (saves > 0) times.save = sum / saves;
  return times;
}

}  // namespace zea
