# SPDX-License-Identifier: Apache-2.0
"""Packs a LLaVA-style JSON with a folder of images into a zea data set.

The JSON is a list of {"id", "image": path or list of paths (absent: text only), "conversations":
[{"from": "human" or "gpt", "value": text}, ...]}. Turns alternate and begin with human; "<image>"
in a human turn stands for the next image and becomes --image-tokens placeholders. The text of a
conversation is, for every pair of turns,

    [bos]USER: human turn ASSISTANT: gpt turn[eos]

with bos only at the start, and the loss on the gpt turn, the space before it, and eos. Images are
kept as the bytes of their files (JPEG or PNG). An entry at fault is named by file, index, id and
reason; with --on-fault skip it is left out.
"""

import argparse
import json
import sys
from pathlib import Path, PurePosixPath

from dataset_writer import DatasetWriter
from token_bytes import token_bytes
from tokenizers import Tokenizer

MARK = "<image>"


class EntryFault(Exception):
    """Why an entry cannot be packed."""


def read_entries(path):
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as fault:
        sys.exit(f"{path}: {fault}")
    if not isinstance(entries, list):
        sys.exit(f"{path}: must be a list of entries, is a {type(entries).__name__}")
    return entries


def turns_of(entry):
    """Pairs (human, gpt)."""
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    if not isinstance(turns, list) or not turns:
        raise EntryFault("has no conversations")
    for number, turn in enumerate(turns):
        speaker = ("human", "gpt")[number % 2]
        if (
            not isinstance(turn, dict)
            or turn.get("from") != speaker
            or not isinstance(turn.get("value"), str)
        ):
            raise EntryFault(f'turn {number} must be {{"from": "{speaker}", "value": text}}')
    if len(turns) % 2:
        raise EntryFault("ends with a human turn")
    texts = [turn["value"] for turn in turns]
    return list(zip(texts[::2], texts[1::2]))


def read_images(entry, folder):
    paths = entry.get("image", [])
    paths = [paths] if isinstance(paths, str) else paths
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise EntryFault("image must be a path or a list of paths")
    return [read_image(PurePosixPath(path), folder) for path in paths]


def read_image(path, folder):
    if path.is_absolute() or ".." in path.parts:
        raise EntryFault(f"image {path} lies outside the folder of images")
    try:
        data = (folder / path).read_bytes()
    except (OSError, ValueError) as fault:
        raise EntryFault(f"image {path} cannot be read: {fault}") from None
    if not data.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")):
        raise EntryFault(f"image {path} is neither JPEG nor PNG")
    return data


class Packer:
    """Token ids and loss mask of conversations."""

    def __init__(self, tokenizer, bos, eos, image, image_tokens, max_tokens):
        self.tokenizer = tokenizer
        self.bos, self.eos, self.image = (
            [self._id(name)] if name else [] for name in (bos, eos, image)
        )
        self.image_tokens = image_tokens
        self.max_tokens = max_tokens

    def _id(self, name):
        number = self.tokenizer.token_to_id(name)
        if number is None:
            sys.exit(f"the tokenizer has no token {name}; see --bos, --eos, --image-token")
        return number

    def encode(self, text):
        try:
            text.encode()
        except UnicodeEncodeError as fault:
            raise EntryFault(f"text is not valid Unicode: {fault.reason}") from None
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def prompt(self, human):
        ids = []
        for number, piece in enumerate(f"USER: {human} ASSISTANT:".split(MARK)):
            ids += (self.image * self.image_tokens if number else []) + (
                self.encode(piece) if piece else []
            )
        return ids

    def pack(self, entry, folder):
        pairs, images = turns_of(entry), read_images(entry, folder)
        marks = sum(human.count(MARK) for human, _ in pairs)
        if marks != len(images):
            raise EntryFault(f"has {len(images)} images but {marks} {MARK} in its human turns")
        tokens, mask = list(self.bos), [0] * len(self.bos)
        for human, gpt in pairs:
            prompt, answer = self.prompt(human), self.encode(" " + gpt) + self.eos
            tokens += prompt + answer
            mask += [0] * len(prompt) + [1] * len(answer)
        self.check(tokens, len(images))
        return tokens, mask, images

    def check(self, tokens, images):
        placeholders = tokens.count(self.image[0])
        if placeholders != images * self.image_tokens:
            raise EntryFault(
                f"has {placeholders} placeholders for {images} images: is {MARK} in a gpt turn?"
            )
        if self.max_tokens and len(tokens) > self.max_tokens:
            raise EntryFault(f"has {len(tokens)} tokens, more than --max-tokens {self.max_tokens}")


def name_of(path, index, entry):
    return f"{path}[{index}] (id {entry.get('id') if isinstance(entry, dict) else None})"


def pack_all(arguments, packer, writer):
    """Returns the faults; stops at the twentieth unless they are skipped."""
    faults = []
    for index, entry in enumerate(read_entries(arguments.json)):
        try:
            writer.add(*packer.pack(entry, arguments.images))
        except EntryFault as fault:
            faults.append(f"{name_of(arguments.json, index, entry)}: {fault}")
            if arguments.on_fault == "stop" and len(faults) == 20:
                break
    return faults


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True, help="conversations")
    parser.add_argument(
        "--images", type=Path, required=True, help="folder that the image paths start from"
    )
    parser.add_argument(
        "--tokenizer", type=Path, required=True, help="tokenizer.json of the language model"
    )
    parser.add_argument(
        "--image-tokens",
        type=int,
        required=True,
        help="features that the encoder makes of an image",
    )
    parser.add_argument("--out", type=Path, required=True, help="data set (.h5) to write")
    parser.add_argument("--bos", default="<s>", help='token before a conversation; "" for none')
    parser.add_argument("--eos", default="</s>", help="token after every gpt turn")
    parser.add_argument("--image-token", default="<image>", help="placeholder token")
    parser.add_argument("--max-tokens", type=int, default=0, help="longest sample allowed (0: any)")
    parser.add_argument("--on-fault", choices=["stop", "skip"], default="stop")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
    tokenizer.no_truncation()  # some files ask for it, and long samples would lose their end
    tokenizer.no_padding()
    packer = Packer(
        tokenizer,
        arguments.bos,
        arguments.eos,
        arguments.image_token,
        arguments.image_tokens,
        arguments.max_tokens,
    )
    with DatasetWriter(arguments.out, packer.image[0], None, token_bytes(tokenizer)) as writer:
        faults = pack_all(arguments, packer, writer)
        for fault in faults:
            print(fault, file=sys.stderr)
        samples = len(writer.labels)
        if samples == 0 or (faults and arguments.on_fault == "stop"):
            sys.exit(
                f"nothing written: {len(faults)} entries at fault; repair them or --on-fault skip"
            )
    print(f"{arguments.out}: {samples} samples, {len(faults)} entries skipped")


if __name__ == "__main__":
    main()
