// SPDX-License-Identifier: Apache-2.0
// A hardware file: the rates of a rank's device and of the links between ranks, by which plans say
// how many seconds a step takes. A TOML file with keys that are declared here once, as those of a
// deck are in options.hpp.
#pragma once

#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "deck/key_types.hpp"

namespace zea {

/// Where the figures of a hardware file come from.
enum class FigureSource { Published, Measured };
template <>
inline constexpr std::array kDeckNames<FigureSource>{"published", "measured"};

struct HardwareIdentity {
  std::string name;
  Choice<FigureSource> source = FigureSource::Published;
  std::string reference;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(name, {"name", "name of the hardware, for people"});
    key(source, {"source",
                 "where the figures come from: data sheets and others' measurements (published), "
                 "or measurements on this hardware (measured)"});
    key(reference, {"reference", "documents or commands that the figures come from"});
  }
};

struct NodeFacts {
  int64_t ranks = 0;
  double memory_gib = 0;
  double storage_gb_per_s = 0, start_seconds = 120;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(ranks, {"ranks", "ranks of a full node", {1, 1e6}});
    key(memory_gib, {"memory_gib", "memory of a rank in GiB", {1e-3, 1e6}});
    key(storage_gb_per_s, {"storage_gb_per_s",
                           "GB/s at which a rank writes checkpoints while all ranks do, for "
                           "--mtbf; 0: not known",
                           {0, 1e6}});
    key(start_seconds, {"start_seconds",
                        "seconds from a failure until the restarted run trains again, without "
                        "reading the checkpoint, for --mtbf",
                        {0, 1e6}});
  }
};

/// The device of a rank.
struct DeviceRates {
  double bf16_tflops = 0, fp32_tflops = 0, fp64_tflops = 0;
  std::vector<double> gemm_dims, gemm_efficiency;
  double attention_efficiency = 0, sliced_attention_efficiency = 0;
  double memory_gb_per_s = 0, optimizer_gb_per_s = 0;
  double launch_us = 0;
  bool launches_ahead = true, overlaps = true;

  /// Peak FLOP/s of dense GEMMs; 0: the file has none for this type.
  double peak(DType type) const;
  /// Returns the share of the peak that a GEMM reaches whose smallest dimension is `dim`: between
  /// two of gemm_dims linear in log2(dim), beyond them the nearest one's.
  double gemm_share(double dim) const;
  /// Bytes per second of the optimizer.
  double optimizer_rate() const {
    return 1e9 * (optimizer_gb_per_s > 0 ? optimizer_gb_per_s : memory_gb_per_s);
  }

  template <class Visitor>
  void visit(Visitor&& key) {
    key(bf16_tflops,
        {"bf16_tflops", "peak TFLOP/s of dense GEMMs in bf16; 0: it has none", {0, 1e6}});
    key(fp32_tflops,
        {"fp32_tflops", "peak TFLOP/s of dense GEMMs in fp32; 0: it has none", {0, 1e6}});
    key(fp64_tflops,
        {"fp64_tflops", "peak TFLOP/s of dense GEMMs in fp64; 0: it has none", {0, 1e6}});
    key(gemm_dims,
        {"gemm_dims", "smallest dimensions of GEMMs, ascending, for gemm_efficiency", {1, 1e6}});
    key(gemm_efficiency,
        {"gemm_efficiency",
         "fraction of the peak that a GEMM reaches, for each smallest dimension in gemm_dims",
         {1e-6, 1}});
    key(attention_efficiency,
        {"attention_efficiency",
         "fraction of the peak that attention reaches, forward and backward together",
         {1e-6, 1}});
    key(sliced_attention_efficiency, {"sliced_attention_efficiency",
                                      "the same with context parallelism, which computes attention "
                                      "in slices (not under ulysses); 0: attention_efficiency",
                                      {0, 1}});
    key(memory_gb_per_s, {"memory_gb_per_s",
                          "memory bandwidth in GB/s that elementwise kernels reach",
                          {1e-3, 1e6}});
    key(optimizer_gb_per_s,
        {"optimizer_gb_per_s",
         "memory bandwidth in GB/s that the optimizer reaches; 0: that of elementwise kernels",
         {0, 1e6}});
    key(launch_us,
        {"launch_us", "microseconds that the host takes to launch an operation", {0, 1e6}});
    key(launches_ahead,
        {"launches_ahead",
         "the host launches operations while the device computes, so that a unit takes at least "
         "launch_us for each; false: the core that computes launches, and each adds launch_us"});
    key(overlaps, {"overlaps",
                   "collectives of parameters and gradients overlap computation; false: ranks wait "
                   "for each"});
  }
};

/// Kinds of communication that take different times for the same bytes.
enum class CollectiveKind { AllGather, ReduceScatter, AllReduce, AllToAll, Send };

/// Links between ranks, inside a node or between nodes.
struct LinkRates {
  double latency_us = 0, hop_us = 0;
  double gb_per_s = 0;
  double all_gather_gb_per_s = 0, reduce_scatter_gb_per_s = 0, all_reduce_gb_per_s = 0,
         all_to_all_gb_per_s = 0, send_gb_per_s = 0;

  /// Bytes per second at which a rank sends.
  double rate(CollectiveKind kind) const;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(latency_us, {"latency_us", "constant latency of a collective in microseconds", {0, 1e6}});
    key(hop_us,
        {"hop_us", "microseconds that each further rank of a ring adds to a collective", {0, 1e6}});
    key(gb_per_s,
        {"gb_per_s",
         "GB/s that a rank sends in a large collective (of n ranks, an all-gather sends (n - 1) / "
         "n of its result: bus bandwidth)",
         {1e-6, 1e6}});
    key(all_gather_gb_per_s,
        {"all_gather_gb_per_s", "the same of an all-gather; 0: gb_per_s", {0, 1e6}});
    key(reduce_scatter_gb_per_s,
        {"reduce_scatter_gb_per_s", "the same of a reduce-scatter; 0: gb_per_s", {0, 1e6}});
    key(all_reduce_gb_per_s,
        {"all_reduce_gb_per_s", "the same of an all-reduce; 0: gb_per_s", {0, 1e6}});
    key(all_to_all_gb_per_s,
        {"all_to_all_gb_per_s", "the same of an all-to-all; 0: gb_per_s", {0, 1e6}});
    key(send_gb_per_s,
        {"send_gb_per_s", "the same of a message to one rank; 0: gb_per_s", {0, 1e6}});
  }
};

struct Hardware {
  HardwareIdentity identity;
  NodeFacts node;
  DeviceRates device;
  LinkRates inside, between;

  /// Calls `section(name, keys)` for each section in the order of the documentation.
  template <class Visitor>
  void visit_sections(Visitor&& section) {
    section("hardware", identity);
    section("node", node);
    section("device", device);
    section("inside", inside);
    section("between", between);
  }
};

/// Reads a hardware file. Throws DeckError with every fault and its place: no TOML, unknown keys
/// with the nearest known ones, wrong types, values out of range, keys that are missing.
Hardware read_hardware(const std::string& path);
/// Likewise from text; messages call it `name`.
Hardware parse_hardware(const std::string& text, const std::string& name);

/// Returns the text of a hardware file, with each key's meaning.
std::string hardware_text(const Hardware& hardware);

/// Returns the reference of all keys of a hardware file.
std::string hardware_reference();

}  // namespace zea
