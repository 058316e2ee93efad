// SPDX-License-Identifier: Apache-2.0
// Reads a data set as training does and writes all of it as JSON, for comparison with the packed
// data: dump_dataset FILE TOKENS_PER_IMAGE TOKENS_PER_CLIP.
#include <cstdio>
#include <iostream>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "data/text.hpp"
#include "support/memory_dataset.hpp"

namespace {

nlohmann::json describe(const zea::Dataset& data, int64_t id) {
  const zea::Sample sample = data.read(id);
  const zea::SampleIndex& index = data.index()[static_cast<size_t>(id)];
  std::vector<int32_t> learnt;
  for (size_t i = 0; i < sample.tokens.size(); ++i)
    if (sample.loss_mask[i]) learnt.push_back(sample.tokens[i]);
  const std::string answer = zea::text_of_tokens(data.texts().token_bytes, learnt);
  nlohmann::json items = nlohmann::json::array();
  for (const zea::Item& item : sample.items) {
    items.push_back({{"bytes", item.bytes}, {"shape", {item.height, item.width, item.channels}}});
    if (item.modality == zea::Modality::Audio)
      items.back()["shape"] = "sound at " + std::to_string(item.rate);
  }
  return {{"tokens", sample.tokens},
          {"text", zea::text_of_tokens(data.texts().token_bytes, sample.tokens)},
          {"answer", answer},
          {"named", zea::class_named_in(answer, data.texts().classes).value_or(-1)},
          {"label", sample.label},
          {"items", items},
          {"targets", index.targets}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    const auto data = zea::open_dataset(argv[1]);
    nlohmann::json samples = nlohmann::json::array();
    for (size_t id = 0; id < data->index().size(); ++id) {
      zea::check_placeholders(*data, data->read(static_cast<int64_t>(id)),
                              {std::stoll(argv[2]), std::stoll(argv[3])});
      samples.push_back(describe(*data, static_cast<int64_t>(id)));
    }
    // Where there are many files, that of the first sample was closed.
    if (!samples.empty() && describe(*data, 0) != samples[0]) {
      std::fprintf(stderr, "sample 0 is another one when it is read again\n");
      return 1;
    }
    std::cout << nlohmann::json{{"samples", samples},
                                {"classes", data->texts().classes},
                                {"image_token", data->kinds()[0].token},
                                {"audio_token", data->kinds()[1].token},
                                {"max_token", data->max_token()}};
  } catch (const zea::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
