// SPDX-License-Identifier: Apache-2.0
// A cache of a frozen encoder's features in a folder of HDF5 files. There is a part for each run of
// neighboring samples, so that a run that was stopped computes only the missing parts, on any
// number of ranks. Each item has a hash of its contents and one of its features.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "data/dataset.hpp"
#include "layout/sample_index.hpp"

namespace zea {

/// The encoder and the data set that features belong to, and the folder that holds them.
struct FeatureFormat {
  std::string folder;
  std::string fingerprint;  ///< of all that they depend on but the items' contents
  int encoder = 0;          ///< index in ModelSpec::encoders
  EncoderSpec spec = {};
  DType dtype = DType::Float32;
  int64_t width = 0;  ///< numbers of each of an item's tokens
};

struct KeptItem {
  int64_t bytes = 0;    ///< of its features
  bool is_bad = false;  ///< it did not decode
};

class FeatureCache {
 public:
  /// Samples [first, end) of the data set.
  struct Part {
    int64_t first = 0, end = 0;
    int64_t items = 0, tokens = 0;  ///< of the encoder
  };

  /// `index`, of the data set, must outlive it.
  FeatureCache(FeatureFormat format, const SampleTable& index);
  ~FeatureCache();

  const FeatureFormat& format() const { return format_; }
  const std::vector<Part>& parts() const { return parts_; }
  std::string path(size_t part) const;
  int64_t bytes() const;                          ///< of all features
  int64_t bytes_of(const ItemList& items) const;  ///< of those of these
  int64_t bytes_of(const Item& item) const;
  /// Whether a part lies there whole, with this fingerprint. A part without items needs no file.
  bool has(size_t part) const;
  /// Copies the features of item `number` of `sample`, which is one of this encoder, to `target`,
  /// unless that is null. Thread-safe. Throws DataError where the item is not the one that they
  /// were made of, or they are damaged.
  KeptItem read(const Sample& sample, size_t number, uint8_t* target) const;

 private:
  struct OpenPart;
  const OpenPart& open(size_t part) const;
  std::vector<ItemShape> shapes(int64_t sample) const;

  FeatureFormat format_;
  const SampleTable& index_;
  std::vector<Part> parts_;
  mutable std::mutex mutex_;
  mutable std::map<size_t, std::unique_ptr<OpenPart>> open_;  ///< guarded by mutex_
};

/// Removes the unfinished parts that dead runs left in a folder.
void remove_unfinished_parts(const std::string& folder);

/// Writes a part: its features in pieces, in order, and what they were made of.
class FeatureWriter {
 public:
  FeatureWriter(const FeatureCache& cache, size_t part);
  ~FeatureWriter();
  /// The features of the encoder's items of one sample, as it was read: (tokens, width). `bad`:
  /// numbers of those items that did not decode.
  void add(const Sample& sample, const std::vector<int64_t>& bad, const uint8_t* features);
  /// Gives the file its name: from then on the part is there.
  void finish();

 private:
  struct Target;
  std::unique_ptr<Target> target_;
};

}  // namespace zea
