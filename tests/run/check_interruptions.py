# SPDX-License-Identifier: Apache-2.0
"""Runs that are asked to save or to leave, killed, or started twice: nothing is lost, and what goes
on from there is bitwise the run that was left alone."""

import os
import signal
import time
from unittest import mock

import zea_run as zr

STEPS = 240


class Interruptions(zr.ZeaTest):
    @classmethod
    def setUpClass(cls):
        """What all tests compare with: a run that nothing disturbs."""
        cls.shared = zr.make_folder(cls.addClassCleanup)
        cls.weights = zr.make_weights(cls.shared / "weights.h5")
        cls.train = zr.make_dataset(cls.shared / "train.h5", zr.mixed_samples(22))
        cls.alone = cls.shared / "alone"
        deck = zr.write_deck(cls.shared, cls.weights, cls.train)
        result = zr.run_zea(2, ["-i", deck, "-d", cls.alone, f"schedule.steps={STEPS}"], cls.alone)
        assert result.code == 0, result.output

    def setUp(self):
        super().setUp()
        self.deck = zr.write_deck(self.folder, self.weights, self.train)
        self.directory = self.folder / "run"

    def arguments(self, *overrides):
        keys = [f"schedule.steps={STEPS}", *overrides]
        return ["-i", self.deck, "-d", self.directory, *keys]

    def assert_same_as_alone(self):
        self.assertEqual(zr.last_step(self.directory), STEPS)
        self.assertEqual(zr.numbers_of_steps(self.directory), zr.numbers_of_steps(self.alone))
        self.assert_same_arrays(
            zr.read_checkpoint(zr.checkpoints(self.alone)[-1]),
            zr.read_checkpoint(zr.checkpoints(self.directory)[-1]),
        )

    def wait_for_checkpoints(self, run, count):
        run.wait_until(lambda: len(zr.checkpoints(self.directory)) == count, f"{count} checkpoints")

    def test_save_and_leave_on_request(self):
        with mock.patch.dict(os.environ, SLURM_JOB_ID="1234"):
            first = zr.start(2, self.arguments("checkpoint.keep=0"), self.directory)
        with first as run:
            run.wait_for_step(5)
            (self.directory / "SAVE").touch()
            self.wait_for_checkpoints(run, 1)
            run.process.send_signal(signal.SIGUSR1)
            self.wait_for_checkpoints(run, 2)
            run.pause_ranks()
            self.check_second_run_is_refused(run.rank_processes()[0])
            (self.directory / "STOP").touch()
            run.resume_ranks()
            self.assertEqual(run.wait(), 75, run.output)
        self.assertEqual(len(zr.checkpoints(self.directory)), 3)
        self.assertEqual(
            {f.name for f in self.directory.iterdir()} & {"SAVE", "STOP", "LOCK"}, set()
        )
        left_at = zr.last_step(self.directory)
        self.assertLess(left_at, STEPS)

        with zr.start(2, ["-r", self.directory], self.directory) as run:
            run.wait_for_step(left_at + 5)
            run.process.send_signal(signal.SIGUSR2)
            self.assertEqual(run.wait(), 75, run.output)
            self.assertIn(f"go on with -r {self.directory}", run.output)
        self.assertLess(zr.last_step(self.directory), STEPS)

        self.assert_code(zr.run_zea(2, ["-r", self.directory], self.directory), 0)
        self.assert_same_as_alone()

    def check_second_run_is_refused(self, holder):
        begin = time.monotonic()
        result = zr.run_zea(1, self.arguments())
        self.assertLess(time.monotonic() - begin, 5)
        self.assert_code(result, 7)
        self.assertIn("is in use by host ", result.output)
        self.assertIn(f", process {holder}, job 1234;", result.output)
        self.assertTrue((self.directory / "LOCK").exists())

    def test_killed_rank_of_an_encoder(self):
        """One of the two ranks: the encoder has the first to itself."""
        own = ["mesh.placement=disjoint", "mesh.vision.dp_module=1", "checkpoint.every=20"]
        with zr.start(2, self.arguments(*own), self.directory) as run:
            run.wait_for_step(30)
            os.kill(run.rank_processes()[0], signal.SIGKILL)
            killed = time.monotonic()
            self.assertNotEqual(run.wait(), 0)
            self.assertLess(time.monotonic() - killed, 10)
        self.assertLess(zr.last_step(self.directory), STEPS)

        # On one grid of both ranks it goes on where it was: within rounding what it would have been.
        result = zr.run_zea(2, ["-r", self.directory, "mesh.placement=shared"], self.directory)
        self.assert_code(result, 0)
        self.assertEqual(zr.last_step(self.directory), STEPS)

    def test_killed_rank(self):
        with zr.start(
            2, self.arguments("checkpoint.every=20", "checkpoint.keep=3"), self.directory
        ) as run:
            run.wait_for_step(70)
            os.kill(run.rank_processes()[1], signal.SIGKILL)
            killed = time.monotonic()
            self.assertNotEqual(run.wait(), 0)
            self.assertLess(time.monotonic() - killed, 10)
        self.assertTrue((self.directory / "LOCK").exists())
        self.assertLess(zr.last_step(self.directory), STEPS)
        self.assertGreaterEqual(len(zr.checkpoints(self.directory)), 3)

        result = zr.run_zea(2, ["-r", self.directory], self.directory)
        self.assert_code(result, 0)
        self.assertEqual(result.output.count("took over the lock that host "), 1, result.output)
        self.assert_same_as_alone()
        left = sorted((self.directory / "checkpoints").iterdir())
        self.assertEqual([path.name for path in left], [f"step-{s:08}" for s in (200, 220, 240)])

    def test_wall_limit(self):
        hours_of_work = self.arguments("schedule.steps=1000000")
        begin = time.monotonic()
        result = zr.run_zea(2, [*hours_of_work, "-t", "0:00:03"], self.directory)
        self.assert_code(result, 75)
        self.assertLess(time.monotonic() - begin, 15)  # most of it to start and to end
        self.assertEqual(
            [c.name for c in zr.checkpoints(self.directory)],
            [f"step-{zr.last_step(self.directory):08}"],
        )


zr.main()
