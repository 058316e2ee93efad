// SPDX-License-Identifier: Apache-2.0
#include "support/pipeline_table.hpp"

namespace zea::testing {
namespace {

constexpr const char *kColocated = "colocated", *kDisjoint = "disjoint",
                     *kInterleaved = "interleaved_1f1b";

const RefusedPipeline kRefused[] = {
    {"a stage that lacks units", 2,
     [](Options& o) {
       o.meshes["llm"].stages = {{"llm.embed", "llm.merge"}, {"llm.layers.1..llm.head"}};
     },
     "llm.layers.0"},
    {"a unit in two stages", 2,
     [](Options& o) {
       o.meshes["llm"].stages = {{"llm.embed..llm.layers.1"}, {"llm.layers.1..llm.head"}};
     },
     "mesh.llm.stages has llm.layers.1 twice, in stage 0 and in stage 1"},
    {"a unit that is none", 2,
     [](Options& o) {
       o.meshes["llm"].stages = {{"llm.embed..llm.layers.1"}, {"llm.layer.2..llm.head"}};
     },
     "llm.layer.2"},
    {"a stage without units", 2,
     [](Options& o) {
       o.meshes["llm"].stages = {{"llm.embed..llm.head"}, {}};
     },
     "stage 1 of mesh.llm.stages has no units"},
    {"pp that is not the template's", 3,
     [](Options& o) {
       o.meshes["llm"].pp = 3;
       o.meshes["llm"].stages = {{"llm.embed..llm.layers.1"}, {"llm.layers.2..llm.head"}};
     },
     "mesh.llm.pp = 3, but mesh.llm.stages has 2 stages; leave pp out"},
    {"more stages than units", 8, [](Options& o) { o.meshes["llm"].pp = 8; },
     "mesh.llm.pp = 8 with virtual_stages = 1 asks for 8 stages, but the module has 7 units; "
     "allowed: up to 7"},
    {"a world that does not fit", 8,
     [](Options& o) {
       o.mesh.placement = kDisjoint;
       o.meshes["llm"].pp = 2;
       o.meshes["vision"].encoder_dp = 1;
     },
     "x ranks of a replica (3) must be the world size 8"},
    {"a world that does not fit, and those that do", 8,
     [](Options& o) {
       o.mesh.placement = kDisjoint;
       o.meshes["llm"].pp = 2;
       o.meshes["vision"].encoder_dp = 1;
     },
     "the nearest world sizes that fit are 6 and 9"},
    {"an encoder without a layout", 3,
     [](Options& o) {
       o.mesh.placement = kDisjoint;
       o.meshes["llm"].pp = 2;
     },
     "mesh.placement = \"disjoint\", but [mesh.vision] gives no layout: say on how many ranks it "
     "stands"},
    {"encoders together without a layout", 3,
     [](Options& o) {
       o.mesh.placement = kColocated;
       o.meshes["llm"].pp = 2;
     },
     "mesh.placement = \"colocated\", but [mesh.vision] gives no layout"},
    {"virtual stages of 1F1B", 2,
     [](Options& o) {
       o.meshes["llm"].pp = 2;
       o.meshes["llm"].virtual_stages = 2;
     },
     "mesh.llm.virtual_stages = 2 with mesh.schedule = \"1f1b\", which has none; use "
     "\"interleaved_1f1b\""},
    {"interleaving without virtual stages", 2,
     [](Options& o) {
       o.meshes["llm"].pp = 2;
       o.mesh.schedule = kInterleaved;
     },
     "mesh.schedule = \"interleaved_1f1b\" needs virtual stages"},
    {"interleaving on one rank", 2,
     [](Options& o) {
       o.mesh.placement = kDisjoint;
       o.meshes["vision"].encoder_dp = 1;
       o.meshes["llm"].virtual_stages = 2;
       o.mesh.schedule = kInterleaved;
     },
     "with mesh.llm.pp = 1: there are no ranks between which stages take turns"},
    {"fewer stages than a rank would have", 1,
     [](Options& o) {
       o.mesh.schedule = kInterleaved;
       o.meshes["llm"].virtual_stages = 2;
       o.meshes["llm"].stages = {{"llm.embed..llm.head"}};
     },
     "mesh.llm.stages has 1 stages, which virtual_stages = 2 must divide", true},
    {"virtual stages of an encoder", 3,
     [](Options& o) {
       o.mesh.placement = kDisjoint;
       o.meshes["vision"].virtual_stages = 2;
       o.meshes["vision"].encoder_dp = 1;
       o.meshes["llm"].pp = 2;
     },
     "mesh.vision.virtual_stages = 2: only the language model has virtual stages"},
    {"stages of an encoder that shares ranks", 2,
     [](Options& o) {
       o.meshes["llm"].pp = 2;
       o.meshes["vision"].pp = 2;
     },
     "mesh.vision has 2 stages with mesh.placement = \"shared\", in which encoders stand in the "
     "first stage of the language model"},
    {"a smaller group between the passes of a microbatch", 8,
     [](Options& o) {
       o.meshes["llm"].pp = 2;
       o.meshes["llm"].reshard_after_forward = AutoOption::of_count(2);
     },
     "mesh.llm.reshard_after_forward = 2 where modules or stages have ranks of their own: other "
     "microbatches stand between the forward and the backward of one; allowed: true"},
    {"no encoder to place", 2, [](Options& o) { o.mesh.placement = kDisjoint; },
     "mesh.placement = \"disjoint\", but the model (gpt2) has no encoder to place; leave it out",
     true},
    {"items dealt to ranks of the llm", 2, [](Options& o) { o.meshes["llm"].encoder_dp = 2; },
     "mesh.llm.encoder_dp = 2: only encoders deal items to their ranks"},
};

}  // namespace

const std::vector<RefusedPipeline>& refused_pipelines() {
  static const std::vector<RefusedPipeline> all(std::begin(kRefused), std::end(kRefused));
  return all;
}

}  // namespace zea::testing
