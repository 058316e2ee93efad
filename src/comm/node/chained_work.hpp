// SPDX-License-Identifier: Apache-2.0
// A communication made of stages, each a few communications of other collectives, that start when
// those of the stage before are complete. Stages start in the order of the calls, so that every
// rank makes the calls of a stage in the same order however long the stages take.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/progress.hpp"

namespace zea {

class ChainedWork : public ProgressWork {
 public:
  static constexpr int kNumStages = 3;
  /// Starts a stage. A stage that does nothing returns none.
  using Stage = std::function<std::vector<Pending>()>;
  using Stages = std::array<Stage, kNumStages>;

  /// The order of the chains of one communicator.
  struct Order {
    uint64_t issued = 0;
    std::array<uint64_t, kNumStages> started{};
  };

  ChainedWork(std::shared_ptr<Progress> progress, std::shared_ptr<Order> order, Stages stages);
  ChainedWork(const ChainedWork&) = delete;
  ChainedWork& operator=(const ChainedWork&) = delete;
  ~ChainedWork() override { leave(); }

 private:
  bool advance() noexcept override;
  bool is_stage_done();

  std::shared_ptr<Order> order_;
  Stages stages_;
  uint64_t number_;
  int next_ = 0;
  std::vector<Pending> under_way_;
};

}  // namespace zea
