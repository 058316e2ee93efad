# SPDX-License-Identifier: Apache-2.0
"""Packs a LLaVA-style JSON with folders of images, videos and sound into a zea data set.

The JSON is a list of {"id", "image", "video" and "audio": path or list of paths (absent: none),
"conversations": [{"from": "human" or "gpt", "value": text}, ...]}. Turns alternate and begin with
human; "<image>" in a human turn stands for the next image and becomes --image-tokens placeholders,
"<audio>" for the next clip of sound and becomes --audio-tokens, "<video>" for the next video (with
--model only), which is a folder of its frames, JPEG or PNG files in the order of their names, --fps of
them a second (or "fps" of the entry). The text of a conversation is, for
every pair of turns,

    [bos]USER: human turn ASSISTANT: gpt turn[eos]

with bos only at the start, and the loss on the gpt turn, the space before it, and eos. --model takes
all that from a Hugging Face directory: its tokenizer and placeholders, as many of these as its
encoder makes features of each image, and turns in ChatML or Gemma's where its tokenizer has these.
Images are kept as the bytes of their files (JPEG or PNG), clips likewise (WAV or FLAC). An entry at
fault is named by file, index, id and reason; with --on-fault skip it is left out.
"""

import argparse
import json
import re
import sys
from pathlib import Path, PurePosixPath

from dataset_writer import Clip, DatasetWriter, Video
from model_directory import ModelDirectory, vicuna_turns
from token_bytes import token_bytes
from tokenizers import Tokenizer

MARKS = {"image": "<image>", "audio": "<audio>", "video": "<video>"}
ITEMS = {"image": "images", "audio": "clips of sound", "video": "videos"}
FOLDERS = {"image": "images", "audio": "sounds", "video": "videos"}
# Of images beside which crops stand, as Gemma3Processor writes it.
BEFORE_ORIGINAL = "Here is the original image "
BEFORE_CROPS = " and here are some crops to help you see better "


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


def read_items(entry, modality, arguments):
    folder = getattr(arguments, FOLDERS[modality])
    paths = entry.get(modality, [])
    paths = [paths] if isinstance(paths, str) else paths
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise EntryFault(f"{modality} must be a path or a list of paths")
    if paths and folder is None:
        raise EntryFault(f"has {modality}, but --{FOLDERS[modality]} names no folder")
    if modality == "video":
        return [read_video(PurePosixPath(path), entry, arguments) for path in paths]
    read = {"image": read_image, "audio": read_clip}[modality]
    return [read(PurePosixPath(path), folder) for path in paths]


def check_inside(path, modality):
    if path.is_absolute() or ".." in path.parts:
        raise EntryFault(f"{modality} {path} lies outside the folder of {FOLDERS[modality]}")


def read_file(path, folder, modality):
    check_inside(path, modality)
    try:
        return (folder / path).read_bytes()
    except (OSError, ValueError) as fault:
        raise EntryFault(f"{modality} {path} cannot be read: {fault}") from None


def read_image(path, folder):
    data = read_file(path, folder, "image")
    if not data.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")):
        raise EntryFault(f"image {path} is neither JPEG nor PNG")
    return data


def read_clip(path, folder):
    data = read_file(path, folder, "audio")
    is_wav = data.startswith(b"RIFF") and data[8:12] == b"WAVE"
    if not is_wav and not data.startswith(b"fLaC"):
        raise EntryFault(f"audio {path} is neither WAV nor FLAC")
    return Clip(data)


def read_video(path, entry, arguments):
    """Its first --max-seconds, of which at most --max-frames, evenly spread, are taken."""
    check_inside(path, "video")
    folder = arguments.videos / path
    if not folder.is_dir():
        raise EntryFault(
            f"video {path} is no folder of frames; make one: ffmpeg -i {path} "
            f"-vf fps={arguments.fps:g} {path.stem}/%06d.jpg"
        )
    per_second = entry.get("fps", arguments.fps)
    if not isinstance(per_second, (int, float)) or not 0 < per_second <= 1000:
        raise EntryFault(f"fps is {per_second}; allowed are numbers above 0, up to 1000")
    names = sorted(file.name for file in folder.iterdir() if file.suffix in (".jpg", ".jpeg", ".png"))
    if not names:
        raise EntryFault(f"video {path} has no frame (.jpg, .jpeg or .png)")
    if arguments.max_seconds:
        names = names[: max(1, int(arguments.max_seconds * per_second))]
    count = min(len(names), arguments.max_frames)
    taken = [names[round(n * (len(names) - 1) / max(1, count - 1))] for n in range(count)]
    frames = [read_image(path / name, arguments.videos) for name in taken]
    try:
        return Video(frames, per_second * count / len(names))
    except ValueError as fault:
        raise EntryFault(f"video {path}: {fault}") from None


class Packer:
    """Token ids and loss mask of conversations."""

    def __init__(self, tokenizer, arguments, model=None):
        self.tokenizer = tokenizer
        self.max_tokens = arguments.max_tokens
        if model:
            self.turns = model.turns(tokenizer)
            self.placeholder = {name: model.placeholders.get(name, -1) for name in MARKS}
            self.rows, self.moments, self.crops = model.rows, model.moments, model.crops
            self.spelled = model.spelled
        else:
            self.turns = vicuna_turns(arguments.bos, arguments.eos)
            each = {"image": arguments.image_tokens, "audio": arguments.audio_tokens}
            names = {"image": arguments.image_token, "audio": arguments.audio_token}
            self.placeholder = {
                modality: self._id(name) if each[modality] else -1 for modality, name in names.items()
            } | {"video": -1}
            own_length = arguments.audio_own_length

            def rows(modality, item, is_alone):
                if modality != "audio" or not own_length:
                    return [each[modality]]
                count = item.averaged_features(each[modality])
                if not count:
                    raise ValueError("too short for a feature, or of unknown length")
                return [count]

            self.rows, self.crops = rows, lambda item: 0
            self.spelled = lambda modality, item: None
        self.start, self.end = (
            [self._id(name)] if name else [] for name in (self.turns.start, self.turns.end)
        )

    def _id(self, name):
        number = self.tokenizer.token_to_id(name)
        if number is None:
            sys.exit(f"the tokenizer has no token {name}; see --bos, --eos, --image-token, --audio-token")
        return number

    def encode(self, text):
        try:
            text.encode()
        except UnicodeEncodeError as fault:
            raise EntryFault(f"text is not valid Unicode: {fault.reason}") from None
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def item(self, modality, item, is_alone):
        """What stands for an item, the only one of its sample or not, in texts and lists of ids, with
        what stands around an image and between its rows, and how many placeholders these have."""
        try:
            return self.video(item) if modality == "video" else self.image_or_sound(modality, item, is_alone)
        except ValueError as fault:
            raise EntryFault(f"{modality}: {fault}") from None

    def video(self, item):
        if not item:  # more marks than videos
            return [], 0
        before, after = ([self._id(name)] if name else [] for name in self.turns.around_image)
        ids, moments = [], self.moments(item)
        for stamp, count in moments:
            ids += self.encode(stamp) if stamp else []
            ids += before + [self.placeholder["video"]] * count + after
        return [ids], sum(count for _, count in moments)

    def image_or_sound(self, modality, item, is_alone):
        spelled = self.spelled(modality, item)
        if spelled:
            pieces = [[self.placeholder[modality]] * p if isinstance(p, int) else p for p in spelled]
            return pieces, sum(p for p in spelled if isinstance(p, int))
        rows = self.rows(modality, item, is_alone)
        turns, is_image = self.turns, modality == "image"
        crops = self.crops(item) if is_image else 0
        around = (*turns.around_image, turns.row_end) if is_image else ("", "", "")
        before, after, between = ([self._id(name)] if name else [] for name in around)
        ids = before
        for count in rows:
            ids = ids + [self.placeholder[modality]] * count + between
        beside = turns.beside_image if is_image else ""
        image = [beside, ids[: len(ids) - len(between)] + after, beside]
        if not crops:
            return image, sum(rows)
        of_crops = [*image, *[" ", *image] * (crops - 1)]
        return [BEFORE_ORIGINAL, *image, BEFORE_CROPS, *of_crops], sum(rows) * (1 + crops)

    def joined(self, pieces):
        """Ids of texts and lists of ids; texts that follow each other are one."""
        ids, text = [], ""
        for piece in [*pieces, []]:
            if isinstance(piece, str):
                text += piece
                continue
            ids += (self.encode(text) if text else []) + piece
            text = ""
        return ids

    def prompt(self, human, items, numbers):
        """Ids, the modality of each mark in order, and how many placeholders stand for each; takes
        the first of `items` by modality, of which the sample has so many."""
        pieces, marks, counts = [], [], dict.fromkeys(MARKS, 0)
        if not human.startswith(MARKS["image"]):
            human = self.turns.before_text + human
        text = f"{self.turns.opening}{human}{self.turns.reply}"
        for piece in re.split("(" + "|".join(MARKS.values()) + ")", text):
            modality = next((name for name, mark in MARKS.items() if mark == piece), None)
            if not modality:
                pieces.append(piece)
                continue
            if self.placeholder[modality] < 0:
                missing = "a model of videos (--model)" if modality == "video" else f"--{modality}-tokens"
                raise EntryFault(f"has {piece}, but {missing} is not given")
            own, count = self.item(modality, next(items[modality], b""), numbers[modality] == 1)
            pieces += own
            counts[modality] += count
            marks.append(modality)
        return self.joined(pieces), marks, counts

    def pack(self, entry, arguments):
        pairs = turns_of(entry)
        items = {name: read_items(entry, name, arguments) for name in MARKS}
        tokens, mask, marks = list(self.start), [0] * len(self.start), []
        next_items = {name: iter(found) for name, found in items.items()}
        numbers = {name: len(found) for name, found in items.items()}
        counts = dict.fromkeys(MARKS, 0)
        for human, gpt in pairs:
            prompt, own, own_counts = self.prompt(human, next_items, numbers)
            answer = self.encode(self.turns.lead + gpt) + self.end
            gap = self.encode(self.turns.gap) if self.turns.gap else []
            tokens += prompt + answer + gap
            mask += [0] * len(prompt) + [1] * len(answer) + [0] * len(gap)
            marks += own
            counts = {name: counts[name] + own_counts[name] for name in MARKS}
        for name, mark in MARKS.items():
            if marks.count(name) != len(items[name]):
                raise EntryFault(
                    f"has {len(items[name])} {ITEMS[name]} but {marks.count(name)} {mark} in its "
                    "human turns"
                )
        self.check(tokens, items, counts)
        return tokens, mask, [items[name].pop(0) for name in marks]

    def check(self, tokens, items, counts):
        for name, mark in MARKS.items():
            placeholders = tokens.count(self.placeholder[name])
            if placeholders != counts[name]:
                raise EntryFault(
                    f"has {placeholders} placeholders for {len(items[name])} {ITEMS[name]}: is "
                    f"{mark} in a gpt turn?"
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
            writer.add(*packer.pack(entry, arguments))
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
    parser.add_argument("--images", type=Path, help="folder that the image paths start from")
    parser.add_argument("--sounds", type=Path, help="folder that the audio paths start from")
    parser.add_argument("--videos", type=Path, help="folder that the video paths start from")
    parser.add_argument("--fps", type=float, default=2, help="frames of a video that are a second")
    parser.add_argument(
        "--max-frames",
        type=int,
        default=768,
        help="of a longer video as many are taken, evenly spread: data.max_frames of the deck",
    )
    parser.add_argument(
        "--max-seconds", type=float, default=0, help="what of a video comes later is left out (0: nothing)"
    )
    parser.add_argument(
        "--video-max-pixels",
        type=int,
        default=0,
        help="with --model: data.video_max_pixels of the deck (0: that of the family)",
    )
    parser.add_argument(
        "--model", type=Path, help="Hugging Face directory; in place of all options of tokens"
    )
    parser.add_argument(
        "--max-pixels",
        type=int,
        default=0,
        help="with --model: data.resized_max_pixels of the deck (0: that of the family)",
    )
    parser.add_argument(
        "--max-tiles",
        type=int,
        default=0,
        help="with --model: data.max_tiles of the deck (0: that of the family)",
    )
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json of the language model")
    parser.add_argument(
        "--image-tokens",
        type=int,
        default=0,
        help="features that the encoder makes of an image (0: there are no images)",
    )
    parser.add_argument(
        "--audio-tokens",
        type=int,
        default=0,
        help="features that the encoder makes of a clip, its max_source_positions (0: no sound)",
    )
    parser.add_argument(
        "--audio-own-length",
        action="store_true",
        help="a clip has the features of its own length, and --audio-tokens is that of the longest: "
        "750 of Qwen2-Audio",
    )
    parser.add_argument("--out", type=Path, required=True, help="data set (.h5) to write")
    parser.add_argument("--bos", default="<s>", help='token before a conversation; "" for none')
    parser.add_argument("--eos", default="</s>", help="token after every gpt turn")
    parser.add_argument("--image-token", default="<image>", help="placeholder token of images")
    parser.add_argument("--audio-token", default="<audio>", help="placeholder token of sound")
    parser.add_argument("--max-tokens", type=int, default=0, help="longest sample allowed (0: any)")
    parser.add_argument("--on-fault", choices=["stop", "skip"], default="stop")
    arguments = parser.parse_args()
    if arguments.max_frames < 1 or not 0 < arguments.fps <= 1000:
        parser.error("--max-frames is 1 or more, --fps above 0 and up to 1000")
    if (arguments.model is None) == (arguments.tokenizer is None):
        parser.error("give --model, or --tokenizer and the options of tokens")
    return arguments


def main():
    arguments = parse_arguments()
    model = None
    if arguments.model:
        limits = (arguments.max_pixels, arguments.max_tiles, arguments.video_max_pixels)
        model = ModelDirectory(arguments.model, *limits)
    tokenizer = Tokenizer.from_file(str(model.tokenizer if model else arguments.tokenizer))
    tokenizer.no_truncation()  # some files ask for it, and long samples would lose their end
    tokenizer.no_padding()
    packer = Packer(tokenizer, arguments, model)
    with DatasetWriter(
        arguments.out,
        packer.placeholder["image"],
        None,
        token_bytes(tokenizer),
        packer.placeholder["audio"],
        packer.placeholder["video"],
    ) as writer:
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
