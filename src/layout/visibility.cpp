// SPDX-License-Identifier: Apache-2.0
#include "layout/visibility.hpp"

#include <algorithm>
#include <optional>

#include "core/error.hpp"

namespace zea {

Visibility visible_text(const std::vector<MaskWord>& words, bool both_ways, int64_t window) {
  Visibility row;
  for (const Segment& sample : segments_of(words))
    row.samples.insert(row.samples.end(), sample.length, sample.start);
  row.begins = row.samples;
  row.ends.resize(words.size());
  if (window > 0)
    for (int64_t i = 0; i < row.tokens(); ++i)
      row.begins[i] = std::max(row.samples[i], i - window + 1);
  const auto is_image_of = [&](size_t token, int64_t sample) {
    return token < words.size() && word_modality(words[token]) == kModalityImage &&
           word_sample(words[token]) == sample;
  };
  for (size_t i = words.size(); i-- > 0;) {
    const int64_t sample = word_sample(words[i]);
    const bool sees_next = both_ways && is_image_of(i, sample) && is_image_of(i + 1, sample);
    row.ends[i] = sees_next ? row.ends[i + 1] : static_cast<int64_t>(i) + 1;
  }
  return row;
}

Visibility visible_segments(const std::vector<Segment>& segments) {
  Visibility row;
  for (const Segment& segment : segments) {
    ZEA_ASSERT(segment.start == row.tokens());
    row.begins.insert(row.begins.end(), segment.length, segment.start);
    row.ends.insert(row.ends.end(), segment.length, segment.start + segment.length);
  }
  row.samples = row.begins;
  return row;
}

double visible_pairs(int64_t tokens, int64_t window) {
  const int64_t growing = window == 0 ? tokens : std::min(tokens, window);
  return 0.5 * static_cast<double>(growing * (growing + 1)) +
         static_cast<double>((tokens - growing) * window);
}

std::vector<Segment> segments_of(const std::vector<MaskWord>& words) {
  std::vector<Segment> segments;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i == 0 || word_sample(words[i]) != word_sample(words[i - 1]))
      segments.push_back({static_cast<int64_t>(i), 0});
    ++segments.back().length;
  }
  return segments;
}

std::vector<SegmentBatch> batch_segments(const std::vector<Segment>& segments, double padding) {
  std::vector<Segment> order = segments;
  std::stable_sort(order.begin(), order.end(),
                   [](const Segment& a, const Segment& b) { return a.length > b.length; });
  std::vector<SegmentBatch> batches;
  int64_t filled = 0;
  for (const Segment& segment : order) {
    const int64_t count =
        batches.empty() ? 0 : static_cast<int64_t>(batches.back().segments.size());
    const double area =
        batches.empty() ? 0 : static_cast<double>((count + 1) * batches.back().length);
    if (batches.empty() || area - static_cast<double>(filled + segment.length) > padding * area) {
      batches.push_back({segment.length, {}});
      filled = 0;
    }
    batches.back().segments.push_back(segment);
    filled += segment.length;
  }
  // Tokens stay in the order of the row inside a batch: gathers then read forwards.
  for (SegmentBatch& batch : batches)
    std::sort(batch.segments.begin(), batch.segments.end(),
              [](const Segment& a, const Segment& b) { return a.start < b.start; });
  return batches;
}

namespace {

/// Appends the positions of an image's features, or of so many moments of a video; returns where
/// what follows goes on.
float append_image(std::vector<TokenPosition>& positions, float first, const ItemShape& image,
                   int64_t moments) {
  const int64_t all = image.frames > 0 ? image.tile_features() : image.features;
  const int64_t wide = image.columns(), high = all / wide;
  for (int64_t moment = 0; moment < moments; ++moment)
    for (int64_t row = 0; row < high; ++row)
      for (int64_t column = 0; column < wide; ++column)
        positions.push_back({first + image.time_of(moment), first + static_cast<float>(row),
                             first + static_cast<float>(column)});
  const float side = first + static_cast<float>(std::max(high, wide) - 1);
  if (image.time == VideoTime::WholeSeconds) return side + 1;
  return std::max(side, first + image.time_of(moments - 1)) + 1;
}

/// The items of an encoder that are passed, and of the next one the moments.
struct Passed {
  size_t items = 0;
  int64_t moments = 0;
};

/// The interleaved features of a video and of its audio track, without text between them.
struct VideoWithAudio {
  size_t end = 0;      ///< the first token after them
  size_t encoder = 0;  ///< index of the audio encoder
  int64_t heard = 0;   ///< features of the audio
};

/// Returns the video with its audio track that begins at `token`, the first feature of `video`;
/// nullopt: the video has no audio track.
std::optional<VideoWithAudio> video_with_audio(const std::vector<MaskWord>& words, size_t token,
                                               const ItemShape& video) {
  VideoWithAudio both{.end = token};
  MaskWord sound = 0;
  int64_t shown = 0;
  for (; both.end < words.size(); ++both.end) {
    const MaskWord word = words[both.end];
    const bool is_sound =
        word_modality(word) == kModalityAudio && word_sample(word) == word_sample(words[token]);
    if (is_sound && sound == 0) sound = word;
    if (word != words[token] && (!is_sound || word != sound)) break;
    shown += word == words[token] ? 1 : 0;
    both.heard += is_sound ? 1 : 0;
  }
  if (sound == 0 || shown != video.features) return std::nullopt;
  both.encoder = static_cast<size_t>(word_encoder(sound));
  return both;
}

/// Appends the positions of a video and of its audio track, which begin at `first` and are ordered
/// by time. Returns the position of the next token.
float append_by_time(std::vector<TokenPosition>& positions, const VideoWithAudio& both,
                     const ItemShape& video, float first) {
  std::vector<TokenPosition> seen;
  append_image(seen, first, video, video.tiles);
  int64_t heard = 0;
  for (auto next = seen.begin(); positions.size() < both.end;) {
    const float time = first + static_cast<float>(heard);
    if (next != seen.end() && ((*next)[0] <= time || heard == both.heard)) {
      positions.push_back(*next++);
    } else {
      positions.push_back({time, time, time});
      ++heard;
    }
  }
  return std::ranges::max(positions.back()) + 1;
}

/// Appends the positions of a video and its audio, which begin at the same value. The two tokens
/// before the pair share a position, and so do the two after it, of which one is appended. Returns
/// the position of these. `next`: where the pair begins if no text of its sample is before it.
float append_with_audio(std::vector<TokenPosition>& positions, const std::vector<MaskWord>& words,
                        const VideoWithAudio& both, const ItemShape& video, float next) {
  const size_t begin = positions.size();
  const auto is_text_beside = [&](size_t token) {
    return token < words.size() && word_modality(words[token]) == kModalityText &&
           word_sample(words[token]) == word_sample(words[begin]);
  };
  if (begin >= 2 && is_text_beside(begin - 1) && is_text_beside(begin - 2))
    positions[begin - 1] = positions[begin - 2];
  const bool follows_text = begin > 0 && is_text_beside(begin - 1);
  const float first = follows_text ? positions.back()[0] + 1 : next;
  std::vector<TokenPosition> seen;
  append_image(seen, first, video, video.tiles);
  next = first;
  size_t shown = 0;
  for (size_t token = begin; token < both.end; ++token) {
    if (word_modality(words[token]) == kModalityAudio) {
      positions.push_back({next, next, next});
      ++next;
    } else {
      positions.push_back(seen.at(shown++));
    }
  }
  next = std::ranges::max(positions.back()) + 1;
  if (is_text_beside(both.end)) positions.push_back({next, next, next});
  return next;
}

}  // namespace

std::vector<TokenPosition> grid_positions(const std::vector<MaskWord>& words,
                                          const std::vector<std::vector<ItemShape>>& items) {
  std::vector<TokenPosition> positions;
  std::vector<Passed> passed(items.size());
  float next = 0;
  // Positions of a text are sums of its first one, which may have a fraction, so that they are
  // rounded as transformers rounds them. The tokens at the end of an item are not in its sums.
  float first = 0;
  int64_t read = 0, ends = 0;
  const auto end_text = [&](int64_t ends_of_item) {
    read = 0;
    ends = ends_of_item;
  };
  for (size_t token = 0; token < words.size(); token = positions.size()) {
    const MaskWord word = words[token];
    if (token > 0 && word_sample(word) != word_sample(words[token - 1])) {
      next = 0;
      end_text(0);
    }
    if (word_modality(word) != kModalityText) {
      const auto encoder = static_cast<size_t>(word_encoder(word));
      auto& [before, moments] = passed[encoder];
      const ItemShape& item = items[encoder].at(before);
      if (const auto both =
              item.seconds > 0 ? video_with_audio(words, token, item) : std::nullopt) {
        next = item.time == VideoTime::Exact
                   ? append_by_time(positions, *both, item, next)
                   : append_with_audio(positions, words, *both, item, next);
        ++before;
        ++passed[both->encoder].items;
        end_text(2);
        continue;
      }
      end_text(1);
      const int64_t here = item.frames == 0 || item.has_text_between ? 1 : item.tiles;
      moments += here;
      if (item.frames == 0 || moments == item.tiles) {
        ++before;
        moments = 0;
      }
      if (item.width > 0) {
        next = append_image(positions, next, item, here);
        continue;
      }
      ZEA_ASSERT(item.features > 0);
      const float begin = next;
      for (int64_t i = 0; i < item.features; ++i) {
        next = begin + static_cast<float>(i);
        positions.push_back({next, next, next});
      }
      ++next;
      continue;
    }
    if (read == 0) first = next;
    next = first + static_cast<float>(read++);
    positions.push_back({next, next, next});
    ++next;
    if (ends > 0) end_text(ends - 1);
  }
  ZEA_ASSERT(positions.size() == words.size());
  return positions;
}

}  // namespace zea
