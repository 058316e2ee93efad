// SPDX-License-Identifier: Apache-2.0
// A small data set file as it should be, to be damaged in one place or another.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "data/dataset.hpp"
#include "h5/h5.hpp"

namespace zea::testing {

inline constexpr int32_t kImage = 7;

/// Three samples: two with one raw 2 x 1 grey image, one with text only and one with two encoded
/// images.
struct Arrays {
  std::string format = "zea.dataset", version = "1", image_token = "7";
  std::vector<int64_t> token_offsets{0, 4, 6, 9};
  std::vector<int32_t> tokens{7, 7, 1, 2, 3, 4, 7, 7, 5};
  std::vector<uint8_t> loss_mask{0, 0, 1, 1, 1, 1, 0, 0, 0};
  std::vector<int64_t> sample_item_offsets{0, 1, 1, 3};
  std::vector<int64_t> item_offsets{0, 2, 5, 5};
  std::vector<uint8_t> item_bytes{10, 20, 1, 2, 3};
  std::vector<int32_t> item_shape{2, 1, 1, 0, 0, 0, 0, 0, 0};
  std::vector<int32_t> labels{1, -1, 0};
  std::vector<std::string> classes{"bag", "coat"};
  std::vector<int64_t> token_byte_offsets{0, 1, 1, 3, 4, 5, 6, 7, 7};
  std::vector<uint8_t> token_byte_values{'a', 'b', 'c', 'd', 'e', 'f', 'g'};
  std::vector<int64_t> special_text_offsets{0, 0, 4};
  std::vector<uint8_t> special_text_values{'<', 'b', '>', ' '};
  std::vector<int64_t> sample_answer_offsets{0, 0, 2, 2}, answer_offsets{0, 1, 3};
  std::vector<uint8_t> answer_values{'x', 'y', 'z'};
  std::vector<int64_t> sample_name_offsets;
  std::string sample_names;
  std::string audio_token;  ///< of version 2, as are the next two
  std::vector<uint8_t> item_modality;
  std::vector<int32_t> item_rate;
  std::string video_token;  ///< of version 3, as is the next
  std::vector<int32_t> item_frames;
  std::vector<double> item_frames_per_second;
};

/// The last sample has an encoded image and an empty audio clip.
inline void with_sound(Arrays& a) {
  a.version = "2";
  a.audio_token = "6";
  a.tokens = {7, 7, 1, 2, 3, 4, 7, 6, 5};
  a.item_modality = {0, 0, 1};
  a.item_rate = {0, 0, 8000};
}

class DatasetFile : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() /
            ("zea_test_dataset_" + std::to_string(getpid()) + ".h5");
  }
  void TearDown() override {
    std::filesystem::remove(path_);
    std::filesystem::remove_all(kept_path());
    std::filesystem::remove_all(kept_path() + ".tmp");
  }

  std::string kept_path() const { return path_.string() + ".checked"; }

  std::string write(const Arrays& a) const {
    std::filesystem::remove(path_);
    H5File file = H5File::create(path_);
    file.write_text_attribute("format", a.format);
    file.write_text_attribute("version", a.version);
    file.write_text_attribute("image_token", a.image_token);
    put(file, "token_offsets", DType::Int64, a.token_offsets);
    put(file, "tokens", DType::Int32, a.tokens);
    put(file, "loss_mask", DType::UInt8, a.loss_mask);
    put(file, "sample_item_offsets", DType::Int64, a.sample_item_offsets);
    put(file, "item_offsets", DType::Int64, a.item_offsets);
    put(file, "item_bytes", DType::UInt8, a.item_bytes);
    file.write("item_shape", {static_cast<int64_t>(a.item_shape.size() / 3), 3}, DType::Int32,
               a.item_shape.data());
    if (!a.audio_token.empty()) file.write_text_attribute("audio_token", a.audio_token);
    if (!a.item_modality.empty()) put(file, "item_modality", DType::UInt8, a.item_modality);
    if (!a.item_rate.empty()) put(file, "item_rate", DType::Int32, a.item_rate);
    if (!a.video_token.empty()) file.write_text_attribute("video_token", a.video_token);
    if (!a.item_frames.empty()) put(file, "item_frames", DType::Int32, a.item_frames);
    if (!a.item_frames_per_second.empty())
      put(file, "item_frames_per_second", DType::Float64, a.item_frames_per_second);
    if (!a.labels.empty()) put(file, "labels", DType::Int32, a.labels);
    if (!a.classes.empty()) file.write_strings("classes", a.classes);
    put(file, "special_text_offsets", DType::Int64, a.special_text_offsets);
    put(file, "special_text_values", DType::UInt8, a.special_text_values);
    put(file, "sample_answer_offsets", DType::Int64, a.sample_answer_offsets);
    put(file, "answer_offsets", DType::Int64, a.answer_offsets);
    put(file, "answer_values", DType::UInt8, a.answer_values);
    if (!a.sample_name_offsets.empty()) {
      put(file, "sample_name_offsets", DType::Int64, a.sample_name_offsets);
      put(file, "sample_name_values", DType::UInt8,
          std::vector<uint8_t>(a.sample_names.begin(), a.sample_names.end()));
    }
    if (a.token_byte_offsets.empty()) return path_;
    put(file, "token_byte_offsets", DType::Int64, a.token_byte_offsets);
    put(file, "token_byte_values", DType::UInt8, a.token_byte_values);
    return path_;
  }

  /// Returns the error of opening the arrays after `damage`; empty: they open.
  std::string fault_after(const std::function<void(Arrays&)>& damage) const {
    Arrays arrays;
    damage(arrays);
    try {
      open_dataset(write(arrays));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::Data);
      return error.what();
    }
    return "";
  }

  void expect_fault(const std::string& part, const std::function<void(Arrays&)>& damage) const {
    const std::string fault = fault_after(damage);
    EXPECT_NE(fault.find(part), std::string::npos) << "got: " << fault << "\nwant: " << part;
    EXPECT_EQ(fault.find(path_.string()), 0u) << fault;
  }

 private:
  template <class T>
  static void put(H5File& file, const std::string& name, DType dtype,
                  const std::vector<T>& values) {
    file.write(name, {static_cast<int64_t>(values.size())}, dtype, values.data());
  }

  std::filesystem::path path_;
};

}  // namespace zea::testing
