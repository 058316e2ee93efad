// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "support/files.hpp"

namespace zea::test_safetensors {
namespace {

std::string with_length(const std::string& header, uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xff);
  return bytes + header;
}

std::string file_bytes(const std::string& header, size_t data_bytes) {
  return with_length(header, header.size()) + std::string(data_bytes, '\0');
}

class Safetensors : public ::testing::Test {
 protected:
  TemporaryDirectory directory_;
  std::string path_ = directory_ / "model.safetensors";
};

TEST_F(Safetensors, WritesWhatItReads) {
  const std::vector<float> a{1, 2, 3, 4, 5, 6};
  const std::vector<uint16_t> b{0x3f80, 0x4000};
  SafetensorsWriter writer(path_, {{"b", {2}, DType::BFloat16}, {"a", {2, 3}, DType::Float32}});
  writer.write("b", 1, 1, b.data() + 1);
  writer.write("a", 0, 6, a.data());
  writer.write("b", 0, 1, b.data());
  EXPECT_FALSE(std::filesystem::exists(path_));
  writer.finish();

  const auto source = open_safetensors(path_);
  std::vector<float> column(2), converted(2);
  source->read("a", {2, 3}, {{0, 1}, {2, 1}}, DType::Float32, column.data());
  source->read("b", {2}, whole({2}), DType::Float32, converted.data());

  EXPECT_EQ(source->tensors().size(), 2u);
  EXPECT_EQ(column, (std::vector<float>{2, 5}));
  EXPECT_EQ(converted, (std::vector<float>{1, 2}));
}

/// A Gemma 4 with new weights has infinite clipping bounds.
TEST_F(Safetensors, ClippingBoundsMayBeInfinite) {
  const float high = std::numeric_limits<float>::infinity(), low = -high;
  SafetensorsWriter writer(path_, {{"q_proj.input_min", {}, DType::Float32},
                                   {"q_proj.input_max", {}, DType::Float32},
                                   {"q_proj.output_min", {}, DType::Float32},
                                   {"q_proj.weight", {}, DType::Float32}});
  writer.write("q_proj.input_min", 0, 1, &low);
  writer.write("q_proj.input_max", 0, 1, &high);
  writer.write("q_proj.output_min", 0, 1, &high);
  writer.write("q_proj.weight", 0, 1, &high);
  writer.finish();

  const auto source = open_safetensors(path_);

  EXPECT_EQ(read_tensor<float>(*source, "q_proj.input_min"), std::vector{low});
  EXPECT_EQ(read_tensor<float>(*source, "q_proj.input_max"), std::vector{high});
  for (const char* name : {"q_proj.output_min", "q_proj.weight"})
    EXPECT_TRUE(contains(error_of([&] { read_tensor<float>(*source, name); }), "is infinite"));
}

TEST_F(Safetensors, LeavesNothingWhenNotFinished) {
  { SafetensorsWriter writer(path_, {{"a", {2}, DType::Float32}}); }

  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_F(Safetensors, RefusesAnUnwrittenTensor) {
  SafetensorsWriter writer(path_, {{"a", {2}, DType::Float32}});

  EXPECT_THROW(writer.finish(), InternalError);
}

struct BadHeader {
  const char* name;
  std::string header;
  int data_bytes;
  const char* reason;
};

std::string entry(const std::string& name, const std::string& shape, const std::string& offsets,
                  const std::string& dtype = "F32") {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

const std::vector<BadHeader>& bad_headers() {
  static const std::vector<BadHeader> cases{
      {"not_json", "{hello}", 0, "not valid JSON"},
      {"cut", "{" + entry("a", "[1]", "[0,4]"), 4, "not valid JSON"},
      {"two_documents", "{}{}", 0, "not valid JSON"},
      {"array", "[1]", 0, "does not start with"},
      {"leading_space", " {}", 0, "does not start with"},
      {"bad_utf8", "{\"\xff\":1}", 0, "not valid JSON"},
      {"duplicate", "{" + entry("a", "[1]", "[0,4]") + "," + entry("a", "[1]", "[0,4]") + "}", 4,
       "twice"},
      {"duplicate_key",
       "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
       "twice"},
      {"overlap", "{" + entry("a", "[2]", "[0,8]") + "," + entry("b", "[2]", "[4,12]") + "}", 12,
       "overlap"},
      {"same_place", "{" + entry("a", "[1]", "[0,4]") + "," + entry("b", "[1]", "[0,4]") + "}", 4,
       "overlap"},
      {"hole", "{" + entry("a", "[1]", "[0,4]") + "," + entry("b", "[1]", "[8,12]") + "}", 12,
       "holes"},
      {"hole_at_start", "{" + entry("a", "[1]", "[4,8]") + "}", 8, "holes"},
      {"bytes_after", "{" + entry("a", "[1]", "[0,4]") + "}", 8, "belong to no tensor"},
      {"data_missing", "{" + entry("a", "[2]", "[0,8]") + "}", 4, "outside the file"},
      {"no_tensors_but_data", "{}", 4, "belong to no tensor"},
      {"negative_shape", "{" + entry("a", "[-1]", "[0,4]") + "}", 4, "negative"},
      {"negative_offset", "{" + entry("a", "[1]", "[-4,0]") + "}", 4, "negative"},
      {"above_2_64", "{" + entry("a", "[18446744073709551616]", "[0,4]") + "}", 4,
       "no whole number"},
      {"above_2_63", "{" + entry("a", "[9223372036854775808]", "[0,4]") + "}", 4, "2^63"},
      {"fraction", "{" + entry("a", "[1.5]", "[0,4]") + "}", 4, "no whole number"},
      {"overflow", "{" + entry("a", "[4294967296,4294967296]", "[0,4]") + "}", 4, "beyond 2^63"},
      {"wrong_bytes", "{" + entry("a", "[2]", "[0,4]") + "}", 4, "shape and dtype make 8"},
      {"reversed_offsets", "{" + entry("a", "[1]", "[4,0]") + "}", 4, "outside the file"},
      {"one_offset", "{" + entry("a", "[1]", "[4]") + "}", 4, "two data_offsets"},
      {"three_offsets", "{" + entry("a", "[1]", "[0,4,4]") + "}", 4, "two data_offsets"},
      {"unknown_dtype", "{" + entry("a", "[1]", "[0,4]", "F8_E5M2") + "}", 4,
       "\"F8_E5M2\"; allowed: F64, F32, F16, BF16, I64, I32, U8, F8_E4M3; such weights are quant"},
      {"buffer_of_no_type", "{" + entry("a.attn.bias", "[1]", "[0,4]", "F7") + "}", 4, "\"F7\""},
      {"buffer_of_wrong_bytes", "{" + entry("a.attn.bias", "[3]", "[0,4]", "BOOL") + "}", 4,
       "shape and dtype make 3"},
      {"dtype_number", "{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
       "number where none"},
      {"shape_text", "{" + entry("a", "\"1\"", "[0,4]") + "}", 4, "text where none"},
      {"shape_nested", "{" + entry("a", "[[1]]", "[0,4]") + "}", 4, "list where none"},
      {"shape_object", "{" + entry("a", "{}", "[0,4]") + "}", 4, "object where none"},
      {"shape_null", "{" + entry("a", "null", "[0,4]") + "}", 4, "null"},
      {"shape_bool", "{" + entry("a", "[true]", "[0,4]") + "}", 4, "true or false"},
      {"missing_key", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "lacks one of"},
      {"unknown_key", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"offsets\":[0,4]}}", 4,
       "unknown key"},
      {"entry_is_number", "{\"a\":1}", 0, "number where none"},
      {"entry_is_text", "{\"a\":\"b\"}", 0, "text where none"},
      {"entry_is_list", "{\"a\":[]}", 0, "list where none"},
      {"metadata_number", "{\"__metadata__\":{\"a\":1}}", 0, "number where none"},
      {"metadata_list", "{\"__metadata__\":{\"a\":[]}}", 0, "list where none"},
      {"metadata_object", "{\"__metadata__\":{\"a\":{}}}", 0, "object where none"},
      {"metadata_duplicate", "{\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}", 0, "twice"},
      {"many_dims",
       "{" +
           entry("a", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
                 "[0,4]") +
           "}",
       4, "32 dims"},
      {"deep", std::string(100000, '['), 0, "does not start with"},
      {"deep_object", "{\"a\":" + std::string(100000, '[') + "}", 0, "list where none"},
  };
  return cases;
}

TEST_F(Safetensors, RefusesBadHeaders) {
  for (const BadHeader& bad : bad_headers()) {
    write_bytes(path_, file_bytes(bad.header, static_cast<size_t>(bad.data_bytes)));
    const std::string message = error_of([&] { open_safetensors(path_); });
    EXPECT_TRUE(contains(message, bad.reason) && contains(message, path_))
        << bad.name << ": " << message;
  }
}

TEST_F(Safetensors, RefusesBadLengths) {
  const std::string body = "{\"a\":1}   ";
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{11}, uint64_t{100000001},
                                uint64_t{1} << 63, ~uint64_t{0}}) {
    write_bytes(path_, with_length(body, length));
    EXPECT_TRUE(contains(error_of([&] { open_safetensors(path_); }), "header length")) << length;
  }
  for (const size_t size : {0, 7, 8, 9}) {
    write_bytes(path_, std::string(size, '\0'));
    EXPECT_TRUE(contains(error_of([&] { open_safetensors(path_); }), "too short")) << size;
  }
}

TEST_F(Safetensors, AcceptsMetadataEmptyTensorsAndPadding) {
  write_bytes(path_,
              file_bytes("{\"__metadata__\":{\"format\":\"pt\"}," + entry("e", "[0,3]", "[0,0]") +
                             "," + entry("s", "[]", "[0,4]") + "}    ",
                         4));

  const auto source = open_safetensors(path_);

  ASSERT_EQ(source->tensors().size(), 2u);
  EXPECT_EQ(source->tensors()[0].shape, (Shape{0, 3}));
  EXPECT_EQ(source->tensors()[1].shape, Shape{});
}

class SafetensorsIndex : public Safetensors {
 protected:
  void SetUp() override {
    write_tensor("one.safetensors", "a");
    write_tensor("two.safetensors", "b");
  }
  void write_tensor(const std::string& file, const std::string& tensor) {
    const float value = 1;
    SafetensorsWriter writer(directory_ / file, {{tensor, {1}, DType::Float32}});
    writer.write(tensor, 0, 1, &value);
    writer.finish();
  }
  std::string error_of_index(const std::string& map) {
    write_bytes(directory_ / "model.safetensors.index.json", "{\"weight_map\":" + map + "}");
    return error_of([&] { open_safetensors(directory_.path()); });
  }
};

TEST_F(SafetensorsIndex, JoinsFiles) {
  EXPECT_EQ(error_of_index("{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}"), "");
  EXPECT_EQ(open_safetensors(directory_.path())->tensors().size(), 2u);
}

/// As in transformers: an index remains if a model is saved again in one file.
TEST_F(SafetensorsIndex, IsNotAskedWhereThereIsOneFile) {
  write_tensor("model.safetensors", "c");
  EXPECT_EQ(error_of_index("{\"a\":\"gone.safetensors\"}"), "");
  EXPECT_EQ(open_safetensors(directory_.path())->tensors()[0].name, "c");
}

TEST_F(SafetensorsIndex, RefusesBadMaps) {
  EXPECT_TRUE(contains(error_of_index("{\"a\":\"../one.safetensors\"}"), "plain name"));
  EXPECT_TRUE(contains(error_of_index("{\"a\":\"/etc/passwd\"}"), "plain name"));
  EXPECT_TRUE(contains(error_of_index("{\"a\":\"..\"}"), "plain name"));
  EXPECT_TRUE(contains(error_of_index("{\"a\":\"three.safetensors\"}"), "three.safetensors"));
  EXPECT_TRUE(contains(error_of_index("{\"a\":\"two.safetensors\"}"), "\"a\" of two.safetensors"));
  EXPECT_TRUE(contains(error_of_index("{\"a\":1}"), "not a string"));
  EXPECT_TRUE(contains(error_of_index("[]"), "not an object"));
  EXPECT_TRUE(
      contains(error_of_index("{\"a\":\"one.safetensors\",\"a\":\"one.safetensors\"}"), "twice"));
}

TEST_F(SafetensorsIndex, ReadsATensorThatTheMapForgetsAndSaysSo) {
  const float values[] = {1, 2};
  SafetensorsWriter writer(directory_ / "one.safetensors",
                           {{"a", {1}, DType::Float32}, {"forgotten", {1}, DType::Float32}});
  writer.write("a", 0, 1, values);
  writer.write("forgotten", 0, 1, values + 1);
  writer.finish();

  EXPECT_EQ(error_of_index("{\"a\":\"one.safetensors\"}"), "");
  const auto source = open_safetensors(directory_.path());
  EXPECT_EQ(source->tensors().size(), 2u);
  EXPECT_TRUE(contains(source->note(), "its files hold 1 tensors that it does not name"));
  EXPECT_TRUE(contains(source->note(), "\"forgotten\""));
}

TEST_F(SafetensorsIndex, NamesTheTensorsThatAreNotThere) {
  std::string map = "{\"a\":\"one.safetensors\"";
  for (int i = 0; i < 11; ++i) map += ",\"lost." + std::to_string(i) + "\":\"one.safetensors\"";
  const std::string found = error_of_index(map + "}");
  EXPECT_TRUE(contains(found, "names 11 tensors that its files do not hold: \"lost.0\" of one."));
  EXPECT_TRUE(contains(found, " and 3 more; the files are of another save"));
  EXPECT_TRUE(contains(error_of_index("{\"a\":\"gone.safetensors\"}"),
                       "gone.safetensors: is not there, and " + directory_.path()));
}

/// Models compute them; zea needs no type of theirs.
TEST_F(SafetensorsIndex, PassesOverComputedBuffersOfOtherTypes) {
  std::string header = "{" + entry("w", "[1]", "[0,4]");
  std::string map = "{\"w\":\"one.safetensors\"";
  int64_t end = 4;
  for (const auto& [type, bytes] : {std::pair("BOOL", 1),
                                    {"I8", 1},
                                    {"F8_E4M3", 1},
                                    {"I16", 2},
                                    {"U16", 2},
                                    {"U32", 4},
                                    {"U64", 8},
                                    {"C64", 8}}) {
    const std::string name = std::string("h.") + type + ".attn.bias";
    const std::string offsets =
        "[" + std::to_string(end) + "," + std::to_string(end + 3 * bytes) + "]";
    header += "," + entry(name, "[1,3]", offsets, type);
    map += ",\"" + name + "\":\"one.safetensors\"";
    end += 3 * bytes;
  }
  write_bytes(directory_ / "one.safetensors", file_bytes(header + "}", static_cast<size_t>(end)));
  EXPECT_EQ(error_of_index(map + "}"), "");
  const auto source = open_safetensors(directory_.path());
  ASSERT_EQ(source->tensors().size(), 1u);
  EXPECT_EQ(source->tensors()[0].name, "w");
  EXPECT_EQ(source->note(), "");
  write_bytes(directory_ / "one.safetensors",
              file_bytes("{" + entry("h.0.attn.weight", "[1]", "[0,1]", "BOOL") + "}", 1));
  EXPECT_TRUE(contains(error_of([&] { open_safetensors(directory_ / "one.safetensors"); }),
                       "has dtype \"BOOL\"; allowed: F64"));
}

TEST_F(SafetensorsIndex, RefusesATensorInTwoFiles) {
  write_tensor("two.safetensors", "a");

  EXPECT_TRUE(contains(error_of_index("{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}"),
                       "is also in"));
}

TEST_F(Safetensors, RefusesADirectoryWithoutWeights) {
  EXPECT_TRUE(contains(error_of([&] { open_safetensors(directory_.path()); }), "has neither"));
}

}  // namespace
}  // namespace zea::test_safetensors
