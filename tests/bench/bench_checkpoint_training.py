# SPDX-License-Identifier: Apache-2.0
"""Tokens per second while a checkpoint is written in the background, against the steps before and
after, in one run: a small Llama with a large embedding, so that most of a checkpoint is written
while few steps are made. A step of a save has all of its costs: its start, the copy, its end. The
first save, which touches the memory for copies for the first time, is told separately.

    bench_checkpoint_training.py ZEA JOBS_FOLDER [--vocabulary N] [--steps N] [--every N]
                                 [--rate-limit MIB] [--directory D] [--least R] -- MPIRUN [...]

Ends with 1 where the mean rate of the steps of saves is less than that share of the others'.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RANKS, SAMPLES_PER_STEP, SAMPLE_TOKENS = 2, 2, 24
WARM_UP = 4  # steps

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
}


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("zea")
    parser.add_argument("jobs")
    parser.add_argument("--vocabulary", type=int, default=160_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--rate-limit", type=float, default=0)
    parser.add_argument("--directory", default=None, help="on the disk to measure")
    parser.add_argument("--least", type=float, default=0)
    parser.add_argument("mpirun", nargs="+")
    return parser.parse_args()


def make_data(path, jobs, vocabulary):
    sys.path.insert(0, jobs)
    import numpy as np
    from dataset_writer import DatasetWriter

    draw = np.random.default_rng(1)
    with DatasetWriter(path, vocabulary - 1) as writer:
        for _ in range(64):
            tokens = draw.integers(4, vocabulary - 1, SAMPLE_TOKENS).tolist()
            writer.add(tokens, [0] + [1] * (SAMPLE_TOKENS - 1), [])


def train(asked, folder, *overrides):
    """Lines of metrics.jsonl."""
    config, data, deck = folder / "config.json", folder / "train.h5", folder / "deck.toml"
    config.write_text(json.dumps(CONFIG | {"vocab_size": asked.vocabulary}))
    make_data(data, asked.jobs, asked.vocabulary)
    deck.write_text(
        f'[model]\nweights = ""\nconfig = "{config}"\n[data]\ntrain = "{data}"\n'
        f"row_tokens = {SAMPLE_TOKENS}\n[optim]\nlr = 1e-4\n"
        f"[schedule]\nsteps = {asked.steps}\nglobal_batch = {SAMPLES_PER_STEP}\n"
        f"[checkpoint]\nevery = {asked.every}\nkeep = 1\nrate_limit_mib = {asked.rate_limit}\n"
        "[log]\nevery = 1\n"
    )
    run = folder / "run"
    command = [*asked.mpirun, "-n", str(RANKS), asked.zea, "-i", deck, "-d", run, *overrides]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def split(lines):
    """Seconds of the steps while the first save was under way, while another was, and of the other
    steps; and the saves' lines."""
    begun = {line["step"] for line in lines if line["kind"] == "checkpoint"}
    first, during, others, saves = [], [], [], []
    before, is_saving, is_finished = None, False, False
    for line in lines:
        if line["kind"] == "checkpoint":  # comes before the line of the step that finished it
            saves.append(line)
            is_finished = True
        elif line["kind"] == "train":
            if before is not None and line["step"] > WARM_UP:
                saving = first if len(saves) == is_finished else during
                (saving if is_saving else others).append(line["seconds"] - before)
            before = line["seconds"]
            is_saving = line["step"] in begun or (is_saving and not is_finished)
            is_finished = False
    return first, during, others, saves


def main():
    asked = options()
    with tempfile.TemporaryDirectory(dir=asked.directory, prefix="zea-bench-") as name:
        first, during, others, saves = split(train(asked, Path(name)))
    tokens = SAMPLES_PER_STEP * SAMPLE_TOKENS
    parts = {"the first save": first, "while a save was written": during, "otherwise": others}
    for what, seconds in parts.items():
        rates = sorted(tokens / one for one in seconds)
        quarter = len(rates) // 4
        print(
            f"{what}: {len(rates)} steps, tokens/s median {statistics.median(rates):.1f}, "
            f"mean {tokens / statistics.mean(seconds):.1f}, "
            f"quartiles {rates[quarter]:.1f} to {rates[-1 - quarter]:.1f}"
        )
    for key in ("seconds_to_write", "stall_seconds", "copy_seconds"):
        print(f"{key} of {len(saves)} saves: median {statistics.median(s[key] for s in saves):.3f}")
    share = statistics.mean(others) / statistics.mean(during)
    median = statistics.median(others) / statistics.median(during)
    print(f"tokens/s of a save's steps / the others': mean {share:.3f}, median {median:.3f}")
    sys.exit(share < asked.least)


if __name__ == "__main__":
    main()
