# SPDX-License-Identifier: Apache-2.0
"""The common part of benchmarks of a decoder on several ranks: inputs for both sides, and their times."""

import json
import statistics
import sys
from pathlib import Path

import numpy as np
from start_sides import call

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "jobs"))
from dataset_writer import DatasetWriter  # noqa: E402

OPTIMIZER = {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.05, "clip_norm": 1.0}


def llama_config(hidden, inner, layers, heads, kv_heads, vocabulary, positions):
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    }


def write_inputs(folder, build, config, lengths, rows):
    """Weights, data, zea's deck and the peer's. A step has samples of `lengths`, in `rows` equal rows."""
    folder.mkdir()
    random = np.random.default_rng(7)
    with DatasetWriter(folder / "data.h5", -1) as writer:
        for length in lengths * 8:
            writer.add(random.integers(0, config["vocab_size"], size=length).tolist(), [1] * length)
    (folder / "config.json").write_text(json.dumps(config))
    call([build / "postprocess/zea-import", "--random", folder / "config.json", folder / "weights.h5"])
    call([build / "postprocess/zea-consolidate", folder / "weights.h5", f"{folder}/hf/"])
    (folder / "deck.toml").write_text(
        f'[model]\nweights = "{folder}/weights.h5"\n'
        f'[data]\ntrain = "{folder}/data.h5"\nrow_tokens = {sum(lengths) // rows}\n'
        f"rows_per_microbatch = {rows}\nshuffle = false\n"
        f'[optim]\nlr = {OPTIMIZER["lr"]}\ndecay = "constant"\nbetas = {OPTIMIZER["betas"]}\n'
        f'weight_decay = {OPTIMIZER["weight_decay"]}\nclip_norm = {OPTIMIZER["clip_norm"]}\n'
        f"[schedule]\nsteps = 1000\nglobal_batch = {len(lengths)}\n"
    )
    peer = {"model": f"{folder}/hf", "data": f"{folder}/data.h5", "batch": len(lengths), "tokens": max(lengths)}
    (folder / "peer.json").write_text(json.dumps(peer | OPTIMIZER))


class Times:
    """Times of all steps of all rounds, by name."""

    def __init__(self):
        self.seconds, self.cpu, self.losses = {}, {}, {}

    def add(self, name, report):
        self.seconds.setdefault(name, []).extend(report["seconds"])
        self.losses.setdefault(name, []).extend(report["losses"])
        if "min_cpu_s" in report:
            self.cpu[name] = min(self.cpu.get(name, float("inf")), report["min_cpu_s"])

    def median(self, name):
        return statistics.median(self.seconds[name])

    def least(self, name):
        return min(self.seconds[name])

    def speedups(self, name, other):
        """How many times as fast it is as the other: by medians, minima and processor times."""
        return [of(other) / of(name) for of in (self.median, self.least, self.cpu.get)]

    def print(self, tokens):
        """`tokens`: of a step, by name."""
        print("| variant | median ms | min ms | min CPU ms of the slowest rank | tokens/s | loss of the first steps |")
        print("|---|---|---|---|---|---|")
        for name in self.seconds:
            losses = " ".join(f"{loss:.5f}" for loss in self.losses[name][:3])
            print(
                f"| {name} | {1e3 * self.median(name):.1f} | {1e3 * self.least(name):.1f} |"
                f" {1e3 * self.cpu[name]:.1f} | {tokens[name] / self.median(name):.0f} | {losses} |"
            )

    def difference(self, name, other, steps=None):
        """The largest relative one of the losses of all steps that both made, or of the first so many."""
        return max(abs(a - b) / abs(b) for a, b in list(zip(self.losses[name], self.losses[other]))[:steps])


def verdict(medians, minima, bar):
    return "ok" if min(medians, minima) >= bar else "minima only" if minima >= bar else "short"
