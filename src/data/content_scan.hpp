// SPDX-License-Identifier: Apache-2.0
// What a look at all tokens and loss masks of a data set tells; and how it is kept in a file beside
// the data set, so that only the first run has to look. What was kept counts for the very file that
// was looked at: one of another size, time or hash is looked at again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/file_facts.hpp"

namespace zea::detail {

struct ContentScan {
  /// One number's kind.
  struct Facts {
    int64_t max_token = -1;
    /// The first target that is a placeholder, counted as those below.
    int64_t learnt_placeholder = 0;
    /// Sum of a hash of each token with its place and mask: of parts the sum of theirs.
    uint64_t hash = 0;
  } facts = {};
  /// The first token whose mask, and the first that itself, cannot be, counted from the end of all
  /// (1: the last one); 0: there is none. So the first fault of all parts is the largest.
  int64_t bad_mask = 0, bad_token = 0;
  std::vector<int64_t> targets;  ///< of each sample; 0 of those that were not looked at
};

/// The name of a data set's file at this moment, and of how many samples it has, as text: its size,
/// when it was written, and its hash. Empty where it cannot be read.
std::string describe_contents(const FileFacts& facts, int64_t hash, size_t samples);

/// What was kept of `contents` beside `path`; nothing where there is nothing, or something else, or
/// damage.
std::optional<ContentScan> read_kept_scan(const std::string& path, const std::string& contents,
                                          size_t samples);

/// Nothing happens where it cannot be written: it is looked at again the next time.
void keep_scan(const std::string& path, const std::string& contents, const ContentScan& scan);

}  // namespace zea::detail
