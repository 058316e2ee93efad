# SPDX-License-Identifier: Apache-2.0
"""Disks that are full, fill up or cannot be written to: the newest complete checkpoint is always whole, and what goes
on is bitwise the run that was left alone. Skipped where no file system can be mounted."""

import contextlib
import os
import subprocess
import unittest

import zea_run as zr
from disturbed_run import DisturbedRun

FOR_EVER = "schedule.steps=1000000"  # where a test has to come before the end
DISK_BYTES = 4 << 20


class FullDisk(DisturbedRun):
    def leave_with_a_checkpoint(self, run):
        """Waits for a newer checkpoint than the existing ones, then leaves."""
        before = zr.checkpoints(self.directory)[-1:]
        run.wait_until(lambda: zr.checkpoints(self.directory)[-1:] > before, "a checkpoint")
        (self.directory / "STOP").touch()
        self.assertEqual(run.wait(), 75, run.output)
        self.assert_same_as_alone(zr.last_step(self.directory))

    def mount(self, folder, *options):
        """A file system in memory."""
        if os.geteuid() != 0:
            raise unittest.SkipTest("a file system is mounted by root alone")
        folder.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)]
        if subprocess.run(mount, capture_output=True).returncode != 0:
            raise unittest.SkipTest("no file system can be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", str(folder)], check=True)
        return folder

    def small_disk(self):
        """A file system of a few MiB with the run's directory on it."""
        disk = self.mount(self.folder / "disk", "-o", f"size={DISK_BYTES}")
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
        self.assertGreaterEqual(len(zr.checkpoints(self.directory)), 2)
        self.assert_only_whole_checkpoints()

    def test_full_disk_is_survived(self):
        disk = self.mount(self.directory / "checkpoints", "-o", f"size={DISK_BYTES}")
        self.fill(disk, 256 << 10)
        keys = [FOR_EVER, "checkpoint.every=5", "checkpoint.on_failure=continue"]
        with zr.start(2, self.arguments(self.directory, *keys), self.directory) as run:
            self.wait_for_failed_save(run)
            (disk / "filler").unlink()
            self.leave_with_a_checkpoint(run)
            self.assertRegex(run.output, r"no checkpoint was written: rank 0: .* free are \d+")

    @contextlib.contextmanager
    def standing_still(self, run):
        run.pause_ranks()
        yield
        run.resume_ranks()

    def wait_for_failed_save(self, run):
        def has_failed():
            return "no checkpoint was written" in run.output or run.process.poll() is not None

        run.wait_until(has_failed, "a failed save")

    def assert_only_whole_checkpoints(self):
        for checkpoint in zr.checkpoints(self.directory):
            subprocess.run([zr.ZEA_INSPECT, "--check", checkpoint], check=True, capture_output=True)
        self.assertEqual(list(self.directory.glob("checkpoints/*.tmp")), [])

    def is_writing(self):
        """Whether every rank has written some of its file, and not the last of them."""
        files = self.directory.glob("checkpoints/*.tmp/rank-*.h5")
        return sum(file.stat().st_blocks > 0 for file in files) == 2

    def test_disk_fills_while_a_save_is_written(self):
        """After the free space was looked at, and the first bytes were written."""
        disk = self.mount(self.directory / "checkpoints", "-o", f"size={DISK_BYTES}")
        keys = [FOR_EVER, "checkpoint.every=15", "checkpoint.rate_limit_mib=0.1", "checkpoint.on_failure=continue"]
        with zr.start(2, self.arguments(self.directory, *keys), self.directory) as run:
            run.wait_until(self.is_writing, "a save")
            with self.standing_still(run):
                self.assertTrue(self.is_writing())
                self.fill(disk, 0)
            self.wait_for_failed_save(run)
            with self.standing_still(run):
                (disk / "filler").unlink()
            self.leave_with_a_checkpoint(run)
            self.assertRegex(run.output, r"(rank|frozen)-\d+\.h5: .*No space left on device")
        self.assert_only_whole_checkpoints()

    def test_directory_that_becomes_read_only(self):
        disk = self.mount(self.directory / "checkpoints")
        keys = [FOR_EVER, "checkpoint.every=10", "checkpoint.on_failure=stop"]
        with zr.start(2, self.arguments(self.directory, *keys), self.directory) as run:
            run.wait_until(lambda: zr.checkpoints(self.directory), "a checkpoint")
            run.wait_until(lambda: self.remounts(run, disk, "ro"), "moment without a save")
            self.wait_for_failed_save(run)
            self.assertTrue(self.remounts(run, disk, "rw"))
            self.assertEqual(run.wait(), 7, run.output)
            self.assertIn("Read-only file system", run.output)
        # The next start removes the rest.
        steps = zr.last_step(self.directory) + 20
        keys = ["-r", self.directory, f"schedule.steps={steps}"]
        self.assert_code(zr.run_zea(2, keys, self.directory), 0)
        self.assert_only_whole_checkpoints()
        self.assert_same_as_alone(steps)

    def remounts(self, run, disk, mode):
        """False: a file is open for writing."""
        command = ["mount", "-o", f"remount,{mode}", str(disk)]
        with self.standing_still(run):
            return subprocess.run(command, capture_output=True).returncode == 0

    def test_the_last_checkpoint_must_be_written(self):
        disk = self.small_disk()
        self.fill(disk, 256 << 10)
        keys = ["checkpoint.on_failure=continue", "schedule.steps=4"]
        result = zr.run_zea(2, self.arguments(self.directory, *keys))
        self.assert_code(result, 7)


zr.main()
