# SPDX-License-Identifier: Apache-2.0
"""A resumed run is bitwise the run that was never interrupted, at the same layout."""

import zea_run as zr


class Resume(zr.ZeaTest):
    def check_bitwise(self, preset):
        weights = zr.make_weights(self.folder / "weights.h5")
        train = zr.make_dataset(self.folder / "train.h5", zr.mixed_samples(22))
        deck = zr.write_deck(
            self.folder,
            weights,
            train,
            schedule=["steps = 12"],  # more than two epochs, each in an order of its own
            precision=[f'preset = "{preset}"'],
            checkpoint=["every = 6", "keep = 0"],
            **{"mesh.vision": ['strategy = "no_shard"']},
        )
        whole, rest = self.folder / "whole", self.folder / "rest"

        shuffled = ["-i", deck, "data.shuffle=true"]
        self.assert_code(zr.run_zea(2, [*shuffled, "-d", whole], whole), 0)
        half = whole / "checkpoints" / "step-00000006"
        self.assert_code(zr.run_zea(2, ["-r", half, "-d", rest], rest), 0)

        expected = zr.numbers_of_steps(whole)
        self.assertEqual(list(expected), list(range(1, 13)))
        self.assertEqual(zr.numbers_of_steps(rest), {step: expected[step] for step in range(7, 13)})
        end = zr.read_checkpoint(whole / "checkpoints" / "step-00000012")
        self.assertEqual({state for _, state in end}, {"parameter", "exp_avg", "exp_avg_sq"})
        self.assert_same_arrays(end, zr.read_checkpoint(zr.checkpoints(rest)[-1]))

    def test_fp32(self):
        self.check_bitwise("fp32")

    def test_bf16(self):
        self.check_bitwise("bf16")


zr.main()
