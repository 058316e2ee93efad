# SPDX-License-Identifier: Apache-2.0
"""Shows held-out images with the answers of one model, or of two, as one PNG.

usage: contact_sheet.py RUN/predictions.jsonl DATASET.h5 [--beside OTHER/predictions.jsonl] [--out sheet.png]
       [--count 40]

A line of predictions.jsonl is a JSON object with sample (id in the data set), generated, answer and, for
data with classes, label, predicted and correct. Green: the right class, or without classes an answer
itself; red: another or none, followed by a right one. Samples are evenly spaced over the file; with --beside
over those for which the two models differ, the first one's text above the other's.
"""

import argparse
import io
import sys
import textwrap
from pathlib import Path

import h5py
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from score import answers_of  # noqa: E402
from score import read_predictions as read_lines  # noqa: E402

RIGHT, WRONG, INK = "#1f7a4d", "#b3362c", "#26282b"


def read_predictions(path):
    lines = read_lines(path)
    if not lines:
        sys.exit(f"{path}: holds no predictions")
    if not all(isinstance(line.get("sample"), int) for line in lines):
        sys.exit(f"{path}: has lines without the number of their sample")
    return sorted(lines, key=lambda line: line["sample"])


def choose(predictions, count):
    """`count` of them at equal distances."""
    return [
        predictions[i] for i in np.unique(np.linspace(0, len(predictions) - 1, count).astype(int))
    ]


def image_of(file, item):
    """(height, width, channels) of pixels as they are, or of a JPEG or PNG, whose shape says no channels."""
    begin, end = file["item_offsets"][item : item + 2]
    data = file["item_bytes"][begin:end]
    shape = file["item_shape"][item]
    if shape[2]:
        return data.reshape(shape)
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data.tobytes())).convert("RGB"))


def read_image(file, sample):
    """The first image of a sample as an array, or None where it has none."""
    begin, end = file["sample_item_offsets"][sample : sample + 2]
    for item in range(begin, end):
        if "item_modality" not in file or file["item_modality"][item] == 0:
            return image_of(file, item)
    return None


def is_right(prediction):
    if "correct" in prediction:
        return bool(prediction["correct"])
    said = prediction["generated"].strip()
    return any(said == answer.strip() for answer in answers_of(prediction))


def right_of(prediction):
    return prediction.get("label") or next(iter(answers_of(prediction)), "")


def colour_of(prediction):
    return RIGHT if is_right(prediction) else WRONG


def wrapped(text, lines):
    return "\n".join(textwrap.wrap(text.strip() or "(nothing)", 22)[:lines])


def draw_cell(axes, image, versions):
    """An image over what each of the versions says of it."""
    if image is not None:
        axes.imshow(image, cmap="gray_r" if image.shape[-1] == 1 else None, vmin=0, vmax=255)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color=colour_of(versions[-1]), linewidth=2)
    lines = 3 if len(versions) == 1 else 2
    texts = [wrapped(prediction["generated"], lines) for prediction in versions]
    if not all(map(is_right, versions)):
        texts[-1] += f"\n({wrapped(right_of(versions[0]), lines)})"
    style = {"fontsize": 8, "linespacing": 1.25, "parse_math": False}
    axes.set_xlabel(texts[-1], color=colour_of(versions[-1]), **style)
    if len(versions) > 1:
        axes.set_title(texts[0], color=colour_of(versions[0]), **style)


def share_text(predictions, what):
    right = sum(map(is_right, predictions))
    return f"{right} of {len(predictions)} {what} ({right / len(predictions):.1%})"


def title_of(runs, pairs):
    what = "images named correctly" if "correct" in runs[0][0] else "answers given as they are"
    if len(runs) == 1:
        return share_text(runs[0], what)
    return f"above: {share_text(runs[0], what)}; below: {share_text(runs[1], what)}; {len(pairs)} differ"


def pairs_of(runs):
    """Samples as the runs say them: all of one run, of two those that differ."""
    by_sample = [{line["sample"]: line for line in run} for run in runs]
    both = sorted(set.intersection(*map(set, by_sample)))
    if not both:
        sys.exit("the two files have no sample in common; were they made of the same data set?")
    pairs = [[run[sample] for run in by_sample] for sample in both]
    if len(runs) == 1:
        return pairs
    return [pair for pair in pairs if pair[0]["generated"].strip() != pair[1]["generated"].strip()]


def draw(chosen, title, file, out):
    columns = min(8, max(len(chosen), 3))
    rows = max(1, -(-len(chosen) // columns))
    height = 1.95 if not chosen or len(chosen[0]) == 1 else 2.4
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(1.55 * columns, height * rows + 0.6),
        squeeze=False,
        layout="constrained",
    )
    for axes in grid.flat[len(chosen) :]:
        axes.set_visible(False)
    for axes, versions in zip(grid.flat, chosen):
        draw_cell(axes, read_image(file, versions[0]["sample"]), versions)
    figure.suptitle(title, fontweight="bold", color=INK)
    figure.savefig(out, dpi=150)


def positive(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return int(text)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("predictions", type=Path)
    parser.add_argument("dataset", type=Path, help="the data set that the sample ids refer to")
    parser.add_argument("--beside", type=Path, help="predictions of another run on the same data set")
    parser.add_argument(
        "--out", type=Path, help="PNG to write (default: contact_sheet.png beside the predictions)"
    )
    parser.add_argument("--count", type=positive, default=40, help="images on the sheet")
    arguments = parser.parse_args()

    paths = [arguments.predictions] + ([arguments.beside] if arguments.beside else [])
    runs = [read_predictions(path) for path in paths]
    out = arguments.out or arguments.predictions.with_name("contact_sheet.png")
    try:
        with h5py.File(arguments.dataset) as file:
            samples = len(file["token_offsets"]) - 1
            for path, run in zip(paths, runs):
                if not 0 <= run[0]["sample"] <= run[-1]["sample"] < samples:
                    sys.exit(f"{path}: samples beyond the {samples} of {arguments.dataset}")
            pairs = pairs_of(runs)
            draw(choose(pairs, arguments.count) if pairs else [], title_of(runs, pairs), file, out)
    except (OSError, ValueError, KeyError) as fault:  # of the data set, or of an ending that says nothing
        sys.exit(f"cannot draw {arguments.dataset} to {out}: {fault}")
    print(out)


if __name__ == "__main__":
    main()
