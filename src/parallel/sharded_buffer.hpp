// SPDX-License-Identifier: Apache-2.0
// A flat buffer at run time: the shard of values and gradients that this rank owns, and the
// parameters that units see while the buffer is gathered. It unshards, reshards and reduces on
// request; it knows neither the schedule nor the optimizer.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/collectives.hpp"
#include "model/parameter.hpp"
#include "parallel/slots.hpp"
#include "parallel/torch_dtype.hpp"
#include "schedule/plan.hpp"

namespace zea {

/// Memory and communicators that the buffers of a module share. Null collectives: a group of one.
struct ShardedBufferContext {
  Collectives* shard_group = nullptr;     ///< the ranks that share one copy
  Collectives* reducing_group = nullptr;  ///< the same, for gradients
  Collectives* shard_subgroup = nullptr;  ///< the ranks that share it between forward and backward
  Collectives* replicas = nullptr;        ///< the ranks that own the same shard in other copies
  Slots& gathered;
  Slots& gradients;
  Slots& wire;
  Ledger& ledger;
  at::Device device;
  HostCopies* copies = nullptr;  ///< for a shard in pinned memory
};

class ShardedBuffer {
 public:
  /// Collective over the context's communicators, whose ranks can reach the allocated memory. The
  /// gradients of `linear_weights` (linear_weights()) are not zeroed before they are written.
  ShardedBuffer(const Plan& plan, int index, int world_rank, const ShardedBufferContext& context,
                const std::vector<bool>& linear_weights);

  const FlatBuffer& layout() const { return layout_; }
  int index() const { return index_; }  ///< index in the plan
  bool trainable() const { return layout_.trainable; }
  FlatRange range() const { return range_; }

  /// (range) 1-d: masters where the buffer trains, else values in the type that units read
  /// (Plan::owned_type()).
  const at::Tensor& master() const { return master_.tensor(); }
  /// (range) 1-d, in the master type, only where the buffer trains.
  const at::Tensor& gradient() const { return gradient_.tensor(); }
  /// Returns `elements` zeros in the memory of the master (host or device), which the ranks of
  /// `reach` can read if it is given.
  Buffer owned(int64_t elements, at::ScalarType type, Collectives* reach = nullptr);

  /// The run of fused parameters that starts at ModelSpec parameter `param`; null when it starts
  /// elsewhere.
  Parameter* parameter(int param) const;

  /// Whether this rank's shard is the one that broadcast_master() copies to the other replicas.
  bool is_first_replica() const { return !context_.replicas || context_.replicas->rank() == 0; }
  /// Gives all replicas of a shard the masters of the first one, and publishes them. Collective
  /// over the replicas.
  void broadcast_master();
  /// Makes the masters visible to the next gather: call it after they have changed.
  void publish();
  using All = std::vector<std::unique_ptr<ShardedBuffer>>;
  /// The same for all trainable buffers, and the gradients of all, in few launches. Null pointers
  /// are skipped.
  static void publish_all(const All& buffers);
  static void zero_gradients(const All& buffers);
  /// Zeroes the parts of ungathered gradients that no unit has written.
  static void finish_gradients(const All& buffers);

  void start_unshard();
  void start_unshard_from_subgroup();
  void wait_unshard();
  void reshard();
  void reshard_to_subgroup();

  /// Gives parameters an unsharded gradient to write to, unless they have it already.
  void open_gradient();
  /// Returns this rank's gradient before it is summed over ranks; elements that no unit has written
  /// are zero. It covers all elements, padded, if the buffer is gathered, else this rank's range.
  const at::Tensor& summand();
  void start_reduce_shard();
  void finish_reduce_shard();
  void start_reduce_replicas();
  void finish_reduce_replicas();
  /// Advances pending communication.
  void progress();

 private:
  struct FusedRun {
    int64_t offset, elements;
    std::unique_ptr<Parameter> parameter;
    bool is_overwritten = false;  ///< the first write, of a linear, replaces the old values
  };

  void build_owned();
  void build_runs(const Plan& plan, const std::vector<bool>& linear_weights);
  /// Begins a new gradient in `flat`: appends the parts that have to be zeroed to `zeroed`.
  void renew_gradients(const at::Tensor& flat, std::vector<at::Tensor>& zeroed);
  /// Appends the parts of `flat` that have not been written since to `zeroed`.
  void take_unwritten(const at::Tensor& flat, std::vector<at::Tensor>& zeroed);
  void zero_unwritten(const at::Tensor& flat);
  Buffer on_device(int64_t elements, at::ScalarType type, Collectives* reach);
  /// Gathers from `from`; null: a group of one.
  void gather(Collectives* from, const at::Tensor& own, const Counts& counts);
  void finish_gather();
  /// Waits until an offloaded gradient has arrived from the device.
  void finish_gradient();
  void add_to_gradient(const at::Tensor& own);
  /// Overwrites the gradient. If the shard is offloaded to pinned memory, nobody waits.
  void copy_to_gradient(const at::Tensor& from);
  void set_values(const at::Tensor& flat);
  void set_gradients(const at::Tensor& flat);
  bool gathers() const { return shards_ > 1 || offloads_; }
  /// Gradients are reduced in the memory where they are accumulated.
  bool travels_as_is() const { return reduces_in_master_type() && !offloads_; }
  bool reduces_in_master_type() const { return precision_.reduce == precision_.master; }

  const FlatBuffer& layout_;
  int index_;
  ShardedBufferContext context_;
  int shards_;
  bool offloads_, pins_memory_;
  Precision precision_;
  DType owned_type_;
  FlatRange range_;
  std::vector<FusedRun> runs_;
  std::vector<int> run_of_param_;  ///< indexed as layout_.params; -1 inside a run
  Buffer master_, gradient_;
  Buffer published_;  ///< the shard in the compute type, where that differs
  Buffer between_;    ///< this rank's part of the subgroup's copy
  Buffer own_wire_;   ///< the gradient as it travels between replicas, where that differs
  at::Tensor gathered_, open_gradient_, wire_;
  at::Tensor sent_;                    ///< an offloaded shard, on the device while it is gathered
  std::optional<c10::Event> fetched_;  ///< `sent_`, or what a group of one gathers, has come
  std::shared_ptr<c10::Event> gradient_copied_;  ///< the copy to the host has ended
  Buffer received_;
  bool gradient_is_zero_ = true;  ///< nothing was added to it in this step
  Counts counts_, subgroup_counts_;
  Pending unsharding_, reducing_, replicating_;
};

}  // namespace zea
