// SPDX-License-Identifier: Apache-2.0
// usage: example MODEL DECK DATASET.h5
// Reads a box of a tensor of MODEL (a weights file, a checkpoint, ...), plans DECK on 2 ranks, and
// writes and reads a data set.
#include <zea/dataset.hpp>
#include <zea/plan.hpp>
#include <zea/weights.hpp>

#include <cstdio>

int main(int, char** arguments) try {
  const auto model = zea::open_weights(arguments[1]);
  const zea::TensorInfo& tensor = model->tensors().front();
  zea::Extent rows = zea::whole(tensor.shape);
  rows.length[0] = 1;
  const std::vector<float> values = zea::read_tensor<float>(*model, tensor.name, rows);
  std::printf("%s: %zu tensors; %s begins with %g\n", model->describe().c_str(),
              model->tensors().size(), tensor.name.c_str(), values.front());

  const zea::PlannedRun plan =
      zea::plan_run({.deck = arguments[2],
                     .overrides = {std::string("model.weights=") + arguments[1], "model.config=''"},
                     .ranks = 2});
  for (const zea::RankGroup& group : plan.groups)
    std::printf("%s on %d ranks: %lld bytes per rank\n", group.name.c_str(), plan.ranks,
                static_cast<long long>(group.memory.total()));

  zea::DatasetWriter writer(arguments[3]);
  writer.add({.tokens = {5, 6, 7}, .loss_mask = {0, 1, 1}});
  writer.finish();
  const zea::DatasetReader data(arguments[3]);
  std::printf("%lld samples, the first with %lld targets\n", static_cast<long long>(data.samples()),
              static_cast<long long>(data.counts(0).targets));
} catch (const zea::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}
