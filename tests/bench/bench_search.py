#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processor time and memory of zea --plan for large models, on one core.

    tests/bench/bench_search.py build/ci [--ranks 512,16384] [--models text,multimodal,experts] [--keep FOLDER]

The models are a Llama of 70B; the same with a vision tower of 2B and an audio encoder of 0.6B; and a mixture of 128
experts with 80 layers. The hardware file has eight H100s a node; a step has two rows of 8,192 tokens for each rank."""

import argparse
import contextlib
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HARDWARE = ROOT / "inputs/hardware/h100_nvlink_infiniband.toml"
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False}
TEXT = {"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, **IDS}  # fmt: skip
EXPERTS = {"model_type": "qwen3_moe", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 80,
           "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
           "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536, "norm_topk_prob": True,
           "rms_norm_eps": 1e-6, "max_position_embeddings": 40960, **IDS}  # fmt: skip
VISION = {"hidden_size": 1664, "intermediate_size": 8192, "num_hidden_layers": 48, "num_attention_heads": 16,
          "image_size": 448, "patch_size": 14}  # fmt: skip
AUDIO = {"d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120,
         "num_mel_bins": 128, "max_source_positions": 1500}  # fmt: skip


def multimodal():
    config = json.loads((ROOT / "inputs/spoken_fashion_2m.json").read_text())
    config["text_config"] = TEXT
    config["vision_config"].update(VISION)
    config["audio_config"].update(AUDIO)
    return config


MODELS = {"text": lambda: TEXT, "multimodal": multimodal, "experts": lambda: EXPERTS}


def write_deck(folder, name, ranks):
    config = folder / f"{name}.json"
    config.write_text(json.dumps(MODELS[name]()))
    deck = folder / f"{name}_{ranks}.toml"
    deck.write_text(
        f'[run]\ndevice = "cuda"\n[model]\nconfig = "{config}"\n[data]\ntrain = "{folder}/none.h5"\nrow_tokens = 8192\n'
        f'[precision]\npreset = "bf16"\n[schedule]\nglobal_batch = {2 * ranks}\n'
    )
    return deck


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--ranks", default="512,16384")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--keep", type=Path, help="folder for decks and results")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print("| model | ranks | CPU s | elapsed s | peak MiB | grids, planned, timed | best step |")
    print("|---|---|---|---|---|---|---|")
    with contextlib.ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zea-search-")))
        folder.mkdir(exist_ok=True)
        for ranks in map(int, arguments.ranks.split(",")):
            for name in arguments.models.split(","):
                deck = write_deck(folder, name, ranks)
                command = [arguments.build / "src/zea", "--plan", "--json", "--ranks", str(ranks), "--ranks-per-node",
                           "8", "--hardware", HARDWARE, "--memory", "77GiB", "-i", deck]  # fmt: skip
                with deck.with_suffix(".out.json").open("w") as out:
                    began = time.monotonic()
                    process = subprocess.Popen(command, stdout=out, env=dict(os.environ, OMP_NUM_THREADS="1"))
                    _, status, used = os.wait4(process.pid, 0)
                    seconds = time.monotonic() - began
                if status:
                    raise SystemExit(f"{name} on {ranks}: {deck.with_suffix('.out.json').read_text()}")
                found = json.loads(deck.with_suffix(".out.json").read_text())
                counts = ", ".join(f"{found[key]:,}" for key in ("grids", "planned", "timed"))
                processor, mib = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
                print(f"| {name} | {ranks:,} | {processor:.1f} | {seconds:.1f} | {mib:.0f} | {counts} | "
                      f"{found['layouts'][0]['seconds']:.3f} s |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
