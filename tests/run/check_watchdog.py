# SPDX-License-Identifier: Apache-2.0
"""A run that hangs ends soon, naming who hangs and where; one that is slow goes on, and the slow rank is named."""

import os
import re
import signal
import time

import zea_run as zr

DEADLINE = 2  # seconds; nothing that a run does in its first steps takes as long, also on a machine that is busy
PATIENT = 5  # of runs that must not be ended: they also write checkpoints to a disk that is busy
MANY_STEPS = 100000


class Watchdog(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        self.deck = zr.write_inputs(self.folder, zr.mixed_samples(22))
        self.directory = self.folder / "run"

    def start(self, ranks, *overrides):
        keys = [f"run.watchdog_seconds={DEADLINE}", f"schedule.steps={MANY_STEPS}", *overrides]
        return zr.start(ranks, ["-i", self.deck, "-d", self.directory, *keys], self.directory)

    def stop(self, process):
        """Returns when: just before it."""
        stopped_at = time.monotonic()
        os.kill(process, signal.SIGSTOP)
        return stopped_at

    def assert_hangs(self, run, stopped_at, rank):
        """Returns the sentence about the rank."""
        self.assertEqual(run.wait(), 6, run.output)
        took = time.monotonic() - stopped_at
        self.assertLess(took, DEADLINE + 10)
        self.assertGreater(took, DEADLINE)
        self.assertEqual(run.output.count("the run hangs"), 1, run.output)
        found = re.search(rf"for {DEADLINE} s .*?\. (rank {rank} \(.*? is behind: .*)", run.output)
        self.assertTrue(found, run.output)
        return found.group(1)

    def check_report(self, ranks):
        report = (self.directory / "watchdog" / "report.txt").read_text()
        parts = re.split(r"^rank (\d+) on ", report, flags=re.MULTILINE)[1:]
        self.assertEqual(parts[::2], [str(rank) for rank in range(ranks)])
        for part in parts[1::2]:
            actions, calls = part.split("last actions")[1].split("last communications")
            self.assertEqual(actions.count(" s ago, "), 64, part)
            self.assertIn("backward llm.head", actions)
            self.assertEqual(calls.count(" s ago, "), 64, part)

    def test_a_stopped_rank_is_named(self):
        with self.start(3) as run:
            run.wait_for_step(20)
            process = run.rank_processes()[0]  # which would otherwise be the one that tells
            said = self.assert_hangs(run, self.stop(process), 0)
            self.assertIn(f"process {process}, step ", said)
            self.assertIn("its process does not run", said)
            self.assertRegex(said, "it was in [a-z]+")
            self.check_report(3)

    def test_a_file_server_that_hangs_before_the_first_step_ends_the_run(self):
        """A FIFO that nobody reads hangs as a dead server does."""
        self.directory.mkdir()
        os.mkfifo(self.directory / "log.txt")
        started_at = time.monotonic()
        with self.start(2) as run:
            said = self.assert_hangs(run, started_at, 0)
        self.assertRegex(said, r"step 0\) is behind: it is in open the log \(for")

    def test_a_run_that_was_suspended_as_a_whole_goes_on(self):
        with self.start(2, f"run.watchdog_seconds={PATIENT}") as run:
            run.wait_for_step(20)
            run.pause_ranks()
            time.sleep(1.5 * PATIENT)
            run.resume_ranks()
            run.wait_for_step(zr.last_step(self.directory) + 20)
            (self.directory / "STOP").touch()
            self.assertEqual(run.wait(), 75, run.output)

    def test_a_slow_rank_is_named(self):
        """Without balancing, rank 1 has the long samples."""
        samples = [zr.text_sample(i, 1000 if i % 2 == 1 else 5) for i in range(24)]
        train = zr.make_dataset(self.folder / "uneven.h5", samples)
        keys = [f"data.train={train}", "data.row_tokens=1010", "data.balance=false", "schedule.global_batch=2"]
        with self.start(2, *keys, f"run.watchdog_seconds={PATIENT}") as run:
            run.wait_until(lambda: "is slow" in run.output, "line about the slow rank")
            (self.directory / "STOP").touch()
            self.assertEqual(run.wait(), 75, run.output)
        said = [line for line in (self.directory / "log.txt").read_text().splitlines() if "is slow" in line]
        for line in said:
            self.assertRegex(line, r"rank 1 on \S+ is slow: .* times the .* of the ranks that do the same")
        lines = [line["own_seconds"] for line in zr.train_lines(self.directory)]
        for line in lines:
            self.assertGreater(line["slowest"], line["mean"])
        # In a step that its core was taken in the other one may be slower.
        self.assertGreater(sum(line["slowest_rank"] for line in lines), len(lines) / 2)

    def test_saving_for_long_is_no_hang(self):
        keys = ["schedule.steps=2", "checkpoint.rate_limit_mib=0.011", f"run.watchdog_seconds={PATIENT}"]
        with self.start(2, *keys) as run:
            self.assertEqual(run.wait(), 0, run.output)
        save = next(line for line in zr.metrics(self.directory) if line["kind"] == "checkpoint")
        self.assertGreater(save["stall_seconds"], 1.5 * PATIENT, "it was not long at all")
        self.assertFalse((self.directory / "watchdog").exists())

    def test_zero_is_any_time(self):
        with self.start(2, "run.watchdog_seconds=0") as run:
            run.wait_for_step(20)
            process = run.rank_processes()[1]
            os.kill(process, signal.SIGSTOP)
            time.sleep(1.5)
            self.assertIsNone(run.process.poll())
            os.kill(process, signal.SIGCONT)
            (self.directory / "STOP").touch()
            self.assertEqual(run.wait(), 75, run.output)


if __name__ == "__main__":
    zr.main()
