// SPDX-License-Identifier: Apache-2.0
#include "watch/chrome_trace.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/text.hpp"
#include "files/durable_file.hpp"

namespace zea {
namespace {

using Json = nlohmann::ordered_json;

/// Communications overlap; overlapping ones lie in rows of their own.
constexpr int kFirstRow[] = {0, 100, 1};
constexpr const char* kCategories[] = {"action", "communication", "wait"};

double microseconds(int64_t from, int64_t to) {
  return 1e-3 * static_cast<double>(to - from);
}

Json name_row(int rank, int row, const std::string& name) {
  return {{"ph", "M"},
          {"name", "thread_name"},
          {"pid", rank},
          {"tid", row},
          {"args", {{"name", name}}}};
}

/// Returns the first row whose last communication has ended.
int free_row(std::vector<int64_t>& ends, const TraceSpan& span) {
  const auto row =
      std::find_if(ends.begin(), ends.end(), [&](int64_t end) { return end <= span.begin; });
  const auto index = static_cast<int>(row - ends.begin());
  if (row == ends.end())
    ends.push_back(span.end);
  else
    *row = span.end;
  return index;
}

}  // namespace

std::string chrome_trace(const TracedStep& traced) {
  std::vector<TraceSpan> spans = traced.spans;
  std::stable_sort(spans.begin(), spans.end(), [](const TraceSpan& a, const TraceSpan& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  Json events = Json::array();
  events.push_back(
      {{"ph", "M"},
       {"name", "process_name"},
       {"pid", traced.rank},
       {"args", {{"name", "rank " + std::to_string(traced.rank) + " on " + traced.host}}}});
  events.push_back(name_row(traced.rank, 0, "actions"));
  events.push_back(name_row(traced.rank, 1, "waits"));
  std::vector<int64_t> ends;
  Json complete = Json::array();
  for (const TraceSpan& span : spans) {
    const int kind = static_cast<int>(span.row);
    const int lane = span.row == TraceRow::Communication ? free_row(ends, span) : 0;
    complete.push_back({{"ph", "X"},
                        {"name", span.name},
                        {"cat", kCategories[kind]},
                        {"pid", traced.rank},
                        {"tid", kFirstRow[kind] + lane},
                        {"ts", microseconds(traced.origin, span.begin)},
                        {"dur", microseconds(span.begin, span.end)}});
  }
  for (size_t row = 0; row < ends.size(); ++row)
    events.push_back(name_row(traced.rank, kFirstRow[1] + static_cast<int>(row),
                              "communication " + std::to_string(row + 1)));
  events.insert(events.end(), complete.begin(), complete.end());
  return Json{{"displayTimeUnit", "ms"},
              {"otherData", {{"rank", traced.rank}, {"step", traced.step}}},
              {"traceEvents", events}}
      .dump();
}

void write_chrome_trace(const std::string& run_directory, const TracedStep& traced) {
  const std::string directory = run_directory + "/trace";
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw_storage_error("mkdir", directory, error.value());
  write_text_durably(directory + formatted("/rank-%05d.json", traced.rank), chrome_trace(traced));
}

}  // namespace zea
