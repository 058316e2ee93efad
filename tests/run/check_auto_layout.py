# SPDX-License-Identifier: Apache-2.0
"""mesh = "auto": a run searches its layout and says so, resumes with it bit for bit, and searches again for another
number of ranks; the plan says the same; checkpoint.every = "auto" writes checkpoints by their cost."""

from pathlib import Path

import zea_run as zr

HARDWARE = Path(__file__).parents[2] / "inputs/hardware/epyc_core.toml"
SEARCHED = 'layout (mesh.layout = "auto"): searched'
KEPT = 'layout (mesh.layout = "auto"): the one that was found for {} ranks before'


class AutoLayout(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        self.deck = zr.write_inputs(
            self.folder,
            zr.mixed_samples(24),
            schedule=["steps = 8"],
            checkpoint=["every = 4", "keep = 0"],
            mesh=['layout = "auto"', f'hardware = "{HARDWARE}"'],
        )

    def log(self, directory):
        return (directory / "log.txt").read_text()

    def used(self, directory):
        """The keys of mesh sections in the deck of a run directory."""
        lines = (directory / "deck.used.toml").read_text().split("[mesh]")[1].split("[data]")[0]
        return [line for line in lines.splitlines() if "=" in line and not line.startswith("#")]

    def test_runs_search_and_resume(self):
        whole, rest = self.folder / "whole", self.folder / "rest"
        first = zr.run_zea(4, ["-i", self.deck, "-d", whole], whole)
        self.assert_code(first, 0)
        self.assertIn(SEARCHED, self.log(whole))
        self.assertIn("layouts of 4 ranks", self.log(whole))
        self.assertIn("searched_ranks = 4", self.used(whole))

        half = whole / "checkpoints" / "step-00000004"
        self.assert_code(zr.run_zea(4, ["-r", half, "-d", rest], rest), 0)
        self.assertIn(KEPT.format(4), self.log(rest))
        self.assertEqual(self.used(rest), self.used(whole))
        expected = zr.numbers_of_steps(whole)
        self.assertEqual(zr.numbers_of_steps(rest), {step: expected[step] for step in range(5, 9)})
        self.assert_same_arrays(zr.last_arrays(whole), zr.last_arrays(rest))

        again = self.folder / "again"  # with the deck of the first start, as scripts do
        self.assert_code(zr.run_zea(4, ["-i", self.deck, "-r", half, "-d", again], again), 0)
        self.assertIn(KEPT.format(4), self.log(again))
        self.assert_same_arrays(zr.last_arrays(whole), zr.last_arrays(again))

        fewer = self.folder / "fewer"
        result = zr.run_zea(2, ["-r", half, "-d", fewer], fewer)
        self.assert_code(result, 0)
        self.assertIn('layout (mesh.layout = "auto"): the layout in the deck is for 4 ranks, not 2', self.log(fewer))
        self.assertIn("searched_ranks = 2", self.used(fewer))
        rest_of_first = {step: loss for step, loss in first.losses().items() if step > 4}
        self.assert_same_losses(result.losses(), rest_of_first, 1e-4)

    def test_plans_say_what_a_run_would_choose(self):
        plan = zr.answer("-n", "--ranks", "2", "-i", self.deck)
        self.assert_code(plan, 0)
        self.assertIn(SEARCHED, plan.output)
        self.assertIn("searched_ranks = 2", plan.output)
        kept = zr.answer("-n", "--ranks", "2", "-i", self.deck, "mesh.llm.tp=2")
        self.assert_code(kept, 0)
        self.assertIn("tp = 2", kept.output)

    def test_what_cannot_be_is_refused(self):
        for keys, sentence in [
            (["mesh.llm.tp=4"], "no layout of 2 ranks can be planned with what the deck sets"),
            (["mesh.rank_memory_mib=0.01"], "no layout of 2 ranks fits into memory: exceeds memory by"),
            (['mesh.hardware=""', "run.device=cuda"], 'run.device = "cuda" needs the rates of the GPUs'),
        ]:
            with self.subTest(keys=keys):
                plan = zr.answer("-n", "--ranks", "2", "-i", self.deck, *keys)
                self.assert_code(plan, 2)
                self.assertIn(sentence, plan.output)

    def test_checkpoints_by_their_cost(self):
        directory = self.folder / "run"
        keys = ['mesh.hardware=""', "checkpoint.every=auto", "checkpoint.mtbf_hours=0.001", "schedule.steps=400"]
        result = zr.run_zea(2, ["-i", self.deck, "-d", directory, *keys], directory)
        self.assert_code(result, 0)
        self.assertIn('checkpoint.every = "auto": training waits', self.log(directory))
        self.assertGreaterEqual(len([line for line in zr.metrics(directory) if line["kind"] == "checkpoint"]), 1)


zr.main()
