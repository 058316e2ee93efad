# SPDX-License-Identifier: Apache-2.0
"""A checkpoint and a data set that stand in tests/run/kept, as an earlier zea wrote them, are read: a run goes on from
them with the numbers that it had then, on as many ranks and on one, and its model comes out.

With ZEA_KEEP set to a folder, the run is made anew, into it: where what is kept can no longer be read by intention.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import zea_run as zr

KEPT = Path(__file__).parent / "kept"
MAKE = os.environ.get("ZEA_KEEP")
# The kept run had rates of cosine decay that began one step earlier and ended at 0. These keys give the same rates but
# that of the last step, which is now above 0; they go when the kept run is made anew.
RATES_OF_THEN = ["optim.warmup_steps=1", "optim.decay_until=4"]
RANKS, HALF, STEPS = 2, 3, 5
SMALL = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


def make(folder):
    for part in ("vision_config", "text_config"):
        zr.CONFIG[part].update(SMALL)
    zr.CONFIG["text_config"].update(num_key_value_heads=1, head_dim=4)
    zr.CONFIG["vision_feature_layer"] = -1
    folder.mkdir()
    deck = zr.write_inputs(
        folder,
        zr.mixed_samples(10),
        schedule=[f"steps = {STEPS}"],
        precision=['preset = "fp64"'],
        checkpoint=[f"every = {HALF}", "keep = 0", "at_end = false"],
        **{"mesh.vision": ['strategy = "no_shard"']},
    )
    run = folder / "run"
    assert zr.run_zea(RANKS, ["-i", deck, "-d", run, "data.shuffle=true"], run).code == 0
    (checkpoint,) = zr.checkpoints(run)
    checkpoint.rename(folder / "checkpoint")
    numbers = {step: of for step, of in zr.numbers_of_steps(run).items() if step > HALF}
    (folder / "numbers.json").write_text(json.dumps(numbers) + "\n")
    shutil.rmtree(run)
    for name in ("deck.toml", "weights.h5", "weights.json"):
        (folder / name).unlink()


class Kept(zr.ZeaTest):
    def test_a_run_goes_on_with_the_numbers_of_then(self):
        kept = shutil.copytree(KEPT, self.folder / "kept")
        expected = {int(step): of for step, of in json.loads((kept / "numbers.json").read_text()).items()}
        for ranks in (RANKS, 1):
            run = self.folder / f"on_{ranks}"
            keys = [f"data.train={kept / 'train.h5'}", *RATES_OF_THEN]
            went_on = zr.run_zea(ranks, ["-r", kept / "checkpoint", "-d", run, *keys], run)
            self.assert_code(went_on, 0)
            found = zr.numbers_of_steps(run)
            self.assertEqual(sorted(found), sorted(expected))
            for step, numbers in found.items():
                for ours, theirs in zip(numbers, expected[step], strict=True):
                    self.assertAlmostEqual(ours, theirs, delta=1e-9 * max(1, abs(theirs)))

    def test_its_model_comes_out(self):
        target = self.folder / "out"
        subprocess.run([zr.ZEA_CONSOLIDATE, KEPT / "checkpoint", f"{target}/"], check=True, timeout=60)
        config = json.loads((target / "config.json").read_text())
        self.assertEqual(config["text_config"]["hidden_size"], SMALL["hidden_size"])
        self.assertTrue((target / "model.safetensors").stat().st_size > 0)


if __name__ == "__main__":
    if MAKE:
        make(Path(MAKE))
    else:
        zr.main()
