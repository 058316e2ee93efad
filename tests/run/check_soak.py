# SPDX-License-Identifier: Apache-2.0
"""Trains under one fault after the other, drawn at random: ranks are killed or stopped, the disk fails, is slow or
full, shared memory is full, the clock jumps, a checkpoint is damaged, a rank is lost. Each time the run resumes from
its newest checkpoint. It reaches its last step and ends bit for bit as a run without faults (within rounding if the
number of ranks changed). It leaves nothing in shared memory and among temporary files.

Environment variables of drawn_faults.py set duration and faults; ZEA_FAULTY_CALLS: the library of faulty_calls.cpp.
Skipped where no file system can be mounted."""

import contextlib
import ctypes
import errno
import os
import signal
import struct
import subprocess
import time
import unittest
from pathlib import Path

import drawn_faults as df
import zea_run as zr
from check_damage import flip_bit

DEADLINE = 10  # seconds, of the watchdog
NEW_MOUNTS = 0x20000


class Soak(df.DrawnFaults):
    KINDS = (
        "kill_a_rank", "kill_mpirun", "stop_a_rank", "fill_the_disk", "fail_writes", "slow_the_disk",
        "fill_shared_memory", "put_the_clock_back", "put_the_clock_forward", "flip_a_bit", "lose_a_rank",
    )  # fmt: skip

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
        cls.keys = [*cls.keys_of_runs(), f"run.watchdog_seconds={DEADLINE}"]

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
        until = min(before + df.EVERY, self.STEPS)
        run.wait_until(lambda: zr.last_step(self.directory) >= until, f"step {until}")
        (self.directory / "STOP").touch()
        self.assertIn(run.wait(), (0, 75), run.output)
        (self.directory / "STOP").unlink(missing_ok=True)

    def end_faults(self):
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
        flip_bit(self.draw.choice(sorted(found[-1].glob("rank-*.h5"))))  # one where a rank was lost
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
        gone_by = time.monotonic() + df.SOON
        while left := zr.processes_of(self.directory):
            self.assertLess(time.monotonic(), gone_by, f"{left} still run")
            time.sleep(0.05)
        for segment in Path("/dev/shm").glob("vader_segment.*"):  # Open MPI's, of killed processes
            segment.unlink()
        self.assertEqual(os.listdir("/dev/shm"), [])
        self.assertEqual([name for name in os.listdir(self.temporary) if "zea" in name], [])

    def finish_run(self):
        with self.start_or_resume() as run:
            self.assertEqual(run.wait(), 0, run.output)


zr.main()
