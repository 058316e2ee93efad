# SPDX-License-Identifier: Apache-2.0
"""Plots metrics of runs as a PNG: loss, accuracy, learning rate and throughput over steps.

usage: plot_metrics.py RUN ... [--out metrics.png]

RUN is a run directory or its metrics.jsonl, whose lines are JSON objects of kind "train" (step,
loss, lr, grad_norm, tokens_per_second, ...) or "eval" (step, loss, accuracy). If a run resumed from
an earlier checkpoint and logged steps again, only the last line of each step counts. An incomplete
last line is ignored.
"""

import argparse
import json
import sys
from pathlib import Path

try:
    import matplotlib
    import matplotlib.pyplot as plt
    import numpy as np
except ImportError as missing:
    sys.exit(f"{missing}: jobs/requirements.txt lists what pictures need")
matplotlib.use("Agg")  # no window

COLOURS = ["#2f6bb3", "#d1662b", "#3a8a5c", "#8a5aa8", "#7a6a58", "#b8486f"]
INK, FAINT = "#26282b", "#d9dce0"
STYLE = {
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlecolor": INK,
    "axes.titlesize": 11,
}


def find_file(path):
    """The metrics.jsonl of a run directory, or the file itself."""
    file = path / "metrics.jsonl" if path.is_dir() else path
    if not file.is_file():
        what = "holds no metrics.jsonl" if path.is_dir() else "does not exist"
        sys.exit(f"{path} {what}; give run directories, or metrics.jsonl files")
    return file


def parse_line(text):
    """The object of a line with a step; None where it is something else."""
    try:
        line = json.loads(text)
    except json.JSONDecodeError:
        return None
    is_whole = isinstance(line, dict) and isinstance(line.get("step"), int)
    return line if is_whole else None


def read_metrics(path):
    """{"train": {key: (steps, values)}, "eval": {...}}."""
    lines = {"train": {}, "eval": {}}
    last_step = 0
    texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, text in enumerate(texts, 1):
        line = parse_line(text)
        if line is None and text.strip() and number < len(texts):
            print(f"{path}:{number}: not a line of metrics, left out", file=sys.stderr)
        if line is None or line.get("kind") not in lines:
            continue
        step = line["step"]
        if line["kind"] == "train":
            if step <= last_step:
                forget_from(step, lines)
            last_step = step
        lines[line["kind"]][step] = line
    if not lines["train"] and not lines["eval"]:
        sys.exit(f"{path}: holds no lines of kind train or eval")
    return {kind: series_of(steps) for kind, steps in lines.items()}


def forget_from(step, lines):
    for kind, by_step in lines.items():
        lines[kind] = {old: line for old, line in by_step.items() if old < step}


def series_of(lines):
    keys = {
        key
        for line in lines.values()
        for key, value in line.items()
        if isinstance(value, (int, float))
    }
    series = {}
    for key in keys - {"step"}:
        points = sorted(
            (step, line[key]) for step, line in lines.items() if line.get(key) is not None
        )
        series[key] = tuple(np.array(column, float) for column in zip(*points))
    return series


def smooth(values, window):
    """Mean over the last `window` values."""
    sums = np.cumsum(np.concatenate([[0], values]))
    last = np.arange(1, len(values) + 1)
    first = np.maximum(last - window, 0)
    return (sums[last] - sums[first]) / (last - first)


def draw_smoothed(axes, steps, values, colour, label):
    axes.plot(steps, values, color=colour, alpha=0.25, linewidth=0.8)
    axes.plot(steps, smooth(values, max(1, len(values) // 50)), color=colour, label=label)


def draw_loss(axes, runs):
    for (name, run), colour in zip(runs, COLOURS):
        if "loss" in run["train"]:
            draw_smoothed(axes, *run["train"]["loss"], colour, f"{name}training")
        if "loss" in run["eval"]:
            axes.plot(
                *run["eval"]["loss"],
                "o--",
                color=INK if len(runs) == 1 else colour,
                markersize=4,
                label=f"{name}held out",
            )
    axes.set(title="Loss", ylabel="cross entropy per target token / nat")


def draw_accuracy(axes, runs):
    for (name, run), colour in zip(runs, COLOURS):
        if "accuracy" not in run["eval"]:
            continue
        steps, accuracy = run["eval"]["accuracy"]
        axes.plot(steps, 100 * accuracy, "o-", color=colour, markersize=4, label=f"{name}held out")
        axes.annotate(
            f"{100 * accuracy[-1]:.1f} %",
            (steps[-1], 100 * accuracy[-1]),
            xytext=(-4, 7),
            ha="right",
            textcoords="offset points",
            color=colour,
            fontweight="bold",
        )
    axes.set(title="Accuracy", ylabel="correct held-out samples / %", ylim=(0, 104))


def draw_series(key, title, label, draw_line, unit=1):
    def draw(axes, runs):
        for (name, run), colour in zip(runs, COLOURS):
            if key in run["train"]:
                steps, values = run["train"][key]
                draw_line(axes, steps, values / unit, colour, f"{name}training")
        axes.set(title=title, ylabel=label)

    return draw


def draw_plain(axes, steps, values, colour, label):
    axes.plot(steps, values, color=colour, label=label)


PANELS = [
    ("eval", "accuracy", draw_accuracy),
    ("train", "lr", draw_series("lr", "Learning rate", "learning rate", draw_plain)),
    (
        "train",
        "grad_norm",
        draw_series("grad_norm", "Gradient", "norm before clipping", draw_smoothed),
    ),
    (
        "train",
        "tokens_per_second",
        draw_series("tokens_per_second", "Throughput", "tokens / s", draw_smoothed),
    ),
    (
        "train",
        "memory_bytes",
        draw_series("memory_bytes", "Memory", "resident, rank 0 / GiB", draw_plain, 2**30),
    ),
]


def finish(axes):
    axes.set_xlabel("optimizer step")
    axes.grid(True, color=FAINT, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#9aa0a6")
    axes.tick_params(colors=INK)
    axes.margins(x=0.02)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(frameon=False)


def draw(runs, out):
    panels = [draw_loss] + [
        panel for kind, key, panel in PANELS if any(key in run[kind] for _, run in runs)
    ]
    columns = len(panels) if len(panels) < 4 else -(-len(panels) // 2)
    rows = -(-len(panels) // columns)
    plt.rcParams.update(STYLE)
    figure, grid = plt.subplots(
        rows, columns, figsize=(5 * columns, 3.4 * rows), squeeze=False, layout="constrained"
    )
    for axes, panel in zip(grid.flat, panels):
        panel(axes, runs)
        finish(axes)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    figure.savefig(out, dpi=150)


def name_runs(files):
    """The shortest ends of the runs' paths that tell them apart."""
    folders = [file.resolve().parent.parts for file in files]
    for length in range(1, max(map(len, folders)) + 1):
        names = ["/".join(folder[-length:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(file) for file in files]  # several files of one folder


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        help="run directory (or its metrics.jsonl); several to compare",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="PNG to write (default: metrics.png beside the first metrics.jsonl)",
    )
    arguments = parser.parse_args()
    if len(arguments.runs) > len(COLOURS):
        sys.exit(f"{len(arguments.runs)} runs; at most {len(COLOURS)} can be told apart")
    return arguments


def main():
    arguments = parse_arguments()
    files = [find_file(path) for path in arguments.runs]
    names = [f"{name} " for name in name_runs(files)] if len(files) > 1 else [""]
    runs = list(zip(names, map(read_metrics, files)))
    out = arguments.out or files[0].with_name("metrics.png")
    try:
        draw(runs, out)
    except (
        OSError,
        ValueError,
    ) as fault:  # a folder that is not there; an ending that says nothing
        sys.exit(f"cannot write {out}: {fault}")
    print(out)


if __name__ == "__main__":
    main()
