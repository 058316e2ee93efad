# SPDX-License-Identifier: Apache-2.0
"""Trains as Slurm jobs over two nodes of a network (network_nodes.py) under random faults, one at a time: ranks,
mpirun, slurmstepd and slurmd are killed; a link fails, recovers or is slow; a job is requeued; a node is lost. After
each fault the run resumes from its newest checkpoint, on the nodes that Slurm still has. It reaches its last step, and
its result is bitwise equal to a run without faults (within rounding if a node was lost). Environment variables of
drawn_faults.py set duration and faults."""

import contextlib
import os
import re
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "run"))

import drawn_faults as df  # noqa: E402
import network_nodes as nn  # noqa: E402
import slurm_cluster as sc  # noqa: E402
import zea_run as zr  # noqa: E402

RANKS = 4
WATCHDOG = 20  # seconds, longer than the longest pause of a start on a busy machine
LIMIT = 300  # seconds to wait for a job
# A job whose node does not answer stays in state COMPLETING for minutes after its end.
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "COMPLETING")
# Shorter times than in jobs/train_chain.sh.
KEEPALIVE = {f"OMPI_MCA_oob_tcp_keepalive_{name}": value for name, value in
             (("time", "8"), ("intvl", "2"), ("probes", "3"))}  # fmt: skip
# Messages of zea, or of mpirun if it ends the ranks before their check.
NAMED = r"node1 gets no answer over TCP from node2 \(10\.77\.0\.2\)|Remote daemon: .* on node n2"


class SoakNodes(df.DrawnFaults):
    STEPS = 200
    KINDS = (
        "kill_a_rank", "kill_mpirun", "kill_slurmstepd", "restart_slurmd", "take_a_link_down",
        "take_a_link_down_for_a_while", "slow_a_link", "queue_again", "lose_a_node",
    )  # fmt: skip
    cluster = network = None  # set by run_tests()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.disk = cls.shared
        cls.keys = [*cls.keys_of_runs(), f"run.watchdog_seconds={WATCHDOG}"]

    @classmethod
    def run_undisturbed(cls, arguments, directory):
        return cls.network.run(RANKS, arguments, directory)

    def submit(self, nodes=2, *given):
        options = ["--time=20", "--cpus-per-task=1", f"--nodes={nodes}", "--ntasks-per-node=2"]
        known = {"ZEA": zr.ZEA, "ZEA_FOLDER": zr.JOBS.parent, "ZEA_LAUNCHER": "mpirun", **KEEPALIVE}
        start = ["-r", self.directory, *self.keys]
        if not zr.checkpoints(self.directory):
            start = [self.deck, "-d", self.directory, f"schedule.steps={self.STEPS}", *self.keys]
        return self.cluster.submit(
            self.folder, *options, zr.JOBS / "train.sbatch", *start, *given,
            **{name: str(value) for name, value in known.items()},
        )  # fmt: skip

    @contextlib.contextmanager
    def running(self, nodes=2):
        """Yields a job that has made steps since its start, after a random time."""
        job = self.submit_until_it_trains(nodes)
        try:
            time.sleep(self.draw.uniform(0, 0.4))
            yield job
        finally:
            if job.show()["JobState"] not in ENDED:
                job.cancel()
                self.wait(job)

    def submit_until_it_trains(self, nodes):
        begun = len(zr.metrics(self.directory))
        return self.submit_until(lambda job: len(zr.metrics(self.directory)) > begun + 1, nodes)

    def submit_until(self, is_reached, nodes=2):
        """Submits again if mpirun loses its daemons before it has started any rank, as on a busy machine."""
        for _ in range(3):
            job = self.submit(nodes)
            job.wait_until(lambda: is_reached(job) or job.show()["JobState"] in ENDED, "a step or its end", LIMIT)
            if is_reached(job):
                return job
            self.assertRegex(job.log, "ORTE (has lost communication|was unable to)", job.account())
            self.assertNotIn("step ", job.log, job.account())
            print("mpirun lost its daemons before a rank began: started again", flush=True)
            self.cluster.bring_nodes_back()
        raise AssertionError(job.account())

    def wait(self, job):
        job.wait_until(lambda: job.show()["JobState"] in ENDED, "end", LIMIT)

    def wait_for_end(self, job, *sentences):
        """Checks that the log of the job names the cause, unless the run ended before the fault."""
        self.wait(job)
        if zr.last_step(self.directory) < self.STEPS:
            for sentence in sentences:
                self.assertRegex(job.log, sentence, job.account())

    def assert_goes_on(self, job):
        """Waits for another checkpoint, and then stops the run (file STOP); or the run ends."""
        until = min(zr.last_step(self.directory) + df.EVERY, self.STEPS)

        def is_there():
            return zr.last_step(self.directory) >= until or job.show()["JobState"] in ENDED

        job.wait_until(is_there, f"step {until}", LIMIT)
        self.assertGreaterEqual(zr.last_step(self.directory), until, job.account())
        (self.directory / "STOP").touch()
        self.wait(job)
        (self.directory / "STOP").unlink(missing_ok=True)
        self.assertNotRegex(job.log, r"the run hangs|signal 9", job.account())

    def processes(self, name):
        """Returns ids of processes on all nodes whose command line begins with `name`."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "cmdline").read_bytes().startswith(name.encode()):
                    found.append(int(process.name))
        return sorted(found)

    def kill(self, process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)

    # The faults.

    def kill_a_rank(self):
        with self.running() as job:
            killed = self.draw.randrange(RANKS)
            if len(ranks := job.ranks()) == RANKS:
                self.kill(ranks[killed])
            self.wait_for_end(job, f"rank {killed} .*signal 9")

    def kill_mpirun(self):
        with self.running() as job:
            for process in self.processes("mpirun"):
                self.kill(process)
            self.wait_for_end(job, r"137")

    def kill_slurmstepd(self):
        """Kills a slurmstepd that started the batch script, or a daemon of mpirun on either node. Its children and the
        run survive; Slurm may notice the end of the job only minutes later."""
        with self.running() as job:
            self.kill(self.draw.choice(self.processes("slurmstepd:")))
            until = min(zr.last_step(self.directory) + df.EVERY, self.STEPS)

            def is_over():
                return re.search(r": done\n|not queued again|the chain ends", job.log)

            job.wait_until(lambda: zr.last_step(self.directory) >= until or is_over(), f"step {until}", LIMIT)
            (self.directory / "STOP").touch()
            job.wait_until(is_over, "end of the script", LIMIT)
            (self.directory / "STOP").unlink(missing_ok=True)

    def restart_slurmd(self):
        """Kills and restarts slurmd; its job survives."""
        with self.running() as job:
            number = self.draw.randrange(2)
            self.cluster.kill_slurmd(number)
            self.cluster.start_slurmd(number)
            self.assert_goes_on(job)

    def take_a_link_down(self):
        with self.running() as job:
            self.network.take_down("node2")
            self.wait_for_end(job, NAMED)
        self.go_on_without_a_node("node2")
        self.network.bring_up("node2")

    def take_a_link_down_for_a_while(self):
        with self.running() as job:
            self.network.take_down("node2")
            time.sleep(3)
            self.network.bring_up("node2")
            self.assert_goes_on(job)

    def slow_a_link(self):
        with self.running() as job:
            self.network.set_rate(4, ["node2"])
            self.assert_goes_on(job)

    def queue_again(self):
        with self.running() as job:
            job.signal("USR2")
            job.wait_until(lambda: job.starts() == 2 or job.show()["JobState"] in ENDED, "a second start")
            self.assert_goes_on(job)

    def lose_a_node(self):
        """Ends a node, its slurmd and its ranks for the rest of this run; the next run has a new node."""
        with self.running() as job:
            self.network.end_node("node2")
            self.wait_for_end(job)
        self.go_on_without_a_node("node2")
        self.network.make_node("node2")
        self.cluster.start_slurmd(1)

    def go_on_without_a_node(self, name):
        """Continues on the other node, with half as many ranks."""
        self.is_rounded = True
        with self.running(nodes=1) as job:
            self.assert_goes_on(job)
            self.assertRegex(job.log, r"on 2 ranks of n1: zea ")

    # Checks after each fault.

    def end_faults(self):
        self.network.bring_up("node2")
        self.network.set_rate(None)

    def check_nothing_is_left(self):
        self.cluster.bring_nodes_back()  # a disconnected node ends its job step only when Slurm contacts it
        gone_by = time.monotonic() + 2 * df.SOON
        while left := self.processes(str(zr.ZEA)) + self.processes("slurmstepd:"):
            self.assertLess(time.monotonic(), gone_by, f"{left} still run")
            time.sleep(0.1)
        for name in self.network.names:
            for segment in nn.run(*self.network.inside(name), "ls", "/dev/shm").split():
                self.assertNotIn("zea", segment)

    def finish_run(self):
        job = self.submit_until(lambda job: re.search(r": done\n", job.log))
        self.assertEqual(zr.last_step(self.directory), self.STEPS, job.account())
        self.wait(job)


def run_tests(folder):
    with nn.Network(2) as network:
        SoakNodes.network, SoakNodes.cluster = network, sc.Cluster(folder, network)
        zr.main()


sc.skip_without_slurm()
nn.enter()
sc.run_guarded(run_tests)
