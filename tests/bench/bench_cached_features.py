# SPDX-License-Identifier: Apache-2.0
"""Measures data.cache_features: seconds of a step of a Llava with a frozen vision encoder, whose cached features
replace its images, against one that encodes them; and the time of the pass before the first step. Each round runs the
one, then the other, as zea itself, on new run directories and one folder of features.

Two models: the quickstart's sizes (small pictures, a small tower), and one whose tower weighs as much as its language
model, 336 x 336 pixels, as CLIP's.

usage: bench_cached_features.py BUILD [--rounds 3] [--steps 12] [--ranks 1]
"""

import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from start_sides import bench_parser

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "jobs"))
from dataset_writer import DatasetWriter  # noqa: E402

IMAGE, VOCABULARY, WORDS, SAMPLES = 3, 512, 24, 64
SIZES = {  # of pictures, patches, the tower (width, layers), the language model (width, layers), samples a step
    "quickstart's sizes": (28, 7, 64, 4, 128, 4, 64),
    "336 x 336 pixels": (336, 14, 256, 8, 256, 8, 4),
}


def config_of(pixels, patch, vision, vision_layers, hidden, layers):
    return {
        "model_type": "llava",
        "image_token_index": IMAGE,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": vision,
            "intermediate_size": 4 * vision,
            "num_attention_heads": 4,
            "num_hidden_layers": vision_layers,
            "image_size": pixels,
            "patch_size": patch,
        },
        "text_config": {
            "model_type": "llama",
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 2048,
        },
    }


def write_inputs(folder, build, sizes):
    pixels, patch, *widths, batch = sizes
    features, random = (pixels // patch) ** 2, np.random.default_rng(7)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of(pixels, patch, *widths)))
    call([build / "postprocess/zea-import", "--random", folder / "config.json", folder / "weights.h5"])
    with DatasetWriter(folder / "data.h5", IMAGE) as writer:
        for _ in range(SAMPLES):
            words = random.integers(8, VOCABULARY, size=WORDS).tolist()
            picture = random.integers(0, 256, size=(pixels, pixels, 3), dtype=np.uint8)
            writer.add([IMAGE] * features + words, [0] * features + [1] * WORDS, [picture])
    (folder / "deck.toml").write_text(
        f'[model]\nweights = "{folder}/weights.h5"\n[model.vision]\ntrain = false\n'
        f'[data]\ntrain = "{folder}/data.h5"\nrow_tokens = {batch * (features + WORDS)}\n'
        f"[schedule]\nglobal_batch = {batch}\n[checkpoint]\nat_end = false\n"
    )


def call(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def run(arguments, folder, directory, *keys):
    """Seconds of each step but the first three, and of the pass."""
    mpirun = [*arguments.mpirun.split(), "-n", arguments.ranks] if arguments.ranks > 1 else []
    call(
        [*mpirun, arguments.build / "src/zea", "-i", folder / "deck.toml", "-d", directory]
        + [f"schedule.steps={arguments.steps}", *arguments.keys, *keys]
    )
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    clock = [line["seconds"] for line in lines if line["kind"] == "train"]
    seconds = [end - begin for begin, end in zip(clock, clock[1:])]
    computed = re.search(r"features of vision: computed in ([\d.]+) s", (directory / "log.txt").read_text())
    return seconds[2:], float(computed[1]) if computed else None


def main():
    parser = bench_parser(__doc__, 3, 12, "steps of a run")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--keys", nargs="*", default=[], help="more keys of the deck, such as precision.preset=bf16")
    arguments = parser.parse_args()
    print("| model | encoding, s a step | reading | times faster, medians | minima | the pass, s |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="zea-bench-") as name:
        for number, (model, sizes) in enumerate(SIZES.items()):
            folder = Path(name) / str(number)
            write_inputs(folder, arguments.build, sizes)
            encoding, reading, passes = [], [], []
            for turn in range(arguments.rounds):
                encoding += run(arguments, folder, folder / f"encoding{turn}")[0]
                key = f"data.cache_features={folder / 'features'}"
                seconds, computed = run(arguments, folder, folder / f"reading{turn}", key)
                reading += seconds
                passes += [computed] if computed else []
            slow, fast = statistics.median(encoding), statistics.median(reading)
            least = min(encoding) / min(reading)
            print(f"| {model} | {slow:.4f} | {fast:.4f} | {slow / fast:.2f} | {least:.2f} | {passes[0]:.2f} |")


if __name__ == "__main__":
    main()
