# SPDX-License-Identifier: Apache-2.0
"""zea --check-node: a line per node, sentences about sick ones, and the exit code. zea --profile-hardware: the file."""

import os
import re
import tomllib
from unittest import mock

import named_hosts as nh
import zea_run as zr

SICK = 8
SLOW = r"(?m)^sick: node \S+: .* at \d+\.\d\d [MG]B/s, and the median of the nodes is \d+\.\d\d [MG]B/s; "
NODE = r"(?m)^{}  +{}  +\d+  +\d+\.\d\d GiB  +\d+\.\d\d GiB  +\d+\.\d\d GiB  +\d+\.\d\d [MG]B/s  +"


class Preflight(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        self.agent = nh.write_agent(self.folder)

    def check(self, ranks, *given, nodes="", code=0):
        """Where nodes, which are all this machine, are well, what else it does may have slowed one of them."""
        with mock.patch.object(zr, "MPIRUN", nh.launcher(self.agent, nodes)):
            result = zr.run_zea(ranks, ["--check-node", *given])
        sick, slow = (len(re.findall(found, result.output)) for found in ("(?m)^sick: ", SLOW))
        self.assert_code(result, SICK if nodes and slow and slow == sick else code)
        return result.output

    def test_one_node_without_a_deck(self):
        output = self.check(2, "-d", self.folder)
        name = os.uname().nodename.partition(".")[0]
        self.assertRegex(output, NODE.format(name, 2) + r"\d+\.\d\d [MG]B/s  +-  +0.00 \+- 0.00 ms$")
        self.assertRegex(output, r"(?m)^all 2 ranks: an all-reduce is right, at .*/s between hosts$")
        self.assertIn("expected: there is no other node to compare with\n", output)
        self.assertTrue(output.endswith("no node is sick\n"), output)

    def test_nodes_and_the_deck_of_a_run(self):
        deck = zr.write_deck(self.folder, "none.h5", "none.h5")
        directory = self.folder / "runs" / "a"
        output = self.check(4, "-i", deck, "-d", directory, nodes="nodea:2,nodeb:2")
        for name in ("nodea", "nodeb"):
            rates = r"\d+\.\d\d [MG]B/s  +\d+\.\d\d [MG]B/s  +-?\d+\.\d\d \+- \d+\.\d\d ms$"
            self.assertRegex(output, NODE.format(name, 2) + rates)
        self.assertRegex(output, r"expected: inside .* \(the median of the nodes\), at least half of it; across ")
        self.assertIn("an all-reduce is right", output)
        self.assertFalse(directory.exists())
        self.assertEqual([path.name for path in self.folder.glob(".zea*")], [])

    def test_three_nodes(self):
        output = self.check(3, "-d", self.folder, nodes="nodea:1,nodeb:1,nodec:1")
        self.assertEqual(len(re.findall(r"(?m)^node[abc] ", output)), 3)
        self.assertIn("expected: across ", output)

    def test_a_directory_that_cannot_be_written(self):
        output = self.check(2, "-d", "/proc/run", code=SICK)
        self.assertRegex(output, r"sick: node \S+: /proc/run cannot be written: .*; look at its mount, or exclude it")
        self.assertNotIn("no node is sick", output)

    def test_gpus_that_are_missing(self):
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):
            output = self.check(2, "run.device=cuda", "-d", self.folder, code=SICK)
        self.assertRegex(output, r"(?m)^node +ranks +cores +GPUs ")
        self.assertRegex(output, r"(?m)^sick: node \S+: .*(CUDA driver|GPUs|NCCL).*, or exclude it with --exclude=")
        self.assertIn("an all-reduce is right", output)  # between hosts

    def test_faulty_deck(self):
        output = self.check(2, "run.devise=cuda", code=2)
        self.assertIn("run.devise is not a key", output)

    def profile(self, nodes, *given):
        """The hardware file that four ranks write."""
        file = self.folder / "hardware.toml"
        with mock.patch.object(zr, "MPIRUN", nh.launcher(self.agent, nodes)):
            result = zr.run_zea(4, ["--profile-hardware", file, "-d", self.folder, *given])
        self.assert_code(result, 0)
        self.assertTrue(result.output.endswith(f"written to {file}\n"), result.output)
        return file, tomllib.loads(file.read_text())

    def test_rates_of_two_nodes(self):
        file, rates = self.profile("nodea:2,nodeb:2")
        device, inside, between = (rates[section] for section in ("device", "inside", "between"))
        self.assertEqual((rates["hardware"]["source"], rates["node"]["ranks"]), ("measured", 2))
        self.assertLessEqual(device["gemm_efficiency"][-1], 1)  # of the fastest
        self.assertGreater(device["fp32_tflops"], device["fp64_tflops"])
        for section in (device, inside, between):
            for name, value in section.items():
                if name not in ("launches_ahead", "overlaps", "sliced_attention_efficiency", "hop_us"):
                    self.assertGreater(min(value) if isinstance(value, list) else value, 0, name)
        self.assertFalse(device["overlaps"])
        deck = zr.write_inputs(self.folder, [zr.text_sample(i, 20) for i in range(8)])
        plan = zr.run_zea(1, ["-n", "--ranks", "4", "--hardware", file, "-i", deck])
        self.assert_code(plan, 0)
        self.assertIn("tokens/s", plan.output)

    def test_rates_of_one_node(self):
        _, rates = self.profile("nodea:4", "precision.preset=fp64")
        self.assertEqual(rates["inside"], rates["between"])
        self.assertIn("in fp64: 4 ranks on 1 nodes; there was one node", rates["hardware"]["reference"])

    def test_rates_need_links(self):
        result = zr.run_zea(1, ["--profile-hardware", self.folder / "hardware.toml"])
        self.assert_code(result, 2)
        self.assertIn("--profile-hardware measures the links between ranks, and one rank was started", result.output)


nh.skip_without_names()
zr.main()
