# SPDX-License-Identifier: Apache-2.0
"""The common part of tests of disturbed runs: a run of two ranks, and the undisturbed run with the same number of
steps."""

import zea_run as zr


class DisturbedRun(zr.ZeaTest):
    STEPS = 60

    @classmethod
    def setUpClass(cls):
        cls.shared = zr.make_folder(cls.addClassCleanup)
        # So that a step is the same however many are to come.
        cls.deck = zr.write_inputs(cls.shared, zr.mixed_samples(22), optim=['decay = "constant"'])

    @classmethod
    def arguments(cls, directory, *overrides):
        return ["-i", cls.deck, "-d", directory, f"schedule.steps={cls.STEPS}", *overrides]

    def setUp(self):
        super().setUp()
        self.directory = self.folder / "run"

    def run_alone(self, steps):
        """Returns the directory of a run without faults, which is made once."""
        alone = self.shared / f"alone-{steps}"
        if not alone.exists():
            keys = self.arguments(alone, f"schedule.steps={steps}")
            self.assert_code(self.run_undisturbed(keys, alone), 0)
        return alone

    @staticmethod
    def run_undisturbed(arguments, directory):
        return zr.run_zea(2, arguments, directory)

    def assert_same_as_alone(self, steps):
        alone = self.run_alone(steps)
        self.assertEqual(zr.last_step(self.directory), steps)
        self.assertEqual(zr.numbers_of_steps(self.directory), zr.numbers_of_steps(alone))
        self.assert_same_arrays(zr.last_arrays(alone), zr.last_arrays(self.directory))
