# SPDX-License-Identifier: Apache-2.0
"""Shows held-out images with the captions that a model generated for them, as one PNG.

usage: contact_sheet.py RUN/predictions.jsonl DATASET.h5 [--out sheet.png] [--count 40]

A line of predictions.jsonl is a JSON object with sample (id in the data set), generated, answer,
label, predicted and correct. Green: the right class; red: a wrong one or none, and the right one is
given. Samples are taken evenly over the file, so the sheet flatters nobody.
"""

import argparse
import io
import json
import sys
import textwrap
from pathlib import Path

import h5py
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

RIGHT, WRONG, INK = "#1f7a4d", "#b3362c", "#26282b"


def read_predictions(path):
    lines = [
        json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
    ]
    if not lines:
        sys.exit(f"{path}: holds no predictions")
    return sorted(lines, key=lambda line: line["sample"])


def choose(predictions, count):
    """`count` of them at equal distances."""
    return [
        predictions[i] for i in np.unique(np.linspace(0, len(predictions) - 1, count).astype(int))
    ]


def read_image(file, sample):
    """The first item of a sample as an array, or None where it has none."""
    item, end = file["sample_item_offsets"][sample : sample + 2]
    if item == end:
        return None
    begin, end = file["item_offsets"][item : item + 2]
    data = file["item_bytes"][begin:end]
    shape = file["item_shape"][item]
    if shape.any():
        return data.reshape(shape)
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data.tobytes())).convert("RGB"))


def draw_cell(axes, image, prediction):
    colour = RIGHT if prediction["correct"] else WRONG
    if image is not None:
        axes.imshow(image, cmap="gray_r" if image.shape[-1] == 1 else None, vmin=0, vmax=255)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color=colour, linewidth=2)
    text = "\n".join(textwrap.wrap(prediction["generated"].strip() or "(nothing)", 22)[:3])
    if not prediction["correct"]:
        text += f"\n({prediction['label'] or prediction['answer'].strip()})"
    axes.set_xlabel(text, color=colour, fontsize=8, linespacing=1.25)


def draw(predictions, chosen, file, out):
    columns = min(8, len(chosen))
    rows = -(-len(chosen) // columns)
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(1.55 * columns, 1.95 * rows + 0.6),
        squeeze=False,
        layout="constrained",
    )
    for axes in grid.flat[len(chosen) :]:
        axes.set_visible(False)
    for axes, prediction in zip(grid.flat, chosen):
        draw_cell(axes, read_image(file, prediction["sample"]), prediction)
    right = sum(bool(prediction["correct"]) for prediction in predictions)
    figure.suptitle(
        f"{right} of {len(predictions)} images named correctly ({right / len(predictions):.1%})",
        fontweight="bold",
        color=INK,
    )
    figure.savefig(out, dpi=150)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("predictions", type=Path)
    parser.add_argument("dataset", type=Path, help="the data set that the sample ids refer to")
    parser.add_argument(
        "--out", type=Path, help="PNG to write (default: contact_sheet.png beside the predictions)"
    )
    parser.add_argument("--count", type=int, default=40, help="images on the sheet")
    arguments = parser.parse_args()

    predictions = read_predictions(arguments.predictions)
    out = arguments.out or arguments.predictions.with_name("contact_sheet.png")
    with h5py.File(arguments.dataset) as file:
        samples = len(file["token_offsets"]) - 1
        if not 0 <= predictions[0]["sample"] <= predictions[-1]["sample"] < samples:
            sys.exit(
                f"{arguments.predictions}: samples beyond the {samples} of {arguments.dataset}"
            )
        draw(predictions, choose(predictions, arguments.count), file, out)
    print(out)


if __name__ == "__main__":
    main()
