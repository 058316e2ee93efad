# SPDX-License-Identifier: Apache-2.0
"""Compares zea's training steps with PyTorch's DDP and FSDP2 on two ranks of one thread: one table in Markdown.

Both sides train the same model from the same weights on the same samples with the same AdamW and clipping. They run in
turn (A B A B ...), each a fresh group of processes in which the variants take turns of a few steps; ratios are of the
medians over all steps of all rounds, and of the minima. The losses of the first steps must agree.

usage: bench_against_torch.py BUILD [--rounds 5] [--steps 8] [--mix captions|varied] [--config CONFIG.json]
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from decoder_bench import verdict
from start_sides import bench_parser, call, run_peer, run_zea

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "jobs"))
from dataset_writer import DatasetWriter  # noqa: E402

MEAN, STD = [0.286] * 3, [0.353] * 3
BATCH, LR, BETAS, EPS, DECAY, CLIP = 64, 1e-3, [0.9, 0.95], 1e-8, 0.05, 1.0
CHECKED_STEPS = 3
TOLERANCE = {"fp32": 1e-3, "bf16": 2e-2}
OURS = [f"{s}/{p}" for p in ("fp32", "bf16") for s in ("no_shard", "full_shard")]
SILENT = [f"{variant}/silent" for variant in OURS]
COUNTED = ["no_shard/fp32", "no_shard/bf16"]
PEERS = [f"{s}/{p}" for p in ("fp32", "bf16") for s in ("ddp", "fsdp2")]
# Rows of the comparison: name, ours, the other, bar (times faster), whether losses must agree.
ROWS = [
    ("DDP fp32 over PyTorch DDP", "no_shard/fp32", "ddp/fp32", 1.15),
    ("DDP bf16 over PyTorch DDP", "no_shard/bf16", "ddp/bf16", 1.4),
    ("FSDP fp32 over FSDP2", "full_shard/fp32", "fsdp2/fp32", 1.8),
    ("FSDP bf16 over FSDP2", "full_shard/bf16", "fsdp2/bf16", 1.5),
    ("FSDP over DDP, fp32", "full_shard/fp32", "no_shard/fp32", 0.93),
    ("FSDP over DDP, bf16", "full_shard/bf16", "no_shard/bf16", 0.93),
    *((f"{v} over its silent twin", v, f"{v}/silent", 1 / 1.04) for v in OURS),
    *((f"{v} with its tensors' bytes counted", f"{v}/counted", v, 1 / 1.005) for v in COUNTED),
]


def write_data(path, config, mix):
    """Captions: one image and some 29 tokens a sample. Varied: 0 to 3 images and 8 to 120 tokens of text."""
    random = np.random.default_rng(7)
    vision, text = config["vision_config"], config["text_config"]
    size, image_token = vision["image_size"], config["image_token_index"]
    features = (size // vision["patch_size"]) ** 2
    with DatasetWriter(path, image_token) as writer:
        for _ in range(BATCH * 8):
            images, words = 1, int(random.integers(9, 17))
            if mix == "varied":
                images, words = int(random.integers(0, 4)), int(random.integers(8, 121))
            tokens = random.integers(image_token + 1, text["vocab_size"], size=words).tolist()
            tokens = tokens[:4] + [image_token] * features * images + tokens[4:]
            mask = [0] * (len(tokens) - words // 2) + [1] * (words // 2)
            pixels = random.integers(0, 256, size=(images, size, size, 1), dtype=np.uint8)
            writer.add(tokens, mask, pixels)


def write_inputs(folder, arguments, build):
    config = json.loads(Path(arguments.config).read_text())
    write_data(folder / "data.h5", config, arguments.mix)
    call([build / "postprocess/zea-import", "--random", arguments.config, folder / "weights.h5"])
    call([build / "postprocess/zea-consolidate", folder / "weights.h5", f"{folder}/hf/"])
    (folder / "deck.toml").write_text(
        f'[model]\nweights = "{folder}/weights.h5"\n'
        f'[data]\ntrain = "{folder}/data.h5"\nrow_tokens = {arguments.row_tokens}\nshuffle = false\n'
        f"image_mean = {MEAN}\nimage_std = {STD}\n"
        f'[optim]\nlr = {LR}\ndecay = "constant"\nbetas = {BETAS}\nweight_decay = {DECAY}\nclip_norm = {CLIP}\n'
        f"[schedule]\nsteps = 1000\nglobal_batch = {BATCH}\n"
    )
    peer = {"model": f"{folder}/hf", "data": f"{folder}/data.h5", "batch": BATCH, "lr": LR, "betas": BETAS}
    peer |= {"eps": EPS, "weight_decay": DECAY, "clip_norm": CLIP, "mean": MEAN, "std": STD}
    (folder / "peer.json").write_text(json.dumps(peer))


def run_ours(folder, arguments):
    variants = [*OURS, *SILENT, *(f"{variant}/counted" for variant in COUNTED)]
    return run_zea(arguments.mpirun, arguments.build, folder, 2, arguments.steps, variants)


def run_theirs(folder, arguments):
    peers = [variant + ("/plain" if arguments.plain_adamw else "") for variant in PEERS]
    return run_peer("peer_step.py", folder, 2, arguments.steps, peers)


def gather(rounds):
    """Seconds of all steps and losses of the first, by variant."""
    seconds, losses, speeds = {}, {}, {}
    for report in rounds:
        for run in report:
            name = run["variant"].removesuffix("/plain")
            seconds.setdefault(name, []).extend(run["seconds"])
            losses[name] = run["losses"][:CHECKED_STEPS]
            speeds[name] = (run["tokens_per_s"] * run["median_s"], run["samples_per_s"] * run["median_s"])
    return seconds, losses, speeds


def check_losses(losses):
    faults = []
    for _, ours, peer, _ in ROWS[:4]:
        for step, (a, b) in enumerate(zip(losses[ours], losses[peer])):
            if not abs(a - b) <= TOLERANCE[ours.split("/")[1]] * abs(b):
                faults.append(f"step {step + 1}: {ours} has loss {a}, {peer} {b}")
    return faults


def print_tables(seconds, losses, speeds):
    print("| variant | median ms | min ms | tokens/s | samples/s | loss of the first steps |")
    print("|---|---|---|---|---|---|")
    for name, times in seconds.items():
        median = statistics.median(times)
        tokens, samples = speeds[name]
        first = " ".join(f"{loss:.5f}" for loss in losses[name])
        print(
            f"| {name} | {1e3 * median:.1f} | {1e3 * min(times):.1f} | {tokens / median:.0f} | {samples / median:.0f} |"
            f" {first} |"
        )
    print("\n| times faster | bar | medians | minima | |\n|---|---|---|---|---|")
    for name, ours, other, bar in ROWS:
        medians = statistics.median(seconds[other]) / statistics.median(seconds[ours])
        minima = min(seconds[other]) / min(seconds[ours])
        print(f"| {name} | {bar:.2f} | {medians:.2f} | {minima:.2f} | {verdict(medians, minima, bar)} |")


def main():
    parser = bench_parser(__doc__, 5, 8)
    parser.add_argument("--mix", choices=("captions", "varied"), default="captions")
    parser.add_argument("--config", default=str(PROJECT / "inputs/fashion_captions_2m.json"))
    parser.add_argument("--row-tokens", type=int, default=1024)
    parser.add_argument("--plain-adamw", action="store_true", help="the peer's AdamW without fused=True")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zea-bench-") as name:
        folder = Path(name)
        write_inputs(folder, arguments, arguments.build)
        rounds = []
        for _ in range(arguments.rounds):
            rounds += [run_ours(folder, arguments), run_theirs(folder, arguments)]
    seconds, losses, speeds = gather(rounds)
    print_tables(seconds, losses, speeds)
    if faults := check_losses(losses):
        raise SystemExit("the losses differ:\n" + "\n".join(faults))


if __name__ == "__main__":
    main()
