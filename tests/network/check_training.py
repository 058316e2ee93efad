# SPDX-License-Identifier: Apache-2.0
"""Training over a network of two or three nodes (network_nodes.py): every kind of layout equals one rank, resumes bit
for bit, on other nodes, too, saves and leaves on a signal, and says so where nodes do not share the run directory."""

import re
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "run"))

import network_nodes as nn  # noqa: E402
import zea_run as zr  # noqa: E402

STEPS = 4
RANKS = 4
LAYOUTS = {
    "fsdp": ["mesh.llm.strategy=full_shard", "mesh.vision.strategy=full_shard"],
    "hybrid": ["mesh.dp_replicate=2", "mesh.llm.strategy=hybrid_shard", "mesh.vision.strategy=hybrid_shard"],
    "tp": ["mesh.llm.tp=2", "mesh.llm.strategy=full_shard"],
    "pp": ["mesh.llm.tp=2", "mesh.llm.pp=2"],
}


class Training(zr.ZeaTest):
    @classmethod
    def setUpClass(cls):
        cls.shared = zr.make_folder(cls.addClassCleanup)
        cls.network = cls.enterClassContext(nn.Network(3))
        cls.two = cls.network.names[:2]
        cls.deck = zr.write_inputs(
            cls.shared,
            zr.mixed_samples(4 * STEPS),
            optim=['decay = "constant"'],  # so that a step is the same however many are to come
            precision=['preset = "fp64"'],
            schedule=[f"steps = {STEPS}"],
        )
        alone = cls.shared / "alone"
        zr.run_zea(1, ["-i", cls.deck, "-d", alone], alone)
        cls.alone = alone

    def run_on(self, directory, *arguments, ranks=RANKS, nodes=None, code=0):
        result = self.network.run(ranks, [*arguments, "-d", directory], directory, nodes or self.two)
        self.assert_code(result, code)
        return result

    def test_layouts_equal_one_rank(self):
        expected = {line["step"]: line["loss"] for line in zr.train_lines(self.alone)}
        weights = zr.last_arrays(self.alone)
        for name, keys in LAYOUTS.items():
            with self.subTest(name):
                result = self.run_on(self.folder / name, "-i", self.deck, *keys)
                self.assertIn("\n  node 1, ", result.output)
                self.assert_same_losses(result.losses(), expected, 1e-10)
                found = zr.last_arrays(self.folder / name)
                self.assertEqual(found.keys(), weights.keys())
                for key, values in weights.items():
                    zr.np.testing.assert_allclose(found[key], values, rtol=0, atol=1e-10, err_msg=str(key))
                crossing = re.search("bytes that cross nodes.*\n(.*)\n", result.output).group(1)
                self.assertEqual("llm.pp" in crossing, name == "pp", crossing)
                self.assertNotIn("llm.tp", crossing)

    def test_a_resumed_run_has_the_same_bits(self):
        """Also one that goes on where the other node was; and on another number of nodes within rounding."""
        whole, rest, other = (self.folder / name for name in ("whole", "rest", "other"))
        keys = [*LAYOUTS["tp"], "checkpoint.every=2", "checkpoint.keep=0"]
        self.run_on(whole, "-i", self.deck, *keys)
        half = whole / "checkpoints/step-00000002"
        self.run_on(rest, "-r", half, nodes=self.network.names[1:])
        expected = zr.numbers_of_steps(whole)
        self.assertEqual(zr.numbers_of_steps(rest), {step: expected[step] for step in (3, 4)})
        self.assert_same_arrays(zr.last_arrays(whole), zr.last_arrays(rest))
        result = self.run_on(other, "-r", half, ranks=3, nodes=self.network.names, *["mesh.llm.tp=1"])
        self.assert_same_losses(result.losses(), {step: expected[step][0] for step in (3, 4)}, 1e-10)

    def test_saves_and_leaves_on_a_signal(self):
        directory = self.folder / "run"
        keys = ["-i", self.deck, "-d", directory, "schedule.steps=1000000", "checkpoint.keep=0"]
        with self.network.start(RANKS, keys, directory, self.two) as run:
            run.wait_for_step(5)
            run.process.send_signal(signal.SIGUSR1)
            run.wait_until(lambda: zr.checkpoints(directory), "a checkpoint")
            run.wait_for_step(zr.last_step(directory) + 5)
            run.process.send_signal(signal.SIGUSR2)
            self.assertEqual(run.wait(), 75, run.output)
            self.assertIn(f"go on with -r {directory}", run.output)
            self.assertEqual(run.rank_processes(), [])
        left_at = zr.last_step(directory)
        self.assertEqual([path.name for path in zr.checkpoints(directory)][1:], [f"step-{left_at:08}"])
        self.run_on(directory, "-r", directory, f"schedule.steps={left_at + 2}")
        self.assertEqual(zr.last_step(directory), left_at + 2)

    def test_nodes_that_share_no_run_directory(self):
        own = self.folder / "own"
        own.mkdir()
        self.network.mount_own(own)
        result = self.network.run(RANKS, ["-i", self.deck, "-d", own / "run"], None, self.two)
        self.assert_code(result, 7)
        self.assertIn("is not the same on all nodes: 1 of 2 nodes do not see what rank 0 writes there", result.output)
        self.assertIn("name a folder that all nodes share (-d)", result.output)
        self.assertNotIn("step 1/", result.output)


nn.enter()
zr.main()
