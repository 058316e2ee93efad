# SPDX-License-Identifier: Apache-2.0
"""Trains under one fault after the other, drawn at random: ranks are killed or stopped, the disk fails, is slow or
full, shared memory is full, the clock jumps, a checkpoint is damaged, a rank is lost. Each time the run resumes from
its newest checkpoint. It reaches its last step and ends bit for bit as a run without faults (within rounding if the
number of ranks changed). It leaves nothing in shared memory and among temporary files.

ZEA_SOAK_SECONDS: how long (every kind of fault comes at least once); ZEA_SOAK_SEED: another order.
ZEA_FAULTY_CALLS: the library of faulty_calls.cpp. Skipped where no file system can be mounted."""

import contextlib
import ctypes
import errno
import os
import random
import re
import signal
import struct
import subprocess
import time
import unittest
from collections import Counter
from pathlib import Path

import numpy as np
import zea_run as zr
from check_damage import flip
from disturbed_run import DisturbedRun

SECONDS = float(os.environ.get("ZEA_SOAK_SECONDS", "600"))
SEED = int(os.environ.get("ZEA_SOAK_SEED", "1"))
EVERY = 20  # steps between checkpoints
DEADLINE = 10  # seconds, of the watchdog
SOON = 30  # seconds until processes are gone, on a machine that is busy
ROUNDING = 1e-6  # of fp64 after hundreds of steps, which amplify it
NEW_MOUNTS = 0x20000
KINDS = (
    "kill_a_rank", "kill_mpirun", "stop_a_rank", "fill_the_disk", "fail_writes", "slow_the_disk",
    "fill_shared_memory", "put_the_clock_back", "put_the_clock_forward", "flip_a_bit", "lose_a_rank",
)  # fmt: skip


class Soak(DisturbedRun):
    STEPS = 400

    @classmethod
    def setUpClass(cls):
        cls.mount_own_shared_memory()
        super().setUpClass()
        cls.disk = cls.shared / "disk"
        cls.disk.mkdir()
        cls.mount(cls.disk, "64m")
        cls.page = cls.shared / "faults"
        cls.set_faults()
        cls.temporary = cls.shared / "tmp"
        cls.temporary.mkdir()
        os.environ.update(
            LD_PRELOAD=os.environ["ZEA_FAULTY_CALLS"], ZEA_FAULTS=str(cls.page), ZEA_FAULTS_BELOW=str(cls.disk),
            TMPDIR=str(cls.temporary),
        )  # fmt: skip
        cls.keys = [
            f"checkpoint.every={EVERY}", "checkpoint.keep=3", f"run.watchdog_seconds={DEADLINE}",
            "precision.preset=fp64", "optim.lr=0.0005",  # with 0.005 the steps amplify rounding to 0.1
        ]  # fmt: skip

    @classmethod
    def arguments(cls, directory, *overrides):
        return super().arguments(directory, *cls.keys, *overrides)

    @classmethod
    def mount_own_shared_memory(cls):
        """A /dev/shm of this process and its children alone."""
        libc = ctypes.CDLL(None)
        if os.geteuid() != 0 or libc.unshare(NEW_MOUNTS) != 0:
            raise unittest.SkipTest("file systems are mounted by root alone")
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        cls.mount("/dev/shm", "64m")

    @classmethod
    def mount(cls, folder, size):
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if subprocess.run(mount, capture_output=True).returncode != 0:
            raise unittest.SkipTest("no file system can be mounted here")
        cls.addClassCleanup(subprocess.run, ["umount", "-l", str(folder)], check=True)

    @classmethod
    def set_faults(cls, error=0, delay_ms=0, clock_seconds=0):
        """Written in place: processes have the file in their memory."""
        with cls.page.open("r+b" if cls.page.exists() else "wb") as file:
            file.write(struct.pack("<3q", error, delay_ms, clock_seconds))

    def setUp(self):
        super().setUp()
        self.finished = 0
        self.most_lost = 0
        self.begin_another()

    def begin_another(self):
        self.directory = self.disk / f"run-{self.finished}"
        self.is_rounded = False

    def start_or_resume(self, ranks=2):
        if zr.checkpoints(self.directory):
            return zr.start(ranks, ["-r", self.directory, *self.keys], self.directory)
        return zr.start(ranks, self.arguments(self.directory), self.directory)

    @contextlib.contextmanager
    def running(self, ranks=2):
        """A run that has made steps since its start, after a random time."""
        begun = len(zr.metrics(self.directory))
        with self.start_or_resume(ranks) as run:
            run.wait_until(lambda: len(zr.metrics(self.directory)) > begun + 1, "a step")
            time.sleep(self.draw.uniform(0, 0.4))
            yield run

    def assert_says(self, run, code, cause):
        self.assertEqual(run.wait(), code, run.output)
        self.assertRegex(run.output, cause)

    def assert_goes_on(self, run):
        """Takes another checkpoint, and leaves when it is told to; or comes to its end."""
        before = zr.last_step(self.directory)
        until = min(before + EVERY, self.STEPS)
        run.wait_until(lambda: zr.last_step(self.directory) >= until, f"step {until}")
        (self.directory / "STOP").touch()
        self.assertIn(run.wait(), (0, 75), run.output)
        (self.directory / "STOP").unlink(missing_ok=True)

    @staticmethod
    @contextlib.contextmanager
    def naming(kind, number):
        """The first fault whose test fails ends the soak: what it left behind would fail the next ones."""
        try:
            yield
        except BaseException as error:
            error.add_note(f"in fault {number}, {kind}")
            raise

    @contextlib.contextmanager
    def ending_faults(self):
        """So that a fault whose test fails does not meet the next one."""
        try:
            yield
        finally:
            self.set_faults()
            for filler in (self.disk / "filler", Path("/dev/shm/filler")):
                filler.unlink(missing_ok=True)

    # The faults.

    def kill_a_rank(self):
        with self.running() as run:
            killed = self.draw.randrange(2)
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(run.rank_processes()[killed], signal.SIGKILL)
            if run.wait() != 0:  # not at its end before
                self.assertRegex(run.output, f"rank {killed} .*signal 9")

    def kill_mpirun(self):
        with self.running() as run:
            run.process.kill()
            run.process.wait()

    def stop_a_rank(self):
        with self.running() as run:
            stopped = self.draw.randrange(2)
            ranks = run.rank_processes()
            if len(ranks) == 2:
                os.kill(ranks[stopped], signal.SIGSTOP)
            while run.process.poll() is None and zr.last_step(self.directory) < self.STEPS:
                time.sleep(0.1)
            run.resume_ranks(ranks)  # a run that was at its end has no watchdog any more
            if run.wait() != 0:
                self.assert_says(run, 6, rf"the run hangs: .*rank {stopped} .* is behind: its process does not run")

    def fill_the_disk(self):
        with self.running() as run:
            found = os.statvfs(self.disk)
            filler = self.disk / "filler"
            with contextlib.suppress(OSError):  # the run writes, too
                filler.write_bytes(bytes(found.f_bavail * found.f_frsize))
            code = run.wait()
            filler.unlink()
            if code != 0:
                self.assert_says(run, 7, "free are|No space left on device")

    def fail_writes(self):
        with self.running() as run:
            self.set_faults(error=errno.EIO)
            code = run.wait()
            self.set_faults()
            if code != 0:
                self.assert_says(run, 7, "Input/output error")

    def slow_the_disk(self):
        with self.running() as run:
            self.set_faults(delay_ms=50)
            self.assert_goes_on(run)
            self.set_faults()

    def fill_shared_memory(self):
        """Before the start, and while the run goes on."""
        filler = Path("/dev/shm/filler")
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(1 << 20))
        with self.running() as run:
            self.assertRegex(run.output, "/dev/shm")
            filler.unlink()
            self.assert_goes_on(run)
        with self.running() as run:
            with contextlib.suppress(OSError), filler.open("wb") as file:
                while True:
                    file.write(bytes(1 << 20))
            self.assert_goes_on(run)
        filler.unlink()

    def jump(self, seconds):
        with self.running() as run:
            self.set_faults(clock_seconds=seconds)
            self.assert_goes_on(run)
            self.set_faults()

    def put_the_clock_back(self):
        self.jump(-86400)

    def put_the_clock_forward(self):
        self.jump(86400)

    def flip_a_bit(self):
        while len(zr.checkpoints(self.directory)) < 2:
            with self.running() as run:
                self.assert_goes_on(run)
        found = zr.checkpoints(self.directory)
        flip(found[-1], None)
        with self.running() as run:
            self.assertRegex(run.output, rf"(?s)passed over.*{found[-1].name}.*resuming from")
            self.assert_goes_on(run)

    def lose_a_rank(self):
        """For good: the run is started on what is left, and then on what it had."""
        self.is_rounded = True
        with self.running(ranks=1) as run:
            self.assert_goes_on(run)

    # Checks after each fault.

    def check_nothing_is_left(self):
        gone_by = time.monotonic() + SOON
        while left := zr.processes_of(self.directory):
            self.assertLess(time.monotonic(), gone_by, f"{left} still run")
            time.sleep(0.05)
        for segment in Path("/dev/shm").glob("vader_segment.*"):  # Open MPI's, of killed processes
            segment.unlink()
        self.assertEqual(os.listdir("/dev/shm"), [])
        self.assertEqual([name for name in os.listdir(self.temporary) if "zea" in name], [])

    def check_what_was_lost(self):
        """A fault costs at most the steps since the newest checkpoint that was due, and one that was being written."""
        step = zr.last_step(self.directory)
        newest = zr.checkpoints(self.directory)[-1:]
        saved = int(newest[0].name.split("-")[1]) if newest else 0
        self.most_lost = max(self.most_lost, step - saved)
        self.assertLessEqual(step - saved, 2 * EVERY, f"at step {step}, {newest}")

    def check_end(self):
        """Brings the run to its end, and begins another."""
        with self.start_or_resume() as run:
            self.assertEqual(run.wait(), 0, run.output)
        if self.is_rounded:
            self.assert_close_to_alone()
        else:
            self.assert_same_as_alone(self.STEPS)
        subprocess.run(["rm", "-r", self.directory], check=True)
        self.finished += 1
        self.begin_another()

    def assert_close_to_alone(self):
        alone = self.shared / f"alone-{self.STEPS}"
        if not alone.exists():
            self.assert_code(zr.run_zea(2, self.arguments(alone), alone), 0)
        expected = zr.last_arrays(alone)
        for name, array in zr.last_arrays(self.directory).items():
            np.testing.assert_allclose(array, expected[name], ROUNDING, ROUNDING, err_msg=str(name))

    def test_faults(self):
        self.draw = random.Random(SEED)
        end = time.monotonic() + SECONDS
        seen = Counter()
        while time.monotonic() < end or len(seen) < len(KINDS):
            order = list(KINDS)
            self.draw.shuffle(order)
            for kind in order:
                if time.monotonic() > end and seen[kind]:
                    continue
                with self.naming(kind, seen.total()), self.ending_faults():
                    getattr(self, kind)()
                    self.check_nothing_is_left()
                    self.check_what_was_lost()
                seen[kind] += 1
                if zr.last_step(self.directory) >= self.STEPS - 2 * EVERY:
                    self.check_end()
        self.check_end()
        print(f"{seen.total()} faults ({dict(seen)}), {self.finished} runs to their ends, at most {self.most_lost} "
              f"steps lost, {EVERY} between checkpoints")  # fmt: skip


zr.main()
