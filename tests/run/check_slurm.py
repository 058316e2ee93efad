# SPDX-License-Identifier: Apache-2.0
"""Jobs under a real Slurm: what jobs/*.sbatch promise, with the launcher that ZEA_LAUNCHER names.
ZEA_LONG=1 adds those that wait for Slurm's clock, whose time limits count in minutes."""

import os
import shutil
import signal
import sys
import threading
import time
import unittest

import slurm_cluster as sc
import zea_run as zr

LAUNCHER = os.environ.get("ZEA_LAUNCHER", "mpirun")
IS_LONG = bool(os.environ.get("ZEA_LONG"))
RANKS_PER_NODE = 2 if IS_LONG else 1
STEPS = 240
SOON = 30  # seconds, of which a Slurm on a machine that is busy needs most
# Tests that hardly depend on the launcher run only under mpirun.
IS_WHOLE = LAUNCHER == "mpirun" or IS_LONG
with_every_launcher_if_long = unittest.skipUnless(IS_WHOLE, "ZEA_LONG")
FOR_EVER = "schedule.steps=1000000"
# A zea that always leaves at once, after it "wrote" the next checkpoint if WRITES is set.
RESTLESS_ZEA = """\
#!/usr/bin/env bash
if [ "$1" = -n ]; then printf '[run]\\ndirectory = "restless"\\n[model]\\n'; exit; fi
if [ -n "${WRITES:-}" ]; then
  next=restless/checkpoints/step-$(printf %08d "${SLURM_RESTART_COUNT:-0}")
  mkdir -p "$next" && touch "$next/manifest.json"
fi
exit 75
"""
# Slurm ends this command together with the job that it queued again, before the command knows: this happens now and
# then.
ENDED_SCONTROL = f"""\
#!/usr/bin/env bash
[ "$1" = requeue ] || exec {shutil.which("scontrol", path=sc.PATH)} "$@"
trap '' TERM
{shutil.which("scontrol", path=sc.PATH)} "$@" || exit
trap - TERM
kill -TERM $$
"""


class Background(threading.Thread):
    """Calls a function while tests do other things; finish() waits for its end and raises what it did."""

    def __init__(self, function, *arguments):
        super().__init__(daemon=True)
        self.function, self.arguments, self.failure = function, arguments, None
        self.start()

    def run(self):
        try:
            self.function(*self.arguments)
        except AssertionError as failure:
            self.failure = failure

    def finish(self):
        self.join()
        if self.failure:
            raise self.failure


def tell_to_leave(job, directory, at):
    """As Slurm does before the time limit, as often as there are steps in `at`: each time when the job has made that
    many more than before."""
    for start, steps in enumerate(at):
        job.wait_until(lambda: job.starts() > start, "start")
        target = zr.last_step(directory) + steps
        job.wait_until(lambda: zr.last_step(directory) >= target, "step")
        job.signal("USR2")


def preempt(job, directory, seats):
    """By a job that needs its seats for a moment."""
    job.wait_until(lambda: zr.last_step(directory) >= 8, "step")
    others = ["--partition=high", *seats, "--time=1", "--output=/dev/null"]
    job.cluster.submit(job.folder, *others, "--wrap=true")


class Slurm(zr.ZeaTest):
    cluster = None  # that of run_tests()

    @classmethod
    def setUpClass(cls):
        """Starts what takes its time while the tests below do other things."""
        cls.shared = zr.make_folder(cls.addClassCleanup)
        cls.weights = zr.make_weights(cls.shared / "weights.h5")
        cls.train = zr.make_dataset(cls.shared / "train.h5", zr.mixed_samples(22))
        deck = zr.write_deck(cls.shared, cls.weights, cls.train, schedule=[f"steps = {STEPS}"])
        nodes = ["--nodes=2", f"--ntasks-per-node={RANKS_PER_NODE}"]
        # Saves that training waits for leave the time to come before the end.
        slow = ["checkpoint.every=4", "checkpoint.async=false", "checkpoint.rate_limit_mib=1"]
        seats = ["--nodes=2", "--ntasks-per-node=1", "--gres=seat:1"]
        cls.preempted = cls.submit(cls.shared, ["--partition=low", *seats], [deck, "run.directory=preempted", *slow])
        cls.preemption = Background(preempt, cls.preempted, cls.shared / "preempted", seats)
        if not IS_WHOLE:
            return
        cls.alone = cls.submit(cls.shared, nodes, [deck, "run.directory=alone"])
        cls.chained = cls.submit(cls.shared, nodes, [deck, "run.directory=chained", *slow])
        cls.signals = Background(tell_to_leave, cls.chained, cls.shared / "chained", [20, 20])
        cls.restless_zea = cls.write_script("restless.sh", RESTLESS_ZEA)
        scontrol = cls.write_script("programs/scontrol", ENDED_SCONTROL)
        known = {"ZEA": cls.restless_zea, "WRITES": "yes", "PATH": f"{scontrol.parent}:{sc.PATH}"}
        cls.restless = cls.submit(cls.shared, [], [deck, "-t", "1:00"], **known)

    @classmethod
    def write_script(cls, name, text):
        path = cls.shared / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    @classmethod
    def submit(cls, folder, options, given, script="train", **environment):
        folders = {"ZEA": zr.ZEA, "ZEA_FOLDER": zr.JOBS.parent}
        environment = {**folders, "ZEA_LAUNCHER": LAUNCHER, **environment}
        return cls.cluster.submit(
            folder, "--time=10", "--cpus-per-task=1", *options, zr.JOBS / f"{script}.sbatch", *given,
            **{name: str(value) for name, value in environment.items()},
        )  # fmt: skip

    def setUp(self):
        super().setUp()
        self.deck = zr.write_deck(self.folder, self.weights, self.train)
        self.directory = self.folder / "runs/deck"

    def start(self, *given, options=("--nodes=2", "--ntasks-per-node=1"), **more):
        return self.submit(self.folder, options, given, **more)

    def wait_for_step(self, job, step):
        job.wait_until(lambda: zr.last_step(self.directory) >= step, f"step {step}")

    def assert_ends(self, job, state, code, *sentences):
        end = job.wait()
        self.assertEqual((end["JobState"], end["ExitCode"]), (state, f"{code}:0"), job.account())
        for sentence in sentences:
            self.assertIn(sentence, job.log)
        self.assertFalse((job.folder / f".zea-job-{job.number}").exists())
        return end

    def check_resumes(self):
        """From the newest checkpoint of a run that has ended, to its own end."""
        step = int(zr.checkpoints(self.directory)[-1].name.removeprefix("step-"))
        job = self.start("-r", self.directory, f"schedule.steps={step + 3}")
        checkpoint = f"{self.directory}/checkpoints/step-{step:08}"
        self.assert_ends(job, "COMPLETED", 0, f"resumed {checkpoint}")
        self.assertEqual(zr.last_step(self.directory), step + 3)

    def assert_same_runs(self, one, other):
        self.assertEqual(zr.last_step(one), STEPS)
        self.assertEqual(zr.numbers_of_steps(one), zr.numbers_of_steps(other))
        self.assert_same_arrays(zr.last_arrays(one), zr.last_arrays(other))

    @with_every_launcher_if_long
    def test_three_starts_end_where_one_run_does(self):
        self.signals.finish()
        again = f" on {2 * RANKS_PER_NODE} ranks of n[1-2]: zea -r chained"
        self.assert_ends(self.chained, "COMPLETED", 0, again)
        self.assertEqual(self.chained.starts(), 3, self.chained.account())
        self.assertEqual(self.chained.log.count("queued again, to go on with -r chained"), 2)
        self.assertNotIn("\r", self.chained.log)  # whole lines
        self.assert_ends(self.alone, "COMPLETED", 0)
        self.assert_same_runs(self.shared / "alone", self.shared / "chained")

    def test_two_starts_where_it_was_preempted(self):
        """With a grace time. srun's ranks leave with a checkpoint, mpirun's are lost, and the newest one counts."""
        self.preemption.finish()
        left = {"mpirun": "preempted (exit code ", "srun": "preempted (exit code 75)"}[LAUNCHER]
        again = "; queued again, to go on with what is in preempted"
        self.assert_ends(self.preempted, "COMPLETED", 0, left, again, "zea -r preempted")
        self.assertEqual(self.preempted.starts(), 2, self.preempted.account())
        self.assertEqual(list(zr.numbers_of_steps(self.shared / "preempted")), list(range(1, STEPS + 1)))

    def test_saves_on_request_and_ends_on_scancel(self):
        job = self.start(self.deck, FOR_EVER)
        self.wait_for_step(job, 5)
        self.assertEqual(zr.checkpoints(self.directory), [])
        job.signal("USR1")
        job.wait_until(lambda: zr.checkpoints(self.directory), "checkpoint")
        self.wait_for_step(job, zr.last_step(self.directory) + 5)

        begin = time.monotonic()
        job.cancel()
        self.assertEqual(job.wait()["JobState"], "CANCELLED")
        job.wait_until(lambda: not job.ranks(), "end of its processes", SOON)
        self.assertLess(time.monotonic() - begin, SOON)
        self.assertNotIn("queued again", job.log)
        self.assertFalse((job.folder / f".zea-job-{job.number}").exists())
        self.check_resumes()

    def test_killed_rank(self):
        job = self.start(self.deck, FOR_EVER, "checkpoint.every=10")
        job.wait_until(lambda: zr.checkpoints(self.directory), "checkpoint")
        begin = time.monotonic()
        os.kill(job.ranks()[1], signal.SIGKILL)

        self.assert_ends(job, "FAILED", 137, "zea ended with exit code 137; the chain ends")
        self.assertLess(time.monotonic() - begin, SOON)
        named = r"process rank 1 with PID \d+ on node \S+ exited on signal 9"
        self.assertRegex(job.log, {"mpirun": named, "srun": "n2: task 1: Killed"}[LAUNCHER])
        if IS_LONG:
            self.check_resumes()

    def test_stopped_rank(self):
        """Nodes know of each other what they write into the run directory. srun ends a rank that is stopped, too, and
        does not wait for it."""
        keys = [FOR_EVER, "run.watchdog_seconds=3", "log.every=10"]
        job = self.start(self.deck, *keys, SLURM_WAIT=60)
        self.wait_for_step(job, 1000)  # some seconds: until the nodes have reported their steps
        begin = time.monotonic()
        os.kill(job.ranks()[1], signal.SIGSTOP)

        behind = "is behind: its node does not answer any more"
        self.assert_ends(job, "FAILED", 6, behind, "1 rank waits for it, rank 0 in ")
        self.assertLess(time.monotonic() - begin, 3 + SOON)
        self.assertRegex(job.log, "rank 1 .*" + behind)
        report = (self.directory / "watchdog/report.txt").read_text()
        for rank in (0, 1):
            self.assertIn(f"\nrank {rank} on ", report)

    def test_ranks_that_hang_on_both_nodes(self):
        """One node's report is for both. The log is a FIFO, which hangs as a dead file server does."""
        self.directory.mkdir(parents=True)
        os.mkfifo(self.directory / "log.txt")
        job = self.start(self.deck, "run.watchdog_seconds=2")
        job.wait_until((self.directory / "deck.used.toml").exists, "start")
        begin = time.monotonic()
        self.assert_ends(job, "FAILED", 6, "is behind: it is in open the log", "report.txt")
        self.assertLess(time.monotonic() - begin, 2 + SOON)
        for part in ("no report", "follow, since", "were never heard of"):
            self.assertNotIn(part, job.log)

    @with_every_launcher_if_long
    def test_faulty_deck(self):
        job = self.start(self.deck, "optim.lrr=1")
        sentence = "optim.lrr is not a key; did you mean optim.lr?"
        self.assert_ends(job, "FAILED", 2, sentence)
        self.assertEqual(job.log.count("the chain ends"), 1)

    @with_every_launcher_if_long
    def test_faulty_data_is_reported_before_any_rank_starts(self):
        broken = self.folder / "broken.h5"
        broken.write_bytes(b"no HDF5")
        job = self.start(self.deck, f"data.train={broken}")
        sentence = "zea refused what it was given (exit code 3); the chain ends"
        self.assert_ends(job, "FAILED", 3, str(broken), sentence)

    @with_every_launcher_if_long
    def test_stop_file_ends_the_chain(self):
        job = self.start(self.deck, FOR_EVER)
        self.wait_for_step(job, 5)
        (self.directory / "STOP").touch()
        self.assert_ends(job, "FAILED", 75, "asked to leave, by a STOP file", "-r runs/deck")
        self.assertTrue(zr.checkpoints(self.directory))

    @with_every_launcher_if_long
    def test_no_progress_ends_the_chain(self):
        job = self.start(self.deck, ZEA=self.restless_zea)
        sentence = "no checkpoint is newer than when this start began"
        self.assert_ends(job, "FAILED", 75, sentence)
        self.assertEqual(job.starts(), 1)

    @with_every_launcher_if_long
    def test_too_short_starts_end_the_chain(self):
        """Also where Slurm ends the scontrol that queued the job again."""
        sentence = "3 starts in a row lasted less than 300 s"
        self.assert_ends(self.restless, "FAILED", 75, sentence)
        self.assertEqual(self.restless.starts(), 3, self.restless.account())
        self.assertEqual(self.restless.log.count("scontrol ended with 143; should"), 2)

    @with_every_launcher_if_long
    def test_gpu_node(self):
        """As far as that goes without a GPU: Slurm grants them, and zea is asked for its device."""
        more = {"options": ["--ntasks-per-node=2", "--gpus-per-node=2"], "script": "train_gpu_node"}
        job = self.start(self.deck, "-n", **more)
        self.assert_ends(job, "COMPLETED", 0, 'device = "cuda"', "start 1 on 2 ranks of n")
        self.assertRegex(job.log, r"job \d+: set: .*\bNCCL_DEBUG=WARN ")
        self.assertNotIn("sick", job.log)

    def test_looks_at_the_nodes_first(self):
        options = ["--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=1", "--gpus-per-task=1"]
        given = [self.deck, "schedule.steps=2", "run.device=cpu"]
        job = self.start(*given, options=options, script="train_gpu_node")
        self.assert_ends(job, "COMPLETED", 0, "no node is sick\n")
        for node in sc.NODES:
            self.assertRegex(job.log, rf"(?m)^{node} +1 +\d+ ")
        self.assertIn("all 2 ranks: an all-reduce is right", job.log)
        self.assertEqual(zr.last_step(self.directory), 2)

    @with_every_launcher_if_long
    def test_a_sick_node_ends_the_chain(self):
        """One without the GPU that it should have."""
        more = {"options": ["--ntasks-per-node=1", "--gpus-per-node=1"], "script": "train_gpu_node"}
        job = self.start(self.deck, CUDA_VISIBLE_DEVICES="", **more)
        self.assert_ends(job, "FAILED", 8, "sick: node n", "or exclude it with --exclude=n", "a node is sick (above)")
        self.assertFalse((self.directory / "log.txt").exists())

        job = self.start(self.deck, "schedule.steps=2", "run.device=cpu", ZEA_CHECK_NODES="no", **more)
        self.assert_ends(job, "COMPLETED", 0)
        self.assertNotIn("sick", job.log)

    @unittest.skipUnless(IS_LONG, "waits until no other job runs")
    def test_whole_nodes(self):
        options = ["--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=1"]
        given = [self.deck, "schedule.steps=2", "run.device=cpu"]
        job = self.submit(self.folder, options, given, script="train_many_nodes")
        self.assert_ends(job, "COMPLETED", 0, "start 1 on 2 ranks of n[1-2]", "no node is sick\n")
        self.assertEqual(zr.last_step(self.directory), 2)

    @unittest.skipUnless(IS_LONG, "waits for Slurm to start a job again")
    def test_requeued_by_slurm(self):
        """As after preemption: what is newest then is gone on with."""
        job = self.start(self.deck, "schedule.steps=300", "checkpoint.every=10")
        job.wait_until(lambda: zr.checkpoints(self.directory), "checkpoint")
        self.cluster.run("scontrol", "requeue", job.number)
        job.wait_until(lambda: job.starts() == 2, "second start")
        self.assert_ends(job, "COMPLETED", 0, "queued again by Slurm", "zea -r runs/deck")
        self.assertEqual(job.starts(), 2)
        self.assertEqual(list(zr.numbers_of_steps(self.directory)), list(range(1, 301)))

    @unittest.skipUnless(IS_LONG, "waits for three time limits of a minute")
    def test_time_limits(self):
        """Slurm's own signals; the starts are too short for a chain, so the third is its last."""
        job = self.start(self.deck, FOR_EVER, options=["--time=1", "--signal=B:USR2@30"])
        end = job.wait(300)
        found = [end["JobState"], end["ExitCode"], job.starts()]
        self.assertEqual(found, ["FAILED", "75:0", 3], job.log)
        self.assertEqual(job.log.count("queued again, to go on with -r runs/deck"), 2, job.log)
        self.assertEqual(job.log.count("resumed runs/deck/checkpoints/step-"), 2, job.log)
        self.assertIn("3 starts in a row lasted less than 300 s", job.log)
        steps = list(zr.numbers_of_steps(self.directory))
        self.assertEqual(steps, list(range(1, len(steps) + 1)))


def run_tests(folder):
    cluster = sc.Cluster(folder)
    if LAUNCHER == "srun" and "pmix" not in cluster.run("bash", "-c", "srun --mpi=list 2>&1"):
        print("skipped: this Slurm has no PMIx plugin (srun --mpi=list)")
        sys.exit(77)
    Slurm.cluster = cluster
    zr.main()


sc.skip_without_slurm()
sc.run_guarded(run_tests)
