# SPDX-License-Identifier: Apache-2.0
"""The table of bench_peer.py: what was measured on both sides, their ratios and the bars, with machine and versions."""

import datetime
import os
import statistics
from importlib.metadata import version
from pathlib import Path

from decoder_bench import verdict


CHECKED_STEPS = 7


class Times:
    """Times of one variant: seconds of its steps after the first ones, losses of all."""

    def __init__(self):
        self.seconds, self.losses = [], []

    def add(self, answer, is_warm=True):
        self.losses += answer["losses"]
        if is_warm:
            self.seconds += answer["seconds"]

    def __str__(self):
        return f"{1e3 * statistics.median(self.seconds):.1f} ({1e3 * min(self.seconds):.1f}) ms"


def difference(losses, others):
    """The largest relative one of the first steps that both made. A model that learns a few batches by heart at this
    learning rate makes differences of rounding grow until they tell nothing."""
    assert losses and others
    first = list(zip(losses, others))[:CHECKED_STEPS]
    return max(abs(a - b) / abs(b) for a, b in first)


class Row:
    """One line: what is compared, and how many times zea is the faster (or the smaller) one."""

    def __init__(self, name, layout, bar):
        self.name, self.layout, self.bar, self.faults, self.losses = name, layout, bar, [], ""

    def of_times(self, ours, other, tolerance):
        self.ours, self.other = str(ours), str(other)
        self.medians = statistics.median(other.seconds) / statistics.median(ours.seconds)
        self.minima = min(other.seconds) / min(ours.seconds)
        if tolerance is not None:
            apart = difference(ours.losses, other.losses)
            self.losses = f"{apart:.0e}"
            if not apart <= tolerance:
                self.faults.append(f"{self.name}, {self.layout}: losses differ by {apart:.1e}, allowed {tolerance:.0e}")
        return self

    def of_bytes(self, ours, other):
        """Lists of bytes."""
        mib = [[bytes_ / 2**20 for bytes_ in side] for side in (ours, other)]
        self.ours, self.other = (f"{statistics.median(side):.0f} ({min(side):.0f}) MiB" for side in mib)
        self.medians, self.minima = statistics.median(other) / statistics.median(ours), min(other) / min(ours)
        return self

    def __str__(self):
        ratios = f"{self.medians:.2f}; {self.minima:.2f}"
        said = verdict(self.medians, self.minima, self.bar)
        cells = (self.name, self.layout, self.ours, self.other, ratios, f"{self.bar:.2f}", self.losses, said)
        return f"| {' | '.join(cells)} |"


def machine():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    has = [flag for flag in ("amx_bf16", "avx512_bf16", "avx512f") if flag in found.get("flags", "").split()]
    return f"{len(os.sched_getaffinity(0))} cores of {found.get('model name', os.uname().machine)} ({', '.join(has)})"


def print_table(rows, rounds):
    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "transformers"))
    print(f"{datetime.date.today()}, {machine()}; {versions}; {rounds} rounds; medians (minima)\n")
    print("| what | ranks x threads | zea | the other | times better: medians; minima | bar | losses differ by | |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(row)
