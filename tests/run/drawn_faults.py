# SPDX-License-Identifier: Apache-2.0
"""Soak tests: draws random faults, one at a time, and checks the run after each fault.

Environment variables: ZEA_SOAK_SECONDS, the duration (every kind of fault occurs at least once); ZEA_SOAK_SEED, the
random seed; ZEA_SOAK_KINDS, a regular expression that selects kinds of faults."""

import contextlib
import os
import random
import re
import subprocess
import time
from collections import Counter

import numpy as np
import zea_run as zr
from disturbed_run import DisturbedRun

SECONDS = float(os.environ.get("ZEA_SOAK_SECONDS", "600"))
SEED = int(os.environ.get("ZEA_SOAK_SEED", "1"))
EVERY = 20  # steps between checkpoints
SOON = 30  # seconds until processes are gone, on a busy machine
ROUNDING = 1e-6  # tolerance in fp64: hundreds of steps amplify rounding errors


class DrawnFaults(DisturbedRun):
    """A subclass defines KINDS (names of its methods), `disk` (a folder of runs), and the methods below that do nothing
    here. A fault that changes the number of ranks sets `is_rounded`."""

    STEPS = 400
    KINDS = ()

    @classmethod
    def keys_of_runs(cls):
        return [
            f"checkpoint.every={EVERY}", "checkpoint.keep=3", "precision.preset=fp64",
            "optim.lr=0.0005",  # with 0.005 the steps amplify rounding to 0.1
        ]  # fmt: skip

    @classmethod
    def arguments(cls, directory, *overrides):
        return super().arguments(directory, *cls.keys, *overrides)

    def setUp(self):
        super().setUp()
        self.finished = 0
        self.most_lost = 0
        self.begin_another()

    def begin_another(self):
        self.directory = self.disk / f"run-{self.finished}"
        self.is_rounded = False

    def end_faults(self):
        """Undoes faults that a failed test may have left."""

    def check_nothing_is_left(self):
        """Fails if a process, shared memory or a temporary file of the run is left after a fault."""

    def finish_run(self):
        """Resumes the run up to its last step."""

    def check_what_was_lost(self):
        """A fault costs at most the steps since the newest checkpoint that was due, and one that was being written."""
        step = zr.last_step(self.directory)
        newest = zr.checkpoints(self.directory)[-1:]
        saved = int(newest[0].name.split("-")[1]) if newest else 0
        self.most_lost = max(self.most_lost, step - saved)
        self.assertLessEqual(step - saved, 2 * EVERY, f"at step {step}, {newest}")

    def check_end(self):
        """Finishes the run, compares it with a run without faults, and begins another."""
        self.finish_run()
        if self.is_rounded:
            self.assert_close_to_alone()
        else:
            self.assert_same_as_alone(self.STEPS)
        subprocess.run(["rm", "-r", self.directory], check=True)
        self.finished += 1
        self.begin_another()

    def assert_close_to_alone(self):
        expected = zr.last_arrays(self.run_alone(self.STEPS))
        for name, array in zr.last_arrays(self.directory).items():
            np.testing.assert_allclose(array, expected[name], ROUNDING, ROUNDING, err_msg=str(name))

    @staticmethod
    @contextlib.contextmanager
    def naming(kind, number):
        """Names the fault in an error. The first failed test ends the soak, because its remains would fail the next."""
        try:
            yield
        except BaseException as error:
            error.add_note(f"in fault {number}, {kind}")
            raise

    @contextlib.contextmanager
    def ending_faults(self):
        try:
            yield
        finally:
            self.end_faults()

    def test_faults(self):
        kinds = [kind for kind in self.KINDS if re.search(os.environ.get("ZEA_SOAK_KINDS", ""), kind)]
        self.draw = random.Random(SEED)
        end = time.monotonic() + SECONDS
        seen = Counter()
        while time.monotonic() < end or len(seen) < len(kinds):
            order = list(kinds)
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
        print(f"{seen.total()} faults ({dict(seen)}), {self.finished} finished runs, at most {self.most_lost} "
              f"steps lost, {EVERY} between checkpoints")  # fmt: skip
