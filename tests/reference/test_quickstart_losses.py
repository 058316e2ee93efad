# SPDX-License-Identifier: Apache-2.0
"""The quickstart's model loses what a plain transformers and torch loop loses, step by step.

test_quickstart_losses.py PROJECT ZEA IMPORT CONSOLIDATE MPIRUN...

Same initial weights and batches. The loop below knows nothing of zea but the deck's numbers: loss
is a sum over targets divided by their number, AdamW decays matrices only, the gradient is clipped.
"""

import json
import math
import sys
import tempfile
import tomllib
from pathlib import Path

try:
    import h5py
    import torch
    from transformers import LlavaForConditionalGeneration
    from transformers.utils.logging import disable_progress_bar
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from transformers_models import normalised, run

STEPS, WARMUP, BATCH, IGNORED = 50, 40, 16, -100
TOLERANCE = 1e-4


def train_with_zea(folder, deck, zea, mpirun):
    settings = {
        "data.train": folder / "train.h5",
        "data.eval": folder / "test.h5",
        "data.shuffle": "false",
        "model.weights": folder / "weights.h5",
        "schedule.steps": STEPS,
        "optim.warmup_steps": WARMUP,
        "schedule.global_batch": BATCH,
        "checkpoint.every": 0,
        "checkpoint.at_end": "false",
        "eval.every": 0,
        "log.every": 1,
    }
    overrides = [f"{key}={value}" for key, value in settings.items()]
    run(*mpirun, zea, "-i", deck, "-d", folder / "run", *overrides)
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [line["loss"] for line in map(json.loads, lines) if line["kind"] == "train"]


def read_samples(path):
    """(token ids, loss mask, the one picture) of each sample."""
    with h5py.File(path) as file:
        offsets, shapes = file["token_offsets"][...], file["item_shape"][...]
        tokens = torch.tensor(file["tokens"][...]).long()
        mask = torch.tensor(file["loss_mask"][...]).bool()
        pixels = torch.tensor(file["item_bytes"][...]).view(len(shapes), *shapes[0][:2].tolist())
    parts = [slice(*pair) for pair in zip(offsets[:-1], offsets[1:])]
    return [(tokens[part], mask[part], image) for part, image in zip(parts, pixels)]


def padded_batch(samples, data):
    """Inputs of transformers, padded on the right, and labels of the next tokens."""
    pad = torch.nn.utils.rnn.pad_sequence
    tokens = pad([tokens for tokens, _, _ in samples], batch_first=True)
    real = pad([torch.ones_like(tokens) for tokens, _, _ in samples], batch_first=True)
    labels = [tokens.where(mask, IGNORED) for tokens, mask, _ in samples]
    labels = pad(labels, batch_first=True, padding_value=IGNORED)[:, 1:]
    pixels = torch.stack([image for _, _, image in samples])
    inputs = {
        "input_ids": tokens,
        "attention_mask": real,
        "pixel_values": normalised(pixels, data["image_mean"], data["image_std"]),
    }
    return inputs, labels


def learning_rate(optim, step):
    if step <= WARMUP:
        return optim["lr"] * step / WARMUP
    progress = (step - 1 - WARMUP) / (STEPS - WARMUP)
    fall = 0.5 * (1 + math.cos(math.pi * progress))
    return optim["min_lr"] + (optim["lr"] - optim["min_lr"]) * fall


def make_optimizer(model, optim):
    parameters = list(model.parameters())
    matrices = [p for p in parameters if p.dim() >= 2]
    vectors = [p for p in parameters if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": optim["weight_decay"]},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)


def train_with_transformers(directory, samples, deck):
    model = LlavaForConditionalGeneration.from_pretrained(directory, dtype=torch.float32)
    optim, optimizer = deck["optim"], make_optimizer(model, deck["optim"])
    losses = []
    for step in range(1, STEPS + 1):
        batch = [samples[i % len(samples)] for i in range((step - 1) * BATCH, step * BATCH)]
        inputs, labels = padded_batch(batch, deck["data"])
        logits = model(**inputs, use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(optim, step)
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare(expected, found):
    assert len(found) == len(expected) == STEPS, (len(found), len(expected))
    differences = [abs(a - b) / a for a, b in zip(expected, found)]
    worst = max(range(STEPS), key=differences.__getitem__)
    assert differences[worst] <= TOLERANCE, (
        f"step {worst + 1}: zea {found[worst]}, transformers {expected[worst]},"
        f" relative difference {differences[worst]:.2g}; allowed {TOLERANCE}"
    )
    assert expected[-1] < 0.6 * expected[0], f"nothing was learnt: {expected[0]} to {expected[-1]}"


def main():
    disable_progress_bar()
    torch.set_num_threads(1)
    project, zea, importer, consolidate, *mpirun = sys.argv[1:]
    config = Path(project) / "inputs" / "fashion_captions_2m.json"
    deck = config.with_suffix(".toml")
    packer = Path(project) / "jobs" / "pack_fashion_mnist.py"
    if not Path("/usr/share/datasets/fashion-mnist").exists():
        print("skipped: the package dataset-fashion-mnist is not installed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run(sys.executable, packer, "--out", folder, "--limit", STEPS * BATCH)
        run(importer, "--random", config, folder / "weights.h5", "--seed", 1)
        run(consolidate, folder / "weights.h5", f"{folder}/hf/")
        found = train_with_zea(folder, deck, zea, mpirun)
        samples = read_samples(folder / "train.h5")
        settings = tomllib.loads(deck.read_text())
        expected = train_with_transformers(folder / "hf", samples, settings)
    compare(expected, found)


if __name__ == "__main__":
    main()
