// SPDX-License-Identifier: Apache-2.0
#include "support/pipeline_table.hpp"

#include <algorithm>
#include "support/made_up_models.hpp"
#include "support/tiny_gemma4.hpp"
#include "support/tiny_qwen2_vl.hpp"

namespace zea::testing {
namespace {

constexpr const char *kShared = "shared", *kColocated = "colocated", *kDisjoint = "disjoint";
constexpr const char *kGPipe = "gpipe", *k1F1B = "1f1b", *kInterleaved = "interleaved_1f1b",
                     *kZeroBubble = "zero_bubble";
constexpr const char *kFull = "full_shard", *kGradOp = "shard_grad_op", *kNo = "no_shard",
                     *kHybrid = "hybrid_shard", *kHybrid2 = "hybrid_shard_zero2";
using enum Frozen;
using enum PipelineModel;
using enum Twist;

// clang-format off
const PipelineLayout kLayouts[] = {
    // placement, schedule, llm {pp, tp, cp, -, virtual stages, cp_mode, ep, etp}, vision {pp, tp, cp, encoder_dp},
    // their strategies, dp_replicate, dp_shard, frozen parts, model, twist, audio as vision
    {kShared, kGPipe, {2}, {}, kFull, kFull, 1, 1},
    {kShared, kGPipe, {2, 1, 2, 1, 1, "ring"}, {}, kHybrid2, kFull, 1, 1, Llm, Llava, RareImages},
    {kShared, kGPipe, {2, 1, 2}, {}, kNo, kNo, 1, 1, Nothing, Gpt2, OneSampleEach},
    {kShared, kGPipe, {2, 2}, {1, 2}, kGradOp, kFull, 1, 2, EncodersAndProjectors, Llava, Recomputing},
    {kShared, k1F1B, {2}, {}, kFull, kFull, 1, 2, Nothing, TiedLlava, BufferOfEach},
    {kShared, k1F1B, {4}, {}, kNo, kNo, 1, 1, Nothing, TiedLlava, Recomputing},
    {kShared, k1F1B, {3, 2}, {1, 2}, kNo, kNo, 1, 1, Encoders, Llava, LateImages},
    {kShared, k1F1B, {2}, {}, kHybrid, kHybrid2, 2, 2, Nothing, TiedLlava, WrappedByTwo},
    {kShared, k1F1B, {2}, {}, kFull, kFull, 1, 2, Nothing, Gpt2, RecomputingSome},
    {kShared, k1F1B, {2, 2, 2}, {1, 1, 2}, kGradOp, kFull, 1, 1, EncodersAndLlm, TiedLlava},
    {kShared, kInterleaved, {2, 1, 1, 1, 2}, {}, kFull, kFull, 1, 1},
    {kShared, kInterleaved, {3, 1, 1, 1, 2}, {}, kNo, kFull, 1, 1, Nothing, TiedLlava, LateImages},
    {kShared, kInterleaved, {2, 2, 1, 1, 2}, {1, 2}, kHybrid, kHybrid, 2, 1, Projectors, Llava, OneSampleEach},
    {kShared, kInterleaved, {2, 1, 1, 1, 2}, {}, kHybrid, kFull, 2, 1, Nothing, Gpt2},
    {kShared, kInterleaved, {2, 1, 2, 1, 3, "ulysses"}, {}, kGradOp, kFull, 1, 1, Nothing, TiedLlama},
    {kShared, kZeroBubble, {2}, {}, kFull, kFull, 1, 1, Nothing, Llava, Recomputing},
    {kShared, kZeroBubble, {2, 2}, {1, 2}, kFull, kFull, 1, 2, Nothing, TiedLlava},
    {kShared, kZeroBubble, {4}, {}, kHybrid2, kNo, 2, 1, EncodersAndLlm, Llava, OneSampleEach},
    {kShared, kZeroBubble, {4}, {}, kNo, kNo, 1, 1, Nothing, Gpt2, OneMicrobatch},
    {kShared, kZeroBubble, {2, 2}, {1, 2}, kFull, kFull, 1, 2, Nothing, TiedLlava, Adapters},
    {kDisjoint, kInterleaved, {2, 1, 1, 1, 2}, {1}, kFull, kFull, 1, 2, Nothing, Llava, Adapters},
    {kShared, kZeroBubble, {2, 2}, {}, kHybrid2, kNo, 2, 1, Nothing, TiedLlama},
    {kColocated, kGPipe, {1}, {1}, kFull, kFull, 1, 1, Nothing, TiedLlava},
    {kColocated, kGPipe, {2, 1, 2}, {1, 1, 2}, kFull, kFull, 1, 1, EncodersAndProjectors, Llava, RareImages},
    {kColocated, kGPipe, {1, 2}, {2}, kGradOp, kGradOp, 1, 2, Projectors, TiedLlava, BufferOfEach},
    {kColocated, k1F1B, {2}, {2}, kGradOp, kFull, 1, 1, Nothing, Llava, LateImages},
    {kColocated, k1F1B, {1, 2}, {1, 1, 1, 2}, kHybrid, kFull, 1, 2, Encoders},
    {kColocated, k1F1B, {1, 1, 2, 1, 1, "ring"}, {1, 2}, kHybrid, kNo, 2, 1, Llm, Llava, Recomputing},
    {kColocated, kInterleaved, {2, 1, 1, 1, 2}, {1}, kFull, kNo, 1, 2, Nothing, TiedLlava},
    {kColocated, kInterleaved, {2, 1, 2, 1, 2}, {2}, kHybrid2, kFull, 1, 1, Encoders, Llava, RecomputingSome},
    {kColocated, kZeroBubble, {2}, {2, 1, 1, 2}, kFull, kFull, 1, 1, Nothing, Llava, LateImages},
    {kColocated, kZeroBubble, {1, 1, 2, 1, 1, "ulysses"}, {1, 2}, kNo, kNo, 1, 2, EncodersAndLlm, Llava},
    {kColocated, kZeroBubble, {3}, {1}, kNo, kFull, 1, 2, Llm, TiedLlava, FewSamples},
    {kDisjoint, kGPipe, {2, 2}, {1, 1, 1, 3}, kHybrid, kFull, 1, 1},
    {kDisjoint, kGPipe, {1, 1, 2}, {2}, kGradOp, kNo, 1, 2, Encoders, TiedLlava},
    {kDisjoint, kGPipe, {1}, {1}, kHybrid, kHybrid, 2, 2, EncodersAndLlm, Llava, WrappedByTwo},
    {kDisjoint, k1F1B, {1}, {1}, kFull, kFull, 1, 1, Nothing, Llava, Recomputing},
    {kDisjoint, k1F1B, {2}, {1}, kFull, kFull, 1, 2, Nothing, TiedLlava, RareImages},
    {kDisjoint, k1F1B, {2, 1, 2, 1, 1, "ring"}, {1, 2, 2}, kHybrid2, kFull, 1, 1, Projectors},
    {kDisjoint, k1F1B, {1, 2}, {1}, kFull, kNo, 1, 2, Llm, TiedLlava, None},
    {kDisjoint, k1F1B, {4}, {1}, kNo, kNo, 1, 1, Projectors, TiedLlava, OneMicrobatch},
    {kDisjoint, k1F1B, {1, 2}, {1}, kHybrid2, kNo, 2, 1, Nothing, TiedLlava, NoImages},
    {kDisjoint, k1F1B, {1, 1, 3}, {1, 1, 1, 2}, kFull, kFull, 1, 1, Nothing, Llava},
    {kDisjoint, k1F1B, {2}, {2}, kHybrid2, kHybrid, 2, 1, EncodersAndProjectors, Llava, Template},
    {kDisjoint, kInterleaved, {2, 1, 1, 1, 2}, {2}, kGradOp, kFull, 1, 1, Llm, TiedLlava},
    {kDisjoint, kInterleaved, {2, 1, 1, 1, 3}, {1, 1, 1, 2}, kHybrid, kFull, 1, 2, EncodersAndLlm, Llava, RareImages},
    {kDisjoint, kInterleaved, {2, 2, 1, 1, 2}, {1, 1, 2}, kNo, kGradOp, 1, 1, EncodersAndProjectors, TiedLlava},
    {kDisjoint, kZeroBubble, {3}, {1, 2}, kFull, kFull, 1, 1, Projectors, TiedLlava, Template},
    {kDisjoint, kZeroBubble, {2}, {2}, kNo, kFull, 1, 2, Nothing, Llava, RecomputingSome},
    {kDisjoint, kZeroBubble, {1, 2, 2}, {1, 2}, kGradOp, kFull, 1, 1, Encoders, Llava, OneSampleEach},
    {kDisjoint, kZeroBubble, {2}, {1}, kHybrid, kHybrid2, 2, 1, EncodersAndProjectors, TiedLlava, LateImages},
    {kShared, kInterleaved, {2, 2, 1, 1, 2}, {1, 2}, kFull, kFull, 1, 2, Nothing, TiedLlava, OneKvHead},
    {kShared, k1F1B, {2}, {}, kFull, kFull, 1, 2, Nothing, Llava, WrappedAll},
    {kColocated, k1F1B, {2}, {2}, kFull, kFull, 1, 1, Nothing, Llava, Taps},
    {kDisjoint, kZeroBubble, {1}, {3}, kNo, kNo, 1, 2, Nothing, TiedLlava, Taps},
    {kDisjoint, kGPipe, {1, 1, 4, 1, 1, "ulysses_ring"}, {1, 1, 2}, kFull, kFull, 1, 1, Nothing, Llava, Bidirectional},
    {kDisjoint, k1F1B, {2}, {1, 1, 1, 2}, kFull, kNo, 1, 2, Nothing, TiedLlava, InOrder},
    {kColocated, kZeroBubble, {2}, {2}, kHybrid, kHybrid, 2, 1, Nothing, TiedLlava, Broadcast},
    {kShared, k1F1B, {2}, {}, kFull, kFull, 1, 2, Nothing, TwoEncoders},
    {kShared, kInterleaved, {2, 2, 1, 1, 2}, {1, 2}, kFull, kFull, 1, 1, Encoders, TwoEncoders, None, {1, 1}},
    {kColocated, k1F1B, {2}, {1}, kFull, kNo, 1, 2, Nothing, TwoEncoders, RareImages},
    {kColocated, kInterleaved, {2, 1, 1, 1, 2}, {1, 1, 2}, kFull, kFull, 1, 1, Projectors, TwoEncoders, Recomputing,
     {1, 2}},
    {kColocated, kZeroBubble, {2}, {2, 2}, kGradOp, kFull, 1, 1, Nothing, TwoEncoders, None, {2, 1, 1, 2}},
    {kDisjoint, kGPipe, {2}, {1}, kFull, kFull, 1, 1, EncodersAndLlm, TwoEncoders, None, {2}},
    {kDisjoint, k1F1B, {2}, {1}, kFull, kFull, 1, 2, Nothing, TwoEncoders, None, {1}},
    {kDisjoint, kInterleaved, {2, 1, 1, 1, 2}, {1, 2}, kNo, kFull, 1, 1, Nothing, TwoEncoders, RareImages,
     {1, 1, 1, 2}},
    {kDisjoint, kZeroBubble, {2}, {2}, kFull, kFull, 1, 1, Nothing, TwoEncoders, NoImages, {1, 1, 2}},
    {kShared, k1F1B, {2, 2}, {1, 2}, kFull, kFull, 1, 2, Nothing, Llava, AnySize},
    {kShared, kInterleaved, {2, 1, 2, 1, 2, "ring"}, {1, 1, 2}, kFull, kFull, 1, 1, Nothing, Llava, AnySize},
    {kColocated, kZeroBubble, {2}, {2, 1, 1, 2}, kFull, kFull, 1, 1, Nothing, TiedLlava, AnySize},
    {kDisjoint, k1F1B, {2}, {1, 1, 1, 3}, kGradOp, kFull, 1, 1, Encoders, Llava, AnySize},
    {kDisjoint, kGPipe, {1, 1, 2, 1, 1, "ulysses"}, {2, 2}, kHybrid, kFull, 1, 1, Nothing, TwoEncoders, AnySize, {1}},
    {kShared, kZeroBubble, {2, 2}, {1, 2}, kFull, kFull, 1, 1, Nothing, TiedLlava, TwoOfImages},
    {kColocated, k1F1B, {2}, {1, 1, 1, 2}, kFull, kFull, 1, 1, Nothing, Llava, TwoOfImages},
    {kShared, k1F1B, {2, 1, 2, 1, 1, "ring"}, {1, 1, 2}, kFull, kFull, 1, 1, Nothing, Gemma3},
    {kShared, kInterleaved, {2, 2, 1, 1, 2}, {1, 2}, kFull, kFull, 1, 2, Encoders, Gemma3, Recomputing},
    {kDisjoint, kZeroBubble, {2}, {2}, kNo, kFull, 1, 2, Nothing, Gemma3, RareImages},
    {kShared, kInterleaved, {2, 2, 1, 1, 2}, {1, 2}, kFull, kFull, 1, 2, Nothing, TiedLlava, Merging},
    {kColocated, kZeroBubble, {2}, {2, 1, 1, 2}, kFull, kFull, 1, 1, Nothing, Llava, Merging},
    {kDisjoint, k1F1B, {2, 1, 2, 1, 1, "ring"}, {1, 1, 2}, kHybrid, kFull, 1, 1, Encoders, Llava, Merging},
    {kShared, k1F1B, {2, 2}, {1, 2}, kFull, kFull, 1, 2, Nothing, Qwen3Vl},
    {kColocated, kGPipe, {2, 1, 2}, {1, 1, 1, 2}, kFull, kNo, 1, 1, Encoders, Qwen3Vl, Recomputing},
    {kDisjoint, kZeroBubble, {2, 1, 2, 1, 1, "ring"}, {2, 1, 2}, kFull, kFull, 1, 1, Nothing, Qwen3Vl, RareImages},
    {kShared, k1F1B, {2, 2}, {1, 2}, kFull, kFull, 1, 2, Nothing, Experts},
    {kShared, kInterleaved, {2, 2, 2, 1, 2, "ring", 4, 1}, {1, 2, 2}, kFull, kFull, 1, 1, Nothing, Gemma4Experts,
     Recomputing},
    {kShared, kZeroBubble, {2, 2, 1, 1, 1, "", 2}, {1, 2}, kFull, kFull, 1, 2, Nothing, Gemma4Experts, OneSampleEach},
    {kColocated, kZeroBubble, {2}, {2, 1, 1, 2}, kNo, kFull, 1, 1, Nothing, Qwen3VlMoe},
    {kDisjoint, kGPipe, {2, 2}, {1, 1, 1, 2}, kFull, kFull, 1, 1, Encoders, Experts, EachUse},
    {kDisjoint, k1F1B, {2}, {1, 1, 1, 2}, kGradOp, kFull, 1, 2, Nothing, Qwen3VlMoe, NoImages},
    {kShared, k1F1B, {2, 2}, {1, 2}, kFull, kFull, 1, 2, Nothing, DeltaRules},
    {kShared, kInterleaved, {2, 1, 2, 1, 2, "ring"}, {1, 1, 2}, kNo, kNo, 2, 1, Encoders, PassedDeltaRules,
     Recomputing},
    {kDisjoint, kZeroBubble, {2, 1, 2}, {1, 1, 2}, kFull, kFull, 1, 1, Nothing, DeltaRules, OneSampleEach},
    {kShared, k1F1B, {2, 1, 3}, {1}, kFull, kFull, 1, 1, EncodersAndProjectors, PassedDeltaRules, OneSampleEach},
    {kColocated, kZeroBubble, {2, 1, 2, 1, 1, "ulysses"}, {1, 2}, kFull, kNo, 1, 1, Llm, PassedDeltaRules, RareImages},
    {kShared, k1F1B, {2}, {}, kFull, kFull, 1, 2, Nothing, TiedLlava, EachUse},
    {kShared, kInterleaved, {2, 1, 1, 1, 2}, {}, kHybrid, kHybrid, 2, 2, Nothing, Llava, EachUse},
    {kShared, kZeroBubble, {2, 1, 2, 1, 1, "ring"}, {1, 1, 2}, kFull, kNo, 1, 2, Nothing, Gemma3, EachUse},
    {kColocated, kGPipe, {2, 1, 2}, {1, 1, 2}, kFull, kFull, 1, 1, Encoders, Llava, EachUseSumOnce},
    {kDisjoint, kZeroBubble, {2}, {2}, kFull, kFull, 1, 2, Nothing, TiedLlava, EachUse},
    {kDisjoint, kInterleaved, {2, 1, 1, 1, 2}, {1, 1, 1, 2}, kFull, kFull, 1, 2, Llm, TiedLlava, OnceSumEach},
    {kShared, k1F1B, {2, 1, 1, 1, 1, "", 2}, {}, kFull, kFull, 1, 2, Nothing, Experts, OneSampleEach},
    {kShared, kGPipe, {2, 1, 1, 1, 1, "", 2}, {}, kFull, kFull, 1, 4, Nothing, Experts, Recomputing},
    {kShared, k1F1B, {2, 2, 1, 1, 1, "", 2}, {1, 2}, kGradOp, kFull, 1, 2, EncodersAndLlm, Experts, OneSampleEach},
    {kShared, kInterleaved, {2, 1, 2, 1, 2, "ring", 2}, {1, 1, 2}, kHybrid, kHybrid, 2, 1, Encoders, Experts, EachUse},
    {kShared, kZeroBubble, {2, 1, 1, 1, 1, "", 2}, {}, kNo, kFull, 1, 2, Llm, Qwen3VlMoe, RareImages},
    {kShared, kZeroBubble, {2, 2, 1, 1, 1, "", 2}, {1, 2}, kFull, kFull, 1, 2, Nothing, Experts, ExpertAdapters},
    {kDisjoint, kInterleaved, {2, 1, 1, 1, 2}, {1}, kFull, kFull, 1, 2, Nothing, Qwen3VlMoe, ExpertAdapters},
    {kDisjoint, k1F1B, {2, 1, 1, 1, 1, "", 2}, {1, 1, 1, 2}, kFull, kFull, 1, 2, Nothing, Qwen3VlMoe, FewSamples},
    {kColocated, kZeroBubble, {1, 1, 1, 1, 1, "", 2}, {1}, kHybrid2, kHybrid, 2, 2, Nothing, Experts, Recomputing},
    {kShared, k1F1B, {2, 2, 1, 1, 1, "", 2, 1}, {1, 2}, kNo, kFull, 1, 1, Nothing, Experts, Recomputing},
    {kShared, kInterleaved, {2, 2, 1, 1, 2, "", 4, 1}, {1, 2}, kGradOp, kFull, 1, 2, EncodersAndLlm, Experts,
     RareImages},
    {kShared, kZeroBubble, {2, 2, 1, 1, 1, "", 4, 1}, {1, 2}, kFull, kFull, 1, 2, Nothing, Experts, ExpertAdapters},
    {kColocated, kInterleaved, {2, 1, 2, 1, 2, "ring"}, {1, 1, 2}, kGradOp, kFull, 1, 1, Encoders, Gemma4, BufferOfEach,
     {1, 1, 1, 2}},
    {kShared, k1F1B, {4}, {}, kNo, kNo, 1, 1, Nothing, Gemma4},
    {kShared, kGPipe, {2, 1, 2, 1, 1, "ulysses"}, {1, 1, 2}, kFull, kFull, 1, 2, Nothing, Gemma4, Recomputing},
    {kShared, kInterleaved, {3, 1, 1, 1, 2}, {}, kHybrid, kHybrid, 2, 1, Llm, Gemma4, RareImages},
    {kShared, kZeroBubble, {2, 2}, {1, 2}, kFull, kFull, 1, 2, Nothing, Gemma4, Adapters},
    {kDisjoint, kZeroBubble, {3}, {1, 2}, kFull, kFull, 1, 1, Nothing, Gemma4, EachUse, {2}},
    {kShared, kZeroBubble, {2, 2, 1, 1, 1, "", 2, 1}, {1, 2}, kFull, kFull, 1, 2, Llm, Qwen3VlMoe, OneSampleEach},
    {kShared, kInterleaved, {2, 1, 2, 1, 2, "allgather_kv", 2}, {1, 2}, kFull, kFull, 1, 2, Nothing, Qwen3Omni,
     Recomputing, {1, 1, 2}},
    {kColocated, k1F1B, {2, 1, 2, 1, 1, "ulysses"}, {1, 1, 2}, kFull, kNo, 1, 1, Nothing, Qwen25Omni, OneSampleEach,
     {1, 2}},
    {kDisjoint, kZeroBubble, {2, 1, 2, 1, 1, "ring"}, {1, 2}, kFull, kFull, 1, 1, Encoders, Qwen3Omni, None, {2}},
    {kShared, kZeroBubble, {2, 2, 1, 1, 1, "", 2}, {1, 2}, kFull, kFull, 1, 2, Nothing, Qwen3VlMoe, Muon},
    {kDisjoint, k1F1B, {2, 1, 1, 1, 1, "", 2}, {1}, kGradOp, kNo, 1, 2, Nothing, Qwen3VlMoe, Muon},
    {kShared, kInterleaved, {2, 2, 1, 1, 2, "", 4, 1}, {1, 2}, kFull, kFull, 1, 2, Nothing, Experts, Muon},
    {kShared, kZeroBubble, {2, 1, 1, 1, 1, "", 2}, {}, kFull, kFull, 1, 2, Nothing, Experts, Skewed},
    {kShared, kInterleaved, {2, 1, 2, 1, 2, "ring", 2}, {1, 1, 2}, kHybrid, kHybrid, 2, 1, Nothing, Experts, Skewed},
    {kColocated, kZeroBubble, {1, 1, 1, 1, 1, "", 2}, {1}, kHybrid2, kHybrid, 2, 2, Nothing, Experts, Skewed},
    {kDisjoint, k1F1B, {2, 1, 1, 1, 1, "", 2}, {1, 1, 1, 2}, kFull, kFull, 1, 2, Nothing, Qwen3VlMoe, Skewed},
    {kShared, k1F1B, {2, 2, 1, 1, 1, "", 4, 1}, {1, 2}, kNo, kFull, 1, 2, Nothing, Experts, Skewed},
    {kShared, kZeroBubble, {2, 2}, {1, 2}, kFull, kFull, 1, 2, Nothing, TiedLlava, Selecting},
    {kColocated, kInterleaved, {2, 1, 2, 1, 2}, {2}, kHybrid2, kFull, 1, 1, Encoders, Llava, Selecting},
    {kShared, kGPipe, {2, 1, 1, 1, 1, "", 2}, {}, kFull, kFull, 1, 4, Nothing, Experts, Selecting},
};
// clang-format on

const char* const kTinyLlama =
    R"({"model_type": "llama", "hidden_size": 24, "intermediate_size": 40, "head_dim": 6,
        "vocab_size": 41, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "tie_word_embeddings": true})";

const char* frozen_name(Frozen frozen) {
  const char* const names[] = {"all trains",
                               "frozen encoder",
                               "frozen encoder and llm",
                               "frozen encoder and projector",
                               "frozen projector",
                               "frozen llm"};
  return names[static_cast<int>(frozen)];
}

const char* model_name(PipelineModel model) {
  const char* const names[] = {"Llava",
                               "tied Llava",
                               "two encoders",
                               "tied Llama",
                               "GPT-2",
                               "Gemma 3",
                               "Qwen3-VL",
                               "experts",
                               "Qwen3-VL-MoE",
                               "delta rules",
                               "passed states",
                               "Gemma 4",
                               "Gemma 4 with experts",
                               "Qwen2.5-Omni",
                               "Qwen3-Omni"};
  return names[static_cast<int>(model)];
}

const char* twist_name(Twist twist) {
  const char* const names[] = {"plain",
                               "rare images",
                               "no images",
                               "late images",
                               "one microbatch",
                               "one sample each",
                               "recomputing",
                               "recomputing some",
                               "few samples",
                               "template",
                               "wrapped by two",
                               "a buffer of each",
                               "wrapped all",
                               "one KV head",
                               "taps",
                               "both ways",
                               "in order",
                               "broadcast",
                               "any size",
                               "two of images",
                               "merging",
                               "gathered for each use",
                               "gathered for each use, summed once",
                               "gathered once, summed each",
                               "adapters",
                               "adapters of experts",
                               "Muon",
                               "skewed",
                               "selective recomputation"};
  return names[static_cast<int>(twist)];
}

std::string degrees(const PipelineModule& module) {
  std::string text = "pp " + std::to_string(module.pp);
  const auto add = [&](const char* name, int degree) {
    if (degree > 1) text += std::string(" ") + name + " " + std::to_string(degree);
  };
  add("tp", module.tp);
  add("cp", module.cp);
  add("encoder_dp", module.encoder_dp);
  add("virtual", module.virtual_stages);
  add("ep", module.ep);
  if (module.etp == 1) text += " etp 1";
  return text;
}

void apply(const PipelineModule& module, const char* strategy, ModuleMeshOptions& mesh) {
  mesh.strategy = strategy;
  mesh.pp = module.pp;
  mesh.tp = module.tp;
  mesh.cp = module.cp;
  mesh.virtual_stages = module.virtual_stages;
  mesh.ep = module.ep;
  mesh.etp = module.etp;
  if (module.cp > 1) {
    mesh.cp_mode = module.cp_mode;
    if (module.cp_mode != std::string("ulysses")) mesh.cp_block = 4;
    if (module.cp_mode == std::string("ulysses_ring")) mesh.cp_ulysses_ranks = 2;
  }
}

void apply_template(const PipelineLayout& layout, Options& deck) {
  deck.meshes["llm"].stages = {{"llm.embed", "llm.merge"}, {"llm.layers.0..llm.layers.2"}};
  if (layout.llm.pp == 2) deck.meshes["llm"].stages.pop_back();
  deck.meshes["llm"].stages.push_back(
      {layout.llm.pp == 2 ? "llm.layers.0..llm.head" : "llm.layers.3..llm.head"});
  deck.meshes["llm"].pp = 1;
  if (layout.vision.pp == 2) {
    deck.meshes["vision"].stages = {{"vision.embed..vision.layers.1"}, {"vision.projector"}};
    deck.meshes["vision"].pp = 1;
  }
}

void freeze(Frozen frozen, Options& deck) {
  deck.encoders["vision"].train =
      frozen != Encoders && frozen != EncodersAndLlm && frozen != EncodersAndProjectors;
  deck.encoders["vision"].train_projector = frozen != Projectors && frozen != EncodersAndProjectors;
  deck.llm.train = frozen != Llm && frozen != EncodersAndLlm;
  deck.encoders["audio"] = deck.encoders["vision"];
}

void gather_otherwise(Twist twist, ModuleMeshOptions& mesh) {
  if (mesh.strategy == ShardingStrategy::NoShard) return;
  if (twist == EachUse || twist == EachUseSumOnce)
    mesh.reshard_after_forward = AutoOption::of(true);
  if (twist == EachUseSumOnce || twist == OnceSumEach)
    mesh.sync_grad_accum = AutoOption::of(twist == OnceSumEach);
}

void twist_data(Twist twist, Options& deck) {
  deck.data.row_tokens = 24;
  deck.schedule.global_batch = 8;
  if (twist == AnySize || twist == TwoOfImages || twist == Merging) deck.data.row_tokens = 60;
  if (twist == OneMicrobatch) deck.data.row_tokens = 400;
  if (twist == OneSampleEach) deck.data.packing = false;
  if (twist == LateImages) deck.data.shuffle = false;
  if (twist == InOrder) {
    deck.data.balance = false;
    deck.data.rows_per_microbatch = 2;
  }
  if (twist == FewSamples) deck.schedule.global_batch = 1;
}

}  // namespace

int PipelineLayout::ranks() const {
  int encoders = 0;
  if (has_encoder() && placement != std::string(kShared)) encoders = vision.ranks();
  if (has_audio() && placement == std::string(kColocated))
    encoders = std::max(encoders, audio.ranks());
  if (has_audio() && placement == std::string(kDisjoint)) encoders += audio.ranks();
  return replicas() * (llm.ranks() + encoders);
}

std::string PipelineLayout::name() const {
  std::string text =
      std::string(placement) + ", " + schedule + ": llm " + degrees(llm) + ", " + strategy;
  if (has_encoder()) text += "; vision " + degrees(vision) + ", " + vision_strategy;
  if (has_audio()) text += "; audio " + degrees(audio);
  if (replicas() > 1)
    text += "; dp " + std::to_string(dp_replicate) + " x " + std::to_string(dp_shard);
  return text + "; " + frozen_name(frozen) + ", " + model_name(model) + ", " + twist_name(twist);
}

const std::vector<PipelineLayout>& pipelines() {
  static const std::vector<PipelineLayout> all(std::begin(kLayouts), std::end(kLayouts));
  return all;
}

std::string config_of(const PipelineLayout& layout) {
  if (layout.model == Gpt2) return tiny_gpt2_config();
  if (layout.model == TiedLlama) return kTinyLlama;
  if (layout.model == Qwen3Vl) return tiny_qwen3_vl_config();
  if (layout.model == Qwen3VlMoe) return tiny_qwen3_vl_moe_config();
  if (layout.model == Qwen25Omni) return tiny_qwen2_5_omni_config();
  if (layout.model == Qwen3Omni) return tiny_qwen3_omni_config();
  TinyLlava model{.tied = layout.model == TiedLlava, .layers = 4, .vocabulary = 41};
  model.audio = layout.has_audio();
  if (layout.model == Gemma3) {
    model.tied = model.siglip = model.gemma3 = true;
    model.image_size = 16;
  }
  if (layout.twist == OneKvHead) model.kv_heads = 1;
  if (layout.twist == AnySize || layout.twist == TwoOfImages) model.siglip = true;
  if (layout.twist == Merging) model.pixtral = model.merges = true;
  if (layout.twist == TwoOfImages) model.image_size = 16;
  if (layout.twist == AnySize || layout.twist == Merging) model.image_size = 24;
  if (layout.twist == Taps) model.feature_layer = "[0, -1, 1]";
  if (layout.model == Gemma4) return tiny_gemma4_config(model, true, {.is_like_e4b = true});
  if (layout.model == Gemma4Experts) return tiny_gemma4_config(model, false, {.experts = 4});
  const std::string config = tiny_llava_config(model);
  return layout.model == Experts ? with_experts(config, layout.llm.ep > 1 ? 4 : 5) : config;
}

void remake(const PipelineLayout& layout, ModelSpec& model) {
  if (layout.model == Qwen3Vl || layout.model == Qwen3VlMoe || layout.is_omni())
    shrink_images(model);
  if (layout.is_gemma4()) shrink_gemma4(model);
  if (layout.has_delta_rules()) mix_delta_rules(model);
  if (layout.twist == AnySize) merge_images_of_any_size(model);
  if (layout.twist == TwoOfImages) add_second_image_encoder(model);
}

Options deck_of_one_rank(const PipelineLayout& layout) {
  Options deck;
  deck.precision.preset = "fp64";
  deck.schedule.steps = 3;
  deck.optim.lr = 1e-2;
  deck.optim.warmup_steps = 2;
  deck.optim.weight_decay = 0.1;
  deck.optim.clip_norm = 0.5;
  if (layout.model != TiedLlama && layout.model != Gemma4Experts)
    deck.optim.weight_decays = {"*.bias = 0.2"};
  if (layout.twist == Recomputing || layout.twist == RecomputingSome)
    deck.model.activation_checkpointing = AutoOption::of_count(layout.twist == Recomputing ? 1 : 2);
  if (layout.twist == Selecting) deck.model.activation_checkpointing = AutoOption::selective();
  twist_data(layout.twist, deck);
  if (layout.twist == Muon) deck.optim.kind = "muon", deck.optim.momentum = 0.95;
  if (layout.twist == ExpertAdapters) deck.llm.lora = {.targets = {"*.experts.*"}, .rank = 3};
  if (layout.twist == Adapters) {
    deck.llm.lora = {.targets = {"q_proj", "v_proj", "down_proj"}, .rank = 3, .dropout = 0.3};
    if (layout.model == Gemma4) deck.llm.lora.targets.push_back("per_layer_model_projection");
    deck.encoders["vision"].lora = {.targets = {"*_proj", "linear_1"}, .rank = 2, .dropout = 0.2};
    if (layout.model == Gemma4) {
      deck.encoders["vision"].lora = {.targets = {"*"}, .rank = 2, .dropout = 0};
      deck.encoders["audio"].lora = deck.encoders["vision"].lora;
    }
  }
  if (layout.model == Gpt2) deck.llm.dropout = 0.2;
  // Their gradients are large, so that Adam would turn rounding errors into updates.
  if (layout.has_delta_rules() || layout.is_gemma4()) deck.optim.eps = 1, deck.optim.lr = 1e-3;
  if (layout.twist == Bidirectional) deck.llm.image_attention = "bidirectional";
  if (layout.has_audio()) deck.data.row_tokens = std::max<int64_t>(40, deck.data.row_tokens);
  if (layout.model == Qwen3Vl || layout.model == Qwen3VlMoe || layout.is_gemma4())
    deck.data.row_tokens = 80;
  if (layout.is_omni()) deck.data.row_tokens = 90;
  if (layout.has_encoder()) freeze(layout.frozen, deck);
  if (!layout.has_audio()) deck.encoders["audio"] = {};
  return deck;
}

Options deck_of(const PipelineLayout& layout) {
  Options deck = deck_of_one_rank(layout);
  deck.mesh.placement = layout.placement;
  deck.mesh.schedule = layout.schedule;
  deck.mesh.dp_replicate = layout.dp_replicate;
  deck.mesh.dp_shard = layout.dp_shard;
  apply(layout.llm, layout.strategy, deck.meshes["llm"]);
  if (layout.model == PassedDeltaRules) deck.meshes["llm"].cp_scan = CpScan::States;
  // Two of the schedules use all-to-all, which ep_dispatch = "auto" does not choose for few ranks.
  if (layout.llm.ep > 1 &&
      (layout.schedule == std::string(kInterleaved) || layout.schedule == std::string(kZeroBubble)))
    deck.meshes["llm"].ep_dispatch = EpDispatch::AllToAll;
  const bool own_ranks = layout.placement != std::string(kShared);
  if (layout.has_encoder()) {
    apply(layout.vision, layout.vision_strategy, deck.meshes["vision"]);
    if (own_ranks) deck.meshes["vision"].encoder_dp = layout.vision.encoder_dp;
  }
  if (layout.has_audio()) {
    apply(layout.audio, layout.vision_strategy, deck.meshes["audio"]);
    if (own_ranks) deck.meshes["audio"].encoder_dp = layout.audio.encoder_dp;
  }
  if (layout.twist == TwoOfImages) deck.meshes[kSecondEncoder] = deck.meshes["vision"];
  if (layout.twist == Broadcast) deck.model.sync_module_states = true;
  if (layout.twist == Template) apply_template(layout, deck);
  for (ModuleMeshOptions* mesh : {&deck.meshes["llm"], &deck.meshes["vision"]}) {
    if (mesh == &deck.meshes["vision"] && !layout.has_encoder()) continue;
    if (layout.twist == WrappedByTwo) mesh->wrap_units = 2;
    if (layout.twist == WrappedAll) mesh->wrap_units = 0;
    if (layout.twist == BufferOfEach) mesh->flatten_parameters = false;
    gather_otherwise(layout.twist, *mesh);
    if (layout.twist == Broadcast) mesh->forward_prefetch = mesh->backward_prefetch = "none";
  }
  return deck;
}

std::vector<int> images_of(const PipelineLayout& layout) {
  if (layout.twist == NoImages) return {0};
  if (layout.twist == RareImages) return {0, 0, 1, 0, 0, 0};
  if (layout.twist == FewSamples) return {1, 2};  // no step without a gradient
  if (layout.twist != LateImages) return {1, 0, 2};
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1};
}

std::vector<int> clips_of(const PipelineLayout& layout) {
  return layout.twist == RareImages ? std::vector<int>{0, 0, 0, 0, 1} : std::vector<int>{1, 0, 0};
}

}  // namespace zea::testing
