// SPDX-License-Identifier: Apache-2.0
// Checkpoints between layouts: whatever layout wrote one, every other reads the same global tensors
// bit for bit. And a save that fails on one rank fails on all of them and leaves earlier
// checkpoints alone.
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "support/files.hpp"
#include "support/mpi_main.hpp"
#include "support/tiny_checkpoint.hpp"
#include "zea/checkpoint/agree.hpp"
#include "zea/checkpoint/checkpoint_reader.hpp"
#include "zea/checkpoint/checkpoint_writer.hpp"
#include "zea/checkpoint/load_weights.hpp"
#include "zea/checkpoint/retention.hpp"
#include "zea/io/checkpoint_source.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

TEST(Checkpoint, IsReadBitwiseByEveryOtherLayout) {
  const SharedDirectory shared;
  for (const Layout& writer : layouts_of_this_run()) {
    const std::string directory = shared / writer.name;
    std::string written;
    run_on(writer, {}, [&](Running& running) {
      fill(running);
      written = write_checkpoint(running.engine, *running.control, request(directory, 7));
      EXPECT_EQ(written, directory + "/step-00000007");
    });
    for (const Layout& reader : layouts_of_this_run()) {
      // Pairs of smaller layouts are tried by the runs of this program on fewer ranks.
      if (std::max(writer.ranks, reader.ranks) < testing::world().size()) continue;
      run_on(reader, {}, [&](Running& running) {
        running.control->barrier();  // ranks that did not write are ahead
        const CheckpointSource source(directory + "/step-00000007");
        const TrainPosition position = read_checkpoint(running.engine, *running.control, source);
        EXPECT_EQ(position, request(directory, 7).position);
        expect_filled(running, writer.name + " read as " + reader.name);
      });
    }
  }
}

TEST(Checkpoint, HoldsTheGlobalTensorsOnceAndInEqualParts) {
  const SharedDirectory shared;
  for (const Layout& layout : layouts_of_this_run())
    run_on(layout, {}, [&](Running& running) {
      fill(running);
      const std::string path =
          write_checkpoint(running.engine, *running.control, request(shared / layout.name, 7));
      if (running.control->rank() != 0) return;

      const CheckpointSource source(path);

      source.check_all();
      EXPECT_EQ(source.manifest().world_size, layout.ranks);
      EXPECT_EQ(source.config_json(), running.plan.config_json);
      EXPECT_EQ(source.tensors().size(), running.plan.model.params.size());
      EXPECT_TRUE(fs::exists(path + "/model.h5"));
      const FilledSource moments(running.plan.model, "", kExpAvgSeed);
      for (const ParamSpec& param : running.plan.model.params) {
        if (!param.trainable) continue;
        std::vector<float> found(num_elements(param.shape)), wanted(found);
        source.read_state(param.name, kStateExpAvg, param.shape, whole(param.shape), DType::Float32,
                          found.data());
        moments.read(param.name, param.shape, whole(param.shape), DType::Float32, wanted.data());
        EXPECT_EQ(found, wanted) << param.name;
      }
      std::map<std::string, int64_t> elements;
      for (const Piece& piece : source.manifest().pieces)
        elements[piece.file] += piece.extent.elements();
      for (const auto& [file, count] : elements)
        EXPECT_LT(count * layout.ranks, 3 * running.plan.model.num_parameters() * 1.25)
            << layout.name << ' ' << file;
      EXPECT_EQ(static_cast<int>(elements.size()), layout.ranks);
    });
}

TEST(Checkpoint, ConvertsBetweenPrecisions) {
  const SharedDirectory shared;
  const Layout layout = layouts_of_this_run().back();
  run_on(layout, {.precision = "fp64"}, [&](Running& running) {
    fill(running);
    write_checkpoint(running.engine, *running.control, request(shared.path(), 7));
  });
  for (const char* precision : {"fp32", "bf16", "fp64"})
    run_on(layout, {.precision = precision}, [&](Running& running) {
      running.control->barrier();
      read_checkpoint(running.engine, *running.control, CheckpointSource(shared / "step-00000007"));
      expect_filled(running, precision);
    });
}

TEST(Checkpoint, GivesZeroMomentsToWhatItDidNotTrain) {
  const SharedDirectory shared;
  const Layout layout = layouts_of_this_run().back();
  run_on(layout, {.train_vision = false}, [&](Running& running) {
    fill(running);
    write_checkpoint(running.engine, *running.control, request(shared.path(), 7));
  });
  run_on(layout, {}, [&](Running& running) {
    for (const auto& group : running.engine.groups())
      if (group->trainable()) group->exp_avg().fill_(5);
    running.control->barrier();

    read_checkpoint(running.engine, *running.control, CheckpointSource(shared / "step-00000007"));

    for (const auto& group : running.engine.groups()) {
      EXPECT_TRUE(at::equal(group->master(), expected(running, *group, kMasterSeed)));
      if (!group->trainable()) continue;
      const at::Tensor wanted = expected(running, *group, kExpAvgSeed);
      for (const FlatPart& part : parts_in_range(group->layout(), group->range()))
        if (running.plan.model.params[part.param].name.starts_with("vision_tower."))
          wanted.narrow(0, part.flat_begin - group->range().begin, part.elements).zero_();
      EXPECT_TRUE(at::equal(group->exp_avg(), wanted)) << group->layout().name;
    }
  });
}

TEST(Checkpoint, RefusesWeightsOfAnotherModelOnAllRanks) {
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

TEST(Checkpoint, IsLeftWhenItIsThereAndSetAsideWhenItIsAnother) {
  const SharedDirectory shared;
  run_on(layouts_of_this_run().back(), {}, [&](Running& running) {
    Collectives& control = *running.control;
    CheckpointRequest again = request(shared.path(), 7);
    const std::string path = write_checkpoint(running.engine, control, again);
    const auto time = fs::last_write_time(path + "/manifest.json");
    EXPECT_EQ(write_checkpoint(running.engine, control, again), path);
    EXPECT_EQ(fs::last_write_time(path + "/manifest.json"), time);
    control.barrier();

    again.run_id = "run-2";
    write_checkpoint(running.engine, control, again);

    if (control.rank() == 0) {
      EXPECT_EQ(CheckpointSource(path).manifest().run_id, "run-2");
      EXPECT_EQ(CheckpointSource(path + ".replaced-1").manifest().run_id, "run-1");
    }
  });
}

TEST(Checkpoint, FailsOnAllRanksWhenOneCannotWrite) {
  const SharedDirectory shared;
  run_on(layouts_of_this_run().back(), {}, [&](Running& running) {
    Collectives& control = *running.control;
    fill(running);
    write_checkpoint(running.engine, control, request(shared.path(), 7));
    const int failing = control.size() - 1;
    {
      std::optional<FileSizeLimit> limit;
      if (control.rank() == failing) limit.emplace(4096);

      EXPECT_THROW(write_checkpoint(running.engine, control, request(shared.path(), 8)),
                   StorageError);
    }
    control.barrier();
    EXPECT_FALSE(fs::exists(shared / "step-00000008"));
    EXPECT_FALSE(fs::exists(shared / "step-00000008.tmp"));
    EXPECT_EQ(list_checkpoints(shared.path()).back().path, shared / "step-00000007");
    if (control.rank() == 0) CheckpointSource(shared / "step-00000007").check_all();
    control.barrier();

    EXPECT_EQ(write_checkpoint(running.engine, control, request(shared.path(), 8)),
              shared / "step-00000008");
    control.barrier();
    read_checkpoint(running.engine, control, CheckpointSource(shared / "step-00000008"));
    expect_filled(running, "after a failure");
  });
}

TEST(Checkpoint, RefusesAnythingOfSomebodyElseInItsWay) {
  const SharedDirectory shared;
  run_on(layouts_of_this_run().back(), {}, [&](Running& running) {
    Collectives& control = *running.control;
    if (control.rank() == 0) {
      write_bytes(shared / "file", "mine");
      fs::create_directory(shared / "step-00000007.tmp");
      write_bytes(shared / "step-00000007.tmp/notes.txt", "mine");
    }

    EXPECT_THROW(write_checkpoint(running.engine, control, request(shared / "file", 7)),
                 StorageError);
    EXPECT_THROW(write_checkpoint(running.engine, control, request(shared.path(), 7)),
                 StorageError);

    control.barrier();
    EXPECT_TRUE(fs::exists(shared / "step-00000007.tmp/notes.txt"));
    EXPECT_TRUE(list_checkpoints(shared.path()).empty());
  });
}

TEST(Checkpoint, ReplacesWhatAKilledSaveLeft) {
  const SharedDirectory shared;
  run_on(layouts_of_this_run().back(), {}, [&](Running& running) {
    if (running.control->rank() == 0) {
      fs::create_directory(shared / "step-00000007.tmp");
      write_bytes(shared / "step-00000007.tmp/rank-00000.h5", "half");
      write_bytes(shared / "step-00000007.tmp/rank-00077.h5", "half");
    }

    const std::string path =
        write_checkpoint(running.engine, *running.control, request(shared.path(), 7));

    if (running.control->rank() == 0) CheckpointSource(path).check_all();
  });
}

TEST(Checkpoint, IsRefusedByAllRanksWhenOneReadsDamage) {
  const SharedDirectory shared;
  run_on(layouts_of_this_run().back(), {}, [&](Running& running) {
    Collectives& control = *running.control;
    fill(running);
    const std::string path = write_checkpoint(running.engine, control, request(shared.path(), 7));
    if (control.rank() == 0) {
      const std::string shard = path + "/rank-00000.h5";
      flip_bit(shard, fs::file_size(shard) / 2);
    }
    control.barrier();

    const CheckpointSource source(path);

    EXPECT_THROW(read_checkpoint(running.engine, control, source), WeightsError);
  });
}

TEST(Checkpoint, IsRefusedWhenRanksOpenDifferentOnes) {
  const SharedDirectory shared;
  run_on(layouts_of_this_run().back(), {}, [&](Running& running) {
    Collectives& control = *running.control;
    write_checkpoint(running.engine, control, request(shared.path(), 7));
    write_checkpoint(running.engine, control, request(shared.path(), 8));
    control.barrier();
    const bool alone = control.size() == 1;

    const CheckpointSource source(shared /
                                  (control.rank() == 0 ? "step-00000007" : "step-00000008"));

    const std::string error = error_of([&] { read_checkpoint(running.engine, control, source); });
    EXPECT_EQ(contains(error, "different checkpoints"), !alone) << error;
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
}  // namespace zea
