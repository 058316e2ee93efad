// SPDX-License-Identifier: Apache-2.0
#include "io/weights_file.hpp"

#include <functional>
#include <limits>

#include <hdf5.h>

#include <gtest/gtest.h>

#include "core/dtype.hpp"
#include "support/files.hpp"

namespace zea::test_weights_file {
namespace {

const std::vector<float> kValues{1, 2, 3, 4, 5, 6};

/// A file with an external link, made before zea switches such links off in this process.
const std::string& external_link_bytes() {
  static const std::string bytes = [] {
    const TemporaryDirectory directory;
    const std::string path = directory / "link.h5";
    const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT);
    const bool linked =
        H5Lcreate_external("/etc/passwd", "/x", file, "x", H5P_DEFAULT, H5P_DEFAULT) >= 0;
    H5Fclose(file);
    return linked ? read_bytes(path) : std::string();
  }();
  return bytes;
}
const bool kMadeBeforeMain = !external_link_bytes().empty();

class WeightsFileTest : public ::testing::Test {
 protected:
  void write_good(const std::vector<float>& values = kValues, DType dtype = DType::Float32) {
    WeightsWriter writer(path_, "{\"model_type\":\"llava\"}");
    writer.add({"a.weight", {2, 3}, DType::Float32});
    writer.write("a.weight", 2, 4, values.data() + 2);
    writer.write("a.weight", 0, 2, values.data());
    std::vector<char> bytes(6 * element_bytes(dtype));
    convert_elements(DType::Float32, values.data(), dtype, bytes.data(), 6);
    writer.add({"b.weight", {6}, dtype});
    writer.write("b.weight", 0, 6, bytes.data());
    writer.add_companion("tokenizer.json", "{}");
    writer.finish();
  }

  std::string error_of_read(const std::string& name, const Shape& shape) {
    return error_of([&] {
      std::vector<float> values(static_cast<size_t>(num_elements(shape)));
      open_weights_file(path_)->read(name, shape, whole(shape), DType::Float32, values.data());
    });
  }

  /// Writes a file that is well formed except for the changes of `change` through plain HDF5.
  void write_hostile(const std::function<void(hid_t)>& change) {
    write_good();
    const hid_t file = H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    ASSERT_GE(file, 0);
    change(file);
    ASSERT_GE(H5Fclose(file), 0);
  }

  std::string error_of_open() {
    return error_of([&] { open_weights_file(path_); });
  }

  TemporaryDirectory directory_;
  std::string path_ = directory_ / "weights.h5";
};

hid_t make(hid_t file, const char* name, const std::vector<hsize_t>& dims, hid_t type,
           const std::function<void(hid_t)>& set) {
  const hid_t space = H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr);
  const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  set(creation);
  const hid_t dataset = H5Dcreate2(file, name, type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
  EXPECT_GE(dataset, 0) << name;
  H5Dclose(dataset);
  H5Pclose(creation);
  H5Sclose(space);
  return dataset;
}

TEST_F(WeightsFileTest, ReadsWhatWasWritten) {
  write_good(kValues, DType::BFloat16);

  const auto source = open_weights_file(path_);
  std::vector<float> part(2), converted(6);
  source->read("a.weight", {2, 3}, {{1, 1}, {1, 2}}, DType::Float32, part.data());
  source->read("b.weight", {6}, whole({6}), DType::Float32, converted.data());

  EXPECT_EQ(part, (std::vector<float>{5, 6}));
  EXPECT_EQ(converted, kValues);
  EXPECT_EQ(source->config_json(), "{\"model_type\":\"llava\"}");
  EXPECT_EQ(source->companions(), std::vector<std::string>{"tokenizer.json"});
  EXPECT_EQ(source->companion("tokenizer.json"), "{}");
  EXPECT_EQ(source->tensors().size(), 2u);
}

/// An export would write them, over the model's own.
TEST_F(WeightsFileTest, KnowsNoCompanionsOfOtherNames) {
  WeightsWriter writer(path_, "{}");
  writer.add({"a", {1}, DType::Float32});
  writer.write("a", 0, 1, kValues.data());
  for (const char* name : {"config.json", "modeling_x.py", "model.safetensors", "vocab.json"})
    writer.add_companion(name, "{}");
  writer.finish();
  EXPECT_EQ(open_weights_file(path_)->companions(), std::vector<std::string>{"vocab.json"});
}

TEST_F(WeightsFileTest, ConvertsMoreThanOneBufferInOrder) {
  const int64_t rows = 1500, columns = 1000;
  std::vector<double> values(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 100003);
  WeightsWriter writer(path_, "{}");
  writer.add({"x", {rows, columns}, DType::Float64});
  writer.write("x", 0, rows * columns, values.data());
  writer.finish();

  const Extent box{{1, 3}, {rows - 2, columns - 5}};
  std::vector<float> part(static_cast<size_t>(box.elements()));
  open_weights_file(path_)->read("x", {rows, columns}, box, DType::Float32, part.data());

  int64_t wrong = 0;
  for (int64_t r = 0; r < box.length[0]; ++r)
    for (int64_t c = 0; c < box.length[1]; ++c)
      wrong += part[r * box.length[1] + c] != static_cast<float>(values[(r + 1) * columns + c + 3]);
  EXPECT_EQ(wrong, 0);
}

TEST_F(WeightsFileTest, HasNoNameBeforeItIsFinished) {
  {
    WeightsWriter writer(path_, "{}");
    writer.add({"a", {2}, DType::Float32});
    EXPECT_FALSE(std::filesystem::exists(path_));
  }

  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_F(WeightsFileTest, ReplacesWhatADeadRunLeft) {
  write_bytes(path_ + ".tmp", "half a file");
  write_good();

  EXPECT_EQ(error_of_open(), "");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".tmp"));
}

TEST_F(WeightsFileTest, NamesTheNearestTensors) {
  write_good();

  const std::string message = error_of_read("a.wieght", {2, 3});

  EXPECT_TRUE(contains(message, path_ + ": has no tensor \"a.wieght\"; nearest: \"a.weight\""))
      << message;
}

TEST_F(WeightsFileTest, ShowsBothShapes) {
  write_good();

  EXPECT_TRUE(
      contains(error_of_read("a.weight", {3, 2}), "has shape (2, 3); the model wants (3, 2)"));
  EXPECT_TRUE(contains(error_of_read("a.weight", {6}), "has shape (2, 3); the model wants (6)"));
}

TEST_F(WeightsFileTest, RefusesValuesThatAreNotFinite) {
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16, DType::Float64}) {
    std::vector<float> values = kValues;
    values[4] = std::numeric_limits<float>::quiet_NaN();
    write_good(values, dtype);
    EXPECT_TRUE(contains(error_of_read("a.weight", {2, 3}), "\"a.weight\" is nan at index (1, 1)"));
    EXPECT_TRUE(contains(error_of_read("b.weight", {6}), "\"b.weight\" is nan at index (4)"));
    values[4] = -std::numeric_limits<float>::infinity();
    write_good(values, dtype);
    EXPECT_TRUE(
        contains(error_of_read("a.weight", {2, 3}), "\"a.weight\" is infinite at index (1, 1)"));
  }
}

TEST_F(WeightsFileTest, RefusesAnotherFormatOrVersion) {
  H5File file = H5File::create(path_);
  file.write_text_attribute("format", "zea.dataset");
  file.close_and_sync();
  EXPECT_TRUE(contains(error_of_open(), "\"zea.dataset\", not \"zea.weights\""));

  std::filesystem::remove(path_);
  H5File newer = H5File::create(path_);
  newer.write_text_attribute("format", "zea.weights");
  newer.write_text_attribute("version", "2");
  newer.close_and_sync();
  EXPECT_TRUE(contains(error_of_open(), "version is \"2\"; this zea reads version \"1\""));
}

TEST_F(WeightsFileTest, RefusesLinks) {
  ASSERT_TRUE(kMadeBeforeMain);
  write_bytes(path_, external_link_bytes());
  const H5File file = H5File::open(path_);
  EXPECT_TRUE(contains(error_of([&] { file.datasets(); }), "\"x\" is a soft or external link"));
  EXPECT_TRUE(contains(error_of([&] { file.info("x/y"); }), "\"x\" is a soft or external link"));

  write_hostile(
      [](hid_t file) { H5Lcreate_soft("/a.weight", file, "x", H5P_DEFAULT, H5P_DEFAULT); });
  EXPECT_TRUE(contains(error_of_open(), "\"x\" is a soft or external link"));
}

TEST_F(WeightsFileTest, RefusesALoopOfGroups) {
  write_hostile([](hid_t file) {
    H5Gclose(H5Gcreate2(file, "g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Lcreate_hard(file, "g", file, "g/again", H5P_DEFAULT, H5P_DEFAULT);
  });

  EXPECT_TRUE(contains(error_of_open(), "loop"));
}

TEST_F(WeightsFileTest, RefusesDataOutsideTheFile) {
  write_hostile([](hid_t file) {
    make(file, "x", {4}, H5T_IEEE_F32LE,
         [](hid_t creation) { H5Pset_external(creation, "/etc/passwd", 0, 16); });
  });
  EXPECT_TRUE(contains(error_of_open(), "\"x\" keeps its data in external files"));

  write_hostile([](hid_t file) {
    make(file, "x", {4}, H5T_IEEE_F32LE, [](hid_t creation) {
      const hsize_t dims[] = {4};
      const hid_t space = H5Screate_simple(1, dims, nullptr);
      H5Pset_virtual(creation, space, "/etc/passwd", "y", space);
      H5Sclose(space);
    });
  });
  EXPECT_TRUE(contains(error_of_open(), "\"x\" is virtual"));
}

TEST_F(WeightsFileTest, RefusesFiltersAndShapesThatTheFileCannotHold) {
  write_hostile([](hid_t file) {
    make(file, "x", {1024}, H5T_IEEE_F32LE, [](hid_t creation) {
      const hsize_t chunk[] = {64};
      H5Pset_chunk(creation, 1, chunk);
      H5Pset_deflate(creation, 9);
    });
  });
  EXPECT_TRUE(contains(error_of_open(), "\"x\" has filters"));

  write_hostile([](hid_t file) {
    make(file, "x", {hsize_t{1} << 40}, H5T_IEEE_F32LE, [](hid_t creation) {
      const hsize_t chunk[] = {64};
      H5Pset_chunk(creation, 1, chunk);
    });
  });
  EXPECT_TRUE(contains(error_of_open(), "\"x\" claims more elements than the file"));

  write_hostile([](hid_t file) { make(file, "x", {64}, H5T_IEEE_F32LE, [](hid_t) {}); });
  EXPECT_TRUE(contains(error_of_open(), "\"x\" was never written"));

  write_hostile([](hid_t file) {
    make(file, "x", {4}, H5T_IEEE_F32LE,
         [](hid_t creation) { H5Pset_layout(creation, H5D_COMPACT); });
  });
  EXPECT_TRUE(contains(error_of_open(), "\"x\" is neither contiguous nor chunked"));
}

TEST_F(WeightsFileTest, RefusesForeignTypes) {
  const hid_t compound = H5Tcreate(H5T_COMPOUND, 4);
  H5Tinsert(compound, "x", 0, H5T_NATIVE_INT);
  for (const hid_t type : {H5T_IEEE_F32BE, H5T_STD_I16LE, H5T_STD_U32LE, H5T_STD_I64BE, compound}) {
    write_hostile([&](hid_t file) {
      make(file, "x", {4}, type,
           [](hid_t creation) { H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY); });
    });
    EXPECT_TRUE(contains(error_of_open(), "zea does not read")) << type;
  }
  H5Tclose(compound);
}

TEST_F(WeightsFileTest, RefusesTextOfVariableLength) {
  const hid_t type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, H5T_VARIABLE);
  write_hostile([&](hid_t file) {
    const hid_t space = H5Screate(H5S_SCALAR);
    H5Adelete(file, "config");
    const hid_t attribute = H5Acreate2(file, "config", type, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Aclose(attribute);
    H5Sclose(space);
  });
  EXPECT_TRUE(contains(error_of_open(), "\"config\" of \"/\" is text of variable length"));

  write_hostile([&](hid_t file) {
    make(file, "x", {4}, type,
         [](hid_t creation) { H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY); });
  });
  EXPECT_TRUE(contains(error_of([&] { H5File::open(path_).read_strings("x"); }),
                       "\"x\" is text of variable length"));
  H5Tclose(type);
}

TEST_F(WeightsFileTest, ReadsPlainChunks) {
  write_hostile([](hid_t file) {
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t dims[] = {6}, chunk[] = {4};
    H5Pset_chunk(creation, 1, chunk);
    const hid_t space = H5Screate_simple(1, dims, nullptr);
    const hid_t dataset =
        H5Dcreate2(file, "x", H5T_IEEE_F32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    H5Dwrite(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, kValues.data());
    H5Dclose(dataset);
    H5Sclose(space);
    H5Pclose(creation);
  });

  std::vector<float> values(6);
  open_weights_file(path_)->read("x", {6}, whole({6}), DType::Float32, values.data());

  EXPECT_EQ(values, kValues);
}

TEST_F(WeightsFileTest, DamagedMetadataIsNeverReadAsGood) {
  write_good();
  const std::string good = read_bytes(path_);

  int silent = 0;
  for (size_t byte = 0; byte < good.size(); byte += 23) {
    std::string bad = good;
    bad[byte] = static_cast<char>(bad[byte] ^ 0x10);
    write_bytes(path_, bad);
    std::vector<float> values(6);
    std::vector<TensorInfo> tensors;
    const std::string message = error_of([&] {
      const auto source = open_weights_file(path_);
      tensors = source->tensors();
      source->read("a.weight", {2, 3}, whole({2, 3}), DType::Float32, values.data());
    });
    const bool same = message.empty() && tensors.size() == 2;
    silent += message.empty() && !same;
  }
  EXPECT_EQ(silent, 0);
}

}  // namespace
}  // namespace zea::test_weights_file
