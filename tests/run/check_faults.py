# SPDX-License-Identifier: Apache-2.0
"""Whole jobs that are killed at random times while checkpoints are written: the newest complete checkpoint is always
whole, no process of a killed job lives on, and what goes on is bitwise the run that was left alone. ZEA_KILLS: how
often a job is killed."""

import contextlib
import os
import random
import signal
import subprocess
import time

import zea_run as zr
from disturbed_run import DisturbedRun

KILLS = int(os.environ.get("ZEA_KILLS", "2"))
SOON = 20  # seconds, on a machine that is busy


class Faults(DisturbedRun):
    STEPS = 60 if KILLS <= 2 else 600

    def start_or_resume(self):
        keys = ["checkpoint.every=2", "checkpoint.rate_limit_mib=4"]
        if zr.checkpoints(self.directory):
            return zr.start(2, ["-r", self.directory, *keys], self.directory)
        return zr.start(2, self.arguments(self.directory, *keys), self.directory)

    def kill(self, run, what):
        """SIGKILL to all of the job, to mpirun, or to one rank: soon all of it is gone."""
        mpirun, ranks = [run.process.pid], run.rank_processes()
        for process in {"all": mpirun + ranks, "mpirun": mpirun, "a rank": ranks[-1:]}[what]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        killed = time.monotonic()
        while left := zr.processes_of(self.directory):
            if time.monotonic() - killed > SOON:
                for process in left:
                    os.kill(process, signal.SIGKILL)
                self.fail(f"{left} live {SOON} s after {what} was killed")
            time.sleep(0.02)
        run.process.wait()

    def kill_once(self, seconds, what):
        """False: the run was at its end before."""
        with self.start_or_resume() as run:
            begun = len(zr.metrics(self.directory))
            run.wait_until(lambda: len(zr.metrics(self.directory)) > begun, "a step")
            if begun == 0:
                self.assertEqual(len(zr.processes_of(self.directory)), 3)  # mpirun and two ranks
            time.sleep(seconds)
            if run.process.poll() is not None:
                self.assertEqual(run.wait(), 0, run.output)
                return False
            self.kill(run, what)
        return True

    def test_killed_at_random_times(self):
        choice = random.Random(20261121)
        killed = fresh = 0
        while killed < KILLS:
            ends = zr.checkpoints(self.directory)[-1:]
            if ends and ends[0].name == f"step-{self.STEPS:08}":  # nothing is left to do: from the start
                fresh += 1
                self.assert_same_as_alone(self.STEPS)
                self.directory = self.folder / f"run-{fresh}"
            step = zr.last_step(self.directory)
            what = ("all", "mpirun", "a rank")[killed % 3]
            killed += self.kill_once(choice.uniform(0, 0.6), what)
            left = zr.checkpoints(self.directory)
            if left:
                subprocess.run([zr.ZEA_INSPECT, "--check", left[-1]], check=True, capture_output=True)
            self.assertGreaterEqual(zr.last_step(self.directory), min(step, 1), f"kill {killed}")
        with self.start_or_resume() as run:
            self.assertEqual(run.wait(), 0, run.output)
        self.assert_same_as_alone(self.STEPS)


zr.main()
