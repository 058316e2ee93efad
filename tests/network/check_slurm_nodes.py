# SPDX-License-Identifier: Apache-2.0
"""A Slurm over two nodes of a network, with a slurmd on each (network_nodes.py): a job that queues itself again ends as
one that is left alone, and one whose node is cut off goes on without that node, on half as many ranks."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "run"))

import network_nodes as nn  # noqa: E402
import slurm_cluster as sc  # noqa: E402
import zea_run as zr  # noqa: E402

STEPS = 120
SOON = 60  # seconds, of which a Slurm on a machine that is busy needs most
FOR_EVER = "schedule.steps=1000000"
KEEPALIVE = {f"OMPI_MCA_oob_tcp_keepalive_{name}": value for name, value in
             (("time", "5"), ("intvl", "1"), ("probes", "3"))}  # fmt: skip


class SlurmNodes(zr.ZeaTest):
    cluster = network = None  # those of run_tests()

    def setUp(self):
        super().setUp()
        samples = zr.mixed_samples(22)
        keys = {"optim": ['decay = "constant"'], "precision": ['preset = "fp64"'], "checkpoint": ["every = 10"]}
        self.deck = zr.write_inputs(self.folder, samples, **keys)
        self.directory = self.folder / "run"

    def submit(self, nodes, *given, **environment):
        options = ["--time=10", "--cpus-per-task=1", f"--nodes={nodes}", "--ntasks-per-node=2"]
        known = {"ZEA": zr.ZEA, "ZEA_FOLDER": zr.JOBS.parent, "ZEA_LAUNCHER": "mpirun", **environment}
        return self.cluster.submit(
            self.folder, *options, zr.JOBS / "train.sbatch", *given,
            **{name: str(value) for name, value in known.items()},
        )  # fmt: skip

    def assert_ends(self, job, state, code, *sentences):
        end = job.wait()
        self.assertEqual(end["JobState"], state, job.account())
        if code is not None:
            self.assertEqual(end["ExitCode"], f"{code}:0", job.account())
        for sentence in sentences:
            self.assertRegex(job.log, sentence)

    def test_a_job_that_queues_itself_again(self):
        job = self.submit(2, self.deck, "-d", self.directory, f"schedule.steps={STEPS}")
        job.wait_until(lambda: zr.last_step(self.directory) >= 20, "step 20")
        job.signal("USR2")
        self.assert_ends(job, "COMPLETED", 0, r"queued again, to go on with -r ", r"on 4 ranks of n\[1-2\]: zea -r ")
        self.assertEqual(job.starts(), 2, job.account())
        self.assertRegex((self.directory / "log.txt").read_text(), r"\n  node 1, .*ranks 2-3")
        alone = self.folder / "alone"
        keys = ["-i", self.deck, "-d", alone, f"schedule.steps={STEPS}"]
        self.assert_code(self.network.run(4, keys, alone), 0)
        self.assertEqual(zr.numbers_of_steps(self.directory), zr.numbers_of_steps(alone))
        self.assert_same_arrays(zr.last_arrays(self.directory), zr.last_arrays(alone))

    def test_a_node_that_is_cut_off(self):
        keys = ["-d", self.directory, FOR_EVER, "run.watchdog_seconds=20"]
        job = self.submit(2, self.deck, *keys, **KEEPALIVE)
        job.wait_until(lambda: zr.last_step(self.directory) >= 20, "step 20")
        self.network.take_down("node2")
        begin = time.monotonic()
        named = r"node1 gets no answer over TCP from node2 \(10\.77\.0\.2\)"
        self.assert_ends(job, "FAILED", None, named, "the chain ends")
        self.assertLess(time.monotonic() - begin, SOON)
        step = int(zr.checkpoints(self.directory)[-1].name.removeprefix("step-")) + 10
        rest = self.submit(1, "-r", self.directory, f"schedule.steps={step}")
        self.assert_ends(rest, "COMPLETED", 0, r"on 2 ranks of n1: zea -r ")
        self.assertEqual(zr.last_step(self.directory), step)


def run_tests(folder):
    with nn.Network(2) as network:
        SlurmNodes.network, SlurmNodes.cluster = network, sc.Cluster(folder, network)
        zr.main()


sc.skip_without_slurm()
nn.enter()
sc.run_guarded(run_tests)
