// SPDX-License-Identifier: Apache-2.0
// Measures the nodes of a job with its ranks: facts of hosts, disks and GPUs, clocks, and the rates
// of all-reduces.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "comm/mesh.hpp"
#include "comm/visible_gpus.hpp"
#include "comm/world.hpp"
#include "core/action_record.hpp"
#include "deck/hardware.hpp"
#include "deck/options.hpp"
#include "preflight/measurements.hpp"

namespace zea {

struct MeasuredRun {
  RunOptions options;
  std::string directory;  ///< of the run; it need not be there yet
  std::string version;    ///< of zea
};

/// Returns the same on every rank, except clocks, which rank 0 knows. Writes to `record` what it is
/// doing. Collective. Throws CommError naming the node where communication fails.
Measurements measure_nodes(const World& world, const MeasuredRun& run, ActionRecord& record);

/// Returns the facts of this rank and its node, without disks and GPUs.
RankFacts facts_of_host(int threads, const std::string& version);

/// Returns the lowest of a host's memory and the limits of this process's control groups, as
/// `groups`
/// (/proc/self/cgroup) names them below `mount`.
int64_t memory_limit(int64_t total_bytes, const std::string& groups, const std::string& mount);

/// Measures free bytes and write rate of the file system of `directory`, or of the nearest folder
/// above that exists.
void measure_disk(const std::string& directory, RankFacts& facts);

std::string text_of(const RankFacts& facts);
RankFacts facts_of_text(const std::string& text);

/// Returns the best state of a GPU's link to its host that is seen while memory is copied to
/// `device`, which is the GPU of that address: at rest GPUs lower its speed.
PciLink link_in_use(const std::string& address, at::Device device,
                    const std::string& devices = kPciDevices);

/// Returns how often to repeat a call that took `seconds`: `most` times, or on slow links as often
/// as takes about 2 s, but at least `fewest` times.
int repeats_of(double seconds, int fewest, int most);

/// Returns the seconds of the rank that takes longest. Collective over `group`, whose calls take
/// memory of `device`.
double longest_of(Collectives& group, double seconds, at::Device device);

/// The memory, backend and size of the all-reduces that are measured.
struct LinkEnds {
  at::Device device;
  MakeCollectives make;
  int64_t bytes;

  /// Returns the ends that zea has on `device`, with enough bytes to show its speed.
  static LinkEnds of(at::Device device);
};

/// Measures all-reduces among the ranks of a node, of neighboring nodes, and of all: whether they
/// are right, and how fast. Fills in inside, pairs and everyone. Collective over all ranks, whose
/// host collectives `control` are.
void measure_links(const World& world, Collectives& control, const LinkEnds& ends,
                   ActionRecord& record, Measurements& measured);

/// The rates that collectives reach; nothing where no node has two ranks, or there is one node.
struct MeasuredLinks {
  std::optional<LinkRates> inside, between;
};

/// Measures each kind of collective among the ranks of a node, then among those with one number on
/// their nodes, all such groups at once. Returns the medians over the ranks, the same on all of
/// them. Collective as measure_links() is.
MeasuredLinks measure_link_rates(const World& world, Collectives& control, const LinkEnds& ends,
                                 ActionRecord& record);

}  // namespace zea
