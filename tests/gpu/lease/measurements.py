# SPDX-License-Identifier: Apache-2.0
"""The measurements of a lease. Each sets its part's result, a line, as far as it has come."""

import json
import re
import statistics
import sys
from pathlib import Path

from checks import differences, programs
from machine import PROJECT
from setting import train, write_deck
from speed import Case, clip_l_llama_1b, measure_case, speed, write_data

HERE = Path(__file__).resolve().parent
ENDLESS = 3600  # of programs that the part's limit ends
SAME_LOSS = 1e-5  # relative, in fp32: graphs launch the same kernels, in sums whose order may differ


def answer(found):
    """Returns the JSON that a program printed, and the lines around it."""
    lines = found.output.splitlines()
    printed = [line for line in lines if line.startswith("{")]
    if not (found.ok and printed):
        raise RuntimeError(f"exit code {found.code}\n{found.tail()}")
    return json.loads(printed[-1]), [line for line in lines if line not in printed]


def libtorch(setting, part, what):
    """(seconds, FLOPs) by variant, of kernels.py; quotes why variants are refused."""
    extent = "quick" if setting.quick else "whole"
    found = setting.run([sys.executable, "-B", HERE / "kernels.py", what, setting.device, extent], ENDLESS)
    measured, said = answer(found)
    part.quote("\n".join(said))
    rows = [[name, f"{1e3 * s:.3f}" if s else "refused"] for name, s in measured["seconds"].items()]
    part.table(["variant", "ms"], rows)
    return measured["seconds"], measured["flops"]


def ranks_of(setting, what, ranks, elements, env=None):
    store = setting.folder / f"{what}.store"
    store.unlink(missing_ok=True)
    arguments = ["-B", HERE / "ranks.py", what, setting.device, store, elements]
    return answer(setting.on_ranks(ranks, sys.executable, *arguments, seconds=ENDLESS, env=env))[0]


def order(setting, part):
    """Two ranks on a GPU, with NCCL's order of starts and without."""
    elements, lines = 1 << (16 if setting.quick else 24), []
    for implicit in (1, 0):
        found = ranks_of(setting, "order", 2, elements, {"NCCL_LAUNCH_ORDER_IMPLICIT": str(implicit)})
        for communicators, spans in found.items():
            part.say(f"- order {implicit}, {communicators}: (begin, end) in s: {json.dumps(spans)}")
            starts = [1e3 * spans[name][0] for name in ("its all-gather", "the other all-gather")]
            end = 1e3 * spans["reduce-scatter"][1]
            lines.append(
                f"order {implicit}, {communicators}: reduce-scatter {end:.2f} ms, all-gathers begin at {starts[0]:.2f} "
                f"and {starts[1]:.2f}"
            )
        part.result = "; ".join(lines)


def beside(setting, part):
    seconds, _ = libtorch(setting, part, "beside")
    alone, slower = seconds["alone"], {}
    for name, found in seconds.items():
        if name != "alone":
            way, blocks = name.split()
            slower.setdefault(way, []).append(f"{blocks} blocks {100 * (found / alone - 1):+.0f} %")
    ways = "; ".join(f"{way}: {', '.join(found)}" for way, found in slower.items())
    part.result = f"alone {1e3 * alone:.1f} ms; {ways}"


def llama(hidden, intermediate, heads, kv_heads, layers, vocabulary=16384):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "intermediate_size": intermediate, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": 128 if hidden > 128 else 16, "num_hidden_layers": layers, "vocab_size": vocabulary,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 1 << 20,
        "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
    }  # fmt: skip


def layers(setting, part):
    """Layers of an 8B, and what a rank of eight has of a 70B's."""
    cases = [
        Case("4 layers of an 8B, a sample of 8k tokens", llama(4096, 14336, 32, 8, 4), [8192]),
        Case("8 layers of a 70B, tp 8, a sample of 8k tokens", llama(8192, 3584, 8, 1, 8), [8192]),
    ]
    if setting.quick:
        cases = [Case("a layer, a sample of 64 tokens", llama(64, 96, 4, 2, 1, 256), [64], precisions=("fp32",))]
    lines = []
    for number, case in enumerate(cases):
        for row in measure_case(setting, part, case, setting.folder / f"layers{number}", is_alone=True):
            lines.append(f"{case.name}: {row[1]} ms, MFU {row[3] or 'not known'}, busy {row[6] or 'not known'}")
        part.result = "; ".join(lines)


def rates(seconds, flops):
    """TFLOP/s by variant, of those that were not refused."""
    return {name: 1e-12 * flops[name] / found for name, found in seconds.items() if found}


def slices(setting, part):
    found, lines = rates(*libtorch(setting, part, "slices")), {}
    for name, rate in found.items():
        kernel, shape, way = name.split(", ")
        lines.setdefault(f"{shape}, {way}", []).append(f"{kernel} {rate:.3g}")
    part.result = "TFLOP/s: " + "; ".join(f"{name}: {', '.join(each)}" for name, each in lines.items())


def fp8(setting, part):
    """By recipe the speedup over bf16 of all shapes together, and how much time the cast takes."""
    seconds, _ = libtorch(setting, part, "fp8")
    totals = {}
    for name, found in seconds.items():
        totals.setdefault(name.split(", ")[0], []).append(found)
    bf16, lines = sum(totals["bf16"]), []
    for recipe in ("tensor", "row", "block"):
        for name in (recipe, f"{recipe} to fp32"):
            lines.append(f"{name} " + ("refused" if None in totals[name] else f"{bf16 / sum(totals[name]):.2f} x"))
        lines.append(f"its cast {100 * sum(totals[f'{recipe} cast']) / bf16:.0f} %")
    part.result = f"products in bf16 {1e3 * bf16:.3f} ms; " + ", ".join(lines)


def experts(setting, part):
    found = rates(*libtorch(setting, part, "experts"))
    part.result = "TFLOP/s: " + ", ".join(f"{name} {rate:.3g}" for name, rate in found.items())


def ragged(setting, part):
    """Steps whose rows differ in tokens and images, with libtorch's expandable segments and without."""
    import numpy as np

    steps, config, shortest, longest = 300, clip_l_llama_1b(), 600, 1800
    if setting.quick:
        config = json.loads((PROJECT / "inputs/fashion_captions_2m.json").read_text())
        steps, shortest, longest = 6, 20, 60
    lengths = np.random.default_rng(3).integers(shortest, longest, size=64).tolist()
    folder, lines = setting.folder / "ragged", []
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_data(folder / "data.h5", Case("ragged", config, lengths, 1), 1)
    deck = write_deck(folder, f'config = "{folder}/config.json"', folder / "data.h5", longest, 4, steps)
    for expandable in (True, False):
        env = {"PYTORCH_ALLOC_CONF": f"expandable_segments:{expandable}"}
        name, keys = f"ragged-{expandable}".lower(), ["data.shuffle=true", "precision.preset=bf16"]
        got = train(setting, name, deck, 1, *keys, seconds=ENDLESS, env=env)
        what = f"{'expandable' if expandable else 'fixed'} segments"
        part.check(f"{what}: {steps} steps", got.ok and len(got.lines()) == steps, got.outcome.tail())
        lines.append(f"{what}: {reserved(got)}")
        part.result = "; ".join(lines)


def reserved(got):
    """How the reserved memory grows, and how much of it tensors take; on the host, the peak of all tensors."""
    memory = [line["gpu_memory"] for line in got.lines() if "gpu_memory" in line]
    if not memory:
        counted = re.search(r"counted ([\d.]+) MiB", got.log())
        return f"{counted[1]} MiB counted at most" if counted else "nothing counted"
    gib = {key: [each[key] / 2**30 for each in memory] for key in ("peak_reserved_bytes", "peak_allocated_bytes")}
    grown, tenth = gib["peak_reserved_bytes"], max(1, len(memory) // 10)
    return (
        f"{max(grown[:tenth]):.2f} GiB reserved after {tenth} steps, {max(grown):.2f} after all; allocated "
        f"{max(gib['peak_allocated_bytes']):.2f} at most; {memory[-1]['alloc_retries']} retries"
    )


def communicators(setting, part):
    ranks, lines = 2 if setting.quick else 8, []
    for kind, made in ranks_of(setting, "communicators", ranks, 1).items():
        seconds, size = (statistics.median(each[i] for each in made) for i in range(2))
        lines.append(f"{kind}: {seconds:.3f} s, {size / 2**20:.1f} MiB a rank")
    part.result = f"{ranks} ranks: " + "; ".join(lines)


def pipelines(setting, part):
    """Interleaved and zero-bubble pipelines of two encoders, whose ranks could wait for each other in a cycle."""
    chosen = "disjoint, zero_bubble.*two encoders" if setting.quick else "(interleaved|zero_bubble).*two encoders"
    env = {"ZEA_DEVICE_STRIDE": "1", "ZEA_LAYOUTS": chosen}
    env |= {"ZEA_TESTED_DEVICE": "cpu"} if setting.device == "cpu" else {}
    only = ["--gtest_filter=*PipelinesInBf16"]
    (said,) = programs(setting, part, ["gpu_cuda_layouts"], [8], ENDLESS, env, only)
    tried = re.search(r"^(\d+) layouts", said, re.M)
    part.result = f"{tried[1] if tried else 'no'} pipelines of 8 ranks, {part.bad} wrong"


def graphs(setting, part):
    """Evaluations between steps that are launched as graphs, on two ranks, against steps without either."""
    config = json.loads((PROJECT / "inputs/fashion_captions_2m.json").read_text())
    folder, steps = setting.folder / "graphs", 10
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    data = folder / "data.h5"
    write_data(data, Case("graphs", config, [29] * 8, 1), 1)
    deck = write_deck(folder, f'config = "{folder}/config.json"', data, 29 * 4, 8, steps)
    keys = ["mesh.llm.strategy=full_shard", "precision.preset=fp32"]
    evaluated = [f'data.eval="{data}"', "eval.every=3"]
    graphed = ["run.cuda_graphs=2"] if setting.device == "cuda" else []
    plain = train(setting, "graphs-plain", deck, 2, *keys, seconds=ENDLESS)
    got = train(setting, "graphs", deck, 2, *keys, *evaluated, *graphed, seconds=ENDLESS)
    part.check("steps with evaluations end", plain.ok and got.ok, plain.outcome.tail() + "\n" + got.outcome.tail())
    if not (plain.ok and got.ok):
        return
    loss, _ = differences(got.numbers(), plain.numbers())
    part.check(f"losses differ by {loss:.1e} from those without evaluations", loss <= SAME_LOSS)
    evaluations = len(got.lines("eval"))
    part.check(f"{evaluations} evaluations", evaluations >= steps // 3)
    launched = re.search(r"(\d+) were launched as graphs", got.log())
    count = int(launched[1]) if launched else 0
    part.check("steps were launched as graphs", not graphed or count > steps // 3)
    part.result = f"{count} of {steps} steps launched as graphs, losses differ by {loss:.1e}"


# Highest risk first: what is measured, the seconds it may take, and what it decides.
MEASUREMENTS = {
    "order": (order, 60, "whether gradients need a communicator of their own"),
    "beside": (beside, 90, "how many SMs calls of NCCL may hold, and whether to carve them out of GEMMs"),
    "layers": (layers, 80, "which kernels of an 8B and of a 70B to improve"),
    "slices": (slices, 60, "which kernel attends slices of keys under cp"),
    "fp8": (fp8, 60, "which recipe of FP8 is worth building"),
    "experts": (experts, 30, "whether experts use grouped products on devices"),
    "ragged": (ragged, 70, "whether fragmentation needs more than expandable segments"),
    "communicators": (communicators, 60, "how many communicators a module may have"),
    "pipelines": (pipelines, 90, "whether schedules are safe under NCCL's order of starts"),
    "graphs": (graphs, 30, "whether evaluations may use a communicator that graphs use"),
    "speed": (speed, 600, "where the time of whole steps goes"),
}
