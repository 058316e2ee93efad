// SPDX-License-Identifier: Apache-2.0
#include "train/training_data.hpp"

#include <algorithm>
#include <utility>

#include "comm/agree.hpp"
#include "core/error.hpp"
#include "data/dataset.hpp"
#include "data/same_tokens.hpp"
#include "io/tokenizer.hpp"
#include "layout/item_row.hpp"

namespace zea {
namespace {

/// Says why the model or a row cannot take a sample; empty when they can.
std::string fault_of(const SampleIndex& sample, const std::vector<ItemKind>& kinds,
                     const Plan& plan) {
  const std::string tokens = std::to_string(sample.tokens);
  if (sample.tokens > plan.options.data.row_tokens)
    return " has " + tokens +
           " tokens, more than data.row_tokens = " + std::to_string(plan.options.data.row_tokens) +
           "; raise data.row_tokens or leave the sample out";
  if (plan.model.decoder.limits_positions() && sample.tokens > plan.model.decoder.max_positions)
    return " has " + tokens + " tokens, more than the model's " +
           std::to_string(plan.model.decoder.max_positions) + " " +
           plan.model.decoder.limit_name() +
           "; cut samples shorter when packing, as "
           "jobs/pack_text.py does with --max-tokens";
  for (size_t kind = plan.model.encoders.size(); kind < kinds.size(); ++kind) {
    if (sample.items.of(static_cast<int>(kind)) == 0) continue;
    const bool is_audio = kinds[kind].modality == Modality::Audio;
    return std::string(is_audio ? " has a clip of sound" : " has an image") + ", but the model (" +
           plan.model.family + ") has no encoder of " + (is_audio ? "sound" : "images") +
           "; its modules are " + plan.model.module_names();
  }
  return "";
}

/// The last generated token needs no position: nothing is read after it.
void check_room_to_generate(const Dataset& dataset, int64_t id, const Plan& plan) {
  const int64_t positions = plan.model.decoder.max_positions;
  const int64_t generated = plan.options.eval.generate_tokens;
  const int64_t tokens = dataset.index()[static_cast<size_t>(id)].tokens;
  if (tokens + generated - 1 <= positions) return;
  const int64_t prompt = prompt_length(dataset.read(id), dataset.kinds());
  const bool is_asked = prompt < tokens || plan.options.run.mode == RunMode::Generate;
  if (!is_asked || prompt + generated - 1 <= positions) return;  // no answer, or room for it
  throw DataError(dataset.describe() + ": " + dataset.words(id) + " has a prompt of " +
                  std::to_string(prompt) +
                  " tokens, to which eval.generate_tokens = " + std::to_string(generated) +
                  " are more than the model's " + std::to_string(positions) + " " +
                  plan.model.decoder.limit_name() + " hold; generate " +
                  std::to_string(positions - prompt + 1) + " at most, or pack shorter prompts");
}

}  // namespace

LoaderOptions loading_of(const Plan& plan) {
  const DataOptions& data = plan.options.data;
  LoaderOptions loading;
  for (const EncoderSpec& encoder : plan.model.encoders)
    loading.encoders.push_back(decoding_of(encoder));
  for (ItemDecoding& decoding : loading.encoders) {
    ImageOptions& image = decoding.image;
    if (!data.image_mean.empty()) image.mean = data.image_mean;
    if (!data.image_std.empty()) image.std = data.image_std;
    image.max_pixels = data.max_image_pixels;
  }
  loading.max_clip_seconds = data.max_clip_seconds;
  loading.mask_bad_items = data.bad_items == BadItems::Mask;
  loading.threads = static_cast<int>(std::max<int64_t>(1, data.decoding_threads));
  return loading;
}

int threads_on(double cores_per_rank, const Options& options) {
  constexpr double kMost = 4;  // more are for the deck to ask for
  const double idle = cores_per_rank - static_cast<double>(options.run.threads);
  return static_cast<int>(std::clamp(idle, 1.0, kMost));
}

ItemsTaken taken_on(const Plan& plan, int world_rank, int encoder, bool takes_any) {
  if (!takes_any) return [](const ItemList&) { return std::vector<int64_t>(); };
  return [&model = plan.model, encoder,
          replica = plan.replica_layout(world_rank)](const ItemList& items) {
    if (items.of(encoder) == 0) return std::vector<int64_t>();
    const std::vector<ItemShape> all =
        items.shapes(encoder, model.encoders[static_cast<size_t>(encoder)]);
    return items_held(all, model, encoder, replica);
  };
}

LoaderOptions loading_on(const Plan& plan, int world_rank) {
  LoaderOptions loading = loading_of(plan);
  for (size_t i = 0; i < loading.encoders.size(); ++i) {
    const std::string& encoder = plan.model.encoders[i].name;
    const bool is_first =
        plan.mesh.has(world_rank, encoder) && plan.mesh.coordinate(world_rank, encoder).pp == 0;
    loading.encoders[i].taken = taken_on(plan, world_rank, static_cast<int>(i), is_first);
  }
  return loading;
}

namespace {

void check_against(const Dataset& dataset, const Plan& plan) {
  const std::string path = dataset.describe();
  if (dataset.index().empty()) throw DataError(path + " holds no samples");
  if (!plan.model.has_token(dataset.max_token()))
    throw DataError(path + " has token id " + std::to_string(dataset.max_token()) +
                    ", outside the model's vocabulary of " +
                    std::to_string(plan.model.decoder.vocabulary) +
                    "; pack the data with the model's tokenizer");
  for (size_t id = 0; id < dataset.index().size(); ++id) {
    const std::string fault = fault_of(dataset.index()[id], dataset.kinds(), plan);
    if (!fault.empty())
      throw DataError(path + ": " + dataset.words(static_cast<int64_t>(id)) + fault);
  }
}

}  // namespace

SharedOpening shared_by(Collectives& control, ActionRecord& record) {
  SharedOpening opening{.rank = control.rank(), .ranks = control.size()};
  opening.moved = [&record] { record.moved(); };
  opening.agree = [&control](const auto& part) { agree(control, part); };
  opening.max = [&control](std::vector<int64_t>& values) {
    control
        .all_reduce(values.data(), static_cast<int64_t>(values.size()), DType::Int64, ReduceOp::Max)
        .wait();
  };
  return opening;
}

std::unique_ptr<Dataset> open_checked(const std::string& path, const Plan& plan,
                                      const SharedOpening& opening) {
  if (path.empty()) return nullptr;
  std::unique_ptr<Dataset> dataset =
      open_dataset(path, kHeldBytes, opening, item_kinds(plan.model));
  opening.agree([&] { check_against(*dataset, plan); });
  return dataset;
}

std::unique_ptr<Dataset> open_checked(const DataSources& sources, const Plan& plan,
                                      const SharedOpening& opening) {
  std::vector<std::unique_ptr<Dataset>> sets;
  for (const DataSource& source : sources.sets)
    sets.push_back(open_checked(source.path, plan, opening));
  return sets.empty() ? nullptr : join_datasets(std::move(sets));
}

std::unique_ptr<Dataset> open_checked_eval(const Plan& plan, const SharedOpening& opening) {
  std::unique_ptr<Dataset> dataset = open_checked(plan.options.data.eval, plan, opening);
  if (!dataset || !plan.generates()) return dataset;
  if (dataset->texts().token_bytes.empty())
    throw DataError(dataset->describe() +
                    " does not say what text its tokens are, so what eval.generate_tokens asks for "
                    "could not be written; pack it with token_bytes");
  if (!plan.model.decoder.limits_positions()) return dataset;
  const auto samples = static_cast<int64_t>(dataset->index().size());
  const int64_t asked = plan.options.eval.samples;
  const int64_t used = asked > 0 ? std::min(asked, samples) : samples;
  opening.agree([&] {
    for (int64_t id = 0; id < used; ++id) check_room_to_generate(*dataset, id, plan);
  });
  return dataset;
}

std::vector<std::string> notes_of(const std::vector<const Dataset*>& datasets,
                                  const WeightsSource& model, const SharedOpening& opening) {
  std::vector<std::string> notes;
  opening.agree([&] {
    if (opening.rank != 0) return;
    ModelTokens tokens;
    try {
      tokens = read_model_tokens(model);
    } catch (const WeightsError& fault) {
      notes.push_back("the tokens of data sets are not compared with the model's: " +
                      std::string(fault.what()));
    }
    for (const Dataset* dataset : datasets)
      for (const Dataset* set : dataset ? dataset->sets() : std::vector<const Dataset*>()) {
        notes.push_back(set->note());
        notes.push_back(compare_tokens(*set, tokens, opening.moved));
      }
    std::erase(notes, "");
  });
  return notes;
}

std::string compare_data(const Dataset& train, const TrainPosition& resumed,
                         const DataOptions& options) {
  const std::vector<std::string>& was = resumed.data_hashes;
  const std::vector<std::string> now = train.set_hashes();
  if (was.empty() || was == now || resumed.samples == 0) return "";
  const auto sorted = [](std::vector<std::string> hashes) {
    std::ranges::sort(hashes);
    return hashes;
  };
  std::string difference;
  if (was.size() != now.size())
    difference = "it names " + std::to_string(now.size()) + " data sets, and named " +
                 std::to_string(was.size());
  else if (sorted(was) == sorted(now))
    difference = "its data sets stand in another order";
  else
    for (size_t set = 0; set < now.size(); ++set)
      if (was[set] != now[set])
        difference += (difference.empty() ? "" : ", ") + options.train.sets.at(set).path +
                      " holds other samples";
  const std::string told = "data.train is not what the resumed run was trained on: " + difference;
  const std::string place = "sample " + std::to_string(resumed.samples) + " of " +
                            std::to_string(resumed.data_samples) + " in their old order";
  if (options.allow_changed)
    return told + "; the run goes on behind " + place + ", so some may come twice and others never";
  throw DataError(told + ". Give the old data (where it lies does not matter); or set " +
                  "data.allow_changed = true to go on behind " + place +
                  ", whichever samples that leaves out; or start a new run from the consolidated "
                  "weights");
}

}  // namespace zea
