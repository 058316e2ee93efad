#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How well zea --plan ranks layouts: predicted seconds of a step against those in virtual time (bench_layouts.cpp).

    tests/bench/bench_layouts.py build/ci [--ranks 8] [--runs 16] [--decks text,pictures] [--out results.json]

Ten decks of different shape run on three made-up networks of two nodes, all ranks on one core, with the rates that
zea --profile-hardware finds. Before each deck one rank trains it, and all rates are divided by the ratio of measured to
predicted time, because other load changes rates. Prints for each deck and network: the measured time of the layout with
the lowest predicted time, relative to the fastest measured; the predicted rank of the fastest; the mean error;
Kendall's tau; and the time of the deck's own layout relative to the chosen one."""

import argparse
import copy
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "jobs"))
from dataset_writer import Clip, DatasetWriter  # noqa: E402

MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "btl_base_warn_component_unused", "0"]
# Links inside a node, and between two: microseconds and GB/s.
NETWORKS = {"fast": ((2, 20), (5, 5)), "usual": ((5, 5), (30, 0.6)), "slow": ((10, 2), (100, 0.1))}
IMAGE, AUDIO = 3, 4


def model(vocabulary=384, **text):
    """A decoder; with a vision or audio config beside it, a LLaVA."""
    return {"model_type": "llama", "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 4,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 48, "vocab_size": vocabulary,
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "bos_token_id": 1, "eos_token_id": 2,
            "pad_token_id": 0, "tie_word_embeddings": False, **text}  # fmt: skip


def with_encoders(text, vision=None, audio=None):
    base = json.loads((ROOT / "inputs/spoken_fashion_2m.json").read_text())
    base["text_config"] = text
    for name, changes in (("vision_config", vision), ("audio_config", audio)):
        if changes is None:
            del base[name]
        else:
            base[name].update(changes)
    if audio is None:
        del base["audio_token_index"]
    return base


def sample(draw, text, pictures=0, picture=28, features=16, seconds=0):
    """So many tokens of text behind the items."""
    tokens, items = [1], []
    for _ in range(pictures):
        tokens += [IMAGE] * features
        items.append(draw.integers(0, 256, (picture, picture), dtype=np.uint8))
    if seconds:
        tokens += [AUDIO] * 150
        items.append(Clip(draw.integers(-9000, 9000, 16000 * seconds).astype(np.int16), 16000))
    placeholders = len(tokens)
    tokens += draw.integers(5, 380, text).tolist()
    return tokens, [0] * placeholders + [1] * text, items


def samples(count, lengths, **of_each):
    draw = np.random.default_rng(7)
    pictures = of_each.pop("pictures", (0,))
    seconds = of_each.pop("seconds", (0,))
    return [
        sample(draw, int(draw.integers(*lengths)), pictures=pictures[i % len(pictures)],
               seconds=seconds[i % len(seconds)], **of_each)
        for i in range(count)
    ]  # fmt: skip


HEAVY = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "image_size": 56}
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 512}
LORA = '[model.llm]\nlora = { targets = ["q_proj", "v_proj", "up_proj", "down_proj"], rank = 8, alpha = 16 }\n'
# Name: model, samples of a step, tokens of a row, more of the deck.
DECKS = {
    "text": (model(), samples(32, (20, 120)), 512, ""),
    "long rows": (model(), samples(4, (900, 1024)), 1024, ""),
    "deep": (model(num_hidden_layers=12, hidden_size=192, intermediate_size=512, head_dim=24),
             samples(16, (60, 250)), 512, ""),
    "vocabulary": (model(vocabulary=8192), samples(16, (60, 120)), 512, ""),
    "pictures": (with_encoders(model(), vision={}), samples(16, (20, 60), pictures=(4, 0, 1, 6)), 512, ""),
    "heavy encoder": (with_encoders(model(hidden_size=256, head_dim=32), vision=HEAVY),
                      samples(8, (20, 60), pictures=(2, 1), picture=56, features=64), 512, ""),
    "frozen decoder": (with_encoders(model(), vision=HEAVY),
                       samples(8, (20, 60), pictures=(2, 1), picture=56, features=64), 512,
                       "[model.llm]\ntrain = false\n"),
    "spoken": (with_encoders(model(), vision={}, audio={}),
               samples(8, (10, 40), pictures=(1,), seconds=(3, 0)), 512, ""),
    "experts": (model(**MIXTRAL), samples(16, (60, 120)), 512, ""),
    "lora": (with_encoders(model(), vision={}), samples(16, (20, 60), pictures=(1, 2)), 512, LORA),
}  # fmt: skip
MULTIMODAL = ("pictures", "heavy encoder", "frozen decoder", "spoken", "lora")


def write_deck(folder, name):
    config, of_step, row_tokens, more = DECKS[name]
    (folder / "config.json").write_text(json.dumps(config))
    audio = AUDIO if "audio_config" in config else -1
    with DatasetWriter(folder / "train.h5", IMAGE, audio_token=audio) as writer:
        for tokens, mask, items in of_step:
            writer.add(tokens, mask, items)
    deck = folder / "deck.toml"
    deck.write_text(
        f'[model]\nconfig = "{folder}/config.json"\nactivation_checkpointing = 0\n{more}'
        f'[data]\ntrain = "{folder}/train.h5"\nrow_tokens = {row_tokens}\n'
        f"[schedule]\nglobal_batch = {len(of_step)}\nsteps = 1\n"
    )
    return deck


def run(command, **options):
    environment = dict(os.environ, OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return subprocess.run(list(map(str, command)), check=True, env=environment, text=True, **options)


def write_hardware(folder, measured, ranks):
    """The measured device behind each network."""
    files = []
    for name, (inside, between) in NETWORKS.items():
        text = copy.deepcopy(measured)
        text["hardware"]["name"] = name
        text["node"]["ranks"] = ranks // 2
        text["device"]["overlaps"] = True  # the network does not take the cores' time
        for section, (latency, rate) in (("inside", inside), ("between", between)):
            text[section] = {"latency_us": latency, "hop_us": latency, "gb_per_s": rate}
        file = folder / f"{name}.toml"
        file.write_text("".join(
            f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
            for section, keys in text.items()
        ))  # fmt: skip
        files.append(file)
    return files


def slower(rates, factor):
    """Returns a device that takes `factor` times as long for every operation."""
    changed = dict(rates)
    for key, value in rates.items():
        if key.endswith(("_tflops", "_gb_per_s")):
            changed[key] = value / factor
        elif key.endswith("_us"):
            changed[key] = value * factor
    return changed


def kendall_tau(first, second):
    pairs = list(itertools.combinations(range(len(first)), 2))
    signs = [np.sign(first[i] - first[j]) * np.sign(second[i] - second[j]) for i, j in pairs]
    return sum(signs) / max(1, len(pairs))


def judged(layouts, network):
    own = [layout["measured"][network] for layout in layouts if layout["own"]][0]
    found = [layout for layout in layouts if not layout["own"]]
    predicted = [layout["predicted"][network] for layout in found]
    measured = [layout["measured"][network] for layout in found]
    best = min(range(len(found)), key=measured.__getitem__)
    chosen = min(range(len(found)), key=predicted.__getitem__)
    return {
        "choice": measured[chosen] / measured[best],
        "place": 1 + sum(p < predicted[best] for p in predicted),
        "error": statistics.mean(abs(p / m - 1) for p, m in zip(predicted, measured, strict=True)),
        "bias": statistics.median(p / m for p, m in zip(predicted, measured, strict=True)),
        "tau": kendall_tau(predicted, measured),
        "gain": own / measured[chosen],
    }


def tried(build, deck, ranks, runs, hardware):
    """Returns the predicted and measured seconds of layouts, and the number of all layouts."""
    command = [*MPIRUN, "-n", ranks, build / "tests/bench/bench_layouts", deck, runs, *hardware]
    return json.loads(run(command, stdout=subprocess.PIPE).stdout)


def slowness(build, deck, hardware):
    """Returns measured seconds divided by predicted seconds, for one rank."""
    own = [layout for layout in tried(build, deck, 1, 0, hardware)["layouts"] if layout["own"]][0]
    return own["measured"][0] / own["predicted"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--runs", type=int, default=16, help="layouts that run, of each deck (default: %(default)s)")
    parser.add_argument("--decks", default=",".join(DECKS))
    parser.add_argument("--out", type=Path, help="file for all times, as JSON")
    arguments = parser.parse_args()
    results = {}
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(f"{'deck':15} {'network':8} layouts  choice/best  place  error %   bias    tau  gain")
    with tempfile.TemporaryDirectory(prefix="zea-layouts-") as scratch:
        folder = Path(scratch)
        run([*MPIRUN, "-n", "2", arguments.build / "src/zea", "--profile-hardware", folder / "measured.toml"],
            stdout=subprocess.DEVNULL)  # fmt: skip
        measured = tomllib.loads((folder / "measured.toml").read_text())
        for name in arguments.decks.split(","):
            deck = write_deck(folder, name)
            hardware = write_hardware(folder, measured, arguments.ranks)
            factor = slowness(arguments.build, deck, hardware[:1])
            rates = {**measured, "device": slower(measured["device"], factor)}
            results[name] = tried(arguments.build, deck, arguments.ranks, arguments.runs,
                                  write_hardware(folder, rates, arguments.ranks))  # fmt: skip
            results[name].update(slowness=factor, judged={})
            for i, network in enumerate(NETWORKS):
                row = results[name]["judged"][network] = judged(results[name]["layouts"], i)
                print(f"{name:15} {network:8} {len(results[name]['layouts']):3} of {results[name]['found']:4}"
                      f"  {row['choice']:6.3f}  {row['place']:5}  {100 * row['error']:7.1f}  {row['bias']:5.2f}"
                      f"  {row['tau']:5.2f}  {row['gain']:4.2f}", flush=True)  # fmt: skip
    rows = [(name, row) for name, result in results.items() for row in result["judged"].values()]
    good = statistics.mean(row["choice"] <= 1.05 for _, row in rows)
    gains = [row["gain"] for name, row in rows if name in MULTIMODAL]
    print(f"choice within 5 % of the best: {100 * good:.0f} %; the best among the first three: "
          f"{100 * statistics.mean(row['place'] <= 3 for _, row in rows):.0f} %; mean error "
          f"{100 * statistics.mean(row['error'] for _, row in rows):.1f} %; least tau "
          f"{min(row['tau'] for _, row in rows):.2f}"
          + (f"; mean gain of multimodal decks {statistics.mean(gains):.2f}" if gains else ""))  # fmt: skip
    if arguments.out:
        arguments.out.write_text(json.dumps({"hardware": measured, "decks": results}, indent=1))


if __name__ == "__main__":
    main()
