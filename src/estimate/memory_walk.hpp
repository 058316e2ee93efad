// SPDX-License-Identifier: Apache-2.0
// The estimate of what a step holds when, beside what lies there all the time: the engine's walk at
// one place, over what units declare and what of shards is on its way.
#pragma once

#include <string>
#include <vector>

#include "estimate/unit_memory.hpp"
#include "schedule/plan.hpp"

namespace zea::detail {

UnitTypes unit_types(const Plan& plan, const std::string& module, NarrowProducts products);

class MemoryWalk {
 public:
  /// `standing` bytes are there all the time: the inputs of all microbatches.
  MemoryWalk(const Plan& plan, int place, const std::vector<MicrobatchSizes>& microbatches,
             NarrowProducts products, int64_t standing, bool forward_only);

  void run();
  /// Of activations and of shards on their way.
  int64_t peak() const { return peak_; }
  const std::string& peak_at() const { return peak_at_; }

 private:
  /// A unit's output in a microbatch, made here or received.
  struct Unit {
    int holders = 0;  ///< of the output: consumers to come, the graph, inputs kept for backward
    int64_t output = 0, saved = 0, gradient = 0;
    int64_t leaving = 0;  ///< on its way to another place, beside what is counted above
    bool needs_gradient = false, keeps_graph = false;
  };

  const UnitSpec& spec(size_t u) const { return plan_.model.units[u]; }
  bool is_here(size_t u) const {
    return plan_.pipeline.group_of_unit(static_cast<int>(u)) == place_;
  }
  Unit& at(size_t u) { return units_[microbatch_][u]; }
  bool has_items(size_t u) const;
  /// Cached units do not in steps: what they would have made stands there from the start.
  bool runs(size_t u) const;
  UnitMemory declared(size_t u, bool keeps_graph);
  MicrobatchSizes module_sizes(size_t u) const;
  void prepare();
  std::vector<Action> actions() const;
  void take(const Action& action);
  void touch(int64_t bytes, const char* what, const std::string& name);
  int64_t shard_bytes(int buffer, DType type) const;
  void gather(int buffer);
  void wait_for(size_t u);
  void reduce(int buffer);
  void convert(int buffer);
  void let_go(size_t u);
  void receive(size_t u);
  void forward(size_t u);
  void leave(size_t u, int64_t bytes);
  void send(size_t u);
  void send_gradient(size_t u);
  void backward(size_t u, bool puts_off_weights);
  void backward_weight(size_t u);
  void add_gradient(size_t u, int source, int64_t bytes);

  const Plan& plan_;
  const int place_;
  const std::vector<MicrobatchSizes>& microbatches_;
  const NarrowProducts products_;
  const bool forward_only_;
  std::vector<std::vector<Unit>> units_;  ///< [microbatch][unit]
  std::vector<int> readers_;              ///< of each unit's output, at this place
  std::vector<Unit*> last_sent_;          ///< of each unit, whose output or gradient left last
  std::vector<std::vector<int>> buffers_of_unit_;
  std::vector<int64_t> sent_;    ///< of each buffer: what is on the device while it is gathered
  std::vector<bool> is_summed_;  ///< of each buffer: it was reduced in this step
  int64_t arriving_ = 0;         ///< in the reduction that is under way
  size_t microbatch_ = 0;        ///< under way
  int64_t live_, peak_ = 0;
  std::string peak_at_;
};

}  // namespace zea::detail
