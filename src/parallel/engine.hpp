// SPDX-License-Identifier: Apache-2.0
// The engine executes a list of actions on units. A unit runs on detached inputs; its backward is
// autograd on that unit alone with the gradient of its output. Everything between units is an
// action of the list: one switch, no hooks.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "batch/make_microbatch.hpp"
#include "comm/mesh.hpp"
#include "model/parameter.hpp"
#include "model/unit.hpp"
#include "parallel/group_transfers.hpp"
#include "parallel/sharded_buffer.hpp"
#include "schedule/plan.hpp"

namespace zea {

struct EngineResult {
  /// The fp64 sum over this rank's targets, on the device of the head; undefined if no head runs.
  at::Tensor loss;
  at::Tensor mtp_loss;              ///< likewise: UnitOutput::mtp_loss, before its coefficient
  std::vector<at::Tensor> outputs;  ///< the head's logits per microbatch, if it computes them
  /// By unit and microbatch: outputs whose readers had no work.
  std::map<std::pair<int, int>, at::Tensor> unread;
  /// By unit: UnitOutput::expert_offsets of each microbatch, on the first of the tp ranks
  /// with the same experts.
  std::map<int, std::vector<at::Tensor>> expert_offsets;

  /// Returns the loss after waiting for its device; 0 if no head runs.
  double loss_sum() const { return loss.defined() ? loss.item<double>() : 0; }
};

/// Reads this rank's gradient of a buffer before it is summed with those of other ranks
/// (ShardedBuffer::summand), each time that such a sum begins, or once per step if there is none.
using ReadGradient = std::function<void(int buffer, const at::Tensor& gradient)>;

class Engine {
 public:
  /// `mesh` must outlive the engine. Collective. Throws PlanError if the plan's ranks would
  /// deadlock with the device's libraries (check_launch_order). A null `read_gradient` is not
  /// called.
  Engine(const Plan& plan, Mesh& mesh, at::Device device, RunUnit run_unit = zea::run_unit,
         ReadGradient read_gradient = {});

  const Plan& plan() const { return plan_; }
  Mesh& mesh() { return mesh_; }
  int world_rank() const { return world_rank_; }
  /// Buffers by index in the plan; null if this rank has no part of a buffer (Plan::holds).
  std::vector<std::unique_ptr<ShardedBuffer>>& buffers() { return buffers_; }
  /// Returns the optimizer state of this name for a trainable buffer: state_elements() of its
  /// range.
  const at::Tensor& state(const ShardedBuffer& buffer, const std::string& name) const;
  Ledger& ledger() { return ledger_; }
  MicrobatchOptions microbatch_options(std::optional<int64_t> trained_step = {}) const;
  /// Gives every copy of the model the weights of the first one. Collective.
  void broadcast_weights();

  /// Runs a step's actions over this rank's microbatches; with Backward actions gradients are added
  /// into the buffers' shards. Routers add the losses of these weights; without weights, none.
  EngineResult run(const std::vector<Action>& actions, const std::vector<Microbatch>& microbatches,
                   HeadOutput head = HeadOutput::Loss,
                   const RouterLossesOfUnits& router_losses = {});

 private:
  /// The saved tensors of a unit in a microbatch.
  struct Saved {
    UnitInputs inputs;            ///< detached leaves
    UnitOutput made;              ///< with its graph; nothing when it is to be recomputed
    at::Tensor value;             ///< detached, until every consumer has run
    at::Tensor gradient;          ///< gradient of the output, summed over consumers
    int consumers = 0;            ///< units here and stages elsewhere that have not run
    bool needs_gradient = false;  ///< something trainable lies here or upstream
  };

  /// A unit's output that was computed on other ranks: received in the layout of its consumer, or
  /// from another pipeline stage group.
  struct Received {
    Arrival arrival;
    at::Tensor value;     ///< until its consumers have run
    at::Tensor gradient;  ///< gradient of its consumers here
    int consumers = 0;    ///< units here that have not run
    bool needs_gradient = false;
  };

  void build_slots();
  void build_buffers();
  void build_states();
  void build_units();
  void build_layers();
  void run_action(const Action& action);
  UnitInputs take_inputs(int unit, int microbatch);
  std::optional<at::Tensor> take_output(int source, int target, int microbatch);
  std::optional<at::Tensor> cached_state(int source, int microbatch) const;
  at::Tensor take_received(int source, int target, int microbatch);
  void add_gradient(int source, int target, int microbatch, const at::Tensor& gradient);
  bool trains_upstream(int unit, int microbatch) const;
  Received& expect(int unit, int microbatch);
  RowTransfer moved_rows(int unit, int microbatch, bool back) const;
  void move(int unit, int microbatch);
  void move_back(int unit, int microbatch);
  void send(const Action& action);
  void send_gradient(const Action& action);
  void open_gradient(int buffer);
  UnitOutput call_unit(int unit, int microbatch, const UnitInputs& inputs, bool is_selective);
  void forward(int unit, int microbatch);
  void backward(int unit, int microbatch, bool defers_weights);
  void run_backward(int unit, int microbatch, Saved& saved, bool defers_weights);
  void backward_weight(int unit, int microbatch);
  void add_loss(int unit, const at::Tensor& loss, at::Tensor& sum) const;
  bool is_first_tp_rank(int unit) const;
  void open_gradients(int unit);
  void read_gradient(int buffer);
  void reduce_shard(int buffer);
  void finish_reduce_shard();
  void reduce_replicas(int buffer);
  void finish_reductions();
  void progress();

  const Plan& plan_;
  Mesh& mesh_;
  int world_rank_;
  at::Device device_;
  RunUnit run_unit_;
  ReadGradient read_gradient_;
  Ledger ledger_;
  std::unique_ptr<Slots> gathered_slots_, gradient_slots_, wire_slots_;
  std::optional<HostCopies> host_copies_;  ///< for shards that are offloaded to pinned memory
  std::vector<std::unique_ptr<ShardedBuffer>> buffers_;
  std::vector<std::vector<Buffer>> states_;  ///< each buffer's, as OptimizerSpec lists them
  std::vector<std::vector<int>> unit_buffers_;
  std::vector<std::vector<Parameter*>> unit_parameters_;
  std::vector<int> readers_;           ///< units at this stage group that read each unit's output
  std::vector<int> training_readers_;  ///< those that run in training alone (UnitSpec::is_mtp)
  std::vector<int> reading_groups_;    ///< other stage groups that do
  std::vector<bool> trains_unit_;      ///< whether a unit has a trainable parameter
  /// Whether a unit has its backward wherever it runs (has_joint_backward).
  std::vector<bool> joins_backward_;
  std::map<std::string, std::unique_ptr<Layers>> layers_;  ///< by module
  GroupTransfers transfers_;

  // State of the step that is being executed.
  const std::vector<Microbatch>* microbatches_ = nullptr;
  HeadOutput head_ = HeadOutput::Loss;
  bool trains_ = false;
  std::map<std::pair<int, int>, Saved> saved_;
  std::map<std::pair<int, int>, Received> received_;
  /// Gradients of outputs that are received, to be added.
  std::map<std::pair<int, int>, std::vector<Arrival>> arriving_gradients_;
  std::map<std::pair<int, int>, DeferredGradients> deferred_;
  std::optional<int> reducing_shard_;
  bool then_reduces_replicas_ = false;  ///< when that is finished
  std::vector<int> reducing_replicas_;
  EngineResult result_;
};

/// The types that the encoders of a plan's model compute in.
std::vector<at::ScalarType> encoder_dtypes(const Plan& plan);

}  // namespace zea
