# SPDX-License-Identifier: Apache-2.0
"""Draws what a run logged: loss, accuracy, learning rate and throughput over steps, as a PNG.

usage: plot_metrics.py RUN/metrics.jsonl ... [--out metrics.png]

A line of metrics.jsonl is a JSON object of kind "train" (step, loss, lr, grad_norm,
tokens_per_second, ...) or "eval" (step, loss, accuracy). A resumed run logs some steps twice: the
last line of a step counts. The line that a running or killed job has not finished is left out.
"""

import argparse
import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

COLOURS = ["#2f6bb3", "#d1662b", "#3a8a5c", "#8a5aa8", "#7a6a58", "#b8486f"]
INK, FAINT = "#26282b", "#d9dce0"
STYLE = {
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlecolor": INK,
    "axes.titlesize": 11,
}


def read_metrics(path):
    """{"train": {key: (steps, values)}, "eval": {...}}."""
    lines = {"train": {}, "eval": {}}
    texts = path.read_text(encoding="utf-8").splitlines()
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
        except json.JSONDecodeError as fault:
            if number == len(texts):
                continue
            sys.exit(f"{path}:{number}: {fault}")
        if line.get("kind") in lines and "step" in line:
            lines[line["kind"]][line["step"]] = line
    return {kind: series_of(steps) for kind, steps in lines.items()}


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
        draw_series("memory_bytes", "Memory", "peak of a rank / GiB", draw_plain, 2**30),
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


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "metrics", type=Path, nargs="+", help="metrics.jsonl of one run, or of several to compare"
    )
    parser.add_argument(
        "--out", type=Path, help="PNG to write (default: metrics.png beside the first)"
    )
    arguments = parser.parse_args()
    if len(arguments.metrics) > len(COLOURS):
        sys.exit(f"{len(arguments.metrics)} runs; at most {len(COLOURS)} can be told apart")

    named = len(arguments.metrics) > 1
    runs = [
        (f"{path.parent.name} " if named else "", read_metrics(path)) for path in arguments.metrics
    ]
    for path, (_, run) in zip(arguments.metrics, runs):
        if not run["train"] and not run["eval"]:
            sys.exit(f"{path}: holds no lines of kind train or eval")
    out = arguments.out or arguments.metrics[0].with_name("metrics.png")
    draw(runs, out)
    print(out)


if __name__ == "__main__":
    main()
