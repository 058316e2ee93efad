// SPDX-License-Identifier: Apache-2.0
#include "watch/rank_report.hpp"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/text.hpp"

namespace zea {
namespace {

using Json = nlohmann::ordered_json;

double seconds_between(int64_t from, int64_t to) {
  return 1e-9 * static_cast<double>(to - from);
}

Json to_json(const std::vector<RecordedSpan>& spans) {
  Json all = Json::array();
  for (const RecordedSpan& span : spans) all.push_back({span.name, span.begin, span.end});
  return all;
}

std::vector<RecordedSpan> spans_from(const Json& all) {
  std::vector<RecordedSpan> spans;
  for (const Json& span : all)
    spans.push_back(
        {span.at(0).get<std::string>(), span.at(1).get<int64_t>(), span.at(2).get<int64_t>()});
  return spans;
}

Json to_json(const RankReport& report) {
  const RankState& state = report.state;
  Json json{{"host", report.host},
            {"taken_at", report.taken_at},
            {"process", state.process},
            {"has_left", state.has_left},
            {"step", state.step},
            {"moves", state.moves},
            {"moved_at", state.moved_at},
            {"heartbeat", state.heartbeat},
            {"open", to_json(state.open)},
            {"actions", to_json(state.actions)},
            {"calls", to_json(state.calls)},
            {"calls_of_group", state.calls_of_group}};
  if (state.on_device) json["on_device"] = to_json(std::vector{*state.on_device});
  if (state.waits) json["waits"] = {state.waits->group, state.waits->call, state.waits->peers};
  return json;
}

RankReport report_from(const Json& json) {
  RankReport report{json.at("host").get<std::string>(), json.at("taken_at").get<int64_t>(), {}};
  RankState& state = report.state;
  state.process = json.at("process").get<int64_t>();
  state.has_left = json.at("has_left").get<bool>();
  state.step = json.at("step").get<int64_t>();
  state.moves = json.at("moves").get<int64_t>();
  state.moved_at = json.at("moved_at").get<int64_t>();
  state.heartbeat = json.at("heartbeat").get<int64_t>();
  state.open = spans_from(json.at("open"));
  state.actions = spans_from(json.at("actions"));
  state.calls = spans_from(json.at("calls"));
  state.calls_of_group = json.at("calls_of_group").get<std::map<std::string, int64_t>>();
  if (const auto on_device = json.find("on_device"); on_device != json.end())
    state.on_device = spans_from(*on_device).at(0);
  if (const auto waits = json.find("waits"); waits != json.end())
    state.waits = {waits->at(0).get<std::string>(), waits->at(1).get<int64_t>(),
                   waits->at(2).get<std::vector<int>>()};
  return report;
}

std::string describe_span(const RankReport& report, const RecordedSpan& span) {
  const bool is_open = span.end == 0;
  return formatted("  %10.3f s ago, %s %9.6f s  ", seconds_between(span.begin, report.taken_at),
                   is_open ? "for " : "took",
                   seconds_between(span.begin, is_open ? report.taken_at : span.end)) +
         span.name + (is_open ? "  (under way)" : "") + "\n";
}

std::string describe_spans(const RankReport& report, const std::vector<RecordedSpan>& spans) {
  std::string text;
  for (const RecordedSpan& span : spans) text += describe_span(report, span);
  return text;
}

}  // namespace

std::string RankReport::current() const {
  if (state.has_left) return "nothing: it has left the run";
  return state.open.empty() ? "between actions" : state.open.back().name;
}

double RankReport::current_seconds() const {
  return seconds_between(state.open.empty() ? state.moved_at : state.open.back().begin, taken_at);
}

double RankReport::heartbeat_seconds() const {
  return seconds_between(state.heartbeat, taken_at);
}

std::string reports_to_json(const RankReports& reports) {
  Json all = Json::object();
  for (const auto& [rank, report] : reports) all[std::to_string(rank)] = to_json(report);
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

RankReports reports_from_json(const std::string& text) {
  RankReports reports;
  try {
    const Json all = Json::parse(text);
    for (const auto& [rank, report] : all.items()) reports[std::stoi(rank)] = report_from(report);
  } catch (const std::exception&) {
    return {};  // another node is writing it
  }
  return reports;
}

std::string describe_report(int rank, const RankReport& report) {
  return "rank " + std::to_string(rank) + " on " + report.host +
         formatted(" (process %ld) in step %ld, %.1f s after its threads last ran, under way:\n",
                   static_cast<long>(report.state.process), static_cast<long>(report.state.step),
                   report.heartbeat_seconds()) +
         describe_spans(report, report.state.open) + " last actions, oldest first:\n" +
         describe_spans(report, report.state.actions) + " last communications, oldest first:\n" +
         describe_spans(report, report.state.calls);
}

std::string describe_some(const RankReports& reports, const std::vector<int>& ranks,
                          size_t most_bytes) {
  std::string text;
  std::set<int> told;
  for (int rank : ranks) {
    const auto report = reports.find(rank);
    if (report == reports.end() || told.contains(rank)) continue;
    const std::string one = "\n" + describe_report(rank, report->second);
    if (text.size() + one.size() > most_bytes) break;
    text += one;
    told.insert(rank);
  }
  const size_t left_out = reports.size() - told.size();
  return left_out == 0
             ? text
             : text + "\nThose of " + std::to_string(left_out) +
                   (left_out == 1 ? " other rank are" : " other ranks are") + " left out here.\n";
}

}  // namespace zea
