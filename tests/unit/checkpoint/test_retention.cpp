// SPDX-License-Identifier: Apache-2.0
// Retention: the directories that count as checkpoints, the one that is resumed from, and that
// deletion never touches files of others.
#include "io/retention.hpp"

#include <gtest/gtest.h>

#include "io/manifest.hpp"
#include "support/files.hpp"

namespace zea::test_retention {
namespace {

namespace fs = std::filesystem;

/// A complete checkpoint of a model without tensors.
std::string make_checkpoint(const std::string& parent, const std::string& name) {
  const std::string path = parent + "/" + name;
  fs::create_directories(path);
  Manifest manifest;
  manifest.run_id = "run";
  manifest.files = {{"rank-00000.h5", ""}};
  write_bytes(path + "/rank-00000.h5", "shard");
  write_bytes(path + "/" + kManifestFile, manifest_text(manifest));
  return path;
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Retention, ListsOnlyCompleteCheckpointsInOrderOfSteps) {
  const TemporaryDirectory run;
  const std::string newest = make_checkpoint(run.path(), "step-100000000");
  const std::string oldest = make_checkpoint(run.path(), "step-00000002");
  for (const char* other : {"step-00000005.tmp", "step-7", "step-000000007", "step-00000009x",
                            "step--0000003", "step-00000008.replaced-1"})
    make_checkpoint(run.path(), other);
  fs::create_directory(run / "step-00000011");  // no manifest
  write_bytes(run / "step-00000012", "a file");
  fs::create_directory_symlink(newest, run / "step-00000013");

  const std::vector<CheckpointEntry> entries = list_checkpoints(run.path());

  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].step, 2);
  EXPECT_EQ(entries[0].path, oldest);
  EXPECT_EQ(entries[1].step, 100000000);
  EXPECT_EQ(entries[1].path, newest);
}

TEST(Retention, FindsNothingWhereNothingIs) {
  const TemporaryDirectory run;

  EXPECT_TRUE(list_checkpoints(run / "absent").empty());
  EXPECT_TRUE(
      contains(error_of([&] { resolve_checkpoint(run.path()); }), "no complete checkpoint"));
}

TEST(Retention, DeletesTheOldestAndLeavesWhatIsNotOurs) {
  const TemporaryDirectory run;
  for (const char* name : {"step-00000001", "step-00000002", "step-00000003", "step-00000004",
                           "step-00000005", "step-00000006", "other"})
    make_checkpoint(run.path(), name);
  write_bytes(run / "step-00000001/notes.txt", "mine");
  flip_bit(run / "step-00000002/manifest.json", 100);
  flip_bit(run / "step-00000006/manifest.json", 100);
  fs::create_directory(run / "step-00000000");

  keep_newest(run.path(), 2);

  EXPECT_EQ(names_in(run.path()),
            (std::vector<std::string>{"other", "step-00000000", "step-00000001", "step-00000002",
                                      "step-00000004", "step-00000005", "step-00000006"}));
  EXPECT_TRUE(fs::exists(run / "step-00000001/notes.txt"));
}

TEST(Retention, DeletesOverTheRestOfAnEarlierDeletion) {
  const TemporaryDirectory run;
  for (const char* name : {"step-00000001", "step-00000001.tmp", "step-00000002"})
    make_checkpoint(run.path(), name);

  keep_newest(run.path(), 1);

  EXPECT_EQ(names_in(run.path()), std::vector<std::string>{"step-00000002"});
}

TEST(Retention, OneThatCannotGoKeepsNoOther) {
  const TemporaryDirectory run;
  for (const char* name :
       {"step-00000001", "step-00000002", "step-00000002.tmp", "step-00000003", "step-00000004"})
    make_checkpoint(run.path(), name);
  write_bytes(run / "step-00000002.tmp/notes.txt", "mine");

  EXPECT_TRUE(contains(error_of([&] { keep_newest(run.path(), 1); }), "notes.txt"));

  EXPECT_EQ(names_in(run.path()),
            (std::vector<std::string>{"step-00000002", "step-00000002.tmp", "step-00000004"}));
}

TEST(Retention, RemovesUnfinishedSavesAndNothingElse) {
  const TemporaryDirectory run;
  for (const char* name : {"step-00000001", "step-00000002.tmp", "step-00000003.tmp", "other.tmp"})
    make_checkpoint(run.path(), name);
  write_bytes(run / "step-00000003.tmp/notes.txt", "mine");

  write_bytes(run / "step-00000002.tmp/rank-00001.h5", "shard");
  int removed = 0;

  remove_unfinished(run.path(), [&] { ++removed; });

  EXPECT_EQ(names_in(run.path()),
            (std::vector<std::string>{"other.tmp", "step-00000001", "step-00000003.tmp"}));
  EXPECT_EQ(removed, 2) << "each of many, behind the manifest";
}

TEST(Retention, OnlyPlainFilesAreOurs) {
  const TemporaryDirectory run;
  make_checkpoint(run.path(), "step-00000001");
  EXPECT_EQ(detail::find_stranger(run / "step-00000001"), "");
  const std::string linked = run / "step-00000001/rank-00001.h5";
  fs::create_symlink("rank-00000.h5", linked);
  EXPECT_EQ(detail::find_stranger(run / "step-00000001"), linked);
  fs::remove(linked);
  fs::create_directory(linked);
  EXPECT_EQ(detail::find_stranger(run / "step-00000001"), linked);
}

TEST(Retention, ResolvesCheckpointsAndRunDirectories) {
  const TemporaryDirectory run;
  const std::string first = make_checkpoint(run / "checkpoints", "step-00000001");
  const std::string second = make_checkpoint(run / "checkpoints", "step-00000002");

  EXPECT_EQ(resolve_checkpoint(first).path, first);
  EXPECT_EQ(resolve_checkpoint(run.path()).path, second);
  EXPECT_EQ(resolve_checkpoint(run / "checkpoints").path, second);
  EXPECT_EQ(resolve_checkpoint(run.path()).note, "");
}

TEST(Retention, PassesOverCheckpointsThatCannotBeOpenedAndSaysSo) {
  const TemporaryDirectory run;
  const std::string first = make_checkpoint(run / "checkpoints", "step-00000001");
  const std::string second = make_checkpoint(run / "checkpoints", "step-00000002");
  const std::string third = make_checkpoint(run / "checkpoints", "step-00000003");
  flip_bit(third + "/manifest.json", 100);
  fs::remove(second + "/rank-00000.h5");

  const ResolvedCheckpoint resolved = resolve_checkpoint(run.path());

  EXPECT_EQ(resolved.path, first);
  EXPECT_TRUE(contains(resolved.note, third)) << resolved.note;
  EXPECT_TRUE(contains(resolved.note, "rank-00000.h5")) << resolved.note;
  flip_bit(first + "/manifest.json", 100);
  EXPECT_TRUE(
      contains(error_of([&] { resolve_checkpoint(run.path()); }), "none of its checkpoints"));
}

}  // namespace
}  // namespace zea::test_retention
