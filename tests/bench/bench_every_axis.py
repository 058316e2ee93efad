#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares losses of 3,000 steps on every axis at once with one rank: a tiny LLaVA with a mixture of experts trains on
18 ranks (two sharded replicas of tp 2 x cp 2 x pp 2 with ep 2, separate ranks for encoders), in fp32 and in bf16.

    tests/bench/bench_every_axis.py build/ci [--steps 3000] [--out every_axis.png] [--keep losses.json]

One rank in fp64 is the reference, and the errors of one rank in fp32 and bf16 give the scale; so does a run that draws
the samples in another order (another seed). Fails if the layout's error exceeds FACTOR times that of one rank in any
window of a sixth of the steps. --keep: reuses runs that the file contains, and adds the others to it."""

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MPIRUN = "mpirun --allow-run-as-root --oversubscribe --bind-to none --mca btl_base_warn_component_unused 0".split()
WINDOWS = 6
FACTOR = 3
SAMPLES, BATCH, KINDS = 4000, 16, 3
GRID = [
    "mesh.dp_shard=2", "mesh.placement=disjoint", "mesh.vision.encoder_dp=1", "mesh.vision.strategy=full_shard",
    "mesh.llm.tp=2", "mesh.llm.cp=2", "mesh.llm.cp_block=4", "mesh.llm.pp=2", "mesh.llm.ep=2",
    "mesh.llm.strategy=full_shard",
]  # fmt: skip
# Each run: its precision, ranks and keys.
EXACT = "fp64, one rank"
RUNS = {
    EXACT: ("fp64", 1, []),
    "fp64, other seed": ("fp64", 1, ["run.seed=2"]),
    "fp32, one rank": ("fp32", 1, []),
    "bf16, one rank": ("bf16", 1, []),
    "fp32, 18 ranks": ("fp32", 18, GRID),
    "bf16, 18 ranks": ("bf16", 18, GRID),
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--out", type=Path, help="a picture of the losses and their differences")
    parser.add_argument("--keep", type=Path, help="a JSON file of losses")
    return parser.parse_args()


ARGUMENTS = parse()
PROGRAMS = ("src/zea", "postprocess/zea-import", "postprocess/zea-consolidate")
sys.argv[1:] = [*(str(ARGUMENTS.build.resolve() / name) for name in PROGRAMS), str(ROOT / "jobs"), *MPIRUN]
sys.path.insert(0, str(ROOT / "tests/run"))
import numpy as np  # noqa: E402
import zea_run as zr  # noqa: E402


def sample(seed):
    """Returns a sequence in which a token and the brightness of an image mostly determine the next token; two of three
    samples have an image."""
    draw = np.random.default_rng(seed)
    kind, words = int(draw.integers(KINDS)), zr.VOCABULARY - 4
    tokens = [int(draw.integers(words))]
    for _ in range(int(draw.integers(5, 13))):
        follows = (5 * tokens[-1] + 7 * kind + 3) % words
        tokens.append(follows if draw.random() < 0.8 else int(draw.integers(words)))
    text = [4 + token for token in tokens]
    if seed % 3 == 0:
        return [1, *text, 2], [0, *[1] * (len(text) + 1)], []
    shape = (zr.IMAGE_SIZE, zr.IMAGE_SIZE, 3)
    image = np.clip(draw.normal(60 + 70 * kind, 20, shape), 0, 255).astype(np.uint8)
    prompt = [1, *[zr.IMAGE_TOKEN] * zr.FEATURES]
    return [*prompt, *text, 2], [0] * len(prompt) + [1] * (len(text) + 1), [image]


def write_deck(folder):
    zr.CONFIG["text_config"].update(
        model_type="mixtral", num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=64
    )
    return zr.write_inputs(
        folder,
        [sample(seed) for seed in range(SAMPLES)],
        model=["llm.router_aux_loss_coef = 0.01"],
        data=["rows_per_microbatch = 1"],
        optim=['decay = "constant"'],
        checkpoint=["at_end = false"],
    )


def train(folder, deck, name):
    precision, ranks, keys = RUNS[name]
    directory = folder / name
    common = [
        f"schedule.steps={ARGUMENTS.steps}", f"schedule.global_batch={BATCH}", "data.row_tokens=64",
        "data.shuffle=true", f"precision.preset={precision}", "optim.lr=0.0005",
    ]  # fmt: skip
    begin = time.monotonic()
    arguments = ["-i", deck, "-d", directory, *common, *keys]
    result = zr.run_zea(ranks, arguments, directory, limit_seconds=4 * 3600)
    if result.code:
        raise SystemExit(result.output)
    print(f"# {name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return list(result.losses().values())


def all_losses():
    """Returns an array of losses for each run."""
    kept = json.loads(ARGUMENTS.keep.read_text()) if ARGUMENTS.keep and ARGUMENTS.keep.exists() else {}
    with zr.tempfile.TemporaryDirectory(prefix="zea-axes-") as scratch:
        deck = write_deck(Path(scratch))
        for name in RUNS:
            if name in kept:
                continue
            kept[name] = train(Path(scratch), deck, name)
            if ARGUMENTS.keep:
                ARGUMENTS.keep.write_text(json.dumps(kept))
    return {name: np.array(kept[name]) for name in RUNS}


def windows_of(differences):
    """Returns root mean squares of each window."""
    return [float(np.sqrt(np.mean(part**2))) for part in np.array_split(differences, WINDOWS)]


def draw(losses, differences, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 6.5), sharex=True)
    one, grid, other = "#2f6bb3", "#d1662b", "#b8bcc2"
    for precision, (top, bottom) in zip(("fp32", "bf16"), axes.T):
        steps = np.arange(1, len(losses[EXACT]) + 1)
        window = min(25, len(steps))
        mean = np.ones(window) / window
        colors = {"fp64, other seed": other, f"{precision}, one rank": one, f"{precision}, 18 ranks": grid}
        for name, color in colors.items():
            if name in (f"{precision}, one rank", f"{precision}, 18 ranks"):
                top.plot(steps, losses[name], color=color, lw=2.5 if color == one else 0.8, label=name)
            bottom.semilogy(steps[window - 1 :], np.convolve(np.abs(differences[name]), mean, "valid"), color=color,
                            lw=1.1, label=name)  # fmt: skip
        top.set_title(f"{precision}: loss", loc="left", weight="bold", size=11)
        bottom.set_title(f"relative difference from one rank in fp64, mean of {window} steps", loc="left",
                         weight="bold", size=11)  # fmt: skip
        bottom.set_xlabel("step")
        for axis in (top, bottom):
            axis.grid(color="#d9dce0", lw=0.6)
            axis.spines[["top", "right"]].set_visible(False)
            axis.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    losses = all_losses()
    exact = losses[EXACT]
    assert all(len(run) == len(exact) for run in losses.values()), "runs have different lengths"
    differences = {name: (run - exact) / exact for name, run in losses.items() if name != EXACT}
    found = {name: windows_of(values) for name, values in differences.items()}
    for name, parts in found.items():
        print(f"{name}: " + ", ".join(f"{part:.1e}" for part in parts))
    if ARGUMENTS.out:
        draw(losses, differences, ARGUMENTS.out)
    tail = len(exact) // WINDOWS
    faults = [] if exact[-tail:].mean() < 0.9 * exact[0] or tail < 100 else ["the loss does not decrease"]
    for precision in ("fp32", "bf16"):
        for number, (one, grid) in enumerate(zip(found[f"{precision}, one rank"], found[f"{precision}, 18 ranks"])):
            if grid > FACTOR * one:
                faults.append(f"{precision}, window {number + 1}: 18 ranks differ by {grid:.1e}, one rank by {one:.1e}")
    if faults:
        raise SystemExit("\n".join(faults))


main()
