# SPDX-License-Identifier: Apache-2.0
"""Plots the schedule of a pipeline as a PNG: a row for each stage group, a box for each pass.

usage: zea -n --ranks N -i deck.toml | plot_schedule.py - [--out schedule.png]
       plot_schedule.py PLAN [--out schedule.png]

PLAN is the output of `zea -n`. Its lines "passes GROUP KIND:STAGE:MICROBATCH:BEGIN:END ..." are read,
with times in percent of the step; the line "pipeline ..." is the title. KIND is F (forward), B
(backward), I (backward without weight gradients) or W (weight gradients). Later stages of a group are
darker.
"""

import argparse
import re
import sys
from collections import namedtuple
from pathlib import Path

try:
    import matplotlib
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch
except ImportError as missing:
    sys.exit(f"{missing}: jobs/requirements.txt lists what pictures need")
matplotlib.use("Agg")  # no window

KINDS = {
    "F": ("forward", "#7fa8d9"),
    "B": ("backward", "#e59a6a"),
    "I": ("backward, inputs", "#e59a6a"),
    "W": ("backward, weights", "#7fbf95"),
}
INK, IDLE = "#26282b", "#eef0f2"
DARKER = 0.72  # from a stage to the next one of its group
DARK = 1.4  # sum of red, green and blue
NARROWEST_LABEL = 0.09  # inches for each figure of a label
PASS = re.compile(r"([FBIW]):(\d+):(\d+):([0-9.e+-]+):([0-9.e+-]+)")
Pass = namedtuple("Pass", "kind stage microbatch begin end")


def parse_pass(text, where):
    match = PASS.fullmatch(text)
    try:
        return Pass(match[1], int(match[2]), int(match[3]), float(match[4]), float(match[5]))
    except (TypeError, ValueError):
        sys.exit(f"{where}: {text!r} is no pass; WHAT:STAGE:MICROBATCH:BEGIN:END is, as F:0:3:1.5:2")


def read_plan(name):
    """The title, and the passes of each stage group."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        sys.exit(f"cannot read {name}: {fault}")
    title, groups = "", {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if line.startswith("pipeline "):
            title = line.split(";")[0]
        elif line.startswith("  passes ") and len(words) > 2:
            where = f"{name}:{number}"
            groups[words[1]] = [parse_pass(word, where) for word in words[2:]]
    if not groups:
        sys.exit(
            f"{name}: holds no lines of passes; give what zea -n prints of a deck whose modules or "
            "stages have ranks of their own (mesh.placement, mesh.llm.pp)"
        )
    return title, groups


def shade(colour, steps):
    rgb = matplotlib.colors.to_rgb(colour)
    return tuple(channel * DARKER**steps for channel in rgb)


def draw_group(axes, row, passes, inches_per_percent):
    stages = sorted({each.stage for each in passes})
    axes.broken_barh([(0, 100)], (row - 0.4, 0.8), facecolors=IDLE)
    for each in passes:
        width = each.end - each.begin
        colour = shade(KINDS[each.kind][1], stages.index(each.stage))
        inches = width * inches_per_percent
        line = 0.6 if inches > NARROWEST_LABEL / 2 else 0
        axes.broken_barh(
            [(each.begin, width)], (row - 0.4, 0.8), facecolors=[colour], edgecolors="white", lw=line
        )
        label = str(each.microbatch)
        if inches > NARROWEST_LABEL * len(label):
            middle, ink = each.begin + width / 2, INK if sum(colour) > DARK else "white"
            axes.text(middle, row, label, ha="center", va="center", fontsize=7, color=ink)


def save(figure, handles, idle, out):
    """Adds the legend of `handles` and of idle time, and writes the picture."""
    handles.append(Patch(color=IDLE, label=idle))
    figure.legend(handles=handles, loc="outside lower right", ncols=len(handles), frameon=False, fontsize=8)
    try:
        figure.savefig(out, dpi=130)
    except (OSError, ValueError) as fault:
        sys.exit(f"cannot write {out}: {fault}")


def draw(title, groups, out):
    most = max(len(passes) for passes in groups.values())
    width, height = min(max(7.0, 0.24 * most), 40.0), 1.3 + 0.36 * len(groups)
    figure, axes = plt.subplots(figsize=(width, max(height, 2.4)), layout="constrained")
    for row, passes in enumerate(groups.values()):
        draw_group(axes, row, passes, 0.85 * width / 100)
    axes.set_yticks(range(len(groups)), groups)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("time, in percent of the step; numbers are microbatches")
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.spines[["top", "right", "left"]].set_visible(False)
    used = {each.kind for passes in groups.values() for each in passes}
    handles = [Patch(color=colour, label=label) for kind, (label, colour) in KINDS.items() if kind in used]
    save(figure, handles, "waiting", out)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", help="what zea -n printed; -: standard input")
    parser.add_argument("--out", type=Path, default=Path("schedule.png"))
    arguments = parser.parse_args()
    draw(*read_plan(arguments.plan), arguments.out)


if __name__ == "__main__":
    main()
