// SPDX-License-Identifier: Apache-2.0
// A failure on one rank is a failure on all: saving and loading end with the same kind of error
// everywhere, and earlier checkpoints stay unchanged.
#include <gtest/gtest.h>

#include <optional>

#include "checkpoint/checkpoint_writer.hpp"
#include "checkpoint/load_weights.hpp"
#include "comm/agree.hpp"
#include "io/checkpoint.hpp"
#include "support/files.hpp"
#include "support/filled_run.hpp"
#include "support/mpi_main.hpp"

namespace zea::test_checkpoint_faults {
namespace {

namespace fs = std::filesystem;
using FaultsOnAllRanks = FilledRun;

TEST_F(FaultsOnAllRanks, FailsOnAllRanksWhenOneCannotWrite) {
  write_checkpoint(running_.engine, control_, request(shared_.path(), 7));
  const int failing = control_.size() - 1;
  {
    std::optional<FileSizeLimit> limit;
    if (control_.rank() == failing) limit.emplace(4096);

    EXPECT_THROW(write_checkpoint(running_.engine, control_, request(shared_.path(), 8)),
                 StorageError);
  }
  control_.barrier();
  EXPECT_FALSE(fs::exists(shared_ / "step-00000008"));
  EXPECT_FALSE(fs::exists(shared_ / "step-00000008.tmp"));
  EXPECT_EQ(list_checkpoints(shared_.path()).back().path, shared_ / "step-00000007");
  if (control_.rank() == 0) CheckpointSource(shared_ / "step-00000007").check_all();
  control_.barrier();

  EXPECT_EQ(write_checkpoint(running_.engine, control_, request(shared_.path(), 8)),
            shared_ / "step-00000008");
  control_.barrier();
  read_checkpoint(running_.engine, control_, CheckpointSource(shared_ / "step-00000008"));
  expect_filled(running_, "after a failure");
}

TEST_F(FaultsOnAllRanks, IsRefusedByAllRanksWhenOneReadsDamage) {
  const std::string path = write_checkpoint(running_.engine, control_, request(shared_.path(), 7));
  if (control_.rank() == 0) {
    const std::string shard = path + "/rank-00000.h5";
    flip_bit(shard, fs::file_size(shard) / 2);
  }
  control_.barrier();

  const CheckpointSource source(path);

  EXPECT_THROW(read_checkpoint(running_.engine, control_, source), WeightsError);
}

TEST_F(FaultsOnAllRanks, IsRefusedWhenRanksOpenDifferentOnes) {
  write_checkpoint(running_.engine, control_, request(shared_.path(), 7));
  write_checkpoint(running_.engine, control_, request(shared_.path(), 8));
  control_.barrier();
  const bool alone = control_.size() == 1;

  const CheckpointSource source(shared_ /
                                (control_.rank() == 0 ? "step-00000007" : "step-00000008"));

  const std::string error = error_of([&] { read_checkpoint(running_.engine, control_, source); });
  EXPECT_EQ(contains(error, "different checkpoints"), !alone) << error;
}

TEST(CheckpointFaults, RefusesWeightsOfAnotherModelOnAllRanks) {
  const SharedDirectory shared;
  const Layout layout = layouts_of_this_run().back();
  run_on(layout, {.tied = false}, [&](Running& running) {
    write_checkpoint(running.engine, *running.control, request(shared.path(), 7));
  });
  run_on(layout, {.tied = true}, [&](Running& running) {  // a tied lm_head may be there
    running.control->barrier();
    read_checkpoint(running.engine, *running.control, CheckpointSource(shared / "step-00000007"));
  });
  run_on(layout, {.tied = false}, [&](Running& running) {
    const std::string other = tiny_llava_config({.tied = false, .kv_heads = 4, .layers = 3});
    const ModelSpec model = make_model_spec(other);
    const std::string error =
        error_of([&] { load_weights(running.engine, FilledSource(model, other, kMasterSeed)); });
    EXPECT_TRUE(contains(error, "unexpected: language_model.model.layers.2.input_layernorm.weight"))
        << error;
    EXPECT_TRUE(
        contains(error,
                 "wrong shape: language_model.model.layers.0.self_attn.k_proj.weight is (24, 24); "
                 "the model wants (12, 24)"))
        << error;
    const std::string fewer = tiny_llava_config({.tied = false, .layers = 1});
    const ModelSpec less = make_model_spec(fewer);
    EXPECT_TRUE(
        contains(error_of([&] { check_tensors(running.plan.model, FilledSource(less, fewer, 1)); }),
                 "missing: language_model.model.layers.1.input_layernorm.weight (24)"));
  });
}

TEST(Agree, ThrowsOnAllRanksWhatOneRankThrew) {
  const auto control = make_mpi_collectives(testing::world().communicator());
  const int last = control->size() - 1;
  std::string message;
  try {
    agree(*control, [&] {
      if (control->rank() == last) throw DataError("no such sample");
    });
  } catch (const DataError& error) {
    message = error.what();
  }
  const std::string prefix =
      control->rank() == last ? "" : "rank " + std::to_string(last) + " failed: ";
  EXPECT_EQ(message, prefix + "no such sample");

  EXPECT_NO_THROW(agree(*control, [] {}));
  if (control->rank() == 0) {
    EXPECT_THROW(agree_on_root(*control, [] { throw std::logic_error("bug"); }), std::logic_error);
  } else {
    EXPECT_THROW(agree_on_root(*control, [] {}), Error);
  }
}

}  // namespace
}  // namespace zea::test_checkpoint_faults
