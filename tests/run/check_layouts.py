# SPDX-License-Identifier: Apache-2.0
"""The number of ranks changes neither training nor the model that comes out of it."""

import subprocess

import numpy as np
import zea_run as zr

STEPS = 6
SKIPPED = 3  # the step whose samples have no target


def samples():
    """Batches of five: of images and text, one of text alone, and one to learn nothing from."""
    mixed = zr.mixed_samples(5 * STEPS)
    mixed[0:5] = [zr.text_sample(100 + i) for i in range(5)]
    first = 5 * (SKIPPED - 1)
    mixed[first : first + 5] = [zr.text_sample(200 + i, learnt=0) for i in range(5)]
    return mixed


class Layouts(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        self.deck = zr.write_inputs(self.folder, samples())

    def train(self, ranks, *overrides):
        keys = [f"schedule.steps={STEPS}", "schedule.global_batch=5", *overrides]
        result = self.run_in(self.folder / f"ranks{ranks}", ranks, "-i", self.deck, *keys)
        self.assertEqual(
            result.output.count(f"step {SKIPPED}: the global batch has no target token"),
            1,
            result.output,
        )
        return result

    def consolidate(self, source, name):
        target = self.folder / name
        subprocess.run([zr.ZEA_CONSOLIDATE, source, target], check=True, timeout=60)
        return zr.read_arrays(target)

    def test_ranks(self):
        alone = self.train(1).losses()
        self.assertEqual(list(alone), list(range(1, STEPS + 1)))
        self.assertEqual([step for step, loss in alone.items() if loss is None], [SKIPPED])
        self.assert_same_losses(self.train(3, "checkpoint.every=2").losses(), alone, 1e-4)
        four = self.train(4).losses()
        self.assert_same_losses(four, alone, 1e-4)
        self.check_checks_change_nothing(four)
        self.check_three_ranks_go_on_as_two(alone)
        self.check_model_of_four_ranks_on_one()

    def check_checks_change_nothing(self, expected):
        """Sums over ranks that share a node, which add in order of rank; and replays of steps."""
        keys = [f"schedule.steps={STEPS}", "schedule.global_batch=5", "run.collective_checksums=true"]
        result = self.run_in(self.folder / "checked", 4, "-i", self.deck, *keys, "run.replay_every=2")
        self.assertEqual(result.losses(), expected)
        self.assertEqual([line for line in zr.metrics(self.folder / "checked") if line["kind"] == "replay"], [])

    def check_three_ranks_go_on_as_two(self, alone):
        written = self.folder / "ranks3" / "checkpoints" / "step-00000004"
        result = self.run_in(self.folder / "two", 2, "-r", written)
        self.assert_same_losses(result.losses(), {step: alone[step] for step in (5, 6)}, 1e-4)

    def check_model_of_four_ranks_on_one(self):
        written = zr.checkpoints(self.folder / "ranks4")[-1]
        self.assertEqual(len(list(written.glob("rank-*.h5"))), 4)
        again = self.folder / "again"

        self.run_in(again, 1, "-r", written)

        self.assertEqual(zr.train_lines(again), [])
        self.assertEqual(len(list(zr.checkpoints(again)[-1].glob("rank-*.h5"))), 1)
        model = self.consolidate(written, "four.h5")
        self.assertGreater(len(model), 30)
        self.assertTrue(all(np.isfinite(values).all() for values in model.values()))
        self.assert_same_arrays(model, self.consolidate(again, "one.h5"))
        self.assert_same_arrays(model, zr.read_arrays(written / "model.h5"))
        self.assert_same_arrays(zr.read_checkpoint(written), zr.last_arrays(again))


zr.main()
