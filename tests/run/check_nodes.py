# SPDX-License-Identifier: Apache-2.0
"""Several nodes, which are this machine under several host names (named_hosts.py). Logical ranks then stand where
tensor parallelism stays inside a node, also where that is not MPI's order and MPI rank 0 is not the first, and the run
is the one of a single node. Skipped where host names cannot be set."""

import os
import re
import subprocess
import unittest
from unittest import mock

import named_hosts as nh
import zea_run as zr

STEPS = 3
GRID = ["mesh.llm.tp=2", "mesh.llm.strategy=full_shard", "mesh.vision.strategy=no_shard"]


class Nodes(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        self.agent = nh.write_agent(self.folder)
        self.deck = zr.write_inputs(
            self.folder,
            zr.mixed_samples(4 * STEPS),
            schedule=[f"steps = {STEPS}"],
            precision=['preset = "fp64"'],
            eval=[f"every = {STEPS}", "samples = 4", "generate_tokens = 2"],
        )

    def train(self, name, nodes="", *keys):
        with mock.patch.object(zr, "MPIRUN", nh.launcher(self.agent, nodes)):
            return self.run_in(self.folder / name, 4, "-i", self.deck, *GRID, *keys)

    def assert_same_run(self, name, result, expected):
        self.assert_same_losses(result.losses(), expected.losses(), 1e-10)
        self.assertEqual(zr.predictions(self.folder / name), zr.predictions(self.folder / "one"))
        self.assertEqual(len(list(zr.checkpoints(self.folder / name)[-1].glob("rank-*.h5"))), 4)

    def test_ranks_stand_where_tp_stays_inside_a_node(self):
        one = self.train("one")
        self.assertNotIn("node 0", one.output)

        # Two and two, in order.
        even = self.train("even", "nodea:2,nodeb:2")
        self.assertIn("node 1, replica 1: all of it, ranks 2-3", even.output)
        self.assertNotIn("MPI ranks", even.output)
        self.assertNotIn("llm.tp", re.search("bytes that cross nodes.*\n(.*)\n", even.output).group(1))
        self.assert_same_run("even", even, one)

        # MPI ranks 1 and 2 share a node and take the first replica; the other one is in two halves.
        uneven = self.train("uneven", "nodea:1,nodeb:2,nodec:1")
        self.assertIn("node 0, MPI ranks 0, replica 1: vision+llm 2\n", uneven.output)
        self.assertIn("node 1, MPI ranks 1-2, replica 0: all of it, ranks 0-1\n", uneven.output)
        self.assertIn("warning: 1 of 2 tp groups of llm cross nodes", uneven.output)
        self.assert_same_run("uneven", uneven, one)

    @unittest.skipIf(subprocess.run(nh.MOUNTING, capture_output=True).returncode, "nothing can be mounted here")
    def test_a_node_with_little_shared_memory(self):
        """The node is not that of rank 0, which reports it."""
        one = self.train("one")
        with mock.patch.dict(os.environ, SMALL_HOST="nodeb"):
            even = self.train("even", "nodea:2,nodeb:2")
        said = [line for line in even.output.splitlines() if "collectives go over MPI" in line]
        self.assertEqual(len(said), 1, even.output)
        self.assertRegex(said[0], r"^warning: .*/dev/shm.* \(on 1 of 2 nodes: nodeb\)$")
        self.assert_same_run("even", even, one)


nh.skip_without_names()
zr.main()
