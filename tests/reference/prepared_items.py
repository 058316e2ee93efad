# SPDX-License-Identifier: Apache-2.0
"""Items as zea prepares them for the encoder of a model, by the program prepare_items."""

import subprocess

import numpy as np


def prepared(program, config, samples):
    """`samples`: kinds and files. Features and values of each, or why it is refused; or why all are."""
    lines = "".join(f"{kind} {' '.join(map(str, files))}\n" for kind, files in samples)
    run = subprocess.run([program, config], input=lines.encode(), capture_output=True)
    if run.returncode != 0:
        return run.stderr.decode().strip() or f"exit code {run.returncode}"
    found, at = [], 0

    def take(form, count):
        nonlocal at
        values = np.frombuffer(run.stdout, form, count, at)
        at += values.nbytes
        return values

    for _ in samples:
        (items,) = take("<i8", 1)
        if items < 0:
            found.append(take(np.uint8, take("<i8", 1)[0]).tobytes().decode())
            continue
        features = take("<i8", items).tolist()
        found.append((features, take("<f4", take("<i8", 1)[0])))
    return found


def away(ours, reference, bound):
    """A fault, or none; by the largest value where that is above 1."""
    if ours.size != reference.size:
        return f"{ours.size} values in place of {reference.size}"
    difference = np.abs(ours - reference).max() / max(1, np.abs(reference).max())
    return f"values differ by {difference}" if not difference <= bound else None
