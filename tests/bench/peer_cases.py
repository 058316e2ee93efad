# SPDX-License-Identifier: Apache-2.0
"""The cases of bench_peer.py: models with their data, written for both sides, and the rows of its table with bars."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from decoder_bench import OPTIMIZER, PROJECT, DatasetWriter, llama_config
from start_sides import call

# Both sides cycle through the same few batches, so that a compiler has seen all their shapes.
CYCLE = 3
MEAN, STD = [0.286] * 3, [0.353] * 3
# hidden, inner, layers, heads, KV heads, vocabulary, positions: 40.4 and 20.2 million parameters
DECODER, MIX = (512, 1408, 8, 8, 4, 16384, 512), (512, 1408, 4, 8, 4, 8192, 256)
EXPERTS = (512, 1408, 4, 8, 4, 8192, 512)
UNPACKED = "@data.packing=false"


@dataclass
class Case:
    name: str
    config: dict
    samples: list  # CYCLE batches of (tokens, loss mask, images)
    row_tokens: int  # that a batch fits in
    steps: int  # of a turn
    rows: list  # (zea's variant, the other side's, "peer" or "zea", times faster that it should be)

    def variants(self, side):
        of_zea = [ours for ours, _, _, _ in self.rows] + [other for _, other, whose, _ in self.rows if whose == "zea"]
        found = of_zea if side == "zea" else [other for _, other, whose, _ in self.rows if whose == "peer"]
        return list(dict.fromkeys(found))

    def real_share(self):
        """Returns the share of a padded batch's positions that hold a token."""
        lengths = np.array([len(tokens) for tokens, _, _ in self.samples]).reshape(CYCLE, -1)
        return (lengths.sum(1) / (lengths.max(1) * lengths.shape[1])).mean()


def caption(random, config):
    """One image, then 9 to 16 words of which the second half is learnt: the quickstart's samples."""
    vision, text, image = config["vision_config"], config["text_config"], config["image_token_index"]
    words = int(random.integers(9, 17))
    features = (vision["image_size"] // vision["patch_size"]) ** 2
    tokens = random.integers(image + 1, text["vocab_size"], size=words).tolist()
    tokens = tokens[:4] + [image] * features + tokens[4:]
    mask = [0] * (len(tokens) - words // 2) + [1] * (words // 2)
    shape = (1, vision["image_size"], vision["image_size"], 1)
    return tokens, mask, random.integers(0, 256, size=shape, dtype=np.uint8)


def text(random, config, length):
    return random.integers(0, config["vocab_size"], size=length).tolist(), [1] * length, ()


def half_padded(random, longest, samples):
    """Lengths of a batch whose padding is half, for two ranks that take every other sample, too."""
    halves = []
    for _ in range(2):
        shares = random.dirichlet([2] * (samples // 2 - 1)) * (longest * (samples // 2 - 2) // 2)
        rest = [max(8, int(share)) for share in shares]
        rest[0] += longest * (samples // 2) // 2 - longest - sum(rest)
        halves.append(random.permutation([longest, *rest]))
    return np.stack(halves, 1).flatten().tolist()


def quickstart(random):
    config = json.loads((PROJECT / "inputs/fashion_captions_2m.json").read_text())
    rows = [("fp32", "fp32", "peer", 1.2), ("bf16", "bf16", "peer", 3), ("bf16", "fp32", "peer", 2)]
    rows += [("fp32", "fp32/compile", "peer", 1), ("bf16", "bf16/compile", "peer", 1)]
    samples = [caption(random, config) for _ in range(64 * CYCLE)]
    return Case("quickstart's Llava, 2.6M, 64 samples", config, samples, 64 * 32, 3, rows)


def decoder(random):
    config = llama_config(*DECODER)
    rows = [("fp32", "fp32", "peer", 1.1), ("fp32", "fp32/compile", "peer", 1.0)]
    rows += [("bf16", "bf16", "peer", 1.3), ("bf16", "bf16/compile", "peer", 1.05)]
    samples = [text(random, config, 512) for _ in range(2 * CYCLE)]
    return Case("Llama, 40M, 2 samples of 512 tokens", config, samples, 2 * 512, 1, rows)


def mix(random):
    config, rows = llama_config(*MIX), []
    for precision in ("fp32", "bf16"):
        rows += [(precision, precision, "peer", 1.7), (precision, f"{precision}/compile", "peer", 1)]
        rows += [(precision, precision + UNPACKED, "zea", 1)]
    lengths = [length for _ in range(CYCLE) for length in half_padded(random, 256, 8)]
    samples = [text(random, config, length) for length in lengths]
    return Case("Llama, 20M, 8 samples of 8 to 256 tokens, padding is half", config, samples, 5 * 256, 1, rows)


def experts(random):
    """A small Qwen3-MoE with 64 experts, of which 8 compute for a token, on samples of one length."""
    config = llama_config(*EXPERTS)
    config |= {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 64}
    config |= {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 192, "norm_topk_prob": True}
    rows = []
    for precision in ("fp32", "bf16"):
        rows += [(precision, f"{precision}/eager", "peer", 2), (precision, f"{precision}/grouped_mm", "peer", 1.5)]
    samples = [text(random, config, 512) for _ in range(4 * CYCLE)]
    return Case("Qwen3-MoE, 108M, 8 of 64 experts, 4 samples of 512 tokens", config, samples, 4 * 512, 1, rows)


CASES = {"quickstart": quickstart, "decoder": decoder, "mix": mix, "experts": experts}


def make_case(name):
    return CASES[name](np.random.default_rng(7))


def shrink(case):
    """To a model that takes no time: what is left to see is whether it works."""
    text = case.config.get("text_config", case.config)
    text |= {"num_hidden_layers": 1, "hidden_size": 96, "intermediate_size": 96, "head_dim": 16, "vocab_size": 384}
    case.name += ", cut down"
    case.samples = [([token % 384 for token in tokens], mask, images) for tokens, mask, images in case.samples]


def write_inputs(folder, build, case, ranks):
    """Weights, data, zea's deck and the peer's."""
    folder.mkdir(parents=True)
    batch = len(case.samples) // CYCLE
    with DatasetWriter(folder / "data.h5", case.config.get("image_token_index", -1)) as writer:
        for sample in case.samples:
            writer.add(*sample)
    (folder / "config.json").write_text(json.dumps(case.config))
    call([build / "postprocess/zea-import", "--random", folder / "config.json", folder / "weights.h5"])
    call([build / "postprocess/zea-consolidate", folder / "weights.h5", f"{folder}/hf/"])
    deck = {key: json.dumps(value) for key, value in OPTIMIZER.items()}
    (folder / "deck.toml").write_text(
        f'[model]\nweights = "{folder}/weights.h5"\n'
        f'[data]\ntrain = "{folder}/data.h5"\nrow_tokens = {case.row_tokens // ranks}\nshuffle = false\n'
        f"image_mean = {MEAN}\nimage_std = {STD}\n"
        f'[optim]\ndecay = "constant"\n' + "".join(f"{key} = {value}\n" for key, value in deck.items()) +
        f"[schedule]\nsteps = 100000\nglobal_batch = {batch}\n[checkpoint]\nat_end = false\n"
    )
    peer = {"model": f"{folder}/hf", "data": f"{folder}/data.h5", "batch": batch, "mean": MEAN, "std": STD}
    (folder / "peer.json").write_text(json.dumps(peer | OPTIMIZER))
