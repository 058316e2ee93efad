// SPDX-License-Identifier: Apache-2.0
// Frozen values are written once: later checkpoints have them as hard links, each is complete for
// every layout, and if a link is impossible, they are written again.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>

#include "io/checkpoint.hpp"
#include "io/retention.hpp"
#include "io/shard_file.hpp"
#include "support/tiny_checkpoint.hpp"

namespace zea::test_frozen_values {
namespace {

namespace fs = std::filesystem;

/// The usual job: encoder and language model are frozen, the projector is trained.
constexpr bool kTrains = false;
const Deck kFrozen = {.train_vision = kTrains, .train_llm = kTrains};
/// Frozen values are in another type than masters.
const Deck kFrozenInBf16 = {.precision = "bf16", .train_vision = kTrains, .train_llm = kTrains};
/// Everything is frozen except adapters.
const Deck kAdapted = {.precision = "bf16", .adapts = true};

std::string checkpoint_of(const std::string& directory, int64_t step) {
  return directory + "/step-0000000" + std::to_string(step);
}

/// Changes the shards as training does.
void change(Running& running) {
  for (const auto& buffer : running.engine.buffers())
    if (buffer->trainable()) buffer->master().add_(1);
}

SaveReport save(CheckpointWriter& writer, const std::string& directory, int64_t step) {
  writer.start(request(directory, step));
  writer.snapshot_before_update();
  return writer.finish();
}

struct Names {
  ino_t inode = 0;
  nlink_t count = 0;
};

Names names_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return {status.st_ino, status.st_nlink};
}

/// Returns the bytes of all ranks' frozen values, by the plan.
int64_t frozen_bytes(const Running& running) {
  int64_t bytes = 0;
  for (const ParamSpec& param : running.plan.model.params) {
    const Precision& precision = running.plan.precision_of(param.module);
    if (param.trainable) continue;
    const DType type = param.used ? precision.param : precision.master;
    bytes += num_elements(param.shape) * static_cast<int64_t>(element_bytes(type));
  }
  return bytes;
}

std::vector<std::string> frozen_files(const std::string& checkpoint) {
  std::vector<std::string> files;
  for (const ManifestFile& file : read_manifest(checkpoint).files)
    if (file.name.starts_with("frozen-")) files.push_back(file.name);
  return files;
}

/// Whether the frozen files of two checkpoints are the same, all of them or none.
bool are_shared(const std::string& a, const std::string& b) {
  const std::vector<std::string> files = frozen_files(a);
  EXPECT_EQ(frozen_files(b), files);
  size_t shared = 0;
  for (const std::string& file : files)
    shared += names_of(a + "/" + file).inode == names_of(b + "/" + file).inode;
  EXPECT_TRUE(shared == 0 || shared == files.size()) << shared << " of " << files.size();
  return !files.empty() && shared == files.size();
}

/// Others are tried by the runs of this program on fewer ranks.
std::vector<Layout> layouts_of_many_ranks() {
  std::vector<Layout> layouts = layouts_of_this_run();
  std::erase_if(layouts,
                [](const Layout& layout) { return 2 * layout.ranks <= testing::world().size(); });
  return layouts;
}

void expect_reads_as(const Layout& layout, const Deck& deck, const std::string& checkpoint) {
  run_on(layout, deck, [&](Running& running) {
    running.control->barrier();
    read_checkpoint(running.engine, *running.control, CheckpointSource(checkpoint));
    expect_filled(running, checkpoint + " read as " + layout.name);
  });
}

void expect_written_once(const SharedDirectory& shared, const Layout& layout, const Deck& deck) {
  const std::string directory = shared / layout.name;
  run_on(layout, deck, [&](Running& running) {
    CheckpointWriter writer(running.engine, *running.control);
    fill(running);
    change(running);
    const int64_t frozen = frozen_bytes(running);

    const SaveReport first = save(writer, directory, 6);
    save(writer, directory, 7);
    fill(running);
    const SaveReport last = save(writer, directory, 8);

    EXPECT_EQ(first.linked_bytes, 0);
    EXPECT_GT(first.bytes, frozen);
    EXPECT_EQ(last.linked_bytes, frozen);
    EXPECT_EQ(last.bytes, first.bytes - frozen);
    EXPECT_EQ(last.why_not_linked, "");
    if (running.control->rank() == 0) {
      EXPECT_EQ(static_cast<int>(frozen_files(last.path).size()), layout.ranks);
      EXPECT_TRUE(are_shared(first.path, last.path));
      EXPECT_EQ(names_of(last.path + "/" + frozen_file_name(0)).count, 3u);
      for (const int64_t step : {6, 7, 8})
        CheckpointSource(checkpoint_of(directory, step)).check_all();
    }
    writer.keep_newest(directory, 1);
  });
  shared.barrier();
  EXPECT_FALSE(fs::exists(checkpoint_of(directory, 7)));
  EXPECT_EQ(names_of(checkpoint_of(directory, 8) + "/" + frozen_file_name(0)).count, 1u);
  for (const Layout& reader : {layouts_of_this_run().front(), layouts_of_this_run().back()})
    expect_reads_as(reader, deck, checkpoint_of(directory, 8));
}

TEST(FrozenValues, AreWrittenOnceAndLinkedByLaterSaves) {
  const SharedDirectory shared;
  for (const Layout& layout : layouts_of_many_ranks())
    expect_written_once(shared, layout, layout.ranks % 2 == 0 ? kFrozenInBf16 : kFrozen);
}

TEST(FrozenValues, BesideAdaptersAreAllButThese) {
  const SharedDirectory shared;
  for (const Layout& layout : layouts_of_many_ranks())
    expect_written_once(shared, layout, kAdapted);
}

TEST(FrozenValues, AreWrittenAnewWhereTheLastFileIsNotWhatItWas) {
  const SharedDirectory shared;
  const Layout layout = layouts_of_this_run().back();
  const std::string directory = shared.path();
  run_on(layout, kFrozen, [&](Running& running) {
    Collectives& control = *running.control;
    CheckpointWriter writer(running.engine, control);
    fill(running);
    save(writer, directory, 1);
    save(writer, directory, 2);
    const std::string file = frozen_file_name(control.size() - 1);
    const auto last_does = [&](auto damage) {
      if (control.rank() == control.size() - 1) damage();
      control.barrier();
    };

    // Through one name: every checkpoint that shares it is refused.
    last_does([&] {
      ::usleep(20000);  // files' times move in ticks
      const std::string path = checkpoint_of(directory, 1) + "/" + file;
      flip_bit(path, fs::file_size(path) / 2);
    });
    for (const int64_t step : {1, 2}) {
      const CheckpointSource source(checkpoint_of(directory, step));
      const std::string path = checkpoint_of(directory, step) + "/" + file;
      const std::string error = error_of([&] { source.check_all(); });
      EXPECT_TRUE(contains(error, path + ": tensor \"")) << error;
      EXPECT_TRUE(
          contains(error_of([&] { read_checkpoint(running.engine, control, source); }), path));
    }
    fill(running);
    const SaveReport repaired = save(writer, directory, 3);
    EXPECT_TRUE(contains(repaired.why_not_linked, "was changed or replaced"));
    EXPECT_GT(repaired.bytes, 0);
    if (control.rank() == 0) CheckpointSource(repaired.path).check_all();
    control.barrier();

    last_does([&] { fs::remove(checkpoint_of(directory, 3) + "/" + file); });
    const SaveReport again = save(writer, directory, 4);
    EXPECT_TRUE(contains(again.why_not_linked, "No such file")) << again.why_not_linked;
    EXPECT_EQ(again.linked_bytes > 0, control.size() > 1) << "those of other ranks are linked";
    control.barrier();
    EXPECT_FALSE(error_of([&] { CheckpointSource source(checkpoint_of(directory, 3)); }).empty());

    const SaveReport linked = save(writer, directory, 5);
    EXPECT_EQ(linked.linked_bytes, frozen_bytes(running));
    EXPECT_TRUE(are_shared(again.path, linked.path));
  });
  for (const int64_t step : {4, 5})
    expect_reads_as(layout, kFrozen, checkpoint_of(directory, step));
}

TEST(FrozenValues, AreLinkedFromTheLastCheckpointAfterASaveThatFailed) {
  const SharedDirectory shared;
  run_on(layouts_of_this_run().back(), kFrozen, [&](Running& running) {
    Collectives& control = *running.control;
    CheckpointWriter writer(running.engine, control);
    fill(running);
    const SaveReport before = save(writer, shared.path(), 1);
    {
      std::optional<FileSizeLimit> limit;
      if (control.rank() == control.size() - 1) limit.emplace(1024);
      EXPECT_THROW(save(writer, shared.path(), 2), StorageError);
    }
    control.barrier();
    EXPECT_FALSE(fs::exists(checkpoint_of(shared.path(), 2) + ".tmp"));

    const SaveReport after = save(writer, shared.path(), 3);

    EXPECT_EQ(after.linked_bytes, frozen_bytes(running));
    EXPECT_TRUE(are_shared(before.path, after.path));
  });
}

TEST(FrozenValues, GoOnBeingLinkedAfterAResumeOfTheSameLayout) {
  const SharedDirectory shared;
  for (const Layout& layout : layouts_of_many_ranks()) {
    const std::string directory = shared / layout.name;
    run_on(layout, kFrozen, [&](Running& running) {
      fill(running);
      write_checkpoint(running.engine, *running.control, request(directory, 1));
    });
    for (const bool reads_once : {false, true}) {
      Deck deck = kFrozen;
      deck.reads_once = reads_once;
      run_on(layout, deck, [&](Running& running) {
        running.control->barrier();
        const CheckpointSource source(checkpoint_of(directory, 1));
        read_checkpoint(running.engine, *running.control, source);
        CheckpointWriter writer(running.engine, *running.control);
        writer.starts_from(source);
        const int64_t step = 2 + reads_once;

        const SaveReport report = save(writer, directory, step);

        EXPECT_EQ(report.linked_bytes, frozen_bytes(running)) << layout.name;
        EXPECT_TRUE(are_shared(checkpoint_of(directory, 1), report.path));
        expect_filled(running, layout.name);
      });
      expect_reads_as(layout, kFrozen, checkpoint_of(directory, 2 + reads_once));
    }
  }
}

/// A checkpoint of another layout, or with other frozen parts, has no file that this one could
/// share.
TEST(FrozenValues, AreWrittenAnewAfterAResumeThatHoldsThemInAnotherWay) {
  const SharedDirectory shared;
  const Layout layout = layouts_of_this_run().back(), other = layouts_of_this_run().front();
  const Deck trains_llm = {.train_vision = false}, trains_vision = {.train_llm = false};
  struct Start {
    Layout layout;
    Deck deck;
  };
  std::vector<Start> starts = {
      {layout, kFrozen}, {layout, trains_llm}, {layout, trains_vision}, {layout, kFrozen}};
  if (other.ranks != layout.ranks) {
    starts.push_back({other, kFrozen});
    starts.push_back({layout, kFrozen});
  }
  int64_t step = 1;
  for (const Start& start : starts) {
    run_on(start.layout, start.deck, [&](Running& running) {
      std::optional<CheckpointSource> source;
      CheckpointWriter writer(running.engine, *running.control);
      if (step > 1) {
        source.emplace(checkpoint_of(shared.path(), step - 1));
        read_checkpoint(running.engine, *running.control, *source);
        writer.starts_from(*source);
      }
      fill(running);  // moments of what is trained from now on

      const SaveReport report = save(writer, shared.path(), step);

      EXPECT_EQ(report.linked_bytes, 0) << step;
      EXPECT_EQ(report.why_not_linked, "") << step;
      if (running.control->rank() == 0) CheckpointSource(report.path).check_all();
    });
    shared.barrier();
    expect_reads_as(start.layout, start.deck, checkpoint_of(shared.path(), step));
    ++step;
  }
}

TEST(FrozenValues, OfAnotherRunAreNotLinked) {
  const SharedDirectory shared;
  run_on(layouts_of_this_run().back(), kFrozen, [&](Running& running) {
    CheckpointWriter writer(running.engine, *running.control);
    fill(running);
    save(writer, shared.path(), 1);
    CheckpointRequest of_another = request(shared.path(), 2);
    of_another.run_id = "run-2";

    writer.start(of_another);
    const SaveReport report = writer.finish();

    EXPECT_EQ(report.linked_bytes, 0);
    if (running.control->rank() == 0) CheckpointSource(report.path).check_all();
  });
}

}  // namespace
}  // namespace zea::test_frozen_values
