// SPDX-License-Identifier: Apache-2.0
#include "preflight/measure_nodes.hpp"

#include <ATen/ATen.h>

#include <limits>
#include <set>

#include "comm/agree.hpp"
#include "comm/launch_order.hpp"
#include "comm/recorded_collectives.hpp"
#include "core/error.hpp"
#include "core/system.hpp"
#include "parallel/device.hpp"

namespace zea {
namespace {

constexpr int kClockRepeats = 16;
constexpr int64_t kCopyBytes = int64_t{32} << 20;
/// A link that can be faster becomes so in that time.
constexpr double kMostLinkSeconds = 1;

/// Rank 0 asks for the time, and takes the answer for the middle of its wait. The shortest wait is
/// the most exact.
NodeClock ask_for_time(Collectives& control, int other) {
  NodeClock clock{.bound_seconds = std::numeric_limits<double>::infinity()};
  for (int repeat = 0; repeat < kClockRepeats; ++repeat) {
    double theirs = 0;
    const Stopwatch watch;
    const double begin = calendar_seconds();
    control.send(&theirs, 1, DType::Float64, other).wait();
    control.recv(&theirs, 1, DType::Float64, other).wait();
    const double half = watch.seconds() / 2;
    if (half < clock.bound_seconds) clock = {theirs - (begin + half), half};
  }
  return clock;
}

void tell_time(Collectives& control) {
  for (int repeat = 0; repeat < kClockRepeats; ++repeat) {
    double time = 0;
    control.recv(&time, 1, DType::Float64, 0).wait();
    time = calendar_seconds();
    control.send(&time, 1, DType::Float64, 0).wait();
  }
}

/// Returns the clocks on rank 0 only.
std::vector<NodeClock> compare_clocks(Collectives& control, const std::vector<int>& nodes) {
  std::vector<NodeClock> clocks(nodes.size());
  for (size_t node = 1; node < nodes.size(); ++node) {
    if (control.rank() == 0) clocks[node] = ask_for_time(control, nodes[node]);
    if (control.rank() == nodes[node]) tell_time(control);
    control.barrier();
  }
  return clocks;
}

/// Opens this rank's GPU; a failure becomes a fact like others.
at::Device find_device(const World& world, const RunOptions& run, RankFacts& facts) {
  at::Device device = at::kCPU;
  if (run.device == DeviceKind::Cpu) return device;
  std::vector<VisibleGpu> own;
  const auto attempt = [&facts](const auto& risky) {
    try {
      if (facts.gpu_fault.empty()) risky();
    } catch (const std::exception& error) {
      facts.gpu_fault = error.what();
    }
  };
  attempt([&] { own = find_gpus(run.device); });
  const auto seen = gpus_on_node(world, own);
  facts.visible_gpus = static_cast<int>(own.size());
  attempt([&] {
    const LaunchVersions versions = launch_versions();
    facts.nccl = versions.nccl;
    facts.built_nccl = versions.built_nccl;
    facts.cuda_runtime = versions.cuda_runtime;
    facts.built_cuda = versions.built_cuda;
    facts.cuda_driver = versions.cuda_driver;
    device = open_device(run, seen, world.local_rank());
    facts.gpu_id = own.at(device.index()).id;
    facts.gpu_name = own.at(device.index()).name;
    const GpuMemory memory = gpu_memory();
    facts.gpu_free_bytes = memory.free_bytes;
    facts.gpu_bytes = memory.bytes;
    if (memory.free_bytes < kLeastGpuRoomBytes) return;  // judged; a failure would hide it
    const std::string address = facts.gpu_id.substr(0, facts.gpu_id.find(' '));
    facts.gpu_link = link_in_use(address, device);
  });
  return device;
}

void gather_facts(Collectives& control, const RankFacts& own, Measurements& measured) {
  std::set<int> nodes;
  for (const std::string& text : all_gather_texts(control, text_of(own))) {
    measured.ranks.push_back(facts_of_text(text));
    nodes.insert(measured.ranks.back().node);
  }
  measured.nodes.assign(nodes.begin(), nodes.end());
}

Measurements measure(const World& world, const MeasuredRun& run, RankFacts& own,
                     ActionRecord& record) {
  const std::unique_ptr<Collectives> real = make_mpi_collectives(world.communicator());
  const std::unique_ptr<Collectives> control = make_recorded_collectives(*real, record, "control");
  at::Device device = at::kCPU;
  {
    const ActionRecord::Action action(record, "look at the node and its GPUs");
    own.node = world.node_of_rank()[world.rank()];
    device = find_device(world, run.options, own);
  }
  if (own.node == world.rank()) {
    const ActionRecord::Action action(record, "write to the disk");
    measure_disk(run.directory, own);
  }
  Measurements measured{.on_gpus = run.options.device != DeviceKind::Cpu,
                        .directory = run.directory};
  gather_facts(*control, own, measured);
  {
    const ActionRecord::Action action(record, "compare the clocks");
    measured.clocks = compare_clocks(*control, measured.nodes);
  }
  measured.links_on_gpus = measured.on_gpus && can_sum_on_gpus(measured.ranks);
  const LinkEnds ends = LinkEnds::of(measured.links_on_gpus ? device : at::Device(at::kCPU));
  measure_links(world, *control, ends, record, measured);
  return measured;
}

}  // namespace

PciLink link_in_use(const std::string& address, at::Device device, const std::string& devices) {
  PciLink best = pci_link(address, devices);
  if (best.share() == 1) return best;
  const auto bytes = at::TensorOptions().dtype(at::kByte);
  const at::Tensor host = at::zeros({kCopyBytes}, bytes.pinned_memory(!device.is_cpu()));
  const at::Tensor target = at::empty({kCopyBytes}, bytes.device(device));
  const Stopwatch watch;
  while (best.share() < 1 && watch.seconds() < kMostLinkSeconds) {
    target.copy_(host, true);
    const PciLink now = pci_link(address, devices);
    if (now.share() > best.share()) best = now;
    target[0].item();  // the copy has ended
  }
  return best;
}

Measurements measure_nodes(const World& world, const MeasuredRun& run, ActionRecord& record) {
  RankFacts own = facts_of_host(static_cast<int>(run.options.threads), run.version);
  try {
    return measure(world, run, own, record);
  } catch (const Error& error) {
    throw Error(error.code(), "node " + own.name + ": " + error.what());
  }
}

}  // namespace zea
