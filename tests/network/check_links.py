# SPDX-License-Identifier: Apache-2.0
"""Cables that fail under a run of two nodes (network_nodes.py): one that goes down for good ends the run in time, which
goes on without the node; one that comes back, or is slow, ends nothing and changes no loss."""

import os
import sys
import time
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1] / "run"))

import network_nodes as nn  # noqa: E402
import zea_run as zr  # noqa: E402

WATCHDOG = 20  # seconds, more than a start stands still on a machine that is busy
SOON = 30  # seconds, on a machine that is busy
RANKS = 4
FOR_EVER = "schedule.steps=1000000"
# As jobs/train_chain.sh sets them, but shorter.
KEEPALIVE = {f"OMPI_MCA_oob_tcp_keepalive_{name}": value for name, value in
             (("time", "5"), ("intvl", "1"), ("probes", "3"))}  # fmt: skip
NAMED = r"node1 gets no answer over TCP from node2 \(10\.77\.0\.2\): look at these nodes"


class Links(zr.ZeaTest):
    @classmethod
    def setUpClass(cls):
        cls.shared = zr.make_folder(cls.addClassCleanup)
        cls.deck = zr.write_inputs(
            cls.shared,
            zr.mixed_samples(22),
            optim=['decay = "constant"'],
            precision=['preset = "fp64"'],
            checkpoint=["every = 5"],
        )

    def setUp(self):
        super().setUp()
        self.network = self.enterContext(nn.Network(2))
        self.directory = self.folder / "run"

    def start(self, *keys, **environment):
        arguments = ["-i", self.deck, "-d", self.directory, FOR_EVER, f"run.watchdog_seconds={WATCHDOG}", *keys]
        with mock.patch.dict(os.environ, environment):
            return self.network.start(RANKS, arguments, self.directory)

    def assert_same_as_alone(self):
        """Within rounding, as one rank computes these steps."""
        alone = self.folder / "alone"
        steps = zr.last_step(self.directory)
        self.assert_code(zr.run_zea(1, ["-i", self.deck, "-d", alone, f"schedule.steps={steps}"], alone), 0)
        self.assert_same_losses(
            {step: numbers[0] for step, numbers in zr.numbers_of_steps(self.directory).items()},
            {step: numbers[0] for step, numbers in zr.numbers_of_steps(alone).items()},
            1e-10,
        )

    def go_on_without_the_node(self):
        """On half as many ranks."""
        step = int(zr.checkpoints(self.directory)[-1].name.removeprefix("step-")) + 10
        result = self.network.run(2, ["-r", self.directory, f"schedule.steps={step}"], self.directory, ["node1"])
        self.assert_code(result, 0)
        self.assertEqual(zr.last_step(self.directory), step)

    def wait_for_end_of_ranks(self, run):
        down = time.monotonic()
        while run.rank_processes():
            self.assertLess(time.monotonic() - down, WATCHDOG + SOON, run.output)
            time.sleep(0.05)
        return time.monotonic() - down

    def test_mpirun_gives_up_a_node(self):
        with self.start("run.watchdog_seconds=30", **KEEPALIVE) as run:
            run.wait_for_step(12)
            self.network.take_down("node2")
            self.wait_for_end_of_ranks(run)
            self.assertNotIn(run.wait(), (0, 6, 75))
            self.assertRegex(run.output, r"warning: nothing began or ended for \d+\.\d s, and " + NAMED)
            self.assertNotIn("the run hangs", run.output)
        self.go_on_without_the_node()

    def test_the_watchdog_ends_the_ranks_of_a_node_that_is_gone(self):
        """All ranks end; mpirun would wait for its daemon there for as long as TCP does."""
        with self.start() as run:
            run.wait_for_step(12)
            self.network.take_down("node2")
            self.wait_for_end_of_ranks(run)
            self.assertRegex(run.output, "the run hangs.*" + NAMED)
        self.go_on_without_the_node()

    def test_a_link_that_comes_back(self):
        with self.start() as run:
            run.wait_for_step(12)
            self.network.take_down("node2")
            time.sleep(WATCHDOG / 5)
            step = zr.last_step(self.directory)
            self.network.bring_up("node2")
            run.wait_for_step(step + 10)
            (self.directory / "STOP").touch()
            self.assertEqual(run.wait(), 75, run.output)
        self.assert_same_as_alone()

    def test_a_slow_link(self):
        with self.start() as run:
            run.wait_for_step(5)
            self.network.set_rate(2)
            run.wait_for_step(zr.last_step(self.directory) + 5)
            (self.directory / "STOP").touch()
            self.assertEqual(run.wait(), 75, run.output)
        self.assert_same_as_alone()


nn.enter()
zr.main()
