// SPDX-License-Identifier: Apache-2.0
#include "data/loader.hpp"

#include <atomic>
#include <chrono>
#include <numeric>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "support/jpeg_picture.hpp"
#include "support/memory_dataset.hpp"

namespace zea::test_loader {
namespace {

constexpr int32_t kImage = 9;

/// Sample i: i % 3 images of one grey pixel of value 10 * i + number, and two text tokens.
std::vector<Sample> make_samples(int count) {
  std::vector<Sample> samples(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    Sample& sample = samples[static_cast<size_t>(i)];
    for (int number = 0; number < i % 3; ++number) {
      sample.items.push_back({{static_cast<uint8_t>(10 * i + number)}, true, 1, 1, 1});
      sample.tokens.push_back(kImage);
    }
    sample.tokens.insert(sample.tokens.end(), {1, i});
    sample.loss_mask.assign(sample.tokens.size(), 1);
  }
  return samples;
}

LoaderOptions options_of(bool mask) {
  return {{{.image = {1, {0, 0, 0}, {1, 1, 1}, 100}}}, mask};
}

template <class Call>
std::string fault_of(Call call) {
  try {
    call();
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

/// A step of microbatches of these samples.
RankStep step_of(int64_t step, const std::vector<std::vector<int64_t>>& ids) {
  RankStep planned{.step = step};
  for (const std::vector<int64_t>& of_microbatch : ids)
    planned.microbatches.emplace_back().samples = of_microbatch;
  return planned;
}

RankStep one_sample_per_step(int64_t step) {
  return step_of(step, {{step}});
}

TEST(LoadMicrobatch, KeepsTheOrderOfIdsAndItems) {
  const MemoryDataset data(make_samples(6), kImage);

  const LoadedMicrobatch loaded = load_microbatch(data, options_of(false), {5, 0, 4});

  ASSERT_EQ(loaded.samples.size(), 3u);
  EXPECT_EQ(loaded.samples[0].id, 5);
  EXPECT_EQ(loaded.samples[2].id, 4);
  EXPECT_EQ(loaded.items, (ItemList{3, 0}));
  ASSERT_EQ(loaded.values[0].size(), 9u);
  EXPECT_FLOAT_EQ(loaded.values[0][0], 50 / 255.0f);
  EXPECT_FLOAT_EQ(loaded.values[0][3], 51 / 255.0f);
  EXPECT_FLOAT_EQ(loaded.values[0][6], 40 / 255.0f);
  EXPECT_TRUE(loaded.samples[0].items[0].bytes.empty());
  EXPECT_TRUE(loaded.bad.empty());
}

constexpr int32_t kSound = 8;

/// A sample with an image of a pixel, and a raw clip of 600 samples; then one with a clip alone.
MemoryDataset spoken_samples() {
  Sample both{0, {kImage, kSound, 1}, {0, 0, 1}, {{{30}, true, 1, 1, 1}, {}}, -1};
  both.items[1].modality = Modality::Audio;
  both.items[1].raw = true;
  both.items[1].rate = kMelRate;
  for (int i = 0; i < 600; ++i)
    both.items[1].bytes.insert(both.items[1].bytes.end(), {static_cast<uint8_t>(i), 64});
  Sample alone = both;
  alone.items.erase(alone.items.begin());
  alone.tokens = {kSound, 1};
  alone.loss_mask = {0, 1};
  return MemoryDataset({both, alone}, kImage, {}, {}, "talks", kSound);
}

LoaderOptions audio_options() {
  LoaderOptions options = options_of(false);
  ItemDecoding sound;
  sound.mel = std::make_shared<const LogMel>(AudioOptions{4, 3});
  options.encoders.push_back(sound);
  return options;
}

TEST(LoadMicrobatch, ClipsAndImagesLieApartInTheOrderOfSamples) {
  const LoaderOptions options = audio_options();
  const LoadedMicrobatch loaded = load_microbatch(spoken_samples(), options, {1, 0});

  EXPECT_EQ(loaded.items, (ItemList{1, 2}));
  EXPECT_EQ(loaded.values[0].size(), 3u);
  ASSERT_EQ(loaded.values[1].size(), 2u * 4 * 6);
  Audio audio{kMelRate, {}};
  for (int i = 0; i < 600; ++i)
    audio.samples.push_back(static_cast<float>(64 * 256 + static_cast<uint8_t>(i)) / 32768);
  std::vector<float> expected(4 * 6);
  (*options.encoders[1].mel)(audio, expected.data(), 6);
  for (size_t i = 0; i < loaded.values[1].size(); ++i)
    EXPECT_EQ(loaded.values[1][i], expected[i % expected.size()]);
}

TEST(LoadMicrobatch, AClipHasTheLengthThatItsShapeIsMadeOf) {
  Sample sample = spoken_samples().read(1);
  const std::string head(
      "RIFF\x2c\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x80\x3e\0\0\0\x7d\0\0"
      "\2\0\x10\0data\x8\0\0\0abcdefgh",
      52);
  sample.items[0].raw = false;
  sample.items[0].bytes.assign(head.begin(), head.end());
  sample.items[0].samples = 5;
  sample.items[0].shape.tokens = 2;
  LoaderOptions options = audio_options();
  const MemoryDataset data({sample}, kImage, {}, {}, "talks", kSound);
  EXPECT_NE(fault_of([&] {
              load_microbatch(data, options, {0});
            }).find("clip 0: has 4 samples at 16000 Hz, and by its item_shape 5 at 16000"),
            std::string::npos);
}

TEST(LoadMicrobatch, FaultsOfClipsAreNamed) {
  const MemoryDataset talks = spoken_samples();
  EXPECT_NE(fault_of([&] {
              load_microbatch(talks, options_of(false), {0});
            }).find("talks has clips of sound, but the model has no encoder of sound"),
            std::string::npos);

  Sample bad = talks.read(0);
  bad.items[1].raw = false;
  const MemoryDataset data({bad}, kImage, {}, {}, "talks", kSound);
  LoaderOptions options = audio_options();
  EXPECT_EQ(
      fault_of([&] { load_microbatch(data, options, {0}); }).find("talks: sample 0: clip 1: "), 0u);
  options.mask_bad_items = true;
  const LoadedMicrobatch loaded = load_microbatch(data, options, {0});
  ASSERT_EQ(loaded.bad.size(), 1u);
  EXPECT_EQ(loaded.bad[0].item, 1);
  EXPECT_EQ(count_targets(loaded.samples[0].loss_mask), 0);
  for (float value : loaded.values[1]) EXPECT_EQ(value, 0);
}

TEST(LoadMicrobatch, ABadItemIsAnErrorThatNamesIt) {
  auto samples = make_samples(6);
  samples[5].items[1] = Item{{1, 2, 3}};
  const MemoryDataset data(samples, kImage, {}, {}, "pictures.h5");

  const std::string fault = fault_of([&] { load_microbatch(data, options_of(false), {4, 5}); });

  EXPECT_NE(fault.find("pictures.h5: sample 5: image 1: 3 bytes that are neither JPEG nor PNG"),
            std::string::npos)
      << fault;
}

TEST(LoadMicrobatch, AMaskedBadItemIsZerosAndItsSampleHasNoTargets) {
  auto samples = make_samples(6);
  samples[5].items[0] = Item{{1, 2, 3}};
  const MemoryDataset data(samples, kImage);

  const LoadedMicrobatch loaded = load_microbatch(data, options_of(true), {5, 4});

  ASSERT_EQ(loaded.bad.size(), 1u);
  EXPECT_EQ(loaded.bad[0].sample, 5);
  EXPECT_EQ(loaded.bad[0].item, 0);
  EXPECT_NE(loaded.bad[0].fault, "");
  EXPECT_EQ(loaded.values[0][0], 0);
  EXPECT_FLOAT_EQ(loaded.values[0][3], 51 / 255.0f);
  EXPECT_EQ(count_targets(loaded.samples[0].loss_mask), 0);
  EXPECT_EQ(count_targets(loaded.samples[1].loss_mask), 2);
}

/// Samples of a picture and a clip each, as files of several sizes hold them.
MemoryDataset mixed_samples(int count, const std::vector<int>& bad = {}) {
  std::vector<Sample> samples;
  for (int i = 0; i < count; ++i) {
    Sample sample = spoken_samples().read(0);
    sample.items[0] = Item{testing::encode_jpeg(
        testing::make_picture(20 + 7 * (i % 5), 31, static_cast<unsigned>(i)))};
    sample.items[1].bytes[0] = static_cast<uint8_t>(i);
    if (std::ranges::count(bad, i) > 0) sample.items[0].bytes.resize(3);
    samples.push_back(sample);
  }
  return MemoryDataset(samples, kImage, {}, {}, "mixed", kSound);
}

LoaderOptions mixed_options(int threads, bool mask = false) {
  LoaderOptions options = audio_options();
  options.encoders[0].image = {16, {0.4, 0.5, 0.6}, {0.2, 0.3, 0.4}, 10000};
  options.mask_bad_items = mask;
  options.threads = threads;
  return options;
}

std::vector<int64_t> first_ids(int count) {
  std::vector<int64_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), int64_t{0});
  return ids;
}

TEST(LoadMicrobatch, AnyNumberOfThreadsMakesTheSameBits) {
  const MemoryDataset data = mixed_samples(23);
  const LoadedMicrobatch expected = load_microbatch(data, mixed_options(1), first_ids(23));
  ASSERT_EQ(expected.values[0].size(), 23u * 3 * 16 * 16);
  ASSERT_NE(expected.values[0].front(), expected.values[0].back());
  for (const int threads : {2, 5})
    EXPECT_EQ(load_microbatch(data, mixed_options(threads), first_ids(23)).values, expected.values);
}

TEST(LoadMicrobatch, OfSeveralBadItemsTheFirstIsNamed) {
  const MemoryDataset data = mixed_samples(12, {3, 4, 11});
  for (const int threads : {1, 2, 5})
    for (int time = 0; time < 20; ++time)
      EXPECT_EQ(fault_of([&] {
                  load_microbatch(data, mixed_options(threads), first_ids(12));
                }).find("mixed: sample 3: image 0: "),
                0u);
}

TEST(LoadMicrobatch, MaskedItemsAreToldInTheirOrderByAnyNumberOfThreads) {
  const MemoryDataset data = mixed_samples(12, {3, 4, 11});
  for (const int threads : {1, 2, 5}) {
    const LoadedMicrobatch loaded =
        load_microbatch(data, mixed_options(threads, true), first_ids(12));
    ASSERT_EQ(loaded.bad.size(), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(loaded.bad[i].sample, (std::vector{3, 4, 11}[i]));
    for (size_t s = 0; s < 12; ++s) {
      const bool is_bad = s == 3 || s == 4 || s == 11;
      EXPECT_EQ(count_targets(loaded.samples[s].loss_mask), is_bad ? 0 : 1);
      const auto* first = loaded.values[0].data() + s * 3 * 16 * 16;
      EXPECT_EQ(std::count(first, first + 3 * 16 * 16, 0.0f) == 3 * 16 * 16, is_bad);
    }
  }
}

/// Takes the last of every four images.
std::vector<int64_t> every_fourth(const ItemList& items) {
  std::vector<int64_t> taken;
  for (int64_t item = 3; item < items.of(0); item += 4) taken.push_back(item);
  return taken;
}

TEST(LoadMicrobatch, OnlyWhatARankTakesIsDecoded) {
  const MemoryDataset data = mixed_samples(12, {2, 5});
  LoaderOptions options = mixed_options(2);
  options.encoders[0].taken = every_fourth;
  const LoadedMicrobatch loaded = load_microbatch(data, options, first_ids(12));
  EXPECT_EQ(loaded.items, (ItemList{12, 12}));
  EXPECT_EQ(loaded.values[1].size(), 12u * 4 * 6);
  EXPECT_EQ(loaded.values[0], load_microbatch(data, mixed_options(1), {3, 7, 11}).values[0]);
  for (const Sample& sample : loaded.samples) EXPECT_TRUE(sample.items[0].bytes.empty());
}

TEST(LoadMicrobatch, ARankThatMasksKnowsAlsoOfTheItemsOfOthers) {
  const MemoryDataset data = mixed_samples(12, {2, 5, 7});
  LoaderOptions options = mixed_options(3, true);
  options.encoders[0].taken = every_fourth;
  const LoadedMicrobatch loaded = load_microbatch(data, options, first_ids(12));
  ASSERT_EQ(loaded.bad.size(), 3u);
  EXPECT_EQ(loaded.values[0], load_microbatch(data, mixed_options(1, true), {3, 7, 11}).values[0]);
  for (size_t s = 0; s < 12; ++s)
    EXPECT_EQ(count_targets(loaded.samples[s].loss_mask), s == 2 || s == 5 || s == 7 ? 0 : 1);
}

TEST(Loader, GivesEveryStepOnceAndInOrder) {
  const MemoryDataset data(make_samples(20), kImage);
  Loader loader(
      data, options_of(false),
      [](int64_t step) {
        return step_of(step, {{step, step + 1}, {}, {step + 2}});
      },
      3, 17, 2);

  for (int64_t step = 3; step < 17; ++step) {
    const auto [plan, microbatches] = loader.next();
    EXPECT_EQ(plan.step, step);
    ASSERT_EQ(microbatches.size(), 3u);
    EXPECT_EQ(microbatches[0].samples[0].id, step);
    EXPECT_EQ(microbatches[0].samples[1].id, step + 1);
    EXPECT_TRUE(microbatches[1].samples.empty());
    EXPECT_EQ(microbatches[2].samples[0].id, step + 2);
  }
  EXPECT_THROW(loader.next(), InternalError);
}

TEST(Loader, PlansEachStepOnceInItsOwnThread) {
  const MemoryDataset data(make_samples(8), kImage);
  std::vector<int64_t> planned;
  std::set<std::thread::id> threads;
  {
    Loader loader(
        data, options_of(false),
        [&](int64_t step) {
          planned.push_back(step);
          threads.insert(std::this_thread::get_id());
          return one_sample_per_step(step);
        },
        0, 8, 2);
    for (int64_t step = 0; step < 8; ++step) EXPECT_EQ(loader.next().plan.step, step);
  }
  EXPECT_EQ(planned, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(threads.size(), 1);
  EXPECT_FALSE(threads.contains(std::this_thread::get_id()));
}

TEST(Loader, AnErrorComesWithItsStepAndStays) {
  auto samples = make_samples(6);
  samples[4].items[0].bytes.clear();
  const MemoryDataset data(samples, kImage);
  Loader loader(data, options_of(false), one_sample_per_step, 2, 6, 4);

  EXPECT_EQ(loader.next().microbatches[0].samples[0].id, 2);
  EXPECT_EQ(loader.next().microbatches[0].samples[0].id, 3);
  EXPECT_THROW(loader.next(), DataError);
  EXPECT_THROW(loader.next(), DataError);
}

TEST(Loader, PreparesNoMoreThanItMay) {
  const MemoryDataset data(make_samples(50), kImage);
  std::atomic<int64_t> asked = 0;
  Loader loader(
      data, options_of(false),
      [&](int64_t step) {
        ++asked;
        return one_sample_per_step(step);
      },
      0, 50, 3);

  loader.next();
  while (asked < 1 + 3) std::this_thread::yield();  // taken, and ready
  std::this_thread::sleep_for(std::chrono::milliseconds(20));

  EXPECT_LE(asked, 1 + 3 + 1);  // and one in the thread's hands
}

TEST(Loader, StopsAtOnceWhereverItIs) {
  const MemoryDataset data(make_samples(50), kImage);
  const auto start = std::chrono::steady_clock::now();

  for (int i = 0; i < 200; ++i)
    Loader loader(data, options_of(false), one_sample_per_step, 0, 50, 1 + i % 3);

  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(Loader, StopsWhileItsThreadsDecode) {
  const MemoryDataset data = mixed_samples(40);
  for (const int threads : {1, 2, 5})
    for (int time = 0; time < 10; ++time) {
      std::atomic<bool> is_planned = false;
      const Loader loader(
          data, mixed_options(threads),
          [&](int64_t step) {
            is_planned = true;
            return step_of(step, std::vector<std::vector<int64_t>>(50, first_ids(40)));
          },
          0, 1000, 2);
      while (!is_planned) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(time));
    }
}

}  // namespace
}  // namespace zea::test_loader
