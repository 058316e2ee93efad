# SPDX-License-Identifier: Apache-2.0
"""Measures the gain of separate ranks for modules, and of costing frozen units without weight gradients.

A model that sees and hears, encoder-bound: every sample has a picture, a clip of 3 s and a few words; eight
microbatches of two samples. (1) Both encoders on one rank, one after the other, against each on a rank of its own; the
language model has one more rank in both. Where there are fewer cores than ranks, a second figure takes the language
model's time out: what it takes from the encoders is shared by the cores. (2) The vision encoder on a rank of its own
against inside the first of two stages. (3) A frozen encoder inside the first of two stages: stages cut by what frozen
units cost, against stages cut as if all trained; the slowest stage is the rank with most processor time.

usage: bench_modalities.py BUILD [--rounds 5] [--steps 5]
"""

import json
import os
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
from decoder_bench import Times
from start_sides import bench_parser, call, run_zea

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "jobs"))
from dataset_writer import Clip, DatasetWriter  # noqa: E402

IMAGE, AUDIO, VOCABULARY, WORDS, RATE = 3, 4, 512, 20, 16000
FEATURES, POSITIONS, BATCH, ROW_SAMPLES = 64, 150, 16, 2
VARIANT = "no_shard/fp32"


def config_of(layers, has_audio, text):
    vision = {"model_type": "clip_vision_model", "hidden_size": 384, "intermediate_size": 1536}
    vision |= {"num_attention_heads": 6, "num_hidden_layers": layers, "image_size": 112, "patch_size": 14}
    audio = {"model_type": "whisper", "d_model": 256, "encoder_attention_heads": 4, "encoder_ffn_dim": 1024}
    config = {
        "model_type": "llava",
        "image_token_index": IMAGE,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
        "vision_config": vision,
        "text_config": {
            "model_type": "llama",
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 1024,
        }
        | text,
    }
    if has_audio:
        audio |= {"encoder_layers": layers, "num_mel_bins": 40, "max_source_positions": POSITIONS}
        config |= {"audio_token_index": AUDIO, "audio_config": audio}
    return config


def write_inputs(folder, build, config):
    folder.mkdir()
    random, has_audio = np.random.default_rng(7), "audio_config" in config
    audio_token = AUDIO if has_audio else -1
    with DatasetWriter(folder / "data.h5", IMAGE, audio_token=audio_token) as writer:
        for _ in range(4 * BATCH):
            items = [random.integers(0, 256, size=(112, 112, 3), dtype=np.uint8)]
            tokens = [IMAGE] * FEATURES
            if has_audio:
                items.append(Clip(random.integers(-9000, 9000, size=3 * RATE).astype(np.int16), RATE))
                tokens += [AUDIO] * POSITIONS
            words = random.integers(8, VOCABULARY, size=WORDS).tolist()
            writer.add(tokens + words, [0] * len(tokens) + [1] * WORDS, items)
    (folder / "config.json").write_text(json.dumps(config))
    call([build / "postprocess/zea-import", "--random", folder / "config.json", folder / "weights.h5"])
    tokens = FEATURES + WORDS + (POSITIONS if has_audio else 0)
    (folder / "deck.toml").write_text(
        f'[model]\nweights = "{folder}/weights.h5"\n[data]\ntrain = "{folder}/data.h5"\n'
        f"row_tokens = {ROW_SAMPLES * tokens}\nshuffle = false\n"
        f'[optim]\nlr = 1e-3\ndecay = "constant"\n[schedule]\nsteps = 1000\nglobal_batch = {BATCH}\n'
    )
    return folder


def template(build, folder, *keys):
    """The stages of the language model that zea cuts with these keys, as a value of mesh.llm.stages."""
    plan = call([build / "src/zea", "-n", "--ranks", 2, "-i", folder / "deck.toml", "mesh.llm.pp=2", *keys])
    stages = re.findall(r"^  llm\.pp\d+ +\S+ +\d+ +\S+ +\S+ +\S+ +\S+ +(.*)$", plan, re.MULTILINE)
    units = [[name for name in stage.split(", ") if name.startswith("llm.")] for stage in stages]
    return json.dumps(units)


def measure(arguments, times, name, folder, ranks, *keys):
    report = run_zea(arguments.mpirun, arguments.build, folder, ranks, arguments.steps, [VARIANT, *keys])[0]
    times.add(name, report)


def both_encoders(arguments, folder, times):
    own = ["mesh.vision.encoder_dp=1", "mesh.audio.encoder_dp=1"]
    measure(arguments, times, "colocated, 2 ranks", folder, 2, "mesh.placement=colocated", *own)
    measure(arguments, times, "disjoint, 3 ranks", folder, 3, "mesh.placement=disjoint", *own)


def one_encoder(arguments, folder, times):
    measure(arguments, times, "vision apart, 2 ranks", folder, 2, "mesh.placement=disjoint", "mesh.vision.encoder_dp=1")
    measure(arguments, times, "vision in the first stage", folder, 2, "mesh.llm.pp=2")


def frozen_encoder(arguments, folder, times):
    frozen = "model.vision.train=false"
    plain = template(arguments.build, folder)
    aware = template(arguments.build, folder, frozen)
    for name, stages in (("cut as if all trained", plain), ("cut by what frozen units cost", aware)):
        measure(arguments, times, name, folder, 2, frozen, f"mesh.llm.stages={stages}")
    return plain, aware


def llm_seconds(build, folder):
    """Returns the seconds of the language model in a step, by `zea --profile`, on the otherwise idle machine."""
    call([build / "src/zea", "--profile", folder / "costs.json", "-i", folder / "deck.toml"])
    units = json.loads((folder / "costs.json").read_text())["units"]
    parts = ("forward", "backward_input", "backward_weight")
    seconds = sum(unit[part] for name, unit in units.items() if name.startswith("llm.") for part in parts)
    return seconds * BATCH / ROW_SAMPLES


def ratios(times, llm):
    """Titles and how many times faster."""
    cores = len(os.sched_getaffinity(0))
    shared = llm / cores if cores < 3 else 0
    for what, of in (("medians", times.median), ("minima", times.least)):
        together, apart = of("colocated, 2 ranks"), of("disjoint, 3 ranks")
        yield f"encoders on ranks of their own over one after the other, {what}", together / apart
        yield f"the same, the language model's {1e3 * llm:.0f} ms taken out, {what}", together / (apart - shared)
        inside, own = of("vision in the first stage"), of("vision apart, 2 ranks")
        yield f"vision apart over inside the first stage, {what}", inside / own
        plain, aware = of("cut as if all trained"), of("cut by what frozen units cost")
        yield f"cut by what frozen units cost over plain, step time, {what}", plain / aware
    slowest = times.cpu["cut as if all trained"] / times.cpu["cut by what frozen units cost"]
    yield "the same, processor time of the slowest stage", slowest


def main():
    arguments = bench_parser(__doc__, 5, 5, "timed steps in a round").parse_args()
    small = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    wide = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 12}
    times = Times()
    with tempfile.TemporaryDirectory(prefix="zea-bench-") as name:
        root, build = Path(name), arguments.build
        both = write_inputs(root / "both", build, config_of(4, True, small))
        one = write_inputs(root / "one", build, config_of(4, False, wide))
        llm = llm_seconds(build, both)
        for _ in range(arguments.rounds):
            both_encoders(arguments, both, times)
            one_encoder(arguments, one, times)
            plain, aware = frozen_encoder(arguments, one, times)
    both_tokens, one_tokens = (BATCH * (FEATURES + WORDS + more) for more in (POSITIONS, 0))
    apart = ("colocated, 2 ranks", "disjoint, 3 ranks")
    times.print({name: both_tokens if name in apart else one_tokens for name in times.seconds})
    print("\n| | times faster |\n|---|---|")
    for title, ratio in ratios(times, llm):
        print(f"| {title} | {ratio:.2f} |")
    print(f"\nplain: {plain}\nfrozen-aware: {aware}")


if __name__ == "__main__":
    main()
