# SPDX-License-Identifier: Apache-2.0
"""postprocess/read_checkpoint.py returns what zea-consolidate makes of the same shards: every parameter and optimizer
state, whole and in boxes, of a run with tp and full_shard, with each kind of state that there is."""

import re
import subprocess
import sys
from pathlib import Path

import zea_run as zr
from read_checkpoint import Checkpoint

np = zr.np
SCRIPT = Path(__file__).parents[2] / "postprocess" / "read_checkpoint.py"
SHARDED = ["mesh.llm.tp=2", "mesh.llm.strategy=full_shard", "mesh.vision.strategy=full_shard"]
STATES = {
    "adamw": {"exp_avg", "exp_avg_sq"},
    "muon": {"momentum_buffer", "exp_avg_sq"},
    "adamw_8bit": {
        *("exp_avg", "exp_avg_sq", "exp_avg_codes", "exp_avg_scales", "exp_avg_sq_codes", "exp_avg_sq_scales")
    },
}


def random_box(draw, shape):
    """Slices, of which the last may be left out."""
    box = []
    for length in shape[: draw.integers(1, len(shape) + 1)]:
        begin, end = sorted(draw.integers(0, length + 1, 2).tolist())
        box.append(slice(begin, end))
    return tuple(box)


class Reader(zr.ZeaTest):
    def run_script(self, *arguments, code=0):
        done = subprocess.run([sys.executable, "-B", SCRIPT, *map(str, arguments)], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout + done.stderr

    def check_file(self, checkpoint, file):
        """All that zea-consolidate --optimizer wrote, and nothing else, is what is read."""
        draw, found = np.random.default_rng(1), set()
        expected = zr.read_arrays(file)
        for name, values in expected.items():
            state, tensor = re.fullmatch(r"(?:__optimizer__/([^/]+)/)?(.*)", name).groups("parameter")
            if tensor.startswith("__"):
                continue
            found.add((tensor, state))
            self.assertEqual(checkpoint.shape(tensor, state), values.shape, name)
            np.testing.assert_array_equal(checkpoint.read(tensor, state), values, name)
            for _ in range(3):
                box = random_box(draw, values.shape)
                np.testing.assert_array_equal(checkpoint.read(tensor, state, box), values[box], f"{name} {box}")
            np.testing.assert_array_equal(checkpoint.read(tensor, state, -1), values[-1], name)
        stored = {(piece["tensor"], piece["state"]) for piece in checkpoint.manifest["pieces"]}
        self.assertEqual(found, stored)

    def test_every_state_of_every_optimizer(self):
        zr.CONFIG["text_config"].update(hidden_size=64, intermediate_size=64, head_dim=16)
        zr.CONFIG["vision_config"].update(hidden_size=64, intermediate_size=64)  # some matrices have states in 8 bits
        deck = zr.write_inputs(self.folder, zr.mixed_samples(8), schedule=["steps = 2"], checkpoint=["keep = 0"])
        moments = {}
        for optimizer, states in STATES.items():
            with self.subTest(optimizer):
                run, file = self.folder / optimizer, self.folder / f"{optimizer}.h5"
                self.run_in(run, 4, "-i", deck, *SHARDED, f"optim.kind={optimizer}", "optim.lr=1e-4")
                subprocess.run([zr.ZEA_CONSOLIDATE, "--optimizer", run, file], check=True, capture_output=True)
                checkpoint = Checkpoint(run)
                self.assertEqual(checkpoint.step, 2)
                self.assertEqual({s for n in checkpoint.names() for s in checkpoint.states(n)}, {"parameter", *states})
                self.check_file(checkpoint, file)
                moments[optimizer] = checkpoint
        name = "language_model.model.layers.0.mlp.down_proj.weight"
        self.assertEqual(moments["adamw_8bit"].dtype(name, "exp_avg_codes"), "uint8")
        for state, share in (("exp_avg", 0.1), ("exp_avg_sq", 0.2)):  # decoded: nearly those that are kept in fp32
            exact, decoded = (moments[kind].read(name, state) for kind in ("adamw", "adamw_8bit"))
            self.assertLess(np.abs(decoded - exact).max(), share * np.abs(exact).max())
            box = np.s_[3:9, 5:40]
            np.testing.assert_array_equal(moments["adamw_8bit"].read(name, state, box), decoded[box])
        self.check_script(self.folder / "adamw", moments["adamw"], name)

    def check_script(self, run, checkpoint, name):
        self.assertIn(f"{name} [64, 64] float32 exp_avg exp_avg_sq", self.run_script(run))
        out = self.folder / "box.npy"
        self.run_script(checkpoint.path, name, "--state", "exp_avg", "--box", "1:3,:", "--out", out)
        np.testing.assert_array_equal(np.load(out), checkpoint.read(name, "exp_avg")[1:3])
        said = self.run_script(run, name, "--state", "momentum_buffer", code=1)
        self.assertIn("has no momentum_buffer; it has parameter", said)
        self.assertIn("has no tensor x", self.run_script(run, "x", code=1))
        self.assertIn("no complete checkpoint", self.run_script(self.folder, code=1))


zr.main()
