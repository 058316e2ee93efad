# SPDX-License-Identifier: Apache-2.0
"""Whole jobs that are killed at random times while checkpoints are written, and disks that are full:
the newest complete checkpoint is always whole, and what goes on from it is bitwise the run that was
left alone. ZEA_KILLS: how often a job is killed."""

import contextlib
import os
import random
import signal
import subprocess
import time
import unittest

import zea_run as zr

INSPECT = zr.ZEA_CONSOLIDATE.with_name("zea-inspect")
STEPS = 60
KILLS = int(os.environ.get("ZEA_KILLS", "2"))
DISK_BYTES = 4 << 20


class Faults(zr.ZeaTest):
    @classmethod
    def setUpClass(cls):
        """What all tests compare with: a run that nothing disturbs."""
        cls.shared = zr.make_folder(cls.addClassCleanup)
        cls.weights = zr.make_weights(cls.shared / "weights.h5")
        cls.train = zr.make_dataset(cls.shared / "train.h5", zr.mixed_samples(22))
        cls.deck = zr.write_deck(cls.shared, cls.weights, cls.train)
        cls.alone = cls.shared / "alone"
        result = zr.run_zea(2, cls.arguments(cls.alone), cls.alone)
        assert result.code == 0, result.output

    @classmethod
    def arguments(cls, directory, *overrides):
        return ["-i", cls.deck, "-d", directory, f"schedule.steps={STEPS}", *overrides]

    def setUp(self):
        super().setUp()
        self.directory = self.folder / "run"

    def assert_same_as_alone(self):
        self.assertEqual(zr.last_step(self.directory), STEPS)
        self.assertEqual(zr.numbers_of_steps(self.directory), zr.numbers_of_steps(self.alone))
        self.assert_same_arrays(
            zr.read_checkpoint(zr.checkpoints(self.alone)[-1]),
            zr.read_checkpoint(zr.checkpoints(self.directory)[-1]),
        )

    def start_or_resume(self):
        keys = ["checkpoint.every=2", "checkpoint.rate_limit_mib=4"]
        if zr.checkpoints(self.directory):
            return zr.start(2, ["-r", self.directory, *keys], self.directory)
        return zr.start(2, self.arguments(self.directory, *keys), self.directory)

    def kill_everything(self, run):
        for process in [run.process.pid, *run.rank_processes()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        run.process.wait()

    def test_killed_at_random_times(self):
        choice = random.Random(20261121)
        for kill in range(KILLS):
            step = zr.last_step(self.directory)
            with self.start_or_resume() as run:
                begun = len(zr.metrics(self.directory))
                run.wait_until(lambda: len(zr.metrics(self.directory)) > begun, "a step")
                time.sleep(choice.uniform(0, 0.6))
                if run.process.poll() is not None:
                    break  # it was at its end already
                self.kill_everything(run)
            left = zr.checkpoints(self.directory)
            if left:
                subprocess.run([INSPECT, "--check", left[-1]], check=True, capture_output=True)
            self.assertGreaterEqual(zr.last_step(self.directory), min(step, 1), f"kill {kill}")
        with self.start_or_resume() as run:
            self.assertEqual(run.wait(), 0, run.output)
        self.assert_same_as_alone()

    def small_disk(self):
        """A file system of a few MiB with the run's directory on it."""
        if os.geteuid() != 0:
            raise unittest.SkipTest("a small file system is mounted by root alone")
        disk = self.folder / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
        if subprocess.run(mount, capture_output=True).returncode != 0:
            raise unittest.SkipTest("no file system can be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", str(disk)], check=True)
        self.directory = disk / "run"
        return disk

    def fill(self, disk, free_bytes):
        """Leaves so much room on it."""
        found = os.statvfs(disk)
        (disk / "filler").write_bytes(bytes(found.f_bavail * found.f_frsize - free_bytes))

    def test_full_disk_stops(self):
        self.small_disk()
        result = zr.run_zea(
            2, self.arguments(self.directory, "checkpoint.every=5", "checkpoint.keep=0")
        )
        self.assert_code(result, 7)
        self.assertRegex(result.output, r"checkpoints: a checkpoint needs \d+ bytes, free are \d+")
        left = zr.checkpoints(self.directory)
        self.assertGreaterEqual(len(left), 2)
        for checkpoint in left:
            subprocess.run([INSPECT, "--check", checkpoint], check=True, capture_output=True)
        self.assertEqual(list(self.directory.glob("checkpoints/*.tmp")), [])

    def test_full_disk_is_survived(self):
        disk = self.small_disk()
        self.fill(disk, 256 << 10)
        keys = ["checkpoint.every=5", "checkpoint.on_failure=continue"]
        with zr.start(2, self.arguments(self.directory, *keys), self.directory) as run:
            run.wait_until(lambda: "no checkpoint was written" in run.output, "a failed save")
            (disk / "filler").unlink()
            self.assertEqual(run.wait(), 0, run.output)
            self.assertRegex(run.output, r"no checkpoint was written: rank 0: .* free are \d+")
        self.assert_same_as_alone()

    def test_the_last_checkpoint_must_be_written(self):
        disk = self.small_disk()
        self.fill(disk, 256 << 10)
        keys = ["checkpoint.on_failure=continue", "schedule.steps=4"]
        result = zr.run_zea(2, self.arguments(self.directory, *keys))
        self.assert_code(result, 7)


zr.main()
