# SPDX-License-Identifier: Apache-2.0
"""Compares zea's ways to share experts: dispatch by all-gather and by all-to-all (mesh.llm.ep_dispatch), and under
tensor parallelism whole experts on each tp rank against experts that tp ranks shard (mesh.llm.etp). Two tables in
Markdown: times of a step with the bytes that rank 0 sends in it, and ratios.

On two and on four ranks of one thread the variants train the same Qwen3-MoE from the same weights on the same samples,
in one group of processes, in which they take turns of a few steps (bench_step). Losses must agree.

usage: bench_expert_parallel.py BUILD [--rounds 2] [--steps 6]
"""

import tempfile
from pathlib import Path

from decoder_bench import Times, llama_config, write_inputs
from start_sides import bench_parser, run_zea

TOLERANCE, CHECKED_STEPS = 1e-4, 6  # of more steps, routers choose other experts where scores are nearly equal
EXPERTS, CHOSEN, INNER = 32, 2, 256
SAMPLES, LENGTH = 8, 128
GATHER, EXCHANGE = "ep_dispatch=allgather", "ep_dispatch=alltoall"
# By ranks: the name of a variant and its keys of mesh.llm.
VARIANTS = {
    2: {
        "ep 2, all-gather": ["ep=2", GATHER],
        "ep 2, all-to-all": ["ep=2", EXCHANGE],
        "tp 2, sharded experts": ["tp=2"],
        "tp 2, whole experts": ["tp=2", "ep=2", "etp=1"],
    },
    4: {
        "ep 4, all-gather": ["ep=4", GATHER],
        "ep 4, all-to-all": ["ep=4", EXCHANGE],
        "tp 2, ep 2, sharded, all-gather": ["tp=2", "ep=2", GATHER],
        "tp 2, ep 2, sharded, all-to-all": ["tp=2", "ep=2", EXCHANGE],
        "tp 2, ep 4, whole, all-gather": ["tp=2", "ep=4", "etp=1", GATHER],
        "tp 2, ep 4, whole, all-to-all": ["tp=2", "ep=4", "etp=1", EXCHANGE],
    },
}
# Ranks, and two variants of them: how many times faster is the first one.
RATIOS = [
    (2, "ep 2, all-to-all", "ep 2, all-gather"),
    (4, "ep 4, all-to-all", "ep 4, all-gather"),
    (4, "tp 2, ep 2, sharded, all-to-all", "tp 2, ep 2, sharded, all-gather"),
    (4, "tp 2, ep 4, whole, all-to-all", "tp 2, ep 4, whole, all-gather"),
    (2, "tp 2, whole experts", "tp 2, sharded experts"),
    (4, "tp 2, ep 4, whole, all-gather", "tp 2, ep 2, sharded, all-gather"),
    (4, "tp 2, ep 4, whole, all-to-all", "tp 2, ep 2, sharded, all-to-all"),
]


def config():
    text = llama_config(256, 512, 4, 4, 2, 2048, LENGTH)
    return text | {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "head_dim": 64,
        "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "moe_intermediate_size": INNER,
        "norm_topk_prob": True,
    }


def keyed(ranks, name):
    return f"{ranks} ranks: {name}"


def bytes_of_experts(report):
    return sum(sent for group, sent in report["sent_bytes"].items() if group.startswith("llm.ep_"))


def bytes_of_tp(report):
    return report["sent_bytes"].get("llm.tp", 0)


def print_steps(times, reports):
    print("| variant | median ms | min ms | min CPU ms of the slowest rank | MB to ep ranks | MB to tp ranks | MB |")
    print("|---|---|---|---|---|---|---|")
    for name, report in reports.items():
        sent = [bytes_of_experts(report), bytes_of_tp(report), sum(report["sent_bytes"].values())]
        print(
            f"| {name} | {1e3 * times.median(name):.1f} | {1e3 * times.least(name):.1f} |"
            f" {1e3 * times.cpu[name]:.1f} | " + " | ".join(f"{1e-6 * number:.2f}" for number in sent) + " |"
        )


def print_ratios(times, reports):
    """Returns sentences on losses that differ."""
    faults = []
    print("\n| times faster | medians | minima | CPU time | bytes to ep and tp ranks | losses differ by |")
    print("|---|---|---|---|---|---|")
    for ranks, first, second in RATIOS:
        a, b = keyed(ranks, first), keyed(ranks, second)
        medians, minima, cpu = times.speedups(a, b)
        sent = [bytes_of_experts(reports[name]) + bytes_of_tp(reports[name]) for name in (a, b)]
        difference = times.difference(a, b, CHECKED_STEPS)
        if not difference <= TOLERANCE:
            faults.append(f"{a} and {b}: losses differ by {difference:.1e}")
        print(
            f"| {a} over {second} | {medians:.2f} | {minima:.2f} | {cpu:.2f} | {sent[0] / sent[1]:.2f} |"
            f" {difference:.0e} |"
        )
    return faults


def main():
    arguments = bench_parser(__doc__, 2, 6).parse_args()
    times, reports = Times(), {}
    with tempfile.TemporaryDirectory(prefix="zea-bench-") as name:
        folder = Path(name) / "experts"
        write_inputs(folder, arguments.build, config(), [LENGTH] * SAMPLES, 1)
        for _ in range(arguments.rounds):
            for ranks, variants in VARIANTS.items():
                asked = [
                    "no_shard/fp32@" + ",".join(f"mesh.llm.{key}" for key in keys) for keys in variants.values()
                ]
                rows = f"data.row_tokens={SAMPLES * LENGTH // ranks}"
                found = run_zea(arguments.mpirun, arguments.build, folder, ranks, arguments.steps, [*asked, rows])
                for variant, report in zip(variants, found):
                    times.add(keyed(ranks, variant), report)
                    reports[keyed(ranks, variant)] = report
    print_steps(times, reports)
    if faults := print_ratios(times, reports):
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main()
