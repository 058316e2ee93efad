// SPDX-License-Identifier: Apache-2.0
#include "train/metrics.hpp"

#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/text.hpp"
#include "files/durable_file.hpp"

namespace zea {
namespace {

std::string clock_text(double seconds) {
  const int64_t whole = static_cast<int64_t>(seconds);
  return formatted("%ld:%02ld:%02ld", static_cast<long>(whole / 3600),
                   static_cast<long>(whole / 60 % 60), static_cast<long>(whole % 60));
}

/// Without targets there is no loss; zero would look like a good one.
nlohmann::ordered_json of_targets(int64_t targets, double value) {
  return targets == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
}

void add_scalars(const std::string& tag, const nlohmann::ordered_json& value,
                 std::vector<EventScalar>& scalars) {
  if (value.is_number()) scalars.push_back({tag, value.get<double>()});
  if (!value.is_object()) return;
  for (const auto& [key, part] : value.items()) add_scalars(tag + "/" + key, part, scalars);
}

/// Returns every number of a line, tagged kind/key; events have step and time of their own.
std::vector<EventScalar> scalars_of(const nlohmann::ordered_json& line) {
  const std::string kind = line.at("kind").get<std::string>();
  std::vector<EventScalar> scalars;
  for (const auto& [key, value] : line.items())
    if (key != "step" && key != "seconds") add_scalars(kind + "/" + key, value, scalars);
  return scalars;
}

/// "  12.3 TFLOP/s a rank, MFU 1.2 % (1.3 % unmasked)"
std::string speed_of(const StepMetrics& m) {
  std::string text = formatted("  %.3g TFLOP/s a rank", m.model_tflops);
  if (m.mfu > 0)
    text += formatted(", MFU %.1f %% (%.1f %% unmasked)", 100 * m.mfu, 100 * m.mfu_unmasked);
  return text;
}

/// ", fullest expert 1.8 times the mean": of the layer with the largest imbalance.
std::string imbalance_of(const StepReport& report) {
  double most = 0;
  for (const auto& [layer, imbalance] : report.expert_imbalance) most = std::max(most, imbalance);
  return most == 0 ? "" : formatted(", fullest expert %.2f times the mean", most);
}

/// Describes memory besides the host's resident memory.
std::string memory_of(const StepMetrics& m) {
  if (m.gpu_memory)
    return ", GPU " + std::to_string(m.gpu_memory->peak_allocated >> 20) + " of " +
           std::to_string(m.gpu_memory->peak_reserved >> 20) + " MiB reserved";
  if (m.tensor_peak_bytes == 0) return "";
  return " (tensors at most " + std::to_string(m.tensor_peak_bytes >> 20) + ")";
}

}  // namespace

std::string progress_line(const StepMetrics& m) {
  std::string sums = "no targets";
  if (m.report.targets > 0) {
    sums = formatted("loss %.4f", m.report.loss);
    if (m.report.mtp_loss != 0) sums += formatted(" (mtp %.4f)", m.report.mtp_loss);
    sums += formatted("  grad norm %.3f", m.report.grad_norm) + imbalance_of(m.report);
  }
  return formatted(
      "step %ld/%ld  %s  lr %.2e  %.0f tokens/s  %.1f samples/s%s  %.0f MiB%s  %s left",
      static_cast<long>(m.step), static_cast<long>(m.steps), sums.c_str(), m.report.lr,
      m.tokens_per_second, m.samples_per_second, speed_of(m).c_str(),
      static_cast<double>(m.memory_bytes) / (1 << 20), memory_of(m).c_str(),
      clock_text(m.seconds_per_step * static_cast<double>(m.steps - m.step)).c_str());
}

std::string eval_line(const EvalMetrics& m) {
  std::string line =
      (m.has_loss ? "evaluation" : "generation") + (" at step " + std::to_string(m.step)) + ": ";
  if (m.has_loss)
    line += m.targets > 0 ? formatted("loss %.4f over ", m.loss) : "no targets, so no loss, in ";
  line += std::to_string(m.samples) + " samples";
  if (m.labelled > 0)
    line += formatted(", accuracy %.2f %% (%ld of %ld)", 100 * m.accuracy(),
                      static_cast<long>(m.correct), static_cast<long>(m.labelled));
  return line;
}

std::string generation_line(const EvalMetrics& m) {
  return formatted(
      "generated %ld tokens behind %ld prompts in %.2f s, of which %.2f s for the prompts "
      "and the first token: %.1f tokens/s",
      static_cast<long>(m.generated), static_cast<long>(m.prompts), m.generate_seconds,
      m.prompt_seconds, static_cast<double>(m.generated) / m.generate_seconds);
}

void MetricsFile::append(const StepMetrics& m) const {
  nlohmann::ordered_json line{{"kind", "train"},
                              {"step", m.step},
                              {"seconds", m.seconds},
                              {"loss", of_targets(m.report.targets, m.report.loss)},
                              {"grad_norm", of_targets(m.report.targets, m.report.grad_norm)},
                              {"lr", m.report.lr},
                              {"targets", m.report.targets},
                              {"bad_items", m.bad_items},
                              {"skipped_steps", m.skipped_steps},
                              {"tokens_per_second", m.tokens_per_second},
                              {"samples_per_second", m.samples_per_second},
                              {"model_tflops", m.model_tflops},
                              {"wait_seconds", m.wait_seconds},
                              {"own_seconds",
                               {{"mean", m.own_seconds.mean},
                                {"slowest", m.own_seconds.slowest},
                                {"slowest_rank", m.own_seconds.slowest_rank}}},
                              {"memory_bytes", m.memory_bytes}};
  if (m.mfu > 0) {
    line["mfu"] = m.mfu;
    line["mfu_unmasked"] = m.mfu_unmasked;
  }
  if (m.report.mtp_loss != 0) line["mtp_loss"] = m.report.mtp_loss;
  for (const auto& [layer, imbalance] : m.report.expert_imbalance)
    line["expert_imbalance"][layer] = imbalance;
  if (m.gpu_memory)
    line["gpu_memory"] = {{"allocated_bytes", m.gpu_memory->allocated},
                          {"reserved_bytes", m.gpu_memory->reserved},
                          {"peak_allocated_bytes", m.gpu_memory->peak_allocated},
                          {"peak_reserved_bytes", m.gpu_memory->peak_reserved},
                          {"alloc_retries", m.gpu_memory->alloc_retries}};
  if (m.tensor_peak_bytes > 0) line["tensor_peak_bytes"] = m.tensor_peak_bytes;
  if (!m.sent_bytes.empty()) line["sent_bytes"] = m.sent_bytes;
  append_line(line);
}

void MetricsFile::append(const EvalMetrics& m) const {
  nlohmann::ordered_json line{
      {"kind", m.has_loss ? "eval" : "generate"}, {"step", m.step}, {"seconds", m.seconds}};
  if (m.has_loss) line["loss"] = of_targets(m.targets, m.loss);
  line["samples"] = m.samples;
  if (m.has_loss) line["targets"] = m.targets;
  line["bad_items"] = m.bad_items;
  if (m.prompts > 0) {
    line["generated"] = m.generated;
    line["generate_seconds"] = m.generate_seconds;
  }
  if (m.labelled > 0) {
    line["labelled"] = m.labelled;
    line["correct"] = m.correct;
    line["accuracy"] = m.accuracy();
  }
  append_line(line);
}

// JSON has no NaN: a number that is not finite becomes null.
void MetricsFile::append(const SkipMetrics& m) const {
  append_line(nlohmann::ordered_json{{"kind", "skip"},
                                     {"step", m.step},
                                     {"loss", m.report.loss},
                                     {"grad_norm", m.report.grad_norm},
                                     {"fault", m.report.fault},
                                     {"in_a_row", m.in_a_row},
                                     {"samples", m.samples}});
}

void MetricsFile::append(const ReplayFinding& finding) const {
  append_line(nlohmann::ordered_json{{"kind", "replay"},
                                     {"step", finding.step},
                                     {"verdict", replay_verdict_name(finding.verdict)},
                                     {"ranks", finding.ranks},
                                     {"hosts", finding.hosts},
                                     {"unit", finding.unit},
                                     {"microbatch", finding.where.microbatch}});
}

void MetricsFile::append(const SaveReport& save) const {
  append_line(nlohmann::ordered_json{{"kind", "checkpoint"},
                                     {"step", save.step},
                                     {"seconds_to_write", save.seconds},
                                     {"stall_seconds", save.stall_seconds},
                                     {"copy_seconds", save.copy_seconds},
                                     {"bytes", save.bytes},
                                     {"linked_bytes", save.linked_bytes},
                                     {"copied_bytes", save.copied_bytes},
                                     {"mib_per_second", save.mib_per_second}});
}

void MetricsFile::write_events(const std::string& directory, int64_t first_step) {
  events_ = std::make_unique<EventFile>(directory, first_step);
}

void MetricsFile::append_line(const nlohmann::ordered_json& line) const {
  if (path_.empty()) return;
  remove_half_line(path_);
  append_text(path_, line.dump() + '\n');
  if (events_) events_->append(line.at("step").get<int64_t>(), scalars_of(line));
}

int64_t resident_bytes() {
  int64_t total = 0, resident = 0;
  std::ifstream statm("/proc/self/statm");
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace zea
