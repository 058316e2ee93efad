// SPDX-License-Identifier: Apache-2.0
#include "newest_checkpoint.hpp"

#include <cstdio>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/checkpoint.hpp"

namespace zea {
namespace {

constexpr int kMaxRemoved = 20;

void note(const std::string& text) {
  std::fprintf(stderr, "note: %s\n", printable(text).c_str());
}

/// Chooses the checkpoint of a run to read next, after the faults of the ones read before.
class Newest {
 public:
  explicit Newest(std::string run) : run_(std::move(run)) {}

  /// Empty where there is none.
  std::string find() const {
    const std::vector<CheckpointEntry> found = list_checkpoints_of_run(run_);
    for (size_t i = found.size(); i-- > 0;)
      if (!damaged_.contains(found[i].path)) return found[i].path;
    return "";
  }

  /// Whether `checkpoint`, whose reading failed, was removed meanwhile. Throws WeightsError where
  /// that happens all the time.
  bool was_removed(const std::string& checkpoint) {
    if (has_manifest(checkpoint)) return false;
    if (++removed_ > kMaxRemoved)
      throw WeightsError(run_ + ": the run removed its newest checkpoint " +
                         std::to_string(kMaxRemoved) +
                         " times while it was read; let it keep more (checkpoint.keep)");
    note(checkpoint + " was removed by its run while it was read; taking the newest of now");
    return true;
  }

  /// Whether `fault` is damage of `checkpoint`, since it names a file in it, and an older one is
  /// there.
  bool passes_over(const std::string& checkpoint, const std::string& fault) {
    if (fault.find(checkpoint + "/") == std::string::npos) return false;
    damaged_.insert(checkpoint);
    const std::string older = find();
    if (!older.empty())
      note("passed over " + checkpoint + ", which is damaged (" + fault + "); taking " + older);
    return !older.empty();
  }

 private:
  std::string run_;
  std::set<std::string> damaged_;
  int removed_ = 0;
};

}  // namespace

void read_newest(const std::string& path, DamagedNewest damaged,
                 const std::function<void(const std::string&)>& read) {
  Newest newest(path);
  const bool is_run = !has_manifest(path) && !newest.find().empty();
  if (!is_run) return read(path);
  for (;;) {
    const std::string checkpoint = newest.find();
    if (checkpoint.empty()) throw WeightsError(path + ": its checkpoints were removed meanwhile");
    try {
      return read(checkpoint);
    } catch (const WeightsError& error) {
      const bool again =
          newest.was_removed(checkpoint) ||
          (damaged == DamagedNewest::PassOver && newest.passes_over(checkpoint, error.what()));
      if (!again) throw;
    } catch (const std::filesystem::filesystem_error&) {  // of listing a directory that is gone
      if (!newest.was_removed(checkpoint)) throw;
    }
  }
}

}  // namespace zea
