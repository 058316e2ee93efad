// SPDX-License-Identifier: Apache-2.0
// The table of pipelines that tests share: placements of modules, schedules and grids of up to 8
// ranks, each with its trainable parts and with data in which something can fail, that all give the
// results of one rank; and refused layouts, with the sentence.
#pragma once

#include <string>
#include <vector>

#include "deck/options.hpp"
#include "support/tiny_llava.hpp"

namespace zea::testing {

/// How one module lies on the ranks of a replica.
struct PipelineModule {
  int pp = 1, tp = 1, cp = 1;
  int encoder_dp = 1;  ///< of an encoder that has ranks of its own
  int virtual_stages = 1;
  const char* cp_mode = "allgather_kv";
  int ep = 1, etp = 0;

  int ranks() const { return pp * tp * cp * encoder_dp; }
};

/// Frozen parts.
enum class Frozen { Nothing, Encoders, EncodersAndLlm, EncodersAndProjectors, Projectors, Llm };
inline constexpr int kNumFrozen = 6;

enum class PipelineModel {
  Llava,
  TiedLlava,
  TwoEncoders,
  TiedLlama,
  Gpt2,
  Gemma3,
  Qwen3Vl,
  Experts,
  Qwen3VlMoe,
  DeltaRules,
  PassedDeltaRules,  ///< whose states pass between cp ranks
  Gemma4,            ///< with audio, shared keys and per-layer inputs, as E4B
  Gemma4Experts,     ///< with bidirectional images in windows, as 26B-A4B
  Qwen25Omni,        ///< some of whose videos have audio tracks
  Qwen3Omni,         ///< likewise, with experts
};

/// Unusual data and settings.
enum class Twist {
  None,
  RareImages,       ///< most microbatches have none
  NoImages,         ///< no step has any
  LateImages,       ///< the first two steps have none
  OneMicrobatch,    ///< fewer than there are stages
  OneSampleEach,    ///< many microbatches
  Recomputing,      ///< every unit is recomputed
  RecomputingSome,  ///< every other one is
  FewSamples,       ///< fewer than there are replicas
  Template,         ///< stages as a template says, uneven ones
  WrappedByTwo,     ///< units are gathered in pairs
  BufferOfEach,     ///< a buffer for each parameter
  WrappedAll,       ///< all units of a stage are
  OneKvHead,        ///< that several tp ranks hold
  Taps,             ///< the projector reads several layers, from all stages of the encoder
  Bidirectional,    ///< images see all of themselves
  InOrder,          ///< samples are not balanced by cost; several rows per microbatch
  Broadcast,        ///< weights are read by one copy; nothing is gathered ahead
  AnySize,          ///< images of any size, of which four patches become a feature
  TwoOfImages,      ///< two encoders of images, one of these of any size
  Merging,          ///< Mistral 3
  EachUse,          ///< units are gathered for each use, gradients reduced after it (ZeRO-3)
  EachUseSumOnce,   ///< units are gathered for each use, gradients kept whole for a step
  OnceSumEach,      ///< units stay gathered for a step, gradients are reduced after each backward
  Adapters,         ///< of all modules, which train in their place
  ExpertAdapters,   ///< of experts alone
  Muon,             ///< updates matrices
  Skewed,           ///< all tokens of the first step choose the same experts
  Selecting,        ///< norms and activations are recomputed
};

struct PipelineLayout {
  const char* placement;
  const char* schedule;
  PipelineModule llm = {}, vision = {};
  const char* strategy = "full_shard";
  const char* vision_strategy = "full_shard";
  int dp_replicate = 1, dp_shard = 1;
  Frozen frozen = Frozen::Nothing;
  PipelineModel model = PipelineModel::Llava;
  Twist twist = Twist::None;
  PipelineModule audio = {};  ///< of a model with two encoders, with vision's strategy

  bool has_encoder() const {
    return model != PipelineModel::TiedLlama && model != PipelineModel::Gpt2;
  }
  bool is_omni() const {
    return model == PipelineModel::Qwen25Omni || model == PipelineModel::Qwen3Omni;
  }
  bool has_audio() const {
    return model == PipelineModel::TwoEncoders || model == PipelineModel::Gemma4 || is_omni();
  }
  bool is_tied() const {
    return model != PipelineModel::Llava && model != PipelineModel::TwoEncoders &&
           model != PipelineModel::Qwen3Vl && model != PipelineModel::Experts &&
           model != PipelineModel::Qwen3VlMoe && !is_omni() && !is_gemma4() && !has_delta_rules();
  }
  bool is_gemma4() const {
    return model == PipelineModel::Gemma4 || model == PipelineModel::Gemma4Experts;
  }
  bool has_delta_rules() const {
    return model == PipelineModel::DeltaRules || model == PipelineModel::PassedDeltaRules;
  }
  /// Whether outputs skip stages in a schedule whose launches may deadlock on devices.
  bool is_refused_on_devices() const {
    const std::string order = schedule;
    const bool may_skip = order == "gpipe" || (order == "1f1b" && llm.pp <= 4);
    return model == PipelineModel::Gemma4 && llm.pp > 2 && !may_skip;
  }
  int replicas() const { return dp_replicate * dp_shard; }
  int ranks() const;
  std::string name() const;
};

const std::vector<PipelineLayout>& pipelines();

/// config.json of its model.
std::string config_of(const PipelineLayout& layout);

/// Makes of the model of its config.json that of the layout.
void remake(const PipelineLayout& layout, ModelSpec& model);

/// The deck of three steps in fp64, without its mesh: the deck of one rank.
Options deck_of_one_rank(const PipelineLayout& layout);
/// With its mesh.
Options deck_of(const PipelineLayout& layout);

/// Images per sample, repeating.
std::vector<int> images_of(const PipelineLayout& layout);
/// Audio clips per sample.
std::vector<int> clips_of(const PipelineLayout& layout);

/// A refused pipeline, and the sentence that says so.
struct RefusedPipeline {
  const char* name;
  int ranks;
  void (*set)(Options&);
  const char* sentence;
  bool gpt2 = false;
};
const std::vector<RefusedPipeline>& refused_pipelines();

}  // namespace zea::testing
