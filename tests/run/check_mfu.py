# SPDX-License-Identifier: Apache-2.0
"""Metrics and log tell model FLOP/s, and MFU where the peak of the ranks' devices is known."""

import json

import zea_run as zr

ROW_TOKENS = 12  # a text sample of zea_run's
TARGETS = 11  # all but the first
PEAK = 0.25  # TFLOP/s


class Mfu(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        self.deck = zr.write_inputs(self.folder, [zr.text_sample(i) for i in range(12)])

    def train(self, ranks, *overrides):
        keys = [f"data.row_tokens={ROW_TOKENS}", "schedule.steps=3", "schedule.global_batch=4", "log.every=1"]
        return self.run_in(self.folder / f"ranks{ranks}", ranks, "-i", self.deck, *keys, *overrides)

    def tflop_of_a_step(self, result, ranks):
        """Returns the FLOPs of each step, from its rate and its time."""
        return [
            ranks * line["model_tflops"] * 4 / line["samples_per_second"] for line in zr.train_lines(result.directory)
        ]

    def test_is_of_the_peak_that_the_deck_gives(self):
        result = self.train(2, f"run.peak_tflops={PEAK}")

        lines = zr.train_lines(result.directory)
        self.assertEqual(len(lines), 3)
        for line in lines:
            self.assertGreater(line["mfu"], 0)
            self.assertAlmostEqual(line["mfu"], line["model_tflops"] / PEAK, delta=1e-9 * line["mfu"])
            self.assertGreater(line["mfu_unmasked"], line["mfu"])
        self.assertIn("MFU is of 0.5 TFLOP/s of 2 ranks (run.peak_tflops)", result.output)
        self.assertRegex(result.output, r"step 3/3 .* TFLOP/s a rank, MFU \d+\.\d % \(\d+\.\d % unmasked\)")

    def test_without_a_peak_there_are_model_flops_alone(self):
        one, two = self.train(1), self.train(2)

        self.assertNotIn("MFU", one.output)
        self.assertNotIn("mfu", zr.train_lines(one.directory)[0])
        self.assertRegex(one.output, r"step 3/3 .* TFLOP/s a rank")
        # All samples are alike, and so are steps, on any number of ranks.
        steps = [*self.tflop_of_a_step(one, 1), *self.tflop_of_a_step(two, 2)]
        for step in steps:
            self.assertAlmostEqual(step, steps[0], delta=1e-9 * steps[0])

    def test_tokens_are_those_of_all_ranks(self):
        for ranks in (1, 2):
            directory = self.train(ranks).directory
            for line in zr.train_lines(directory):
                self.assertEqual(line["targets"], 4 * TARGETS)
                self.assertAlmostEqual(line["tokens_per_second"] / line["samples_per_second"], ROW_TOKENS, delta=1e-6)
            position = json.loads((zr.checkpoints(directory)[-1] / "manifest.json").read_text())["position"]
            found = [position[key] for key in ("samples", "tokens", "target_tokens")]
            self.assertEqual(found, [12, 12 * ROW_TOKENS, 12 * TARGETS])

    def test_gpu_memory_is_reported_only_for_gpus(self):
        self.assertNotIn("gpu_memory", zr.train_lines(self.train(1).directory)[0])


if __name__ == "__main__":
    zr.main()
