# SPDX-License-Identifier: Apache-2.0
"""Golden runs: the losses of 100 steps of six tiny decks in fp64 are those that golden/losses.json holds, and those in
fp32 and bf16 follow them. Bounds come from an error model, so that they hold on every processor.

ZEA_RECORD=1 writes the losses in place of comparing them: after a change that is meant to change training.
ZEA_SHARES=1 prints the largest share of its bound that each run needed."""

import json
import math
import os
from pathlib import Path
from unittest import mock

import zea_run as zr

GOLDEN = Path(__file__).parent / "golden/losses.json"
CONFIGS = Path(__file__).parents[1] / "fuzz/corpus/config"
STEPS = 100
# Relative errors of a unit, as in bounds of zea --verify-layout. In fp64 it is that of a few weights: they are drawn by
# functions of the C library, which differ in the last bit, and rounded to fp32.
ROUNDOFF = {"fp64": 2**-36, "fp32": 2**-24, "bf16": 2**-8}
DEPTH = 6  # units that a value passes
MUON_GAIN = 3.4445**5  # of small singular values, and of their errors
# Adam then divides no errors by errors, which would grow by orders of magnitude in 100 steps.
STEADY = "optim.eps=1e-3"


class Run:
    def __init__(self, model, ranks, *keys, images=False):
        self.model, self.ranks, self.keys, self.images = model, ranks, keys, images


RUNS = {
    "llava, DDP and shards": Run(
        None, 2, STEADY, "mesh.vision.strategy=no_shard", "mesh.llm.strategy=full_shard", images=True
    ),
    "llava, adapters on frozen parts": Run(
        None, 1, STEADY, "model.vision.train=false", "model.llm.lora.targets=['*']", "model.llm.lora.rank=4",
        "model.llm.lora.dropout=0.1", "optim.weight_decay=0.1", "optim.lr=0.001", images=True
    ),  # fmt: skip
    "gpt2, sgd, dropout": Run("gpt2", 1, "model.llm.dropout=0.1", "optim.kind=sgd", "optim.lr=0.05"),
    "gemma3_text, muon": Run("gemma3_text", 2, STEADY, "optim.kind=muon", "mesh.llm.tp=2", "optim.decay=inverse_sqrt"),
    "mixtral, router losses": Run("mixtral", 2, STEADY, "mesh.llm.ep=2", "model.llm.router_aux_loss_coef=0.01"),
    "qwen3_5_text, adam": Run("qwen3_5_text", 2, STEADY, "optim.kind=adam", "mesh.llm.cp=2", "optim.clip_norm=0.5"),
}


def bound(run, preset, step):
    """Relative. A loss has the errors of the units, and those of the weights: each step adds its own. They add up as
    their number at most, and as its root if they are independent: more than that would bound nothing in bf16."""
    if preset == "bf16":
        return ROUNDOFF[preset] * math.sqrt(DEPTH * step)
    gain = MUON_GAIN if "optim.kind=muon" in run.keys else 1
    return 12 * gain * ROUNDOFF[preset] * math.sqrt(DEPTH) * step


class Golden(zr.ZeaTest):
    def losses(self, run, preset):
        config = json.loads((CONFIGS / f"good_{run.model}.json").read_text()) if run.model else zr.CONFIG
        samples = zr.mixed_samples(40) if run.images else [zr.text_sample(i, 3 + 2 * (i % 7)) for i in range(40)]
        directory = self.folder / f"{preset}"
        with mock.patch.object(zr, "CONFIG", config):
            deck = zr.write_inputs(self.folder, samples, precision=[f'preset = "{preset}"'])
        keys = ["data.shuffle=true", f"schedule.steps={STEPS}", "log.every=1", "checkpoint.at_end=false", *run.keys]
        losses = self.run_in(directory, run.ranks, "-i", deck, *keys).losses()
        self.assertEqual(list(losses), list(range(1, STEPS + 1)))
        return list(losses.values())

    def check(self, name, preset, losses, expected):
        run = RUNS[name]
        shares = [abs(a - b) / (b * bound(run, preset, s)) for s, (a, b) in enumerate(zip(losses, expected), 1)]
        worst = max(range(STEPS), key=shares.__getitem__)
        if os.environ.get("ZEA_SHARES"):
            print(f"{name}, {preset}: {shares[worst]:.3g} of the bound at step {worst + 1}")
        self.assertLess(shares[worst], 1, f"{preset}, step {worst + 1}: {losses[worst]}, golden: {expected[worst]}")

    def test_losses(self):
        golden = {} if os.environ.get("ZEA_RECORD") else json.loads(GOLDEN.read_text())
        recorded = {}
        for name, run in RUNS.items():
            with self.subTest(name):
                self.folder = zr.make_folder(self.addCleanup)
                recorded[name] = self.losses(run, "fp64")
                if not golden:
                    continue
                self.assertLess(golden[name][-1], 0.99 * golden[name][0], "the run learns nothing")
                self.check(name, "fp64", recorded[name], golden[name])
                for preset in ("fp32", "bf16"):
                    self.check(name, preset, self.losses(run, preset), golden[name])
        if not golden:
            lines = (f"{json.dumps(name)}: {json.dumps(losses)}" for name, losses in recorded.items())
            GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    zr.main()
