// SPDX-License-Identifier: Apache-2.0
// The deck's section [data]; see options.hpp for how declarations work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deck/data_sources.hpp"
#include "deck/key_info.hpp"
#include "deck/named_values.hpp"

namespace zea {

struct DataOptions {
  DataSources train;
  std::string eval;
  int64_t row_tokens = 2048;
  int64_t rows_per_microbatch = 1;
  bool packing = true;
  bool balance = true;
  bool shuffle = true;
  bool allow_changed = false;
  Choice<BadItems> bad_items = BadItems::Stop;
  std::vector<double> image_mean, image_std;
  Choice<ImageBackend> image_backend = ImageBackend::Auto;
  int64_t resized_min_pixels = 0, resized_max_pixels = 0;
  int64_t video_min_pixels = 0, video_max_pixels = 0, max_frames = 0;
  int64_t min_tiles = 0, max_tiles = 0;
  int64_t max_image_pixels = 100000000;
  int64_t max_clip_seconds = 3600;
  int64_t prefetch = 2;
  int64_t decoding_threads = 0;
  std::string cache_features;

  template <class Visitor>
  void visit(Visitor&& key) {
    key(train,
        {"train",
         "data set (.h5, or a folder of such files) to train on; of several a list of paths, or "
         "of {path, weight}, from which samples are drawn in proportion to the weights",
         {}});
    key(eval, {"eval", "held-out data set (.h5); empty: none", {}});
    key(row_tokens,
        {"row_tokens", "tokens that a packed row may hold; no sample may be longer", {}, 1, 1e9});
    key(rows_per_microbatch,
        {"rows_per_microbatch", "rows that go through the model at once", {}, 1, 1e6});
    key(packing, {"packing", "pack several samples into a row; false: every sample is a row", {}});
    key(balance, {"balance",
                  "deal the samples of a global batch to replicas and microbatches by what they "
                  "cost, so that "
                  "none waits; false: in order",
                  {}});
    key(shuffle,
        {"shuffle", "draw each epoch in another order; false: as they lie in the file", {}});
    key(allow_changed,
        {"allow_changed",
         "resume on training data other than the checkpoint's, with a note; false: refuse that",
         {}});
    key(bad_items,
        {"bad_items", "an item that does not decode: stop, or mask its sample's labels", {}});
    key(image_mean, {"image_mean",
                     "mean of each channel, of pixels in 0..1; empty: that of the encoder's family",
                     {}});
    key(image_std,
        {"image_std",
         "standard deviation of each channel, of pixels in 0..1; empty: that of the encoder's "
         "family",
         {},
         1e-6});
    key(image_backend,
        {"image_backend",
         "whose processors images are resized like, to the bit: pil, or torchvision; auto: "
         "torchvision where the model's directory names a processor of it (...Fast) and no "
         "Lanczos' "
         "kernel, else pil; frames of videos: always torchvision",
         {}});
    key(resized_min_pixels,
        {"resized_min_pixels",
         "least pixels of an image after its resize, for encoders of images of any size; 0: as the "
         "encoder's family has it",
         {},
         0,
         1e10});
    key(resized_max_pixels,
        {"resized_max_pixels",
         "most pixels of an image after its resize, for encoders of images of any size; fewer cost "
         "less and show less; 0: as the encoder's family has it",
         {},
         0,
         1e10});
    key(video_min_pixels,
        {"video_min_pixels",
         "least pixels of a video's frame after its resize (in Qwen3-VL: of all its frames "
         "together); 0: as the encoder's family has it",
         {},
         0,
         1e12});
    key(video_max_pixels, {"video_max_pixels",
                           "most pixels of a video's frame after its resize (in Qwen3-VL: of all "
                           "its frames together); 0: as the encoder's family has it",
                           {},
                           0,
                           1e12});
    key(max_frames, {"max_frames",
                     "most frames of a video: a data set with a longer one is refused; 0: 768",
                     {},
                     0,
                     1e6});
    key(min_tiles,
        {"min_tiles",
         "least tiles that an image is cut into, for encoders of tiles; 0: as the encoder's family "
         "has it",
         {},
         0,
         1024});
    key(max_tiles, {"max_tiles",
                    "most tiles that an image is cut into, beside the whole image; 1: images are "
                    "not cut; 0: as the encoder's family has it",
                    {},
                    0,
                    1024});
    key(max_image_pixels, {"max_image_pixels",
                           "an image with more pixels, also while it is resized, is a bad item",
                           {},
                           1,
                           1e10});
    key(max_clip_seconds,
        {"max_clip_seconds",
         "a clip of sound or a video that lasts longer is a bad item; of sound, what the encoder's "
         "positions do not hold is cut off",
         {},
         1,
         1e6});
    key(prefetch, {"prefetch", "steps that the loader thread prepares ahead", {}, 1, 64});
    key(decoding_threads,
        {"decoding_threads",
         "threads of a rank that decode items; 0: as many as its node has cores for each rank "
         "beyond run.threads, from 1 to 4",
         {},
         0,
         256});
    key(cache_features,
        {"cache_features",
         "folder that keeps what frozen encoders make of data.train: computed before the first "
         "step, then read in every epoch in place of running their blocks; empty: none",
         {}});
  }
};

}  // namespace zea
