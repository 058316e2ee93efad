# SPDX-License-Identifier: Apache-2.0
"""Packs Fashion-MNIST as pictures with questions and captions.

Its files come with Debian: apt-get install dataset-fashion-mnist.

Writes train.h5 (60,000 samples), test.h5 (10,000, held out) and tokenizer.json. A sample:

    <bos> <image> x N  question  caption <eos>

with the loss on the caption and <eos>. Question and caption are drawn from several wordings; every
caption names its class in whole words, and no other. The tokenizer is a small byte-level BPE
trained on these wordings, or that of --tokenizer: for another task on the same pictures,
--task match, which asks what goes with the thing.
"""

import argparse
import gzip
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from dataset_writer import DatasetWriter
from token_bytes import special_texts, token_bytes
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CLASSES = [
    "t-shirt",
    "trousers",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
]
QUESTIONS = [
    "what is this?",
    "what does the picture show?",
    "name this item.",
    "what do you see?",
    "describe the picture.",
]
CAPTIONS = ["this is {}.", "a picture of {}.", "the picture shows {}.", "it is {}.", "i see {}."]
# The item that each class is worn with: a taste like any other.
MATCH_OF_CLASS = [1, 6, 1, 5, 9, 3, 1, 0, 3, 4]
MATCH_QUESTIONS = ["what goes with this?", "what is it worn with?", "name a match."]
SPECIAL = ["<pad>", "<bos>", "<eos>", "<image>"]
SPLITS = [("train", "train", 60000), ("test", "t10k", 10000)]


def with_article(name):
    if name == "trousers":
        return "a pair of trousers"
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


class Task(NamedTuple):
    """The questions about an image, and the captions."""

    classes: list
    class_of_picture: list  # of each of CLASSES
    questions: list
    captions: list
    word: Callable  # in a caption, of a class's name

    def caption(self, wording, label):
        return " " + self.captions[wording].format(self.word(self.classes[label]))


TASKS = {
    "name": Task(CLASSES, list(range(len(CLASSES))), QUESTIONS, CAPTIONS, with_article),
    "match": Task(CLASSES, MATCH_OF_CLASS, MATCH_QUESTIONS, ["{}."], with_article),
}


def read_idx(path, magic, shape):
    """An IDX file: magic number, dims, bytes."""
    if not path.exists():
        sys.exit(f"{path} is missing; apt-get install dataset-fashion-mnist, or give --source")
    data = gzip.decompress(path.read_bytes())
    header = np.frombuffer(data[: 4 + 4 * len(shape)], ">i4")
    if header.tolist() != [magic, *shape] or len(data) != header.nbytes + np.prod(shape):
        sys.exit(
            f"{path}: header {header.tolist()}, {len(data)} bytes; not those of {[magic, *shape]}"
        )
    return np.frombuffer(data, np.uint8, offset=header.nbytes).reshape(shape)


def read_split(source, prefix, samples):
    images = read_idx(source / f"{prefix}-images-idx3-ubyte.gz", 2051, [samples, 28, 28])
    return images, read_idx(source / f"{prefix}-labels-idx1-ubyte.gz", 2049, [samples])


def train_tokenizer(task):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    captions = [
        task.caption(wording, label)
        for wording in range(len(task.captions))
        for label in range(len(task.classes))
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(task.questions * len(task.classes) + captions, trainer)
    return tokenizer


def pack(path, images, labels, task, tokenizer, image_tokens, rng):
    pad, bos, eos, image = (tokenizer.token_to_id(name) for name in SPECIAL)
    ids = {}  # there are few different texts

    def encode(text):
        if text not in ids:
            ids[text] = tokenizer.encode(text).ids
        return ids[text]

    questions = rng.integers(len(task.questions), size=len(labels))
    wordings = rng.integers(len(task.captions), size=len(labels))
    labels = [task.class_of_picture[label] for label in labels]
    names = {"token_bytes": token_bytes(tokenizer), "special_texts": special_texts(tokenizer)}
    with DatasetWriter(path, image, task.classes, **names) as writer:
        for pixels, label, question, wording in zip(images, labels, questions, wordings):
            prompt = [bos] + [image] * image_tokens + encode(task.questions[question])
            answer = encode(task.caption(wording, label)) + [eos]
            writer.add(prompt + answer, [0] * len(prompt) + [1] * len(answer), [pixels], int(label))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--source", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument(
        "--image-tokens", type=int, default=16, help="features that the encoder makes of an image"
    )
    parser.add_argument("--limit", type=int, help="samples of each split to pack (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the wordings")
    parser.add_argument("--task", choices=TASKS, default="name", help="what is asked (default: name)")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json of this script (default: a new one)")
    arguments = parser.parse_args()

    task = TASKS[arguments.task]
    given = arguments.tokenizer
    if given and not given.exists():
        sys.exit(f"{given} is missing: it is written by {Path(__file__).name} without --tokenizer")
    tokenizer = Tokenizer.from_file(str(given)) if given else train_tokenizer(task)
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(arguments.out / "tokenizer.json"))
    for number, (name, prefix, samples) in enumerate(SPLITS):
        images, labels = read_split(arguments.source, prefix, samples)
        rng = np.random.default_rng([arguments.seed, number])
        part = slice(arguments.limit)
        pack(
            arguments.out / f"{name}.h5",
            images[part],
            labels[part],
            task,
            tokenizer,
            arguments.image_tokens,
            rng,
        )
        print(f"{arguments.out / name}.h5: {len(labels[part])} samples")


if __name__ == "__main__":
    main()
