// SPDX-License-Identifier: Apache-2.0
// Training with zea's own kernels on the stand-in device, and the launches of a decoder's layer:
// those of one more layer, since all else is the same.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "batch/make_microbatch.hpp"
#include "device/device.hpp"
#include "device/kernels.hpp"
#include "device/torch_device.hpp"
#include "kernels/flat_kernels.hpp"
#include "kernels/matmul.hpp"
#include "layout/context_plan.hpp"
#include "layout/visibility.hpp"
#include "model/functions.hpp"
#include "parallel/tp_row_comm.hpp"
#include "schedule/schedule.hpp"
#include "support/attention_on_device.hpp"
#include "support/bf16_bounds.hpp"
#include "support/compared_run.hpp"
#include "support/made_up_models.hpp"
#include "support/mpi_main.hpp"
#include "support/tiny_llava.hpp"
#include "train/training_data.hpp"

namespace zea::testing::test_device_launches {
namespace {

constexpr int64_t kTokens = 24;

class DeviceLaunches : public ::testing::Test {
 protected:
  void SetUp() override { have_kernels(true); }
  void TearDown() override { have_kernels(false); }
};

TinyRunOptions run_with(const TinyLlava& model, const char* preset) {
  TinyRunOptions run;
  run.config_json = tiny_llava_config(model);
  run.steps = 3;
  run.deck.precision.preset = preset;
  run.deck.data.row_tokens = kTokens;
  run.deck.schedule = {.steps = 3, .global_batch = 4};
  run.device = stand_in_device();
  return run;
}

MemoryDataset dataset_of(const TinyRunOptions& run) {
  return make_tiny_dataset(make_model_spec(run.config_json), 16, {1, 0, 2}, 5);
}

TEST_F(DeviceLaunches, KernelsGiveWhatTheHostGives) {
  TinyRunOptions run = run_with({.kv_heads = 1}, "fp64");
  const Communicator all = world().communicator();
  const MemoryDataset dataset = dataset_of(run);
  const ComparedResult got = run_compared(all, make_stand_in_collectives, dataset, run);
  run.device = at::kCPU;
  expect_equal(got, run_compared(all, make_mpi_collectives, dataset, run));
  EXPECT_GT(device().take_launches()["a kernel of zea's"], 100);
}

/// By libtorch's operations some thirty of each 2^14 blocks.
TEST_F(DeviceLaunches, MomentsInBlocksAreUpdatedByOne) {
  const auto moment = [](at::Device device) {
    return BlockwiseMoment{at::zeros({5 * 128}, at::TensorOptions(device).dtype(at::kByte)),
                           at::zeros({5}, at::TensorOptions(device).dtype(at::kDouble))};
  };
  const at::Tensor p = at::randn({5 * 128}, at::kDouble), there = p.to(stand_in_device());
  const BlockwiseMoment m = moment(at::kCPU), v = moment(at::kCPU),
                        m_there = moment(stand_in_device()), v_there = moment(stand_in_device());
  for (int64_t step : {1, 2}) {
    const at::Tensor g = at::randn({5 * 128}, at::kDouble), g_there = g.to(stand_in_device());
    const AdamwUpdate update{.lr = 1e-2, .weight_decay = 0.1, .step = step};
    blockwise_adamw(p, g, m, v, update);
    device().take_launches();
    blockwise_adamw(there, g_there, m_there, v_there, update);
    EXPECT_EQ(device().take_launches()["a kernel of zea's"], 1);
  }
  EXPECT_TRUE(at::allclose(there.cpu(), p, 1e-14, 1e-14));
  EXPECT_TRUE(at::allclose(m_there.scales.cpu(), m.scales, 1e-14));
  EXPECT_TRUE(at::equal(m_there.codes.cpu(), m.codes));
  EXPECT_TRUE(at::equal(v_there.codes.cpu(), v.codes));
}

/// Sums of bf16 tensors in fp32, and nothing else that libtorch refuses on GPUs.
TEST_F(DeviceLaunches, ProductsAreAddedInTypesThatTheLibraryTakes) {
  const auto narrow = at::TensorOptions().dtype(at::kBFloat16);
  const at::Tensor a = at::ones({4, 8}, narrow), b = at::ones({8, 6}, narrow);
  const auto add_to = [&](at::ScalarType sums, const at::Tensor& factor) {
    const at::Tensor sum = at::ones({4, 6}, sums).to(stand_in_device());
    zea::add_product(sum, a.to(stand_in_device()), factor.to(stand_in_device()));
    return sum.cpu();
  };
  EXPECT_TRUE(add_to(at::kFloat, b).equal(at::full({4, 6}, 9., at::kFloat)));
  EXPECT_ANY_THROW(add_to(at::kFloat, b.to(at::kHalf)));
  EXPECT_ANY_THROW(add_to(at::kDouble, b));
}

/// Heads of which the library's attention takes rows of segments, with and without windows.
TEST_F(DeviceLaunches, Bf16IsWithinItsOwnError) {
  for (const bool sees_windows : {false, true}) {
    TinyRunOptions run = run_with({.kv_heads = 1, .head_dim = 8}, "bf16");
    if (sees_windows) run.remake = see_windows;
    const Communicator all = world().communicator();
    const MemoryDataset dataset = dataset_of(run);
    const ComparedResult got = run_compared(all, make_stand_in_collectives, dataset, run);
    run.device = at::kCPU;
    const ComparedResult host = run_compared(all, make_mpi_collectives, dataset, run);
    run.deck.precision.preset = "fp64";
    const ComparedResult exact = run_compared(all, make_mpi_collectives, dataset, run);
    expect_near_in_bf16(got.losses, host.losses, exact.losses);
    expect_near_in_bf16(got.grad_norms, host.grad_norms, exact.grad_norms);
  }
}

TEST_F(DeviceLaunches, AttentionIsItsDefinition) {
  expect_attention_of_all_kinds(stand_in_device());
}

/// A plan takes time and is kept: cuDNN attends rows of the first shapes that come.
TEST_F(DeviceLaunches, CudnnAttendsLongSegmentsOfOneLengthInFewShapes) {
  constexpr int64_t kLong = 512;
  struct Row {
    std::vector<int64_t> lengths;
    int64_t dim = 8, window = 0;
    double softcap = 0;
    bool is_causal = true;
  };
  const auto is_even = [](const Row& of) {
    const std::vector<MaskWord> words = samples_of(of.lengths);
    const AttentionMask mask =
        of.window > 0 ? AttentionMask(segments_of(words), of.window, {}, stand_in_device())
                      : AttentionMask(segments_of(words), of.is_causal, stand_in_device());
    const at::Tensor qkv =
        at::empty({std::ssize(words), 3, of.dim}, at::kBFloat16).to(stand_in_device());
    const ScoreSpec scores{.softcap = of.softcap};
    return choose_attention_kernel(qkv, mask, 1, scores) == AttentionKernel::Cudnn;
  };
  EXPECT_FALSE(is_even({{kLong, kLong - 1}}));
  EXPECT_FALSE(is_even({{kLong - 1, kLong - 1}}));
  EXPECT_FALSE(is_even({.lengths = {kLong, kLong}, .dim = 136}));
  EXPECT_FALSE(is_even({.lengths = {kLong, kLong}, .window = 7}));
  EXPECT_FALSE(is_even({.lengths = {kLong, kLong}, .softcap = 2}));
  EXPECT_FALSE(is_even({.lengths = {kLong + 64}, .is_causal = false}));
  EXPECT_TRUE(is_even({.lengths = {kLong + 128}, .is_causal = false}));
  int64_t taken = 0;
  for (int64_t more = 0; more < 40; ++more) taken += is_even({{kLong + more}});
  EXPECT_GT(taken, 0);
  EXPECT_LE(taken, 16);
  EXPECT_TRUE(is_even({{kLong}}));  // as before
}

/// Each token sees itself and its window before it: rows of segments equal their slices on the
/// host, forward and backward. No kernel caps scores.
TEST_F(DeviceLaunches, WindowsByBoundsAreThoseOfSlices) {
  constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 8;
  const std::vector<MaskWord> words = samples_of({3, 13, 8});
  at::manual_seed(3);
  const at::Tensor values = at::randn({24, kHeads + 2 * kKvHeads, kDim}).to(at::kBFloat16);
  const at::Tensor gradient = at::randn({24, kHeads * kDim}).to(at::kBFloat16);
  for (const int64_t window : {1, 2, 5, 12}) {
    const AttentionMask mask(
        segments_of(words), window,
        attention_slices(visible_text(words, false, window), {{0, 24}}, {{0, 24}}),
        stand_in_device());
    const auto kernel = [&](const at::Tensor& qkv, const ScoreSpec& scores) {
      return choose_attention_kernel(qkv, mask, kKvHeads, scores);
    };
    at::Tensor here = values.to(stand_in_device()).requires_grad_();
    at::Tensor host = values.to(at::kFloat).requires_grad_();
    ASSERT_EQ(kernel(here, {}), AttentionKernel::Flash);
    EXPECT_EQ(kernel(here, {.softcap = 2}), AttentionKernel::Dense);
    EXPECT_EQ(kernel(host, {}), AttentionKernel::Tiled);
    const at::Tensor got = attention(here, mask, kHeads, kKvHeads);
    const at::Tensor expected = attention(host, mask, kHeads, kKvHeads);
    got.backward(gradient.to(stand_in_device()));
    expected.backward(gradient.to(at::kFloat));
    // Rounded values: results, gradients, and the sum of two query heads' gradients of a key.
    const auto expect_near = [&](const at::Tensor& a, const at::Tensor& b) {
      const double most = (a.cpu().to(at::kFloat) - b).abs().max().item<double>();
      EXPECT_LT(most, 0x1p-7 * b.abs().max().item<double>()) << "window " << window;
    };
    expect_near(got.detach(), expected.detach());
    expect_near(here.grad(), host.grad());
  }
}

/// One row: of text, one sample that fills it or several, perhaps seen through windows; or of one
/// image and text, where the image is seen both ways.
struct Row {
  int64_t samples;
  int images = 0;
  bool windows = false;
  std::string (*mixture)(const std::string& config) = nullptr;  ///< config of its experts
  bool scans = false;  ///< gated delta rules in all layers but the last
  const char* preset = "bf16";
  bool selects = false;  ///< norms and activations are recomputed
};

/// Experts beside a shared one.
std::string shared_experts(const std::string& config) {
  return with_experts(config, 4);
}
std::string gpt_oss(const std::string& config) {
  return with_gpt_oss(config, 4);
}

/// config.json with the layers of `row`.
std::string config_of(int64_t layers, const Row& row) {
  const std::string config = tiny_llava_config({.layers = layers, .head_dim = 8});
  if (row.mixture == nullptr) return config;
  nlohmann::json mixture = nlohmann::json::parse(row.mixture(config));
  mixture["text_config"]["num_hidden_layers"] = layers;
  return mixture.dump();
}

constexpr const char* kWait = "a wait of the host";

/// Launches of a step or of an evaluation, and the host's waits for the device.
Launches launches_of(int64_t layers, const Row& row, bool trains) {
  const auto [samples, images, windows, mixture, scans, preset, selects] = row;
  TinyRunOptions run = run_with({}, preset);
  run.config_json = config_of(layers, row);
  if (windows) run.remake = see_windows;
  if (scans) run.remake = mix_delta_rules;
  const int ranks = world().communicator().size();
  if (mixture != nullptr) run.deck.meshes["llm"].ep = ranks;
  run.deck.schedule = {.steps = 1, .global_batch = samples * ranks};
  run.deck.data.row_tokens = 64;
  if (images > 0) run.deck.llm.image_attention = "bidirectional";
  if (selects) run.deck.model.activation_checkpointing = AutoOption::selective();
  const MemoryDataset dataset =
      make_tiny_dataset(make_model_spec(run.config_json), samples * ranks, {images}, 5);
  TinyRun training(world().communicator(), make_stand_in_collectives, dataset, run);
  device().take_launches();
  const int64_t awaited = device().times_awaited();
  TinyResult result;
  if (trains)
    training.train(1, result);
  else
    training.evaluate();
  Launches launches = device().take_launches();
  launches[kWait] = device().times_awaited() - awaited;
  return launches;
}

/// Launches of one decoder layer.
Launches launches_of_a_layer(const Row& row, bool trains) {
  Launches more = launches_of(3, row, trains);
  for (const auto& [name, count] : launches_of(2, row, trains)) more[name] -= count;
  std::erase_if(more, [](const auto& one) { return one.second == 0; });
  return more;
}

int64_t sum_of(const Launches& launches) {
  int64_t sum = 0;
  for (const auto& [name, count] : launches) sum += count;
  return sum;
}

std::string text_of(const Launches& launches) {
  std::string text;
  for (const auto& [name, count] : launches) text += "  " + name + ' ' + std::to_string(count);
  return text;
}

/// The numbers of launches in tests/README.md.
TEST_F(DeviceLaunches, ALayerTakesWhatTheDocumentSays) {
  const struct {
    const char* what;
    Row row;
    int64_t forward, step;
  } rows[] = {{"a sample", {1}, 10, 30},
              {"samples", {3}, 10, 30},
              {"samples seen through windows", {3, 0, true}, 10, 30},
              {"samples, selective", {.samples = 3, .selects = true}, 10, 33},
              {"experts", {.samples = 3, .mixture = shared_experts}, 23, 69},
              {"gated delta rules", {.samples = 3, .scans = true}, 13, 41},
              {"an image", {1, 1}, 22, 71}};
  for (const auto& [what, row, forward, step] : rows) {
    const Launches one = launches_of_a_layer(row, false), all = launches_of_a_layer(row, true);
    EXPECT_EQ(sum_of(one), forward) << what << text_of(one);
    EXPECT_EQ(sum_of(all), step) << what << text_of(all);
  }
}

/// On one rank, and on two that share the experts in full_shard: no router makes the host wait in
/// bf16. With the numbers of tests/README.md.
TEST_F(DeviceLaunches, AMixtureTakesWhatTheDocumentSaysAndNoWait) {
  const struct {
    const char* what;
    std::string (*mixture)(const std::string&);
    int64_t of_ranks[2][2];  ///< on one rank, on two: launches of an evaluation, of a step
  } rows[] = {{"experts", shared_experts, {{23, 69}, {37, 93}}},
              {"sigmoids, experts in groups", with_biased_experts, {{21, 65}, {35, 89}}},
              {"gpt-oss", gpt_oss, {{33, 97}, {47, 121}}}};
  for (const auto& [what, mixture, of_ranks] : rows)
    for (const bool trains : {false, true}) {
      SCOPED_TRACE(what);
      Row row{.samples = 3, .mixture = mixture};
      const Launches layer = launches_of_a_layer(row, trains);
      EXPECT_FALSE(layer.contains(kWait)) << text_of(layer);
      EXPECT_EQ(sum_of(layer), of_ranks[world().communicator().size() - 1][trains])
          << text_of(layer);
      row.preset = "fp32";
      EXPECT_TRUE(launches_of_a_layer(row, trains).contains(kWait));
    }
}

/// A rank has experts 1 and 2 of 4: the rows for other ranks come last and are not multiplied.
TEST_F(DeviceLaunches, ExpertsOfARankGiveWhatTheHostGives) {
  constexpr int64_t kExperts = 2, kIn = 16, kOut = 24;
  at::manual_seed(7);
  const at::Tensor chosen =
      at::tensor({2, 0, 0, 2, 2, 1, 0, 1, 3, 0, 2, 3}, at::kLong).view({6, 2});
  const at::Tensor values[] = {at::randn({6, kIn}), at::rand({6, 2}),
                               at::randn({kExperts, kOut, kIn}), at::randn({6, kOut})};
  const auto run = [&](at::Device device, at::ScalarType type) {
    const auto there = [&](int i) { return values[i].to(at::kBFloat16).to(type).to(device); };
    const at::Tensor x = there(0).requires_grad_();
    const at::Tensor gates = values[1].clone().to(device).requires_grad_();  // fp32
    Parameter weight("weight", {kExperts, kOut, kIn}, true, device);
    weight.set_value(there(2));
    weight.set_gradient(at::zeros({kExperts, kOut, kIn}, at::kFloat).to(device));
    const DispatchedRows sent = dispatch_to_experts(x, chosen.to(device), {1, kExperts, 4});
    const at::Tensor rows = expert_linear(sent.rows, weight, sent.ends, WeightOrder::OutIn);
    const at::Tensor y = combined(rows, gates, sent.places);
    y.backward(there(3));
    return std::vector{y.detach(), x.grad(), gates.grad(), weight.gradient()};
  };
  const auto got = run(stand_in_device(), at::kBFloat16), host = run(at::kCPU, at::kFloat);
  for (size_t i = 0; i < host.size(); ++i) {
    const double most = (got[i].cpu().to(at::kFloat) - host[i]).abs().max().item<double>();
    EXPECT_LE(most, 0x1p-6 * host[i].abs().max().item<double>()) << i;
  }
}

/// Gradients, those that no unit has written (of the encoder, without an image), and values in the
/// type of the units.
TEST_F(DeviceLaunches, AStepZeroesAndPublishesAllBuffersAtOnce) {
  Launches step = launches_of(3, {1}, true);
  EXPECT_EQ(step["_foreach_zero_"], 2);
  EXPECT_EQ(step["_foreach_copy_"], 1);
}

/// Values to the device ahead of need and gradients to the host, each once: nothing that is
/// offloaded is copied in the stream that computes.
TEST_F(DeviceLaunches, OffloadedShardsAreCopiedBesideWhatTheDeviceComputes) {
  const auto launches = [](bool offloads) {
    TinyRunOptions run = run_with({.layers = 3}, "fp32");
    run.deck.schedule = {.steps = 1, .global_batch = 1};
    run.deck.optim.spike_deviations = 1e6;  // so that the host judges the step of both
    for (const char* module : {"vision", "llm"}) run.deck.meshes[module].strategy = "full_shard";
    run.adjust = [offloads](Plan& plan) {
      for (Sharding& sharding : plan.shardings) sharding.offloads = sharding.pins_memory = offloads;
      plan.slots = make_slots(plan.schedule_parts(), plan.precisions);
    };
    const MemoryDataset dataset = make_tiny_dataset(make_model_spec(run.config_json), 1, {0}, 5);
    TinyRun training(world().communicator(), make_stand_in_collectives, dataset, run);
    device().take_launches();
    TinyResult result;
    training.train(1, result);
    return device().take_launches();
  };
  Launches here = launches(false), offloaded = launches(true);
  EXPECT_EQ(offloaded["copy"], here["copy"]);
  // Embedding, layers and head for forward; all but the head, which is still there, for backward.
  const int64_t values = 5 + 4, gradients = 5;
  EXPECT_EQ(offloaded["copy beside"] - here["copy beside"], values + gradients);
  EXPECT_LT(offloaded["item"], here["item"]) << "the host has the gradients' squares";
}

/// Where every rank has all rows: the sum lies in memory of its own.
TEST_F(DeviceLaunches, SumsOverTensorParallelRanksAreNotCopied) {
  const std::unique_ptr<Collectives> tp = make_stand_in_collectives(world().communicator());
  detail::TpBuffers buffers(*tp);
  const detail::TpRowComm rows(buffers, {});
  const at::Tensor partial = rows.partial(4, 6, at::TensorOptions(stand_in_device()));
  device().take_launches();
  const at::Tensor sum = rows.sum(partial.fill_(3)).take();
  EXPECT_EQ(device().take_launches(), (Launches{{"aten::fill_", 1}}));
  EXPECT_TRUE(sum.is_same(partial));
  EXPECT_TRUE(sum.cpu().equal(at::full({4, 6}, 3.f)));
}

/// Made by another thread, which does nothing on the device, and then moved.
TEST(MovedMicrobatch, IsOneCopyForWhichTheHostDoesNotWait) {
  const TinyRunOptions run = run_with({.kv_heads = 1}, "fp32");
  const Plan plan = plan_of(run, 1);
  const LoadedMicrobatch loaded = load_microbatch(dataset_of(run), loading_on(plan, 0), {0, 2});
  MicrobatchOptions options;
  const Microbatch expected = make_microbatch(loaded, plan.model, options);
  options.device = run.device;
  device().take_launches();
  PackedMicrobatch packed;
  std::thread([&] { packed = make_packed_microbatch(loaded, plan.model, options); }).join();
  EXPECT_EQ(device().take_launches(), Launches());
  EXPECT_TRUE(packed.block.is_pinned());
  const Microbatch got = move_to(run.device, std::move(packed));
  EXPECT_EQ(device().take_launches(), (Launches{{"copy", 1}}));

  const auto expect_same = [&](const at::Tensor& tensor, const at::Tensor& on_host) {
    ASSERT_GT(on_host.numel(), 0);
    EXPECT_EQ(tensor.device(), run.device);
    EXPECT_TRUE(tensor.cpu().equal(on_host));
  };
  expect_same(got.token_ids, expected.token_ids);
  expect_same(got.target_ids, expected.target_ids);
  expect_same(got.text_attention[0].rotary_sines, expected.text_attention[0].rotary_sines);
  expect_same(got.text_attention[0].mask.bounds(), expected.text_attention[0].mask.bounds());
  expect_same(got.encoders[0].patches, expected.encoders[0].patches);
  expect_same(got.encoders[0].placeholder_rows, expected.encoders[0].placeholder_rows);
}

/// Its memory is reused only after the device has computed with it.
TEST(MovedMicrobatch, GoesBesideWhatTheDeviceComputes) {
  const TinyRunOptions run = run_with({.kv_heads = 1}, "fp32");
  const Plan plan = plan_of(run, 1);
  const LoadedMicrobatch loaded = load_microbatch(dataset_of(run), loading_on(plan, 0), {0, 2});
  MicrobatchOptions options;
  const at::Tensor expected = make_microbatch(loaded, plan.model, options).token_ids;
  options.device = run.device;
  PackedMicrobatch packed = make_packed_microbatch(loaded, plan.model, options);
  const c10::impl::VirtualGuardImpl place(run.device.type());
  const std::shared_ptr<Mark> is_over = device().compute().hold();
  const int64_t held = device().times_held();
  std::optional<Microbatch> got =
      move_to(run.device, std::move(packed), place.getStreamFromGlobalPool(run.device));
  EXPECT_EQ(device().times_held() - held, 1);  // the copy from pinned memory is on its way
  is_over->reach();
  const at::Tensor more = got->token_ids.add(1);
  got.reset();
  EXPECT_TRUE(more.cpu().equal(expected.add(1)));
}

}  // namespace
}  // namespace zea::testing::test_device_launches
