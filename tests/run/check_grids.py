# SPDX-License-Identifier: Apache-2.0
"""Tensor and context parallelism change neither training nor the model that comes out of it, and the
tools read what any grid wrote."""

import subprocess

import numpy as np
import zea_run as zr

STEPS = 6
VOCABULARY = 41  # which two tp ranks pad
TENSOR = ["mesh.llm.tp=2"]  # two ranks hold the one KV head; images are distributed over both
BOTH = ["mesh.llm.tp=2", "mesh.llm.cp=2", "mesh.llm.cp_block=4", "mesh.vision.tp=2"]


class Grids(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        zr.CONFIG["text_config"].update(vocab_size=VOCABULARY, num_key_value_heads=1)
        self.deck = zr.write_inputs(
            self.folder,
            zr.mixed_samples(4 * STEPS),
            schedule=[f"steps = {STEPS}"],
            precision=['preset = "fp64"'],
            checkpoint=["every = 3", "keep = 9"],
            eval=["every = 6", "samples = 6", "generate_tokens = 3"],
        )

    def train(self, name, ranks, *keys):
        return self.run_in(self.folder / name, ranks, "-i", self.deck, *keys)

    def consolidate(self, *arguments):
        subprocess.run([zr.ZEA_CONSOLIDATE, *arguments], check=True, timeout=60)

    def test_grids(self):
        alone = self.train("alone", 1).losses()
        self.assertEqual(list(alone), list(range(1, STEPS + 1)))
        self.assertEqual(len(zr.predictions(self.folder / "alone")), 6)
        for name, ranks, keys in [("tensor", 4, TENSOR), ("both", 4, BOTH)]:
            self.assert_same_losses(self.train(name, ranks, *keys).losses(), alone, 1e-9)
            self.assertEqual(zr.predictions(self.folder / name), zr.predictions(self.folder / "alone"), name)
            self.check_models(name)
        self.check_goes_on_as_another_grid(alone)

    def check_models(self, name):
        """The tools' outputs for a grid's checkpoint must equal one rank's."""
        written = zr.checkpoints(self.folder / name)[-1]
        self.assertEqual(len(list(written.glob("rank-*.h5"))), 4)
        model, again = self.folder / f"{name}.h5", self.folder / f"{name}-again"
        self.consolidate(written, model)
        self.consolidate("--ranks", "3", written, again)
        whole, expected = zr.read_checkpoint(written), zr.read_checkpoint(
            zr.checkpoints(self.folder / "alone")[-1]
        )
        self.assert_same_arrays(zr.read_arrays(model), zr.read_arrays(written / "model.h5"))
        self.assert_same_arrays(zr.read_checkpoint(again), whole)
        self.assertEqual(whole.keys(), expected.keys())
        head = ("language_model.lm_head.weight", "parameter")
        self.assertEqual(whole[head].shape, (VOCABULARY, 24))
        for key, values in whole.items():
            np.testing.assert_allclose(values, expected[key], rtol=0, atol=1e-10, err_msg=str(key))

    def check_goes_on_as_another_grid(self, alone):
        written = self.folder / "tensor" / "checkpoints" / "step-00000003"
        rest = {step: alone[step] for step in range(4, STEPS + 1)}
        one = self.run_in(self.folder / "one", 1, "-r", written, "mesh.llm.tp=1")
        self.assert_same_losses(one.losses(), rest, 1e-9)
        keys = ["mesh.llm.tp=1", "mesh.llm.cp=2", "mesh.llm.cp_block=4"]
        other = self.run_in(self.folder / "other", 4, "-r", written, *keys)
        self.assert_same_losses(other.losses(), rest, 1e-9)


zr.main()
