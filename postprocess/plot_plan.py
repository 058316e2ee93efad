# SPDX-License-Identifier: Apache-2.0
"""Plots a plan as a PNG: the modules and stages of ranks and nodes, and the timeline of a step.

usage: zea -n --json --ranks N --hardware FILE -i deck.toml | plot_plan.py - [--out plan.png]
       zea --plan --json --ranks N --hardware FILE -i deck.toml | plot_plan.py - [--out plan.png]
       plot_plan.py PLAN [--out plan.png]

PLAN is the output of `zea -n --json`, or of `zea --plan --json`, whose best layout is plotted. The upper
part has a row for each module and a column for each rank of the first replica: a box is a stage, its
label the stage and the rank's coordinates along encoder_dp, cp and tp; lines separate nodes. The lower part
has a row for each stage group and shows the first step of the slowest replica.
"""

import argparse
import json
import sys
from pathlib import Path

try:
    import matplotlib
    import matplotlib.pyplot as plt
    import matplotlib.ticker
    from matplotlib.patches import Patch
except ImportError as missing:
    sys.exit(f"{missing}: jobs/requirements.txt lists what pictures need")
matplotlib.use("Agg")  # no window

from plot_schedule import IDLE, INK, save  # noqa: E402

KINDS = {
    "forward": "#7fa8d9",
    "backward": "#e59a6a",
    "weights": "#7fbf95",
    "optimizer": "#8a5aa8",
    "tp": "#b8486f",
    "cp": "#d67a97",
    "dp": "#c9a227",
    "ep": "#4f9a94",
    "pp": "#7a6a58",
    "features": "#a8937c",
}
STAGES = ["#cfe0f3", "#f7dcca", "#d3ead9", "#e4d6ee", "#f3e6bf", "#f0cfdb"]
AXES = ("encoder_dp", "cp", "tp")
MOST_LABELS = 64  # ranks of a replica whose places are written


def read_json(name):
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        sys.exit(f"cannot read {name}: {fault}")
    try:
        return json.loads(text)
    except json.JSONDecodeError as fault:
        sys.exit(f"{name} is not JSON: {fault}; give what zea -n --json or zea --plan --json prints")


def read_plan(name):
    """The plan with its drawing: itself, or the best layout of a search."""
    plan = read_json(name)
    if isinstance(plan, dict) and plan.get("layouts") == []:
        sys.exit(f"{name}: no layout fits, so there is none to draw")
    try:
        best = plan["layouts"][0] if "layouts" in plan else plan
        drawing = best["drawing"]
        title = (
            f"{plan['ranks']} ranks on {plan['hardware']} ({plan['figures']} figures): "
            f"{best['seconds']:.4g} s a step, MFU {100 * best['mfu']:.1f} %, idle {100 * best['idle_share']:.1f} %"
        )
        subtitle = " ".join(best.get("overrides", []))
        for span in drawing["timeline"]:
            span["end"] - span["begin"], span["what"], drawing["stage_groups"][span["stage_group"]]["name"]
        for module in drawing["modules"]:
            [module[key] for key in ("name", "first_rank", "pp", *AXES)]
        drawing["replicas"], drawing["node_of_rank"][0]
    except (KeyError, IndexError, TypeError, ValueError) as fault:
        sys.exit(
            f"{name} has no drawing ({type(fault).__name__}: {fault}); give what zea -n --json or zea "
            "--plan --json prints"
        )
    return title, subtitle, drawing


def draw_module(axes, row, module, names_ranks):
    ranks = module["encoder_dp"] * module["cp"] * module["tp"]
    for stage in range(module["pp"]):
        first = module["first_rank"] + stage * ranks
        colour = STAGES[stage % len(STAGES)]
        if not names_ranks:
            axes.broken_barh([(first, ranks)], (row - 0.4, 0.8), facecolors=[colour], edgecolors="white")
            continue
        for place in range(ranks):
            axes.broken_barh([(first + place, 1)], (row - 0.4, 0.8), facecolors=[colour], edgecolors="white")
            rest, label = place, []
            for axis in reversed(AXES):
                if module[axis] > 1:
                    label.append(f"{axis.split('_')[-1]}{rest % module[axis]}")
                rest //= module[axis]
            label.append(f"pp{stage}" if module["pp"] > 1 else "")
            text = "\n".join(part for part in reversed(label) if part)
            axes.text(first + place + 0.5, row, text, ha="center", va="center", fontsize=6, color=INK)


def draw_ranks(axes, drawing):
    nodes = drawing["node_of_rank"]
    for row, module in enumerate(drawing["modules"]):
        draw_module(axes, row, module, len(nodes) <= MOST_LABELS)
    for rank in range(1, len(nodes)):
        if nodes[rank] != nodes[rank - 1]:
            axes.axvline(rank, color=INK, lw=0.8, ls="--")
    axes.set_yticks(range(len(drawing["modules"])), [module["name"] for module in drawing["modules"]])
    axes.set_ylim(len(drawing["modules"]) - 0.4, -0.6)
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    axes.set_xlim(0, len(nodes))
    count = len(set(nodes))
    axes.set_xlabel(
        f"ranks of the first of {drawing['replicas']} replicas, on {count} node{'s' if count > 1 else ''} (dashed)"
    )
    axes.spines[["top", "right", "left"]].set_visible(False)


def draw_timeline(axes, drawing):
    groups = [group["name"] for group in drawing["stage_groups"]]
    end = max((span["end"] for span in drawing["timeline"]), default=1.0)
    for row in range(len(groups)):
        axes.broken_barh([(0, end)], (row - 0.4, 0.8), facecolors=IDLE)
        for kind in sorted({span["what"] for span in drawing["timeline"]}):
            spans = [
                (span["begin"], span["end"] - span["begin"])
                for span in drawing["timeline"]
                if span["stage_group"] == row and span["what"] == kind
            ]
            axes.broken_barh(spans, (row - 0.4, 0.8), facecolors=KINDS.get(kind, INK))
    axes.set_yticks(range(len(groups)), groups)
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.set_xlim(0, end)
    axes.set_xlabel("seconds from the start of a step")
    axes.spines[["top", "right", "left"]].set_visible(False)


def draw(title, subtitle, drawing, out):
    modules, groups = len(drawing["modules"]), len(drawing["stage_groups"])
    width = min(max(9.0, 0.35 * len(drawing["node_of_rank"])), 40.0)
    height = 2.2 + 0.5 * modules + 0.34 * groups
    figure, (upper, lower) = plt.subplots(
        2, figsize=(width, height), layout="constrained", height_ratios=(0.6 + 0.5 * modules, 0.6 + 0.34 * groups)
    )
    draw_ranks(upper, drawing)
    draw_timeline(lower, drawing)
    upper.set_title(title + ("\n" + subtitle if subtitle else ""), loc="left", fontsize=9, color=INK)
    used = {span["what"] for span in drawing["timeline"]}
    handles = [Patch(color=colour, label=kind) for kind, colour in KINDS.items() if kind in used]
    save(figure, handles, "waiting for other stage groups", out)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", help="what zea -n --json or zea --plan --json printed; -: standard input")
    parser.add_argument("--out", type=Path, default=Path("plan.png"))
    arguments = parser.parse_args()
    draw(*read_plan(arguments.plan), arguments.out)


if __name__ == "__main__":
    main()
