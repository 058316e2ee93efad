# SPDX-License-Identifier: Apache-2.0
"""Runs that are asked to save or to leave, killed, or started twice: nothing is lost, and what goes
on from there is bitwise the run that was left alone."""

import os
import signal
import threading
import time
from unittest import mock

import zea_run as zr

FOR_EVER = "schedule.steps=1000000"  # whoever interrupts may come late
SOON = 30  # seconds, on a machine that is busy


def fill_pipe(fifo):
    with open(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK), "wb", buffering=0) as end:
        while end.write(bytes(1 << 12)):
            pass
        while end.write(bytes(1)):
            pass


class Interruptions(zr.ZeaTest):
    @classmethod
    def setUpClass(cls):
        shared = zr.make_folder(cls.addClassCleanup)
        # So that a step is the same however many are to come.
        cls.deck = zr.write_inputs(shared, zr.mixed_samples(22), optim=['decay = "constant"'])

    def setUp(self):
        super().setUp()
        self.directory = self.folder / "run"

    def arguments(self, *overrides):
        return ["-i", self.deck, "-d", self.directory, FOR_EVER, *overrides]

    def go_on_to(self, step, *overrides):
        keys = [f"schedule.steps={step}", *overrides]
        result = zr.run_zea(2, ["-r", self.directory, *keys], self.directory)
        self.assert_code(result, 0)
        self.assertEqual(zr.last_step(self.directory), step)
        return result

    def assert_same_as_alone(self):
        """As a run of as many steps that nothing disturbs."""
        alone = self.folder / "alone"
        steps = f"schedule.steps={zr.last_step(self.directory)}"
        self.assert_code(zr.run_zea(2, ["-i", self.deck, "-d", alone, steps], alone), 0)
        self.assertEqual(zr.numbers_of_steps(self.directory), zr.numbers_of_steps(alone))
        self.assert_same_arrays(zr.last_arrays(alone), zr.last_arrays(self.directory))

    def wait_for_checkpoints(self, run, count):
        run.wait_until(lambda: len(zr.checkpoints(self.directory)) >= count, f"{count} checkpoints")

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
        self.assertEqual(zr.checkpoints(self.directory)[-1].name, f"step-{left_at:08}")

        with zr.start(2, ["-r", self.directory], self.directory) as run:
            run.wait_for_step(left_at + 5)
            run.process.send_signal(signal.SIGUSR2)
            self.assertEqual(run.wait(), 75, run.output)
            self.assertIn(f"go on with -r {self.directory}", run.output)
        log = (self.directory / "log.txt").read_text()
        self.assertEqual(log.count(f"found the file STOP in {self.directory}: leaving"), 1, "the signal is no file")

        self.go_on_to(zr.last_step(self.directory) + 20)
        self.assert_same_as_alone()

    def test_one_signal_is_one_checkpoint(self):
        """Also where it finds one rank before and the other one after they tell each other what they were asked for.
        Rank 0 stands still between two steps when nobody reads its log, a FIFO, to which it tells of its trace."""
        self.directory.mkdir()
        os.mkfifo(self.directory / "log.txt")
        every, traced = 100, 199
        keys = ["checkpoint.keep=0", f"log.every={every}", f"log.trace_step={traced}"]
        with zr.start(2, self.arguments(*keys), self.directory) as run:
            log = open(os.open(self.directory / "log.txt", os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
            run.wait_until(lambda: (log.read(1 << 16), zr.last_step(self.directory))[1] >= every, "step")
            fill_pipe(self.directory / "log.txt")
            run.wait_until((self.directory / "trace/rank-00001.json").exists, "trace")
            time.sleep(0.3)  # for rank 1 to go on as far as it can
            for process in run.rank_processes():
                os.kill(process, signal.SIGUSR1)
            os.set_blocking(log.fileno(), True)
            reader = threading.Thread(target=log.readall)
            reader.start()
            self.wait_for_checkpoints(run, 1)
            run.wait_for_step(zr.last_step(self.directory) + every)
            run.process.send_signal(signal.SIGUSR2)
            self.assertEqual(run.wait(), 75, run.output)
            reader.join()
            log.close()
        self.assertEqual(len(zr.checkpoints(self.directory)), 2, "one that was asked for, one to leave with")

    def check_second_run_is_refused(self, holder):
        begin = time.monotonic()
        result = zr.run_zea(1, self.arguments())
        self.assertLess(time.monotonic() - begin, SOON)
        self.assert_code(result, 7)
        self.assertIn("is in use by host ", result.output)
        self.assertIn(f", process {holder}, job 1234;", result.output)
        self.assertTrue((self.directory / "LOCK").exists())

    def test_killed_rank_of_an_encoder(self):
        """One of the two ranks: the encoder has the first to itself."""
        own = ["mesh.placement=disjoint", "mesh.vision.encoder_dp=1", "checkpoint.every=20"]
        with zr.start(2, self.arguments(*own), self.directory) as run:
            run.wait_until(lambda: zr.checkpoints(self.directory), "a checkpoint")
            os.kill(run.rank_processes()[0], signal.SIGKILL)
            killed = time.monotonic()
            self.assertNotEqual(run.wait(), 0)
            self.assertLess(time.monotonic() - killed, SOON)

        # On one grid of both ranks it resumes where it was: within rounding as without the interruption.
        self.go_on_to(zr.last_step(self.directory) + 20, "mesh.placement=shared")

    def test_killed_rank(self):
        with zr.start(
            2, self.arguments("checkpoint.every=20", "checkpoint.keep=3"), self.directory
        ) as run:
            self.wait_for_checkpoints(run, 3)
            os.kill(run.rank_processes()[1], signal.SIGKILL)
            killed = time.monotonic()
            self.assertNotEqual(run.wait(), 0)
            self.assertLess(time.monotonic() - killed, SOON)
        self.assertTrue((self.directory / "LOCK").exists())
        self.assertGreaterEqual(len(zr.checkpoints(self.directory)), 3)

        end = zr.last_step(self.directory) // 20 * 20 + 60
        result = self.go_on_to(end)
        self.assertEqual(result.output.count("took over the lock that host "), 1, result.output)
        self.assert_same_as_alone()
        left = sorted((self.directory / "checkpoints").iterdir())
        self.assertEqual([path.name for path in left], [f"step-{s:08}" for s in (end - 40, end - 20, end)])

    def test_leave_in_the_middle_of_an_evaluation(self):
        """The evaluation has so many samples that the run would not reach its next step in time."""
        held_out = zr.make_dataset(self.folder / "eval.h5", zr.mixed_samples(20_000))
        keys = [f"data.eval={held_out}", "eval.every=3", "checkpoint.every=1"]
        with zr.start(2, self.arguments(*keys), self.directory) as run:
            run.wait_until(lambda: zr.last_step(self.directory) == 3, "an evaluation")
            time.sleep(0.3)
            (self.directory / "STOP").touch()
            self.assertEqual(run.wait(), 75, run.output)
            self.assertIn("the evaluation after step 3 ends with ", run.output)
        self.assertNotIn("eval", {line["kind"] for line in zr.metrics(self.directory)})
        self.assertEqual(zr.last_step(self.directory), 4)
        self.assertEqual(zr.checkpoints(self.directory)[-1].name, "step-00000004")

    def test_wall_limit(self):
        begin = time.monotonic()
        result = zr.run_zea(2, self.arguments("-t", "0:00:03"), self.directory)
        self.assert_code(result, 75)
        self.assertLess(time.monotonic() - begin, SOON)  # most of it to start and to end
        saved = [c.name for c in zr.checkpoints(self.directory)]
        self.assertEqual(saved[-1], f"step-{zr.last_step(self.directory):08}")
        self.assertLessEqual(len(saved), 2, "one at half of the time, to know how long it takes")


zr.main()
