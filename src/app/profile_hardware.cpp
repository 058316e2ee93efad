// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "app/answer.hpp"
#include "app/run.hpp"
#include "comm/agree.hpp"
#include "core/text.hpp"
#include "estimate/peak_tflops.hpp"
#include "files/durable_file.hpp"
#include "kernels/flat_kernels.hpp"
#include "preflight/measure_nodes.hpp"
#include "train/profile.hpp"

namespace zea {
namespace {

/// Limit of each part.
constexpr double kPartSeconds = 300;
constexpr double kGibibyte = 1 << 30;

DType type_of(PrecisionPreset preset) {
  if (preset == PrecisionPreset::Fp64) return DType::Float64;
  return preset == PrecisionPreset::Bf16 ? DType::BFloat16 : DType::Float32;
}

/// Measurements have no more digits.
double rounded(double value) {
  return std::strtod(formatted("%.3g", value).c_str(), nullptr);
}

/// Calls `use` with every figure of a section.
template <class Section, class Use>
void for_each_figure(Section& section, const Use& use) {
  section.visit([&](auto& member, const KeyInfo&) {
    if constexpr (std::is_same_v<decltype(member), double&>) use(member);
    if constexpr (std::is_same_v<decltype(member), std::vector<double>&>)
      std::ranges::for_each(member, use);
  });
}

void take_median(double& figure, Collectives& control) {
  std::vector<double> all(static_cast<size_t>(control.size()));
  control.all_gather(&figure, all.data(), Counts(all.size(), 1), DType::Float64).wait();
  figure = median_of(std::move(all));
}

/// The node that has the most ranks, and the memory of a rank that has the least: of a GPU all of
/// it, as the estimate includes CUDA's context.
NodeFacts node_of(const Measurements& measured) {
  NodeFacts node;
  double least = 0;
  for (const NodeView& view : views_of(measured)) {
    const auto ranks = std::ssize(view.ranks);
    node.ranks = std::max(node.ranks, int64_t{ranks});
    const RankFacts& first = view.first();
    const int64_t bytes = measured.on_gpus ? first.gpu_bytes : first.memory_free_bytes / ranks;
    if (least == 0 || static_cast<double>(bytes) < least) least = static_cast<double>(bytes);
    const double disk = first.disk_rate / 1e9 / static_cast<double>(ranks);
    if (node.storage_gb_per_s == 0 || disk < node.storage_gb_per_s) node.storage_gb_per_s = disk;
  }
  node.memory_gib = rounded(least / kGibibyte);
  node.storage_gb_per_s = rounded(node.storage_gb_per_s);
  return node;
}

std::string name_of(const Measurements& measured, const std::string& gpu) {
  const RankFacts& first = measured.ranks.front();
  const char* const threads = first.threads == 1 ? "thread" : "threads";
  return gpu.empty() ? first.processor + formatted(", %d %s a rank", first.threads, threads) : gpu;
}

}  // namespace

ExitCode profile_hardware(const CommandLine& line, Job& job) {
  const KernelRuntime kernels;
  std::optional<std::jthread> start_limit = limit_start(kPartSeconds, job.abort_job);
  Communicator all = job.world.communicator();
  Start start;
  agree(*make_mpi_collectives(all), [&] {
    start = read_check(line);
    if (job.world.size() < 2)
      throw DeckError(
          "--profile-hardware measures the links between ranks, and one rank was started; start as "
          "many as a run has on a node, on two nodes if it has several");
  });
  RunOptions& run = start.options.run;
  run.watchdog_seconds = std::min(run.watchdog_seconds, kPartSeconds);
  WatchedRanks ranks(std::move(all), job, start);
  start_limit.reset();
  const Measurements measured =
      measure_nodes(job.world, {run, start.directory, version()}, ranks.record);
  const auto [device, gpu] = open_device_of(start, ranks, job.world);
  at::set_num_threads(static_cast<int>(run.threads));
  const DType type = type_of(start.options.precision.preset);

  Hardware hardware;
  hardware.node = node_of(measured);
  {
    const ActionRecord::Action action(ranks.record, "measure the device");
    ranks.control->barrier();  // ranks of a node share its memory
    hardware.device = profile_device(device, type, data_sheet_tflops(gpu, type));
    for_each_figure(hardware.device, [&](double& figure) { take_median(figure, *ranks.control); });
  }
  const MeasuredLinks links =
      measure_link_rates(job.world, *ranks.control, LinkEnds::of(device), ranks.record);
  hardware.inside = links.inside ? *links.inside : *links.between;
  hardware.between = links.between ? *links.between : *links.inside;
  const auto round_figure = [](double& figure) { figure = rounded(figure); };
  for_each_figure(hardware.device, round_figure);
  for_each_figure(hardware.inside, round_figure);
  for_each_figure(hardware.between, round_figure);
  hardware.identity = {
      .name = name_of(measured, gpu),
      .source = FigureSource::Measured,
      .reference =
          formatted("zea --profile-hardware of zea %s in %s: %d ranks on %d nodes",
                    version().c_str(), start.options.precision.preset.name().c_str(),
                    job.world.size(), static_cast<int>(measured.nodes.size())) +
          (links.between ? "" : "; there was one node, so [between] is that of [inside]") +
          (links.inside ? "" : "; no node had two ranks, so [inside] is that of [between]")};
  agree_on_root(*ranks.control, [&] {
    const std::string text = hardware_text(hardware);
    write_text_durably(line.hardware_out, text);
    std::fputs((text + "written to " + line.hardware_out + "\n").c_str(), stdout);
  });
  return ExitCode::Done;
}

}  // namespace zea
