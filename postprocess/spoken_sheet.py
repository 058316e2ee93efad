# SPDX-License-Identifier: Apache-2.0
"""Accuracy per kind of question, and a PNG of held-out samples: image, spectrogram of what was
asked, question, answer.

usage: spoken_sheet.py RUN/predictions.jsonl DATASET.h5 [--out sheet.png] [--count 18]

Reads data sets of jobs/pack_spoken.py. A question is identified by the class of its answer: "yes"
and "no" answer "is this a shoe?", "dark" and "light" "is it dark or light?", "nothing" any question
without an image, and all other classes "what is this?". Green: right; red: wrong, and the right
class is given. Samples of every kind are evenly spaced over the file.
"""

import argparse
import io
import sys
import textwrap
import wave
from collections import defaultdict
from pathlib import Path

import h5py
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from contact_sheet import INK, RIGHT, WRONG, choose, image_of, positive, read_predictions  # noqa: E402

QUESTIONS = {
    "yes": "is this a shoe?",
    "no": "is this a shoe?",
    "dark": "is it dark or light?",
    "light": "is it dark or light?",
    "nothing": "(no image)",
}
WINDOW = 256


class Samples:
    """Images and sounds of a data set."""

    def __init__(self, file):
        self.file = file
        if "item_modality" not in file:
            sys.exit(f"{file.filename}: has no sound; see jobs/pack_spoken.py")

    def items(self, sample):
        """(image or None, (samples, rate) or None)"""
        image = sound = None
        first, end = self.file["sample_item_offsets"][sample : sample + 2]
        for item in range(first, end):
            if self.file["item_modality"][item] == 0:
                image = image_of(self.file, item)
            else:
                begin, after = self.file["item_offsets"][item : item + 2]
                sound = self.sound_of(self.file["item_bytes"][begin:after], int(self.file["item_rate"][item]))
        return image, sound

    @staticmethod
    def sound_of(data, rate):
        if rate:
            return data.view("<i2"), rate
        with wave.open(io.BytesIO(data.tobytes())) as file:
            return np.frombuffer(file.readframes(file.getnframes()), "<i2"), file.getframerate()


def kind_of(prediction, has_sound):
    question = QUESTIONS.get(prediction["label"], "what is this?")
    return question, "spoken" if has_sound else "typed"


def accuracies(kinds, predictions):
    """(question, way) -> (right, all)"""
    counts = defaultdict(lambda: [0, 0])
    for kind, prediction in zip(kinds, predictions):
        counts[kind][0] += bool(prediction["correct"])
        counts[kind][1] += 1
    return dict(sorted(counts.items()))


def spectrogram(samples, rate):
    """Decibels, (frequencies, times)."""
    windows = np.lib.stride_tricks.sliding_window_view(samples.astype(float), WINDOW)
    windows = windows[:: WINDOW // 4]
    power = np.abs(np.fft.rfft(windows * np.hanning(WINDOW), axis=1)) ** 2
    return 10 * np.log10(power.T + 1e3)


def draw_cell(image_axes, sound_axes, prediction, kind, image, sound):
    colour = RIGHT if prediction["correct"] else WRONG
    if image is not None:
        image_axes.imshow(image, cmap="gray", vmin=0, vmax=255)
    if sound is not None:
        samples, rate = sound
        extent = (0, len(samples) / rate, 0, rate / 2000)
        sound_axes.imshow(
            spectrogram(samples, rate), aspect="auto", origin="lower", cmap="magma", extent=extent
        )
    asked = f"{kind[0]}\n({kind[1]})" if sound is not None else prediction["prompt"].strip()
    sound_axes.set_title(asked, fontsize=7, color=INK)
    for axes in (image_axes, sound_axes):
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(color=colour, linewidth=1.5)
    text = "\n".join(textwrap.wrap(prediction["generated"].strip() or "(says nothing)", 24)[:3])
    if not prediction["correct"]:
        text += f"\n(right: {prediction['label']})"
    sound_axes.set_xlabel(text, color=colour, fontsize=8)


def draw(chosen, samples, title, out):
    columns = 3
    rows = -(-len(chosen) // columns)
    size = (3.6 * columns, 1.9 * rows + 0.8)
    figure, grid = plt.subplots(rows, 2 * columns, figsize=size, squeeze=False, layout="constrained")
    for axes in grid.flat[2 * len(chosen) :]:
        axes.set_visible(False)
    for number, (prediction, kind) in enumerate(chosen):
        cell = grid.flat[2 * number : 2 * number + 2]
        draw_cell(*cell, prediction, kind, *samples.items(prediction["sample"]))
    figure.suptitle(title, fontsize=9, color=INK)
    figure.savefig(out, dpi=130)


def chosen_of_kinds(kinds, predictions, count):
    """About as many of every kind, spoken ones first."""
    by_kind = defaultdict(list)
    for kind, prediction in zip(kinds, predictions):
        by_kind[kind].append((prediction, kind))
    order = sorted(by_kind, key=lambda kind: (kind[1], kind[0]))
    each = -(-count // len(order))
    return [pair for kind in order for pair in choose(by_kind[kind], min(each, len(by_kind[kind])))]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("predictions", type=Path)
    parser.add_argument("dataset", type=Path, help="the data set that the sample ids refer to")
    parser.add_argument("--out", type=Path, help="PNG (default: spoken_sheet.png beside the predictions)")
    parser.add_argument("--count", type=positive, default=18, help="samples on the sheet, about")
    arguments = parser.parse_args()

    predictions = read_predictions(arguments.predictions)
    out = arguments.out or arguments.predictions.with_name("spoken_sheet.png")
    with h5py.File(arguments.dataset) as file:
        samples = Samples(file)
        if not 0 <= predictions[0]["sample"] <= predictions[-1]["sample"] < len(file["labels"]):
            sys.exit(f"{arguments.predictions}: samples beyond those of {arguments.dataset}")
        kinds = [
            kind_of(prediction, samples.items(prediction["sample"])[1] is not None)
            for prediction in predictions
        ]
        counts = accuracies(kinds, predictions)
        lines = [
            f"{question} {way}: {right / total:.1%} of {total}"
            for (question, way), (right, total) in counts.items()
        ]
        print("\n".join(lines))
        title = "   ".join(lines[:4]) + "\n" + "   ".join(lines[4:])
        draw(chosen_of_kinds(kinds, predictions, arguments.count), samples, title, out)
    print(out)


if __name__ == "__main__":
    main()
