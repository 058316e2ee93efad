// SPDX-License-Identifier: Apache-2.0
// Checkpoints between layouts: whatever layout wrote one, every other reads the same global tensors
// bit for bit. And a save that fails on one rank fails on all of them and leaves earlier
// checkpoints alone.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <exception>
#include <map>
#include <optional>

#include "support/files.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "support/tiny_llava.hpp"
#include "zea/checkpoint/agree.hpp"
#include "zea/checkpoint/checkpoint_reader.hpp"
#include "zea/checkpoint/checkpoint_writer.hpp"
#include "zea/checkpoint/load_weights.hpp"
#include "zea/checkpoint/retention.hpp"
#include "zea/io/checkpoint_source.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;
using testing::FilledSource;
using testing::tiny_llava_config;

struct Layout {
  std::string name;
  int ranks, dp_replicate;
  std::string vision, llm;
};

const std::vector<Layout> kLayouts = {
    {"one", 1, 1, "full_shard", "full_shard"},
    {"full2", 2, 1, "full_shard", "full_shard"},
    {"none2", 2, 1, "no_shard", "no_shard"},
    {"mixed2", 2, 1, "no_shard", "full_shard"},
    {"full3", 3, 1, "full_shard", "full_shard"},
    {"none3", 3, 1, "no_shard", "no_shard"},
    {"full4", 4, 1, "full_shard", "full_shard"},
    {"hybrid4", 4, 2, "hybrid_shard", "hybrid_shard"},
    {"mixed4", 4, 2, "hybrid_shard_zero2", "no_shard"},
};

/// Of all ranks of this program. Collective.
struct SharedDirectory : testing::SharedDirectory {
  SharedDirectory() : testing::SharedDirectory(testing::world().communicator()) {}
};

struct Deck {
  std::string precision = "fp32";
  bool train_vision = true;
  bool tied = true;
};

Plan make_tiny_plan(const Layout& layout, const Deck& deck) {
  Options options;
  options.mesh.dp_replicate = layout.dp_replicate;
  options.mesh_vision.strategy = layout.vision;
  options.mesh_llm.strategy = layout.llm;
  options.precision.preset = deck.precision;
  options.vision.train = deck.train_vision;
  return make_plan(options, tiny_llava_config({.tied = deck.tied}), layout.ranks);
}

/// A layout at run time, on the first ranks of the program.
struct Running {
  Plan plan;
  Mesh mesh;
  std::unique_ptr<Collectives> control;
  Engine engine;

  Running(const Communicator& ranks, const Layout& layout, const Deck& deck)
      : plan(make_tiny_plan(layout, deck)),
        mesh(ranks, plan.mesh, make_mpi_collectives),
        control(make_mpi_collectives(ranks)),
        engine(plan, mesh, at::kCPU) {}
};

/// Calls action(running) on the ranks of `layout`.
template <class Action>
void run_on(const Layout& layout, const Deck& deck, Action action) {
  const Communicator ranks = testing::first_ranks(layout.ranks);
  if (ranks.size() == 0) return;
  Running running(ranks, layout, deck);
  action(running);
}

constexpr uint64_t kMasterSeed = 1, kExpAvgSeed = 2, kExpAvgSqSeed = 3;

/// Calls visit(flat position, expected values) for each parameter, its values in the master type.
template <class Visit>
void for_each_parameter(const Running& running, const FlatGroup& group, uint64_t seed,
                        Visit visit) {
  const Plan& plan = running.plan;
  const FilledSource source(plan.model, plan.config_json, seed);
  for (const FlatParam& member : group.params) {
    const ParamSpec& param = plan.model.params[member.param];
    const at::Tensor values = at::empty({member.elements}, to_torch(plan.precision.master));
    source.read(param.name, param.shape, whole(param.shape), plan.precision.master,
                values.data_ptr());
    visit(member.offset, values);
  }
}

/// What a shard of a buffer should be: all of the buffer, padding zero, cut to the range.
at::Tensor expected(const Running& running, const ShardedGroup& group, uint64_t seed) {
  const at::Tensor flat =
      at::zeros({std::max(group.range().end, group.layout().elements)}, group.master().options());
  for_each_parameter(running, group.layout(), seed, [&](int64_t offset, const at::Tensor& values) {
    flat.narrow(0, offset, values.numel()).copy_(values);
  });
  return flat.slice(0, group.range().begin, group.range().end);
}

void fill(Running& running) {
  for (const auto& group : running.engine.groups()) {
    group->master().copy_(expected(running, *group, kMasterSeed));
    if (!group->trainable()) continue;
    group->exp_avg().copy_(expected(running, *group, kExpAvgSeed));
    group->exp_avg_sq().copy_(expected(running, *group, kExpAvgSqSeed));
  }
}

void expect_filled(Running& running, const std::string& what) {
  for (const auto& group : running.engine.groups()) {
    const std::string where = what + ": " + group->layout().name;
    EXPECT_TRUE(at::equal(group->master(), expected(running, *group, kMasterSeed))) << where;
    if (!group->trainable()) continue;
    EXPECT_TRUE(at::equal(group->exp_avg(), expected(running, *group, kExpAvgSeed))) << where;
    EXPECT_TRUE(at::equal(group->exp_avg_sq(), expected(running, *group, kExpAvgSqSeed))) << where;
  }
}

CheckpointRequest request(const std::string& directory, int64_t step) {
  return {directory,
          "run-1",
          {.step = step, .optimizer_step = 6, .samples = 50, .tokens = 900, .target_tokens = 80},
          "[run]\n"};
}

std::vector<Layout> layouts_of_this_run() {
  std::vector<Layout> layouts;
  for (const Layout& layout : kLayouts)
    if (layout.ranks <= testing::world().size()) layouts.push_back(layout);
  return layouts;
}

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

/// Lets this process write files of at most `bytes`.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_;
  void (*handler_)(int);
};

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

/// What training does to its shards.
void change(Running& running, double by) {
  for (const auto& group : running.engine.groups()) {
    if (!group->trainable()) continue;
    for (const at::Tensor& values : {group->master(), group->exp_avg(), group->exp_avg_sq()})
      values.add_(by);
  }
}

std::map<std::string, std::string> bytes_of_files(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(directory))
    files[entry.path().filename().string()] = read_bytes(entry.path().string());
  return files;
}

TEST(CheckpointWriter, WritesWhatTheShardsWereWhenItStarted) {
  const SharedDirectory shared;
  for (const bool trains_vision : {true, false})
    run_on(layouts_of_this_run().back(), {.train_vision = trains_vision}, [&](Running& running) {
      Collectives& control = *running.control;
      const std::string name = trains_vision ? "all" : "frozen";
      fill(running);
      const std::string wanted =
          write_checkpoint(running.engine, control, request(shared / name + "-waited", 7));
      CheckpointWriter writer(running.engine, control);
      CheckpointRequest slow = request(shared / name, 7);
      slow.rate_limit_mib = 0.25 / control.size();  // of about 120 KiB in all

      writer.start(slow);
      EXPECT_TRUE(writer.is_under_way());
      EXPECT_TRUE(writer.is_writing());
      for (int step = 0; step < 3; ++step) {
        writer.keep_values();
        change(running, 1);
      }
      EXPECT_TRUE(writer.is_writing()) << "it was too fast to test anything";
      EXPECT_FALSE(fs::exists(shared / name + "/step-00000007"));
      const SaveReport report = writer.finish();

      EXPECT_FALSE(writer.is_under_way());
      EXPECT_EQ(report.path, shared / name + "/step-00000007");
      EXPECT_GT(report.copied_bytes, 0);
      EXPECT_LT(report.copied_bytes, report.bytes);
      EXPECT_GE(report.stall_seconds, report.copy_seconds);
      EXPECT_GE(report.seconds, report.stall_seconds);
      if (control.rank() == 0) {
        std::map<std::string, std::string> found = bytes_of_files(report.path);
        EXPECT_EQ(found.size(), static_cast<size_t>(control.size()) + 2);
        // HDF5 leaves memory that it never set in the heap of virtual datasets.
        for (const auto& [file, bytes] : bytes_of_files(wanted))
          EXPECT_TRUE(file == "model.h5" || found[file] == bytes) << file;
      }
      control.barrier();
      for (const auto& group : running.engine.groups())
        group->master().zero_();  // its padding, too
      read_checkpoint(running.engine, control, CheckpointSource(report.path));
      expect_filled(running, "written while the shards changed");
    });
}

TEST(CheckpointWriter, LeavesNothingThatLooksCompleteWhenItIsGivenUp) {
  const SharedDirectory shared;
  run_on(layouts_of_this_run().back(), {}, [&](Running& running) {
    Collectives& control = *running.control;
    fill(running);
    {
      CheckpointWriter writer(running.engine, control);
      CheckpointRequest slow = request(shared.path(), 7);
      slow.rate_limit_mib = 0.001;  // hours
      writer.start(slow);
    }
    control.barrier();
    EXPECT_TRUE(list_checkpoints(shared.path()).empty());

    write_checkpoint(running.engine, control, request(shared.path(), 7));

    control.barrier();
    read_checkpoint(running.engine, control, CheckpointSource(shared / "step-00000007"));
    expect_filled(running, "after one that was given up");
  });
}

TEST(CheckpointWriter, FailsOnAllRanksWhenAThreadFails) {
  const SharedDirectory shared;
  run_on(layouts_of_this_run().back(), {}, [&](Running& running) {
    Collectives& control = *running.control;
    fill(running);
    CheckpointWriter writer(running.engine, control);
    std::optional<FileSizeLimit> limit;
    if (control.rank() == control.size() - 1) limit.emplace(4096);
    writer.start(request(shared.path(), 8));
    writer.keep_values();
    change(running, 1);

    EXPECT_THROW(writer.finish(), StorageError);

    EXPECT_FALSE(writer.is_under_way());
    control.barrier();
    EXPECT_FALSE(fs::exists(shared / "step-00000008"));
    EXPECT_FALSE(fs::exists(shared / "step-00000008.tmp"));
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
