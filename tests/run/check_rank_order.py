# SPDX-License-Identifier: Apache-2.0
"""Where ranks stand changes nothing but where they stand: mesh.order moves every part of the model
to another MPI rank, and losses, predictions and checkpoints stay those of the usual order. So does
dealing samples by what they cost."""

import re
from pathlib import Path

import zea_run as zr

STEPS = 4
# Ranks with the same part of two replicas become neighbors: only the first and the last stay.
DP_FIRST = 'mesh.order=["dp", "tp", "cp", "encoder_dp", "pp", "module"]'
MAP_OF_22 = """
  node 0, MPI ranks 0-7, replica 0: llm.pp0 3-6, llm.pp1 7-10
  node 1, MPI ranks 8-15, replica 1: llm.pp0 14-17, llm.pp1 18-21
  node 2, MPI ranks 16-21, replica 0: vision 0-1, audio 2; replica 1: vision 11-12, audio 13
"""
GRID = ["mesh.llm.tp=2", "mesh.llm.strategy=full_shard"]


class RankOrder(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        self.deck = zr.write_inputs(
            self.folder,
            zr.mixed_samples(6 * STEPS),
            schedule=[f"steps = {STEPS}"],
            precision=['preset = "fp64"'],
            eval=[f"every = {STEPS}", "samples = 6", "generate_tokens = 3"],
        )

    def train(self, name, ranks, *keys):
        return self.run_in(self.folder / name, ranks, "-i", self.deck, "schedule.global_batch=6", *keys)

    def test_another_order_of_ranks_is_the_same_run(self):
        usual = self.train("usual", 4, *GRID)
        moved = self.train("moved", 4, *GRID, DP_FIRST)

        self.assert_same_losses(moved.losses(), usual.losses(), 0)
        self.assertEqual(zr.predictions(self.folder / "moved"), zr.predictions(self.folder / "usual"))
        self.assertNotIn("MPI ranks", usual.output)
        self.assertIn("nodes, with the order of mesh.order", moved.output)
        self.assertIn("node 0, MPI ranks 0-3, replicas 0-1: all of it, ranks 0-3", moved.output)
        written = zr.checkpoints(self.folder / "moved")[-1]
        self.assertEqual(len(list(written.glob("rank-*.h5"))), 4)

    def test_balance_distributes_the_same_samples(self):
        alone = self.train("alone", 1).losses()
        balanced = self.train("balanced", 2)
        in_turn = self.train("in-turn", 2, "data.balance=false")

        self.assert_same_losses(balanced.losses(), alone, 1e-10)
        self.assert_same_losses(in_turn.losses(), alone, 1e-10)
        self.assertEqual(zr.predictions(self.folder / "in-turn"), zr.predictions(self.folder / "balanced"))

    def test_an_example_whose_replicas_no_node_holds(self):
        """Three encoder ranks and eight of the language model per replica, on nodes of eight."""
        inputs = Path(__file__).parents[2] / "inputs"
        config = f"model.config={inputs / 'clip_b32_whisper_tiny_llama_1b.json'}"
        deck = inputs / "clip_b32_whisper_tiny_llama_1b_disjoint.toml"

        plan = zr.answer("-n", "--ranks", "22", "--ranks-per-node", "8", "-i", deck, config)

        self.assert_code(plan, 0)
        self.assertIn(MAP_OF_22, plan.output)
        crossing = re.search("bytes that cross nodes.*\n(.*)\n", plan.output).group(1)
        self.assertIn("vision.pp0>llm.pp0 outputs", crossing)
        self.assertNotIn(".tp ", crossing)
        self.assertNotIn("warning", plan.output)

        refused = zr.answer("-n", "--ranks", "20", "-i", deck, config)
        self.assert_code(refused, 2)
        self.assertIn("the nearest world sizes that fit are 11 and 22", refused.output)


if __name__ == "__main__":
    zr.main()
