# SPDX-License-Identifier: Apache-2.0
"""Cables of a network (network_nodes.py) as zea measures them: the health check names a slow one, and a hardware file
has the rates between nodes and inside them."""

import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "run"))

import network_nodes as nn  # noqa: E402
import zea_run as zr  # noqa: E402

SLOW = 100  # Mbit/s


class Rates(zr.ZeaTest):
    @classmethod
    def setUpClass(cls):
        cls.network = cls.enterClassContext(nn.Network(3))

    def tearDown(self):
        self.network.set_rate(None)

    def test_a_slow_cable_is_named(self):
        self.network.set_rate(1000)
        self.network.set_rate(SLOW, ["node3"])
        result = self.network.run(3, ["--check-node", "-d", self.folder])
        self.assert_code(result, 8)
        sick = [line for line in result.output.splitlines() if line.startswith("sick: ")]
        self.assertEqual(len(sick), 1, result.output)
        self.assertRegex(sick[0], r"^sick: node node3: .* it sums at .*B/s, and the median of the nodes is .*B/s; ")

    def test_rates_of_links(self):
        """Between nodes that of the cable, inside a node of memory."""
        self.network.set_rate(SLOW)
        file = self.folder / "hardware.toml"
        result = self.network.run(4, ["--profile-hardware", file, "-d", self.folder], None, self.network.names[:2])
        self.assert_code(result, 0)
        rates = tomllib.loads(file.read_text())
        # Both ranks of a node send at once: each has half of 12.5 MB/s.
        self.assertTrue(0.004 < rates["between"]["gb_per_s"] < 0.0075, result.output)
        self.assertGreater(rates["inside"]["gb_per_s"], 0.1)
        self.assertGreater(rates["between"]["latency_us"], rates["inside"]["latency_us"])


nn.enter()
zr.main()
