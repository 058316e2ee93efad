// SPDX-License-Identifier: Apache-2.0
// Files that HDF5 writes in all the ways that zea reads, and refusals of files that HDF5 would not
// write: each fault is in a file whose checksums hold.
#include "h5/reader.hpp"

#include <functional>
#include <numeric>

#include <hdf5.h>

#include <gtest/gtest.h>

#include "fuzz/mend.hpp"
#include "h5/h5.hpp"
#include "support/files.hpp"

namespace zea::test_h5_reader {
namespace {

using Dims = std::vector<hsize_t>;

/// One that closes itself.
struct Id {
  hid_t id;
  herr_t (*close)(hid_t);
  Id(hid_t id, herr_t (*close)(hid_t)) : id(id), close(close) { EXPECT_GE(id, 0); }
  Id(const Id&) = delete;
  ~Id() { close(id); }
  operator hid_t() const { return id; }
};

std::vector<float> counting(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

struct Chunked {
  const char* name;
  Dims dims, most, chunk;  ///< without chunks: contiguous
  bool is_early = false;   ///< whether it is allocated when it is made
  H5F_libver_t format = H5F_LIBVER_LATEST;
};

void add_dataset(hid_t file, const Chunked& made, hid_t type = H5T_IEEE_F32LE) {
  const auto rank = static_cast<int>(made.dims.size());
  const Dims& most = made.most.empty() ? made.dims : made.most;
  const Id space(H5Screate_simple(rank, made.dims.data(), most.data()), H5Sclose);
  const Id creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  if (!made.chunk.empty()) H5Pset_chunk(creation, rank, made.chunk.data());
  if (made.is_early) H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY);
  const Id dataset(H5Dcreate2(file, made.name, type, space, H5P_DEFAULT, creation, H5P_DEFAULT),
                   H5Dclose);
  const auto values = counting(H5Sget_simple_extent_npoints(space));
  EXPECT_GE(H5Dwrite(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
}

void add_attribute(hid_t object, const std::string& name, const std::string& text) {
  const Id type(H5Tcopy(H5T_C_S1), H5Tclose), space(H5Screate(H5S_SCALAR), H5Sclose);
  H5Tset_size(type, text.size());
  const Id attribute(H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT),
                     H5Aclose);
  EXPECT_GE(H5Awrite(attribute, type, text.c_str()), 0);
}

class Reader : public ::testing::TestWithParam<H5F_libver_t> {
 protected:
  void write(H5F_libver_t format, const std::function<void(hid_t)>& fill, hsize_t before = 0) {
    const Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    const Id creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
    H5Pset_libver_bounds(access, format, H5F_LIBVER_LATEST);
    H5Pset_userblock(creation, before);
    const Id file(H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, creation, access), H5Fclose);
    fill(file);
  }
  void write_some(int datasets, int attributes, hsize_t before = 0) {
    const auto fill = [&](hid_t file) {
      for (int i = 0; i < datasets; ++i)
        add_dataset(file, {("layer." + std::to_string(i)).c_str(), {3}, {}, {}});
      for (int i = 0; i < attributes; ++i)
        add_attribute(file, "a" + std::to_string(i), "text " + std::to_string(i));
    };
    write(GetParam(), fill, before);
  }

  TemporaryDirectory directory_;
  std::string path_ = directory_ / "file.h5";
};

TEST_P(Reader, ReadsFewAndManyDatasetsAndAttributes) {
  for (const int count : {0, 1, 8, 9, 60, 2000}) {
    write_some(count, std::min(count, 60));
    const H5File file = H5File::open(path_);

    EXPECT_EQ(std::ssize(file.datasets()), count);
    for (int i = 0; i < count; i += 7)
      EXPECT_EQ(file.read_all<float>("layer." + std::to_string(i)), counting(3));
    for (int i = 0; i < std::min(count, 60); ++i)
      EXPECT_EQ(file.text_attribute("a" + std::to_string(i)), "text " + std::to_string(i));
    EXPECT_EQ(file.text_attribute("a60"), std::nullopt);
    EXPECT_FALSE(file.has("layer.2000"));
  }
}

TEST_P(Reader, ReadsGroupsAndSecondLinks) {
  write(GetParam(), [](hid_t file) {
    for (const char* name : {"a", "a/b", "a/b/c", "other"})
      H5Gclose(H5Gcreate2(file, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    add_dataset(file, {"a/b/c/x", {4}, {}, {}});
    H5Lcreate_hard(file, "a/b/c/x", file, "other/y", H5P_DEFAULT, H5P_DEFAULT);
  });
  const H5File file = H5File::open(path_);

  EXPECT_EQ(file.datasets().size(), 2u);
  EXPECT_EQ(file.read_all<float>("other/y"), counting(4));
  EXPECT_TRUE(file.has("a/b"));
  EXPECT_FALSE(file.has("a/b/c/x/y"));
  EXPECT_TRUE(contains(error_of([&] { file.info("a/b"); }), "no dataset"));
}

TEST_P(Reader, ReadsBehindAUserBlock) {
  write_some(12, 1, 1024);

  EXPECT_EQ(H5File::open(path_).read_all<float>("layer.11"), counting(3));
}

TEST_P(Reader, ReadsATypeWithAName) {
  write(GetParam(), [](hid_t file) {
    const Id type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
    H5Tcommit2(file, "type", type, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    add_dataset(file, {"x", {4}, {}, {}}, type);
  });
  const H5File file = H5File::open(path_);

  EXPECT_EQ(file.datasets().size(), 1u);
  EXPECT_EQ(file.read_all<float>("x"), counting(4));
}

TEST_P(Reader, ReadsWhatIsLeftAfterRemovals) {
  write(GetParam(), [](hid_t file) {
    const auto name = [](int i) { return "x" + std::to_string(i); };
    for (int i = 0; i < 100; ++i) add_dataset(file, {name(i).c_str(), {2}, {}, {}});
    for (int i = 0; i < 100; i += 3) H5Ldelete(file, name(i).c_str(), H5P_DEFAULT);
  });

  EXPECT_EQ(H5File::open(path_).datasets().size(), 66u);
}

INSTANTIATE_TEST_SUITE_P(Formats, Reader,
                         ::testing::Values(H5F_LIBVER_EARLIEST, H5F_LIBVER_V18, H5F_LIBVER_LATEST),
                         [](const auto& info) { return "V" + std::to_string(info.param); });

constexpr hsize_t kAny = H5S_UNLIMITED;

class Chunks : public Reader {
 protected:
  void expect_boxes(const Chunked& made) {
    SCOPED_TRACE(made.name);
    write(made.format, [&](hid_t file) { add_dataset(file, made); });
    const H5File file = H5File::open(path_);
    const Shape shape(made.dims.begin(), made.dims.end());
    const std::vector<float> values = counting(num_elements(shape));
    EXPECT_EQ(file.read_all<float>(made.name), values);

    const Extent box{Shape(shape.size(), 1), Shape(shape.size(), shape[0] - 2)};
    std::vector<float> part(static_cast<size_t>(box.elements()));
    file.read(made.name, box, part.data());
    for (const CopyRun& run : copy_runs(box, whole(shape), box))
      for (int64_t i = 0; i < run.elements; ++i)
        ASSERT_EQ(part[run.target_element + i], values[run.source_element + i]);
    EXPECT_TRUE(contains(error_of([&] { file.data_offset(made.name); }), "is not contiguous"));
  }
};

TEST_F(Chunks, AreFoundByEveryIndex) {
  const H5F_libver_t old = H5F_LIBVER_EARLIEST;
  expect_boxes({"old_tree", {20, 33}, {}, {3, 5}, false, old});
  expect_boxes({"large_old_tree", {40, 300}, {}, {2, 3}, false, old});
  expect_boxes({"single", {20, 33}, {}, {20, 33}});
  expect_boxes({"larger_than_the_dataset", {20, 33}, {40, 40}, {32, 40}});
  expect_boxes({"implicit", {20, 33}, {}, {3, 5}, true});
  expect_boxes({"fixed_array", {20, 33}, {}, {3, 5}});
  expect_boxes({"fixed_array_in_pages", {40, 300}, {}, {2, 3}});
  expect_boxes({"fixed_array_that_may_grow", {20, 33}, {30, 60}, {3, 5}});
  expect_boxes({"extensible_array", {20, 33}, {kAny, 33}, {3, 5}});
  expect_boxes({"extensible_array_along", {20, 33}, {kAny, 99}, {3, 5}});
  expect_boxes({"large_extensible_array", {9000}, {kAny}, {2}});
  expect_boxes({"new_tree", {20, 33}, {kAny, kAny}, {3, 5}});
  expect_boxes({"large_new_tree", {60, 300}, {kAny, kAny}, {2, 3}});
}

/// A file of its own, changed at a place, and what is said of it.
class Faults : public Chunks {
 protected:
  void SetUp() override { write_file(H5F_LIBVER_LATEST, 3); }

  void write_file(H5F_libver_t format, int datasets) {
    write(format, [&](hid_t file) {
      for (int i = 0; i < datasets; ++i)
        add_dataset(file, {("x" + std::to_string(i)).c_str(), {4}, {}, {}});
      add_dataset(file, {"chunked", {6}, {}, {2}});
      add_attribute(file, "text", "words");
    });
    good_ = read_bytes(path_);
  }

  size_t find(const std::string& part, size_t from = 0) const {
    const size_t place = good_.find(part, from);
    if (place == std::string::npos) throw std::runtime_error("the file has no such part: " + part);
    return place;
  }

  /// Returns the error of reading the file with `value` in `bytes` bytes at `place`.
  std::string said(size_t place, uint64_t value, size_t bytes, bool mends = true) {
    fuzz::Bytes changed(good_.begin(), good_.end());
    fuzz::put_number(changed, place, value, bytes);
    if (mends) fuzz::mend_h5(changed);
    write_bytes(path_, {changed.begin(), changed.end()});
    return error_of([&] {
      const H5File file = H5File::open(path_);
      file.text_attribute("text");
      for (const H5DatasetInfo& dataset : file.datasets()) file.read_all<float>(dataset.name);
    });
  }
  void expect_said(const std::string& sentence, size_t place, uint64_t value, size_t bytes) {
    const std::string found = said(place, value, bytes);
    EXPECT_TRUE(contains(found, sentence)) << found;
    EXPECT_TRUE(contains(found, path_)) << found;
  }

  uint64_t number(size_t place, size_t bytes) const {
    EXPECT_LE(place + bytes, good_.size());
    return fuzz::number_at({good_.begin(), good_.end()}, place, bytes);
  }

  std::string good_;
};

constexpr const char* kBeyond = "reaches beyond the file";

TEST_F(Faults, AreNoneWhereNothingIsChanged) {
  EXPECT_EQ(said(0, 0x89, 1), "");
}

TEST_F(Faults, OfChecksumsAreFound) {
  const size_t root = number(36, 8);

  EXPECT_TRUE(contains(said(44, 1, 4, false), "superblock at byte 0 has another checksum"));
  EXPECT_TRUE(contains(said(root + 8, 77, 1, false), "has another checksum"));
}

TEST_F(Faults, OfTheSuperblock) {
  expect_said("cannot open as HDF5: not HDF5", 1, 'X', 1);
  expect_said("has version 9", 8, 9, 1);
  expect_said("has addresses of bytes 4, must be 8", 9, 4, 1);
  expect_said("never closed the file", 11, 1, 1);
  expect_said("has base address 8", 12, 8, 8);
  expect_said("cut short: it has", 28, 1 << 20, 8);
  expect_said(kBeyond, 36, uint64_t{1} << 60, 8);
}

TEST_F(Faults, OfObjectHeaders) {
  const size_t root = number(36, 8);

  expect_said("object header at byte " + std::to_string(root) + " has version 7", root + 4, 7, 1);
  expect_said("is shorter than what it holds", find("OHDR", root + 1) + 24, 0xffff, 2);
  expect_said("has version 1, must be 2", root + 4, 1, 1);
}

TEST_F(Faults, OfMessages) {
  const size_t at = find("OHDR", number(36, 8) + 1);

  const size_t space = find({"\x02\x01\x01\x01\x04", 5}, at);
  const size_t type = find({"\x20\x1f\x00\x04", 4}, at) - 1;
  const size_t layout = find({"\x08\x12\x00", 3}, at) + 4;  // after tag, size and flags

  expect_said("has more than 32 dims", space + 1, 40, 1);
  expect_said("claims more elements than the file has bytes", space + 4, 1 << 30, 8);
  expect_said("dataspace at byte", space, 5, 1);
  expect_said("has elements of no bytes", type + 4, 0, 4);
  expect_said("zea does not read", type + 4, 3, 4);
  expect_said("is of an unknown class", layout + 1, 7, 1);
  expect_said("layout at byte", layout, 9, 1);
  expect_said("data of a dataset", layout + 2, good_.size() - 3, 8);
  expect_said("was never written in full", layout + 2, kH5Undefined, 8);
}

TEST_F(Faults, OfFixedArrays) {
  const size_t header = find("FAHD"), block = find("FADB");

  expect_said("has kind 1, must be 0", header + 5, 1, 1);
  expect_said("is too large", header + 8, uint64_t{1} << 50, 8);
  expect_said(kBeyond, header + 16, uint64_t{1} << 50, 8);
  expect_said("has header", block + 6, 1, 8);
  expect_said("the chunk at byte", block + 14, good_.size(), 8);
  expect_said("was never written in full", block + 14, kH5Undefined, 8);
}

TEST_F(Faults, OfHeapsOfLinks) {
  write_file(H5F_LIBVER_LATEST, 60);
  const size_t heap = find("FRHP"), tree = find("BTHD"), block = find("FHDB");

  EXPECT_EQ(said(0, 0x89, 1), "");
  EXPECT_TRUE(contains(said(block + 30, 1, 1, false), "has another checksum"));
  expect_said("has filters of length 9", heap + 7, 9, 2);
  expect_said("has blocks of impossible sizes", heap + 110, 3, 2);
  expect_said("has blocks of impossible sizes", heap + 112, 3, 8);
  expect_said("block of a fractal heap at byte 0", heap + 132, 0, 8);
  expect_said("has heap", block + 5, 1, 8);
  expect_said("too many levels", tree + 12, 999, 2);
  expect_said("has type 8, must be 5", tree + 5, 8, 1);
  expect_said("B-tree at byte", tree + 16, kH5Undefined - 1, 8);
}

TEST_F(Faults, OfRecordsThatComeTwice) {
  write_file(H5F_LIBVER_LATEST, 20);
  const size_t leaf = find("BTLF");
  const uint64_t id = number(leaf + 10, 7), id_of_next = number(leaf + 21, 7);

  EXPECT_NE(id, id_of_next);
  expect_said("a part of another: a loop?", leaf + 21, id, 7);
}

TEST_F(Faults, OfOldGroups) {
  write_file(H5F_LIBVER_EARLIEST, 20);
  const size_t tree = find("TREE"), symbols = find("SNOD"), names = find("HEAP");

  EXPECT_EQ(said(0, 0x89, 1), "");
  expect_said("has type 1, must be 0", tree + 4, 1, 1);
  expect_said(kBeyond, tree + 6, 0xffff, 2);
  expect_said("does not begin with \"SNOD\"", tree + 32, tree, 8);
  expect_said("has no name there", symbols + 8, 1 << 20, 8);
  expect_said("a part of another: a loop?", symbols + 48, number(symbols + 8, 8), 8);
  expect_said(kBeyond, names + 8, 1 << 20, 8);
  expect_said("has version 9", names + 4, 9, 1);
}

TEST_F(Faults, OfTreesThatLeadToThemselves) {
  write_file(H5F_LIBVER_EARLIEST, 900);  // of two levels
  size_t root = find("TREE");
  while (number(root + 5, 1) == 0) root = find("TREE", root + 1);

  expect_said("is at level 1 where none is", root + 32, root, 8);
  expect_said("a part of another: a loop?", root + 48, number(root + 32, 8), 8);
}

TEST_F(Faults, OfHeadersThatGoOnInThemselves) {
  write_file(H5F_LIBVER_EARLIEST, 3);
  // The first message of the root's header becomes one that leads back to itself.
  const size_t message = number(64, 8) + 16;
  fuzz::Bytes changed(good_.begin(), good_.end());
  ASSERT_GE(number(message + 2, 2), 16u);
  fuzz::put_number(changed, message, 0x10, 2);
  fuzz::put_number(changed, message + 8, message, 8);
  fuzz::put_number(changed, message + 16, 24, 8);
  write_bytes(path_, {changed.begin(), changed.end()});

  const std::string found = error_of([&] { H5File::open(path_).datasets(); });
  EXPECT_TRUE(contains(found, "a part of another: a loop?")) << found;
}

}  // namespace
}  // namespace zea::test_h5_reader
