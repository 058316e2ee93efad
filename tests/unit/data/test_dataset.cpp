// SPDX-License-Identifier: Apache-2.0
// A data set file as it should be, and every way in which its arrays can contradict each other.
#include "data/dataset.hpp"

#include <gtest/gtest.h>

#include "support/dataset_file.hpp"
#include "support/files.hpp"
#include "support/memory_dataset.hpp"

namespace zea::test_dataset {
namespace {

using testing::Arrays;
using testing::DatasetFile;
using testing::kImage;
using testing::with_sound;

TEST_F(DatasetFile, GivesBackWhatWasWritten) {
  const std::string path = write({});
  for (int64_t held_bytes : {int64_t{0}, int64_t{1000}}) {
    const auto data = open_dataset(path, held_bytes);
    const Sample first = data->read(0), text = data->read(1), last = data->read(2);

    EXPECT_EQ(data->describe(), path);
    EXPECT_EQ(data->kinds()[0].token, kImage);
    EXPECT_EQ(data->max_token(), 7);
    EXPECT_EQ(data->texts().classes, (std::vector<std::string>{"bag", "coat"}));
    EXPECT_EQ(data->texts().token_bytes,
              (std::vector<std::string>{"a", "", "bc", "d", "e", "f", "g", ""}));
    EXPECT_EQ(data->texts().special_texts, (std::vector<std::string>{"", "<b> "}));
    EXPECT_EQ(first.answers, std::vector<std::string>{});
    EXPECT_EQ(text.answers, (std::vector<std::string>{"x", "yz"}));
    EXPECT_EQ(first.tokens, (std::vector<int32_t>{7, 7, 1, 2}));
    EXPECT_EQ(first.loss_mask, (std::vector<uint8_t>{0, 0, 1, 1}));
    EXPECT_EQ(first.label, 1);
    ASSERT_EQ(first.items.size(), 1u);
    EXPECT_TRUE(first.items[0].raw);
    EXPECT_EQ(first.items[0].height, 2);
    EXPECT_EQ(first.items[0].bytes, (std::vector<uint8_t>{10, 20}));
    EXPECT_TRUE(text.items.empty());
    EXPECT_EQ(text.label, -1);
    ASSERT_EQ(last.items.size(), 2u);
    EXPECT_FALSE(last.items[0].raw);
    EXPECT_EQ(last.items[0].bytes, (std::vector<uint8_t>{1, 2, 3}));
    EXPECT_TRUE(last.items[1].bytes.empty());
  }
}

TEST_F(DatasetFile, SamplesHaveTheNamesOfTheirEntries) {
  Arrays arrays;
  arrays.sample_names = "talks.json:1talks.json:3\n\nb.jpg";
  arrays.sample_name_offsets = {0, 12, 12, std::ssize(arrays.sample_names)};
  for (const int64_t held : {int64_t{0}, kHeldBytes}) {
    const auto data = open_dataset(write(arrays), held);
    const Sample last = data->read(2);
    EXPECT_EQ(data->words(0), "sample 0 (talks.json:1)");
    EXPECT_EQ(sample_words(last), "sample 2 (talks.json:3)");
    EXPECT_EQ(item_file(last, 0), "");
    EXPECT_EQ(item_file(last, 1), " (b.jpg)");
    std::vector<std::unique_ptr<Dataset>> sets;
    for (int set = 0; set < 2; ++set) sets.push_back(open_dataset(write(arrays), held));
    EXPECT_EQ(join_datasets(std::move(sets))->words(5), "sample 5 (talks.json:3)");
  }
  expect_fault("sample_name_offsets has 2 entries for 3 samples", [&](Arrays& a) {
    a.sample_name_offsets = {0, 1};
    a.sample_names = "a";
  });
  arrays.sample_name_offsets[3] = 1 << 20;
  EXPECT_NE(error_of([&] { open_dataset(write(arrays))->read(2); }).find("nor leave the"),
            std::string::npos);
  Arrays none;
  EXPECT_EQ(open_dataset(write(none))->words(1), "sample 1");
}

TEST_F(DatasetFile, KnowsImagesFromAudio) {
  Arrays arrays;
  with_sound(arrays);
  const auto data = open_dataset(write(arrays));

  EXPECT_EQ(data->kinds()[1].token, 6);
  EXPECT_EQ(data->index()[0].items, (ItemList{1, 0}));
  EXPECT_EQ(data->index()[2].items, (ItemList{1, 1}));
  const std::vector<Item> items = data->read(2).items;
  EXPECT_EQ(items[0].modality, Modality::Image);
  EXPECT_FALSE(items[0].raw);
  EXPECT_EQ(items[1].modality, Modality::Audio);
  EXPECT_TRUE(items[1].raw);
  EXPECT_EQ(items[1].rate, 8000);
}

/// A clip of 20 ms a position, two of which become a feature.
EncoderSpec averaging_encoder() {
  EncoderSpec audio{.name = "audio", .placeholder = 6};
  audio.input = MelInput{.positions = 9, .own_length = true};
  audio.projector = {.merge = 2, .pools = true};
  return audio;
}

TEST_F(DatasetFile, ClipsHaveTheFeaturesOfTheirLengthWhereThatIsKnown) {
  Arrays arrays;
  with_sound(arrays);
  arrays.item_rate[2] = 0;
  const std::vector<ItemKind> kinds{{Modality::Image, kImage},
                                    {Modality::Audio, 6, 4, averaging_encoder()}};
  const auto shape_of_clip = [&](int32_t samples, int32_t rate) {
    arrays.item_shape[6] = samples;
    arrays.item_shape[7] = rate;
    return open_dataset(write(arrays), kHeldBytes, {}, kinds)->read(2).items[1].shape;
  };
  EXPECT_EQ(shape_of_clip(1280, 16000),
            (ItemShape{.tokens = 4, .features = 2, .merge = 2, .mel_columns = 18}));
  EXPECT_EQ(
      shape_of_clip(641, 8000),  // and one more than 80 ms
      (ItemShape{.tokens = 6, .features = 2, .merge = 2, .padding_tokens = 1, .mel_columns = 18}));
  EXPECT_EQ(
      shape_of_clip(16000, 16000),
      (ItemShape{.tokens = 10, .features = 4, .merge = 2, .padding_tokens = 1, .mel_columns = 18}));
  EXPECT_TRUE(contains(error_of([&] { shape_of_clip(320, 16000); }), "too short for a feature"));
  EXPECT_TRUE(contains(error_of([&] { shape_of_clip(0, 0); }), "without its length and rate"));
  EXPECT_TRUE(contains(error_of([&] { shape_of_clip(5, 0); }), "has an item_shape"));
}

/// Encoders of one modality are distinguished by their placeholders, in the order of items.
TEST_F(DatasetFile, AnItemIsOfTheEncoderWhosePlaceholderStandsForIt) {
  Arrays arrays;
  arrays.tokens = {7, 7, 1, 2, 3, 4, 6, 7, 7};
  const std::vector<ItemKind> kinds{{Modality::Image, 7, 2}, {Modality::Image, 6, 1}};
  for (int64_t held_bytes : {int64_t{0}, int64_t{1000}}) {
    const auto data = open_dataset(write(arrays), held_bytes, {}, kinds);

    EXPECT_EQ(data->index()[0].items, ItemList(1));
    EXPECT_EQ(data->index()[1].items, ItemList());
    EXPECT_EQ(data->index()[2].items, (ItemList{1, 1}));
    const std::vector<Item> items = data->read(2).items;
    EXPECT_EQ(items[0].kind, 1);
    EXPECT_EQ(items[0].bytes.size(), 3u);
    EXPECT_EQ(items[1].kind, 0);
    ASSERT_EQ(data->kinds().size(), 3u);  // no encoder takes the last
    EXPECT_EQ(data->kinds()[2].modality, Modality::Audio);
    EXPECT_EQ(MemoryDataset({data->read(2)}, kinds).index()[0].items, (ItemList{1, 1}));
  }
}

/// Images of up to 8 x 8 pixels, of which each 2 x 2 make a feature.
EncoderSpec encoder_of_any_size() {
  EncoderSpec encoder{.name = "vision", .placeholder = kImage};
  encoder.input = PatchInput{.image_size = 8, .patch_size = 1, .block = 2, .tiling = ImagesBelow{}};
  encoder.projector.merge = 4;
  encoder.drops_first_token = false;
  return encoder;
}

TEST_F(DatasetFile, ImagesOfAnySizeHaveTheShapesThatTheirSizesAskFor) {
  Arrays arrays;
  arrays.item_shape = {2, 1, 1, 6, 4, 0, 5, 16, 0};
  const auto data = open_dataset(write(arrays), kHeldBytes, {},
                                 {{Modality::Image, kImage, 1, encoder_of_any_size()}});

  const auto shapes_of = [&](size_t sample) {
    return data->index()[sample].items.shapes(0, encoder_of_any_size());
  };
  ASSERT_EQ(shapes_of(2).size(), 2);
  EXPECT_EQ(shapes_of(0)[0].tokens, 4);  // of two pixels: whole blocks
  EXPECT_EQ(shapes_of(2)[0], (ItemShape{.tokens = 24, .features = 6, .merge = 4, .width = 4}));
  EXPECT_EQ(shapes_of(2)[1].width, 8);  // shrunk to half
  EXPECT_EQ(shapes_of(2)[1].tokens, 16);
  EXPECT_FALSE(data->read(2).items[0].raw);
  EXPECT_EQ(data->read(2).items[0].height, 6);
}

TEST_F(DatasetFile, AnImageOfAnySizeMustHaveOne) {
  const std::string path = write(Arrays());
  EXPECT_NO_THROW(open_dataset(path));
  try {
    open_dataset(path, kHeldBytes, {}, {{Modality::Image, kImage, 1, encoder_of_any_size()}});
    FAIL();
  } catch (const DataError& fault) {
    EXPECT_NE(std::string(fault.what())
                  .find("sample 2 has an encoded image without its height and width (item_shape)"),
              std::string::npos)
        << fault.what();
  }
}

/// Weights of sets apply to folders, not to their files.
TEST_F(DatasetFile, AFolderOfFilesIsOneSet) {
  const TemporaryDirectory folder;
  const std::string file = write({});
  std::filesystem::copy_file(file, folder / "a.h5");
  EXPECT_EQ(open_dataset(folder.path())->describe(), folder / "a.h5") << "which is all of it";
  std::filesystem::copy_file(file, folder / "b.h5");
  std::vector<std::unique_ptr<Dataset>> sets;
  sets.push_back(open_dataset(folder.path()));
  EXPECT_EQ(sets[0]->describe(), folder.path());
  EXPECT_EQ(sets[0]->set_samples(), std::vector<int64_t>{6});
  sets.push_back(open_dataset(file));
  EXPECT_EQ(join_datasets(std::move(sets))->set_samples(), (std::vector<int64_t>{6, 3}));
}

TEST(KindsOfItems, FollowThePlaceholders) {
  const std::vector<ItemKind> kinds{
      {Modality::Image, 7, 2}, {Modality::Audio, 5, 1}, {Modality::Image, 6, 1}};
  constexpr auto kPicture = Modality::Image, kTalk = Modality::Audio;
  const auto found = [&](const std::vector<int32_t>& tokens,
                         const std::vector<Modality>& modalities) {
    std::vector<Item> items(modalities.size());
    for (size_t i = 0; i < items.size(); ++i) items[i].modality = modalities[i];
    assign_kinds(tokens, kinds, items);
    std::vector<int> of_items;
    for (const Item& item : items) of_items.push_back(item.kind);
    return of_items;
  };

  EXPECT_EQ(found({1, 6, 7, 7, 7, 7, 2, 6}, {kPicture, kPicture, kPicture, kPicture}),
            (std::vector<int>{2, 0, 0, 2}));
  EXPECT_EQ(found({6, 5, 7, 7}, {kPicture, kTalk, kPicture}), (std::vector<int>{2, 1, 0}));
  EXPECT_EQ(found({1, 2}, {kPicture, kTalk}), (std::vector<int>{0, 1}));
  // Text between the rows of an image.
  EXPECT_EQ(found({7, 3, 7, 4, 6}, {kPicture, kPicture}), (std::vector<int>{0, 2}));
}

TEST_F(DatasetFile, FaultsOfModalitiesAreNamed) {
  const auto expect = [&](const char* part, void (*damage)(Arrays&)) {
    expect_fault(part, [&](Arrays& a) {
      with_sound(a);
      damage(a);
    });
  };
  expect("attribute audio_token is \"\"", [](Arrays& a) { a.audio_token.clear(); });
  expect("item_modality has 0 entries and item_rate has 3 for 3 items",
         [](Arrays& a) { a.item_modality.clear(); });
  expect("item_modality has 3 entries", [](Arrays& a) { a.version = "1"; });
  expect("item 1 has item_modality 2", [](Arrays& a) { a.item_modality[1] = 2; });
  expect("image_token and audio_token are both 7", [](Arrays& a) { a.audio_token = "7"; });
  expect("audio_token is 8, outside its vocabulary of 8", [](Arrays& a) { a.audio_token = "8"; });
  expect("item 2, a clip of sound, has an item_shape", [](Arrays& a) { a.item_shape[6] = 1; });
  expect("item 2, a clip of sound, has an item_rate of -1", [](Arrays& a) { a.item_rate[2] = -1; });
  expect("item 1, a clip of sound, has 3 bytes", [](Arrays& a) {
    a.item_modality[1] = 1;
    a.item_rate[1] = 8000;
  });
  expect("item 1 is an image and has an item_rate of 5", [](Arrays& a) { a.item_rate[1] = 5; });
}

TEST_F(DatasetFile, IndexCountsTokensItemsAndTargetsAfterTheShift) {
  const auto data = open_dataset(write({}));
  const auto& index = data->index();

  ASSERT_EQ(index.size(), 3u);
  EXPECT_EQ(index[0].tokens, 4);
  EXPECT_EQ(index[0].items.of(0), 1);
  EXPECT_EQ(index[0].targets, 2);
  EXPECT_EQ(index[1].targets, 1);  // its first token is never a target
  EXPECT_EQ(index[2].items.of(0), 2);
  EXPECT_EQ(index[2].targets, 0);
}

TEST_F(DatasetFile, LabelsClassesAndTokenBytesMayBeAbsent) {
  const std::string fault = fault_after([](Arrays& a) {
    a.labels.clear();
    a.classes.clear();
    a.token_byte_offsets.clear();
  });

  EXPECT_EQ(fault, "");
}

TEST_F(DatasetFile, ADataSetOfTextNeedsNoItems) {
  const std::string fault = fault_after([](Arrays& a) {
    a.image_token = std::string("-1");
    a.sample_item_offsets = {0, 0, 0, 0};
    a.item_offsets = {0};
    a.item_bytes.clear();
    a.item_shape.clear();
  });

  EXPECT_EQ(fault, "");
}

TEST_F(DatasetFile, HeaderFaultsAreNamed) {
  expect_fault("format is \"zea.weights\", must be \"zea.dataset\"",
               [](Arrays& a) { a.format = std::string("zea.weights"); });
  expect_fault("version is \"4\"", [](Arrays& a) { a.version = std::string("4"); });
  expect_fault("image_token is \"x\"", [](Arrays& a) { a.image_token = std::string("x"); });
  expect_fault("image_token is \"-2\"", [](Arrays& a) { a.image_token = std::string("-2"); });
  expect_fault("image_token is 8, outside its vocabulary of 8",
               [](Arrays& a) { a.image_token = std::string("8"); });
}

TEST_F(DatasetFile, OffsetFaultsAreNamed) {
  expect_fault("token_offsets[0] is 1, must be 0", [](Arrays& a) { a.token_offsets[0] = 1; });
  expect_fault("token_offsets[2] is 3, less than 4", [](Arrays& a) { a.token_offsets[2] = 3; });
  expect_fault("token_offsets ends at 10", [](Arrays& a) { a.token_offsets[3] = 10; });
  expect_fault("sample 1 has no tokens", [](Arrays& a) { a.token_offsets[2] = 4; });
  expect_fault("item_offsets ends at 6", [](Arrays& a) { a.item_offsets[3] = 6; });
  expect_fault("item_offsets[1] is -1", [](Arrays& a) { a.item_offsets[1] = -1; });
  expect_fault("sample_item_offsets ends at 2", [](Arrays& a) { a.sample_item_offsets[3] = 2; });
  expect_fault("sample_item_offsets has 3",
               [](Arrays& a) { a.sample_item_offsets.erase(a.sample_item_offsets.begin() + 1); });
  expect_fault("token_byte_offsets ends at 8", [](Arrays& a) { a.token_byte_offsets[8] = 8; });
  expect_fault("special_text_offsets ends at 5", [](Arrays& a) { a.special_text_offsets[2] = 5; });
  expect_fault("answer_offsets[2] is 3, less than 4", [](Arrays& a) { a.answer_offsets[1] = 4; });
  expect_fault("sample_answer_offsets ends at 3", [](Arrays& a) {
    a.sample_answer_offsets = {0, 1, 2, 3};
  });
  expect_fault("sample_answer_offsets has 3",
               [](Arrays& a) { a.sample_answer_offsets.erase(a.sample_answer_offsets.begin()); });
  expect_fault("holds no samples", [](Arrays& a) {
    a.token_offsets = a.sample_item_offsets = {0};
    a.item_offsets = {0};
    a.tokens.clear();
    a.loss_mask.clear();
    a.item_bytes.clear();
    a.item_shape.clear();
  });
}

TEST_F(DatasetFile, ContentFaultsNameTheSample) {
  expect_fault("sample 1 holds token id 8; allowed are 0 to 7", [](Arrays& a) { a.tokens[5] = 8; });
  expect_fault("sample 2 holds token id -1", [](Arrays& a) { a.tokens[6] = -1; });
  expect_fault("loss_mask of sample 2 is 2 at token 1", [](Arrays& a) { a.loss_mask[7] = 2; });
  expect_fault("loss_mask has 8 entries for 9 tokens", [](Arrays& a) { a.loss_mask.pop_back(); });
  expect_fault("sample 0 has label 2", [](Arrays& a) { a.labels[0] = 2; });
  expect_fault("sample 1 has label -2", [](Arrays& a) { a.labels[1] = -2; });
  expect_fault("labels has 2 entries for 3 samples", [](Arrays& a) { a.labels.pop_back(); });
}

TEST_F(DatasetFile, ItemShapesMustFitTheirBytes) {
  expect_fault("item 0 has shape (3, 1, 1) but 2 bytes", [](Arrays& a) { a.item_shape[0] = 3; });
  expect_fault("item 0 has shape (2, 1, 2)", [](Arrays& a) { a.item_shape[2] = 2; });
  expect_fault("item 1 has shape (0, 0, 1)", [](Arrays& a) { a.item_shape[5] = 1; });
  expect_fault("item_shape has 6 values", [](Arrays& a) { a.item_shape.resize(6); });
}

TEST_F(DatasetFile, AMissingFileOrArrayIsADataError) {
  EXPECT_THROW(open_dataset("/nowhere/train.h5"), DataError);
  H5File file = H5File::create(write({}) + ".2");
  file.write_text_attribute("format", "zea.dataset");
  file.write_text_attribute("version", "1");
  file.write_text_attribute("image_token", "-1");
  const std::string path = file.path();
  file.close_and_sync();
  EXPECT_THROW(open_dataset(path), DataError);
  std::filesystem::remove(path);
}

TEST_F(DatasetFile, TypesAreCheckedWhetherHeldOrNot) {
  const std::string path = write({});
  std::filesystem::remove(path);
  H5File file = H5File::create(path);
  for (const char* name : {"format", "version", "image_token"})
    file.write_text_attribute(name, name[0] == 'f' ? "zea.dataset" : "1");
  const std::vector<int64_t> offsets{0, 2};
  const std::vector<int32_t> tokens{1, 1};
  for (const char* name : {"token_offsets", "sample_item_offsets", "item_offsets"})
    file.write(name, {2}, DType::Int64, offsets.data());
  for (const char* name : {"tokens", "loss_mask", "item_bytes"})
    file.write(name, {2}, DType::Int32, tokens.data());
  file.close_and_sync();

  for (int64_t held_bytes : {0, 1000}) EXPECT_THROW(open_dataset(path, held_bytes), DataError);
}

TEST_F(DatasetFile, ASampleThatIsNotThereIsADataError) {
  const auto data = open_dataset(write({}));

  EXPECT_THROW(data->read(3), DataError);
  EXPECT_THROW(data->read(-1), DataError);
}

TEST(CheckPlaceholders, BothCountsAreNamed) {
  Sample sample;
  sample.tokens = {kImage, kImage, 1, kImage};
  sample.loss_mask = {0, 0, 1, 0};
  sample.items.resize(2);
  const MemoryDataset data({Sample{0, {1}, {0}, {}, -1}, sample}, kImage, {}, {}, "pictures");

  EXPECT_NO_THROW(check_placeholders(data, data.read(0), {16}));
  try {
    check_placeholders(data, data.read(1), {2});
    FAIL() << "3 placeholders passed for 4 features";
  } catch (const DataError& error) {
    const std::string fault = error.what();
    EXPECT_NE(fault.find("pictures: sample 1 has 3 image placeholders"), std::string::npos)
        << fault;
    EXPECT_NE(fault.find("2 images make 4 features"), std::string::npos) << fault;
  }
}

TEST(CheckPlaceholders, OfAudioAreCountedSeparately) {
  constexpr int32_t kSound = 6;
  Sample sample{0, {kImage, kSound, kSound, 1}, {0, 0, 0, 1}, std::vector<Item>(2), -1};
  sample.items[1].modality = Modality::Audio;
  const MemoryDataset data({sample}, kImage, {}, {}, "talks", kSound);

  EXPECT_EQ(data.index()[0].items, (ItemList{1, 1}));
  EXPECT_NO_THROW(check_placeholders(data, data.read(0), {1, 2}));
  try {
    check_placeholders(data, data.read(0), {1, 3});
    FAIL() << "2 placeholders passed for 3 features";
  } catch (const DataError& error) {
    const std::string fault = error.what();
    EXPECT_NE(fault.find("talks: sample 0 has 2 audio placeholders (token 6), but its 1 clips make "
                         "3 features"),
              std::string::npos)
        << fault;
  }
}

/// If an item follows a target, the prompt extends beyond it.
TEST(Prompt, EndsAtTheFirstTargetBehindTheLastItem) {
  const std::vector<ItemKind> kinds{{Modality::Image, kImage}, {Modality::Audio, 6}};
  const auto length = [&](std::vector<int32_t> tokens, std::vector<uint8_t> mask) {
    return prompt_length({0, std::move(tokens), std::move(mask), {}}, kinds);
  };
  EXPECT_EQ(length({1, 2, 3, 4}, {0, 0, 1, 1}), 2);
  EXPECT_EQ(length({1, 2, 3, 4}, {1, 1, 1, 1}), 1);
  EXPECT_EQ(length({1, 2, 3, kImage, kImage, 4, 5}, {0, 1, 1, 0, 0, 0, 1}), 6);
  EXPECT_EQ(length({1, 2, kImage, 6, 4, 5}, {0, 1, 0, 0, 1, 1}), 4);
  EXPECT_EQ(length({1, 2, kImage}, {0, 1, 0}), 3);
  EXPECT_EQ(length({1, 2, 3}, {0, 0, 0}), 3);
}

TEST(MemoryDataset, CountsAndChecksAsTheFileDoes) {
  const MemoryDataset data({Sample{0, {1, 5, 3}, {1, 1, 0}, {}, -1}});

  EXPECT_EQ(data.index()[0].targets, 1);
  EXPECT_EQ(data.max_token(), 5);
  EXPECT_THROW(MemoryDataset({Sample{}}), DataError);
  EXPECT_THROW(MemoryDataset({Sample{0, {1, 2}, {0}, {}, -1}}), DataError);
  EXPECT_THROW(MemoryDataset({Sample{0, {-1}, {0}, {}, -1}}), DataError);
  EXPECT_THROW(data.read(1), DataError);
}

}  // namespace
}  // namespace zea::test_dataset
