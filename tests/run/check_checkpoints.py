# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are written while training goes on: the same training, the same checkpoints, none
lost by leaving, ending or a full disk, and what they cost is logged."""

import signal

import zea_run as zr

STEPS = 20
# Each of two ranks writes about 150 KiB: a save lasts for several steps, also on a busy machine.
SLOW_MIB = 0.15
SLOW = f"checkpoint.rate_limit_mib={SLOW_MIB}"


class Checkpoints(zr.ZeaTest):
    @classmethod
    def setUpClass(cls):
        """Makes the reference of all tests: every checkpoint of a run that waits for them."""
        cls.shared = zr.make_folder(cls.addClassCleanup)
        cls.deck = zr.write_inputs(cls.shared, zr.mixed_samples(22))
        cls.waited = cls.shared / "waited"
        result = cls.train_in(
            cls.waited, "checkpoint.async=false", "checkpoint.every=1", "checkpoint.keep=0"
        )
        assert result.code == 0, result.output

    @classmethod
    def arguments(cls, directory, *overrides):
        return ["-i", cls.deck, "-d", directory, f"schedule.steps={STEPS}", *overrides]

    @classmethod
    def train_in(cls, directory, *overrides):
        return zr.run_zea(2, cls.arguments(directory, *overrides), directory)

    def setUp(self):
        super().setUp()
        self.directory = self.folder / "run"

    def saves(self, directory=None):
        lines = zr.metrics(directory or self.directory)
        return [line for line in lines if line["kind"] == "checkpoint"]

    def assert_all_as_waited(self, least):
        """Every checkpoint there is equals the one of a run that waited, bit for bit."""
        found = zr.checkpoints(self.directory)
        self.assertGreaterEqual(len(found), least)
        for checkpoint in found:
            self.assert_same_arrays(
                zr.read_checkpoint(checkpoint),
                zr.read_checkpoint(self.waited / "checkpoints" / checkpoint.name),
            )
        for step, numbers in zr.numbers_of_steps(self.directory).items():
            self.assertEqual(numbers, zr.numbers_of_steps(self.waited)[step])

    def test_same_training_and_same_checkpoints(self):
        result = self.train_in(
            self.directory, SLOW, "checkpoint.every=6", "checkpoint.keep=0"
        )

        self.assert_code(result, 0)
        self.assertEqual(zr.last_step(self.directory), STEPS)
        self.assertEqual([line["step"] for line in self.saves()], [6, 12, 18, 20])
        self.assert_all_as_waited(4)
        first = self.saves()[0]
        self.assertGreater(first["copied_bytes"], 0, "the save was too fast to test anything")
        self.assertGreater(first["bytes"], first["copied_bytes"])
        self.assertGreaterEqual(first["seconds_to_write"], first["stall_seconds"])
        self.assertIn("training stood still for", result.output)
        self.assertRegex(result.output, r"wrote .*: [0-9.]+ MiB at [0-9]+ MiB/s")

        # The rate of both ranks together while they wrote: at most the limit.
        for save in self.saves():
            mib = save["bytes"] / 2**20
            self.assertLessEqual(save["mib_per_second"], 2 * SLOW_MIB * 1.05)
            self.assertGreaterEqual(save["mib_per_second"], mib / save["seconds_to_write"] * 0.99)
        fastest = max(save["mib_per_second"] for save in self.saves(self.waited))
        self.assertGreater(fastest, 4 * SLOW_MIB, "without a limit")

    def test_a_save_under_way_is_finished_first(self):
        keys = ["checkpoint.rate_limit_mib=1", "checkpoint.every=1", "checkpoint.keep=0"]
        result = self.train_in(self.directory, *keys)

        self.assert_code(result, 0)
        self.assert_all_as_waited(STEPS)

    def test_leaving_while_a_save_is_under_way(self):
        arguments = self.arguments(
            self.directory, "checkpoint.rate_limit_mib=0.1", "checkpoint.every=3"
        )
        with zr.start(2, arguments, self.directory) as run:
            run.wait_for_step(4)
            run.process.send_signal(signal.SIGUSR2)
            self.assertEqual(run.wait(), 75, run.output)

        last = zr.last_step(self.directory)
        self.assertEqual(zr.checkpoints(self.directory)[-1].name, f"step-{last:08}")
        self.assert_all_as_waited(2)
        self.assertEqual(list(self.directory.glob("checkpoints/*.tmp")), [])
        self.assert_code(zr.run_zea(2, ["-r", self.directory, SLOW], self.directory), 0)
        self.assert_all_as_waited(2)


zr.main()
