# SPDX-License-Identifier: Apache-2.0
"""A run that hangs ends soon, naming who hangs and where; one that is slow goes on, and the slow rank is named."""

import contextlib
import json
import os
import re
import signal
import time

import zea_run as zr

DEADLINE = 2  # seconds; nothing that a run does in its first steps takes as long, also on a machine that is busy
PATIENT = 5  # of runs that must not be ended: they also write checkpoints to a disk that is busy
MANY_STEPS = 100000


def writing_end(fifo):
    """Empty as long as nobody reads."""
    with contextlib.suppress(OSError):
        return [open(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK), "w")]
    return []


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
        # The lowest rank would otherwise be the one that tells.
        for rank in (0, 2):
            with self.subTest(rank=rank), self.start(3) as run:
                run.wait_for_step(20)
                process = run.rank_processes()[rank]
                said = self.assert_hangs(run, self.stop(process), rank)
                self.assertIn(f"process {process}, step ", said)
                self.assertIn("its process does not run", said)
                self.assertRegex(said, "it was in [a-z]+")
                self.check_report(3)
            self.directory = self.folder / "another"

    def test_a_rank_that_is_stopped_before_the_first_step_is_named(self):
        """From when the run directory is made weights and data are read, and layouts agreed upon. Rank 0 begins with
        that when somebody reads its log, which is a FIFO here."""
        self.directory.mkdir()
        os.mkfifo(self.directory / "log.txt")
        with self.start(3) as run:
            run.wait_until((self.directory / "LOCK").exists, "lock")
            process = run.rank_processes()[1]
            stopped_at = self.stop(process)
            with open(os.open(self.directory / "log.txt", os.O_RDONLY | os.O_NONBLOCK)):
                said = self.assert_hangs(run, stopped_at, 1)
        self.assertIn(f"process {process}, step 0) is behind: its process does not run", said)
        self.assertEqual(zr.last_step(self.directory), 0)
        self.assertTrue((self.directory / "watchdog/report.txt").exists())

    def test_a_file_server_that_hangs_before_the_first_step_ends_the_run(self):
        """A FIFO that nobody reads hangs as a dead server does."""
        self.directory.mkdir()
        os.mkfifo(self.directory / "log.txt")
        started_at = time.monotonic()
        with self.start(2) as run:
            said = self.assert_hangs(run, started_at, 0)
        self.assertRegex(said, r"step 0\) is behind: it is in open the log \(for")

    def test_a_report_that_cannot_be_written_is_told(self):
        """So that a hang of the run directory's file system, which it may be, ends the run as well."""
        (self.directory / "watchdog").mkdir(parents=True)
        os.mkfifo(self.directory / "watchdog/report.txt")
        with self.start(2) as run:
            run.wait_for_step(20)
            process = run.rank_processes()[1]
            self.assert_hangs(run, self.stop(process), 1)
            why = "follow, since .*report.txt cannot be written: the file system does not answer:"
            self.assertRegex(run.output, why)
            states = re.findall("^rank [01] on .* under way:$", run.output, re.MULTILINE)
            self.assertEqual(len(states), 2, run.output)

    def test_a_run_that_was_suspended_as_a_whole_goes_on(self):
        with self.start(2, f"run.watchdog_seconds={PATIENT}") as run:
            run.wait_for_step(20)
            run.pause_ranks()
            time.sleep(1.5 * PATIENT)
            run.resume_ranks()
            run.wait_for_step(zr.last_step(self.directory) + 20)
            (self.directory / "STOP").touch()
            self.assertEqual(run.wait(), 75, run.output)

    def test_a_rank_that_falters_goes_on(self):
        with self.start(2, f"run.watchdog_seconds={PATIENT}") as run:
            run.wait_for_step(8)
            process = run.rank_processes()[1]
            for _ in range(3):
                os.kill(process, signal.SIGSTOP)
                time.sleep(0.4 * PATIENT)
                os.kill(process, signal.SIGCONT)
                run.wait_for_step(zr.last_step(self.directory) + 1)
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

    def threads_at_the_start(self, name, *overrides):
        """Of a run that opens what its deck names: a FIFO, in which the test writes when it has counted."""
        self.directory = self.folder / name
        fifo = self.folder / f"{name}.json"
        os.mkfifo(fifo)
        ends = []
        keys = ['model.weights=""', f"model.config={fifo}", "schedule.steps=1", "optim.warmup_steps=0"]
        with self.start(1, *keys, *overrides) as run:
            run.wait_until(lambda: ends.extend(writing_end(fifo)) or ends, "look at the model's config")
            threads = len(os.listdir(f"/proc/{run.rank_processes()[0]}/task"))
            with ends[0] as config:
                json.dump(zr.CONFIG, config)
            self.assertEqual(run.wait(), 0, run.output)
        return threads

    def test_zero_is_any_time_for_the_start_too(self):
        """The limit of the start is a thread that sleeps, for too long to be waited for."""
        free = self.threads_at_the_start("free", "run.watchdog_seconds=0")
        self.assertEqual(free, self.threads_at_the_start("watched") - 1)


if __name__ == "__main__":
    zr.main()
