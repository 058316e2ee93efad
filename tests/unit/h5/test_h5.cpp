// SPDX-License-Identifier: Apache-2.0
#include "h5/h5.hpp"

#include <numeric>
#include <thread>

#include <gtest/gtest.h>

#include "support/files.hpp"

namespace zea::test_h5 {
namespace {

std::vector<float> counting(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

class H5 : public ::testing::Test {
 protected:
  TemporaryDirectory directory_;
  std::string path_ = directory_ / "file.h5";
};

TEST_F(H5, WritesAndReadsBoxes) {
  const std::vector<float> values = counting(24);
  H5File file = H5File::create(path_);
  file.write("a/b", {2, 3, 4}, DType::Float32, values.data());
  file.close_and_sync();

  const H5File again = H5File::open(path_);
  std::vector<float> box(4);
  again.read("a/b", {{1, 1, 2}, {1, 2, 2}}, box.data());

  EXPECT_EQ(box, (std::vector<float>{18, 19, 22, 23}));
  EXPECT_EQ(again.read_all<float>("a/b"), values);
}

TEST_F(H5, ReadsRangesWithoutHdf5) {
  const std::vector<float> values = counting(1000);
  H5File file = H5File::create(path_);
  file.write("x", {10, 100}, DType::Float32, values.data());
  file.close_and_sync();

  const H5File again = H5File::open(path_);
  std::vector<float> range(5);
  again.read_range("x", 98, 5, range.data());

  EXPECT_EQ(range, (std::vector<float>{98, 99, 100, 101, 102}));
  EXPECT_TRUE(contains(error_of([&] { again.read_range("x", 998, 5, range.data()); }), "outside"));
}

TEST_F(H5, KeepsEveryElementType) {
  const std::vector<char> bytes(64, 3);
  const DType all[] = {DType::Float64, DType::Float32, DType::BFloat16, DType::Float16,
                       DType::Int64,   DType::Int32,   DType::UInt8};
  H5File file = H5File::create(path_);
  for (const DType dtype : all) file.write(dtype_name(dtype), {8}, dtype, bytes.data());
  file.close_and_sync();

  const H5File again = H5File::open(path_);
  for (const DType dtype : all) {
    std::vector<char> back(8 * element_bytes(dtype));
    again.read(dtype_name(dtype), whole({8}), back.data());
    EXPECT_EQ(again.info(dtype_name(dtype)).dtype, dtype);
    EXPECT_EQ(back, std::vector<char>(back.size(), 3));
  }
}

TEST_F(H5, WritesInParts) {
  const std::vector<float> values = counting(12);
  H5File file = H5File::create(path_);
  file.create_dataset("x", {3, 4}, DType::Float32);
  file.write_part("x", {{1, 0}, {2, 4}}, values.data() + 4);
  file.write_part("x", {{0, 0}, {1, 4}}, values.data());
  file.close_and_sync();

  EXPECT_EQ(H5File::open(path_).read_all<float>("x"), values);
}

TEST_F(H5, ListsDatasetsInNameOrderWithoutText) {
  const float value = 1;
  H5File file = H5File::create(path_);
  file.write("z", {1}, DType::Float32, &value);
  file.write("a.b/c", {1}, DType::Float32, &value);
  file.write("scalar", {}, DType::Float32, &value);
  file.write("empty", {0, 4}, DType::Float32, nullptr);
  file.write_strings("names", {"one", "", "three"});
  file.close_and_sync();

  const H5File again = H5File::open(path_);
  std::vector<std::string> names;
  for (const H5DatasetInfo& info : again.datasets()) names.push_back(info.name);

  EXPECT_EQ(names, (std::vector<std::string>{"a.b/c", "empty", "scalar", "z"}));
  EXPECT_EQ(again.info("empty").shape, (Shape{0, 4}));
  EXPECT_EQ(again.info("scalar").shape, Shape{});
  EXPECT_EQ(again.read_strings("names"), (std::vector<std::string>{"one", "", "three"}));
  EXPECT_TRUE(again.has("a.b/c"));
  EXPECT_FALSE(again.has("a.b/d"));
  EXPECT_FALSE(again.has("q/r"));
}

TEST_F(H5, KeepsLongAttributes) {
  const std::string text(300000, 'x');
  H5File file = H5File::create(path_);
  file.write_text_attribute("long", text);
  file.write_text_attribute("empty", "");
  file.write_text_attribute("umlaut", "gr\xc3\xbc\xc3\x9f");
  file.close_and_sync();

  const H5File again = H5File::open(path_);

  EXPECT_EQ(again.text_attribute("long"), text);
  EXPECT_EQ(again.text_attribute("empty"), "");
  EXPECT_EQ(again.text_attribute("umlaut"), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(again.text_attribute("none"), std::nullopt);
}

TEST_F(H5, RefusesAnExistingFile) {
  H5File::create(path_).close_and_sync();

  EXPECT_TRUE(contains(error_of([&] { H5File::create(path_); }), path_));
}

TEST_F(H5, ErrorsCarryTheWantedCode) {
  write_bytes(path_, "not hdf5");
  try {
    H5File::open(path_, ExitCode::Data);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_TRUE(contains(error.what(), path_));
  }
}

TEST_F(H5, RefusesWhatIsCutShort) {
  const std::vector<float> values = counting(10000);
  H5File file = H5File::create(path_);
  file.write("x", {10000}, DType::Float32, values.data());
  file.close_and_sync();
  const std::string bytes = read_bytes(path_);

  for (const size_t kept : {bytes.size() - 1, bytes.size() / 2, size_t{100}, size_t{0}}) {
    write_bytes(path_, bytes.substr(0, kept));
    EXPECT_TRUE(contains(error_of([&] { H5File::open(path_).info("x"); }), path_)) << kept;
  }
}

TEST_F(H5, RefusesAFileThatWasNeverClosed) {
  H5File::create(path_).close_and_sync();
  const std::string closed = read_bytes(path_);
  std::filesystem::remove(path_);
  H5File file = H5File::create(path_);
  file.write_text_attribute("a", "b");
  const std::string half = directory_ / "half.h5";
  std::filesystem::copy_file(path_, half);

  EXPECT_FALSE(error_of([&] { H5File::open(half); }).empty());
}

TEST_F(H5, NamesWhatIsMissing) {
  H5File::create(path_).close_and_sync();
  const H5File file = H5File::open(path_);

  EXPECT_TRUE(contains(error_of([&] { file.info("x"); }), "no dataset \"x\""));
  EXPECT_TRUE(contains(error_of([&] { file.read_strings("x"); }), "no dataset \"x\""));
}

TEST_F(H5, RefusesAnotherElementType) {
  const float value = 1;
  H5File file = H5File::create(path_);
  file.write("x", {1}, DType::Float32, &value);
  file.close_and_sync();

  const std::string message = error_of([&] { H5File::open(path_).read_all<int32_t>("x"); });

  EXPECT_TRUE(contains(message, "float32; expected int32")) << message;
}

TEST_F(H5, IsReadByManyThreads) {
  const std::vector<float> values = counting(4096);
  H5File file = H5File::create(path_);
  file.write("x", {4096}, DType::Float32, values.data());
  file.close_and_sync();
  const H5File again = H5File::open(path_);
  std::vector<std::thread> threads;
  std::vector<int> right(8, 0);

  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) right[t] += again.read_all<float>("x") == values;
    });
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(right, std::vector<int>(8, 50));
}

}  // namespace
}  // namespace zea::test_h5
