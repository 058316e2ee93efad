// SPDX-License-Identifier: Apache-2.0
// Checkpoints between layouts: whatever layout wrote one, every other reads the same global tensors
// bit for bit.
#include <gtest/gtest.h>

#include <map>

#include "checkpoint/checkpoint_writer.hpp"
#include "checkpoint/load_weights.hpp"
#include "io/checkpoint.hpp"
#include "support/files.hpp"
#include "support/mpi_main.hpp"
#include "support/tiny_checkpoint.hpp"

namespace zea::test_checkpoint {
namespace {

namespace fs = std::filesystem;

/// Every layout's state, filled and written, by every other.
void read_by_every_other_layout(const Deck& deck) {
  const SharedDirectory shared;
  for (const Layout& writer : layouts_of_this_run()) {
    const std::string directory = shared / writer.name;
    std::string written;
    run_on(writer, deck, [&](Running& running) {
      fill(running);
      written = write_checkpoint(running.engine, *running.control, request(directory, 7));
      EXPECT_EQ(written, directory + "/step-00000007");
    });
    for (const Layout& reader : layouts_of_this_run()) {
      // Pairs of smaller layouts are tried by the runs of this program on fewer ranks.
      if (std::max(writer.ranks, reader.ranks) < testing::world().size()) continue;
      run_on(reader, deck, [&](Running& running) {
        running.control->barrier();  // ranks that did not write are ahead
        const CheckpointSource source(directory + "/step-00000007");
        const TrainPosition position = read_checkpoint(running.engine, *running.control, source);
        EXPECT_EQ(position, request(directory, 7).position);
        expect_filled(running, writer.name + " read as " + reader.name);
      });
    }
  }
}

TEST(Checkpoint, IsReadBitwiseByEveryOtherLayout) {
  read_by_every_other_layout({});
}

TEST(Checkpoint, HasTheTensorsOfFilesWhereTheseAreSeveralParameters) {
  read_by_every_other_layout({.phi3 = true});
  const SharedDirectory shared;
  const Layout layout = layouts_of_this_run().back();
  run_on(layout, {.phi3 = true}, [&](Running& running) {
    fill(running);
    const std::string path =
        write_checkpoint(running.engine, *running.control, request(shared.path(), 7));
    if (running.control->rank() != 0) return;
    const CheckpointSource source(path);
    source.check_all();
    const Shape shape{(4 + 2 * 2) * 6, 24};
    const std::string name = "language_model.model.layers.0.self_attn.qkv_proj.weight";
    std::vector<float> found(num_elements(shape)), wanted(found);
    source.read(name, shape, whole(shape), DType::Float32, found.data());
    FilledSource(running.plan.model, "", kMasterSeed)
        .read(name, shape, whole(shape), DType::Float32, wanted.data());
    EXPECT_EQ(found, wanted);
  });
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
        source.read_state(param.name, "exp_avg", param.shape, whole(param.shape), DType::Float32,
                          found.data());
        moments.read(param.name, param.shape, whole(param.shape), DType::Float32, wanted.data());
        EXPECT_EQ(found, wanted) << param.name;
      }
      std::map<std::string, int64_t> elements;  // by what follows "rank-" and "frozen-"
      for (const Piece& piece : source.manifest().pieces)
        elements[piece.file.substr(piece.file.find('-'))] += piece.extent.elements();
      for (const auto& [rank, count] : elements)
        EXPECT_LT(count * layout.ranks, 3 * running.plan.model.num_parameters() * 1.25)
            << layout.name << ' ' << rank;
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

TEST(Checkpoint, IsReadByOneCopyAndSentToTheOthers) {
  const SharedDirectory shared;
  for (const Layout& layout : layouts_of_this_run())
    run_on(layout, {.precision = "bf16", .reads_once = true}, [&](Running& running) {
      fill(running);
      const std::string path =
          write_checkpoint(running.engine, *running.control, request(shared / layout.name, 7));
      for (const auto& buffer : running.engine.buffers()) buffer->master().zero_();
      running.control->barrier();

      read_checkpoint(running.engine, *running.control, CheckpointSource(path));

      expect_filled(running, layout.name);
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
    for (const auto& buffer : running.engine.buffers())
      if (buffer->trainable()) running.engine.state(*buffer, "exp_avg").fill_(5);
    running.control->barrier();

    read_checkpoint(running.engine, *running.control, CheckpointSource(shared / "step-00000007"));

    for (const auto& buffer : running.engine.buffers()) {
      EXPECT_TRUE(at::equal(buffer->master(), expected(running, *buffer, kMasterSeed)));
      if (!buffer->trainable()) continue;
      const at::Tensor wanted = expected(running, *buffer, kExpAvgSeed);
      for (const FlatPart& part : parts_in_range(buffer->layout(), buffer->range()))
        if (running.plan.model.params[part.param].name.starts_with("vision_tower."))
          wanted.narrow(0, part.flat_begin - buffer->range().begin, part.elements).zero_();
      EXPECT_TRUE(at::equal(running.engine.state(*buffer, "exp_avg"), wanted))
          << buffer->layout().name;
    }
  });
}

}  // namespace
}  // namespace zea::test_checkpoint
