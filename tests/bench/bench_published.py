#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Published training speeds against what zea -n --hardware predicts for the same model, batch and layout.

    tests/bench/bench_published.py build/ci

The hardware file inputs/hardware/h100_nvlink_infiniband.toml is fitted to none of these rows. Its H100s have 700 W and
3.35 TB/s; those of torchtitan's rows have 500 W and 2.4 TB/s (HBM2e), and a peak between that of the SXM and of the NVL
(835 TFLOP/s). A second prediction takes their bandwidth and the NVL's peak."""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
H100 = ROOT / "inputs/hardware/h100_nvlink_infiniband.toml"


def llama(hidden, inner, layers, heads):
    return {"model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072, "tie_word_embeddings": False}  # fmt: skip


LLAMA_8B, LLAMA_70B = llama(4096, 14336, 32, 32), llama(8192, 28672, 80, 64)
GPT_175B = {"model_type": "gpt2", "n_embd": 12288, "n_layer": 96, "n_head": 96, "n_positions": 4096,
            "vocab_size": 131072, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}  # fmt: skip
QWEN3_30B = {"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
             "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
             "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True,
             "rms_norm_eps": 1e-6, "max_position_embeddings": 40960, "tie_word_embeddings": False}  # fmt: skip
LIMITED = (("bf16_tflops = 989.0", "bf16_tflops = 835.0"), ("memory_gb_per_s = 2800.0", "memory_gb_per_s = 2000.0"))
FSDP, TP = 'strategy = "full_shard"\n', 'strategy = "full_shard"\ntp = 8\n'
PIPELINE = 'strategy = "no_shard"\ntp = 8\npp = 12\nvirtual_stages = 8\n'
TITAN_2024, TITAN_2025 = "torchtitan, 2024-12", "torchtitan, 2025-06"
MEGATRON, AUTOMODEL = "Megatron-LM's README", "NeMo Automodel, 2025-10"
# Source, model, its config, GPUs, tokens of a sample, samples of a step, rows of a microbatch, recomputation (of every
# n-th block; 0: none), [mesh.llm], more keys, and what was published: tokens/s per GPU, or MFU in % by all pairs.
ROWS = [
    (TITAN_2024, "Llama 3.1 8B", LLAMA_8B, 8, 8192, 16, 2, 2, FSDP, "", 6667, None),
    (TITAN_2024, "Llama 3.1 8B", LLAMA_8B, 128, 8192, 256, 2, 2, FSDP, "", 6514, None),
    (TITAN_2025, "Llama 3.1 8B", LLAMA_8B, 64, 8192, 96, 12, 2, TP, "", 4378, None),
    (TITAN_2025, "Llama 3.1 70B", LLAMA_70B, 256, 8192, 512, 16, 1, TP, "", 597, None),
    (MEGATRON, "GPT 175B", GPT_175B, 96, 4096, 1152, 1, 0, PIPELINE, 'schedule = "interleaved_1f1b"\n', None, 47),
    (MEGATRON, "GPT 175B", GPT_175B, 4608, 4096, 1152, 1, 0, PIPELINE, 'schedule = "interleaved_1f1b"\n', None, 42),
    (AUTOMODEL, "Qwen3 30B-A3B", QWEN3_30B, 8, 4096, 512, 4, 0, FSDP + "ep = 8\n", "", 12040, None),
]


def limited_hardware(folder):
    text = H100.read_text()
    for usual, limited in LIMITED:
        assert usual in text
        text = text.replace(usual, limited)
    file = folder / "limited.toml"
    file.write_text(text)
    return file


def predicted(zea, folder, row, hardware):
    _, _, config, gpus, tokens, samples, rows, recomputed, llm, mesh, _, _ = row
    (folder / "config.json").write_text(json.dumps(config))
    deck = folder / "deck.toml"
    deck.write_text(
        f'[run]\ndevice = "cuda"\n[model]\nconfig = "{folder}/config.json"\nactivation_checkpointing = {recomputed}\n'
        f'[mesh]\n{mesh}[mesh.llm]\n{llm}[data]\ntrain = "{folder}/none.h5"\nrow_tokens = {tokens}\n'
        f'rows_per_microbatch = {rows}\n[precision]\npreset = "bf16"\n[schedule]\nglobal_batch = {samples}\n'
    )
    command = [zea, "-n", "--json", "--ranks", str(gpus), "--hardware", hardware, "-i", deck]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{row[1]} on {gpus}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path)
    arguments = parser.parse_args()
    zea = arguments.build.resolve() / "src/zea"
    print("| source | model | GPUs | published | predicted | as limited |\n|---|---|---|---|---|---|")
    for row in ROWS:
        source, model, _, gpus, *_, rate, mfu = row
        form = "{:,.0f} tokens/s" if rate else "MFU {:.1f} %"
        cells = [form.format(rate or mfu)]
        with tempfile.TemporaryDirectory(prefix="zea-published-") as scratch:
            folder = Path(scratch)
            for hardware in [H100, *([limited_hardware(folder)] if source in (TITAN_2024, TITAN_2025) else [])]:
                plan = predicted(zea, folder, row, hardware)
                own = plan["tokens_per_second"] / gpus if rate else 100 * plan["mfu_unmasked"]
                cells.append(f"{form.format(own)}, {100 * (own / (rate or mfu) - 1):+.0f} %")
        print(f"| {source} | {model} | {gpus:,} | {' | '.join((cells + ['-'])[:3])} |")


main()
