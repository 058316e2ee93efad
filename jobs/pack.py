# SPDX-License-Identifier: Apache-2.0
"""Packs conversations about images, videos and audio into a zea data set.

Sources are files, told apart by their endings or by --format, or folders of files of one format (.json and .jsonl
count as one):

    .json      a list of entries as LLaVA has them: {"id", "image", "video" and "audio": path or list of
               paths (absent: none), "conversations": [{"from": "human" or "gpt", "value": text}, ...]};
               "<image>" in a human turn stands for the next image, "<audio>" for the next clip of
               sound, "<video>" for the next video; or lines
    .jsonl     a line each: the same, or {"messages": [{"role", "content": text or parts}]} as OpenAI
               has them, whose parts are text, image_url and input_audio; or instruction, input and output,
               or prompt and completion; or a list
    .tar       WebDataset: members of one key are an entry, .json or .txt with images
    .parquet   columns messages or conversations, or text, with image or images, whose bytes are inside
    .csv       in a folder of images: columns file_name and text, optionally prompt

If several answers are right, "answers" of an entry (or a column of Parquet) lists all of them. The conversation is
trained on; predictions are scored by the best match.

Images are paths below --images, base64 data URIs in the entry, or part of the source. JPEG and PNG are stored
unchanged; WebP, GIF, BMP, TIFF and AVIF (of animations the first frame) become PNG. A clip is a WAV or FLAC file. A
video (with --model) is a folder of its frames, JPEG or PNG files in the order of their names, --fps of them per second
(or "fps" of the entry). All items are decoded as in training, unless --no-decode is given.

--model takes tokenizer, placeholders and their number for each item from a Hugging Face directory, and
turns from its chat template. --deck does the same for a composed model: tokenizer and template are the
language model's, with the placeholders of the deck. Without a template, or with --tokenizer, turns have the
format of the family (ChatML, Gemma's, Mistral's) or Vicuna's:

    [bos]USER: human turn ASSISTANT: gpt turn[eos]

with bos only at the start. Targets are the assistant's text and the token that ends it, which is eos_token if a
chat template writes none.

A faulty entry is named with the reason; with --on-fault skip it is skipped, and OUT.report.json counts skipped
entries by reason. A packer that was killed continues when it is started again with the same options, with the
same result.
"""

import argparse
import datetime
import math
import os
import sys
from pathlib import Path

from dataset_writer import DatasetWriter
from model_directory import USUAL_FRAMES, ModelDirectory, vicuna_turns
from packing.chat_template import ChatTemplate, read_templates, read_text
from packing.composed_model import ComposedModel, read_parts
from packing.media import MOST_ITEMS, Media
from packing.parts import Parts, fingerprint
from packing.processes import Sampler, outcomes
from packing.readers import READERS, bytes_of, count_all, files_of, read_all, reader_of
from packing.record_maker import RecordMaker
from packing.report import Progress, Tally, run
from packing.tokens import FamilyTurns, FixedCounts, TemplateTurns, token_id
from token_bytes import read_tokenizer, special_texts, token_bytes
from tokenizer_directory import TokenizerDirectory

MOST_FAULTS = 20  # after which packing stops, unless they are skipped


class Limits:
    def __init__(self, arguments):
        self.most_item_bytes = arguments.max_item_mib << 20
        self.most_json_bytes = 2 * self.most_item_bytes  # it may hold an item
        self.most_entry_bytes = MOST_ITEMS * self.most_item_bytes


def make_tokenizer(arguments):
    """The tokenizer, and the names that templates have for its special tokens."""
    if arguments.model:
        found = TokenizerDirectory(arguments.model)
        return found.tokenizer, found.names
    folder = arguments.tokenizer.parent
    has_names = arguments.chat_template and (folder / "tokenizer.json").is_file()
    return read_tokenizer(arguments.tokenizer), TokenizerDirectory(folder).names if has_names else {}


def make_templates(arguments, tokenizer, names, date):
    """By name; empty: turns are in the family's form."""
    if arguments.chat_template:
        sources = {"default": read_text(arguments.chat_template)}
    else:
        sources = read_templates(arguments.model) if arguments.model else {}
    ends = {token.content for token in tokenizer.get_added_tokens_decoder().values()} | set(names.values())
    taken = {name: source for name, source in sources.items() if name in ("default", "tool_use")}
    return {name: ChatTemplate(source, names, ends, date) for name, source in taken.items()}


def make_tokens(arguments, tokenizer, names, date):
    if arguments.deck:
        model = ComposedModel(arguments.composed, tokenizer, arguments.max_pixels)
    elif arguments.model:
        limits = (arguments.max_pixels, arguments.max_tiles, arguments.video_max_pixels)
        model = ModelDirectory(arguments.model, *limits)
        model.check_tokens(tokenizer, names)
    else:
        turns = vicuna_turns(arguments.bos, arguments.eos)
        model = FixedCounts(arguments, turns, lambda name: token_id(tokenizer, name))
    templates = make_templates(arguments, tokenizer, names, date)
    if not templates:
        return FamilyTurns(tokenizer, arguments, model)
    return TemplateTurns(tokenizer, arguments, model, templates["default"], templates.get("tool_use"))


def chosen(entries, share, takes_held_out):
    """The held-out share of the entries, or the others. It is evenly spread over each file, and the same at every start."""
    for place, entry in entries:
        number = place[0][1]  # of the next entry of the file
        if (math.floor(number * share) > math.floor((number - 1) * share)) == takes_held_out:
            yield place, entry


class Work:
    """Packs part after part."""

    def __init__(self, arguments, files, parts):
        self.arguments, self.parts = arguments, parts
        tokenizer, names = make_tokenizer(arguments)
        self.tokens = make_tokens(arguments, tokenizer, names, parts.date)
        self.pieces, self.special = token_bytes(tokenizer), special_texts(tokenizer)
        # A placeholder may be one of the rows that the vocabulary has to spare.
        highest = max((token for token in self.tokens.placeholder.values() if token is not None), default=-1)
        self.pieces += [b""] * (highest + 1 - len(self.pieces))
        most_text = (arguments.max_item_mib << 20) // 64
        maker = RecordMaker(arguments.prompt, self.tokens.modalities, arguments.prompts)
        sampler = Sampler(maker, Media(arguments), self.tokens, most_text)
        entries = read_all(files, arguments.format, Limits(arguments), parts.next)
        if arguments.held_out:
            entries = chosen(entries, arguments.held_out, arguments.take_held_out)
        self.outcomes = outcomes(entries, sampler, arguments.processes)
        self.total = parts.tally()
        self.progress = Progress(count_all(files, arguments.format), bytes_of(files), self.total["entries"])

    def writer(self, path):
        image, audio, video = (self.tokens.placeholder[name] for name in ("image", "audio", "video"))
        return DatasetWriter(path, image, None, self.pieces, audio, video, self.special)

    def pack_part(self):
        """Whether there was anything left, and no faults that stop it."""
        tally, following = Tally(), None
        with self.writer(self.parts.path()) as writer:
            for (following, read), name, (outcome, *result) in self.outcomes:
                if outcome == "fault":
                    tally.add_fault(name, *result)
                    self.total.add_fault(name, *result)
                else:
                    tokens, mask, items, answers, notes, files = result
                    writer.add(tokens, mask, items, answers=answers, name=name, item_names=files)
                    tally.add_sample(name, tokens, mask, notes)
                    self.total.add_sample(name, tokens, mask, notes)
                self.progress.show(self.total, read)
                if self.is_stopped() or tally["entries"] == self.arguments.part_entries:
                    break
        if following:
            self.parts.commit(tally, following)
        return following and not self.is_stopped()

    def is_stopped(self):
        return self.arguments.on_fault == "stop" and self.total.dropped >= MOST_FAULTS

    def run(self):
        while self.pack_part():
            pass
        self.outcomes.close()
        self.progress.end(self.total, is_whole=not self.is_stopped())
        return self.total


def add_token_options(parser):
    add = parser.add_argument
    add("--model", type=Path, help="Hugging Face directory, which replaces all options of tokens")
    add("--deck", type=Path, help="deck that composes model.llm.weights and encoders; likewise")
    add("--chat-template", type=Path, help="file with a template that replaces the model's")
    add("--max-pixels", type=int, default=0, help="data.resized_max_pixels of the deck (0: that of the family)")
    add("--max-tiles", type=int, default=0, help="with --model: data.max_tiles of the deck (0: that of the family)")
    add("--tokenizer", type=Path, help="tokenizer.json of the language model")
    add("--image-tokens", type=int, default=0, help="features of an image, as the encoder makes them (0: no images)")
    add("--audio-tokens", type=int, default=0, help="features of a clip: max_source_positions (0: no audio)")
    help_of_length = "a clip has as many features as its length gives, at most --audio-tokens (750 for Qwen2-Audio)"
    add("--audio-own-length", action="store_true", help=help_of_length)
    add("--bos", default="<s>", help='token before a conversation; "" for none')
    add("--eos", default="</s>", help="token after every gpt turn")
    add("--image-token", default="<image>", help="placeholder token of images")
    add("--audio-token", default="<audio>", help="placeholder token of audio")
    add("--max-tokens", type=int, default=0, help="longest sample allowed (0: any)")


def add_item_options(parser):
    add = parser.add_argument
    add("--images", type=Path, help="folder that the image paths start from (default: that of the first source)")
    add("--sounds", type=Path, help="folder that the audio paths start from")
    add("--videos", type=Path, help="folder that the video paths start from")
    help_of_sound = "with --model: an <audio> after each <video> is its audio track (Qwen-Omni's use_audio_in_video)"
    add("--audio-in-video", action="store_true", help=help_of_sound)
    add("--fps", type=float, default=2, help="frames of a video per second")
    help_of_frames = "most frames of a video, sampled as by its processor: data.max_frames of the deck (0: --model's)"
    add("--max-frames", type=int, default=0, help=help_of_frames)
    add("--max-seconds", type=float, default=0, help="cut videos after this time (0: never)")
    help_of_pixels = "with --model: data.video_max_pixels of the deck (0: that of the family)"
    add("--video-max-pixels", type=int, default=0, help=help_of_pixels)
    add("--max-image-pixels", type=int, default=100_000_000, help="of an image: data.max_image_pixels of the deck")
    add("--max-clip-seconds", type=int, default=3600, help="of a clip: data.max_clip_seconds of the deck")
    help_of_bytes = "limit of an item's file in MiB; an entry has at most 4 times as many bytes, and 1 / 64 as text"
    add("--max-item-mib", type=int, default=256, help=help_of_bytes)
    add("--no-decode", action="store_true", help="do not decode items: only training then finds damaged ones")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="+", metavar="source", help="files, or folders of such files")
    parser.add_argument("--format", choices=["auto", *READERS], default="auto", help="of all sources")
    parser.add_argument("--prompt", default="", help="question that the captions answer")
    help_of_prompts = "entries end with a question: pack prompts for the answers; only the end token is a target"
    parser.add_argument("--prompts", action="store_true", help=help_of_prompts)
    add_item_options(parser)
    add_token_options(parser)
    parser.add_argument("--out", type=Path, required=True, help="data set to write: a file .h5, or a folder of parts")
    parser.add_argument("--on-fault", choices=["stop", "skip"], default="stop")
    help_of_share = "fraction of the entries that is held out for evaluation, evenly spaced over each file"
    parser.add_argument("--held-out", type=float, default=0, metavar="SHARE", help=help_of_share)
    parser.add_argument("--take-held-out", action="store_true", help="pack the held-out entries instead of the others")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="default: one per core")
    parser.add_argument("--part-entries", type=int, default=1024, help="entries per part, which a killed packer keeps")
    arguments = parser.parse_args()
    if arguments.max_frames < 0 or not 0 < arguments.fps <= 1000:
        parser.error("--max-frames is 0 or more, --fps above 0 and up to 1000")
    for name in ("max_image_pixels", "max_clip_seconds", "max_item_mib", "processes", "part_entries"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is 1 or more")
    if not 0 <= arguments.held_out < 1 or (arguments.take_held_out and not arguments.held_out):
        parser.error("--held-out is 0 or more and below 1, and above 0 with --take-held-out")
    if sum(bool(given) for given in (arguments.model, arguments.deck, arguments.tokenizer)) != 1:
        parser.error("give --model, or --deck, or --tokenizer and the options of tokens")
    arguments.composed = read_parts(arguments.deck) if arguments.deck else None
    if arguments.deck:
        arguments.model = Path(arguments.composed["llm"]["weights"])
    directory = ModelDirectory(arguments.model) if arguments.model else None
    arguments.family = directory.family if directory else None
    if arguments.max_frames == 0:
        arguments.max_frames = directory.most_frames if directory else USUAL_FRAMES
    return arguments


def main():
    arguments = parse_arguments()
    out = arguments.out
    if out.suffix != ".h5" and out.exists():
        sys.exit(f"{out} is there; remove it, or name another folder")
    files = [file for source in arguments.sources for file in files_of(source, arguments.format)]
    for file in files:
        reader_of(file, arguments.format)
    if arguments.images is None:
        arguments.images = files[0].parent
    parts = Parts(out, fingerprint(arguments, files), datetime.date.today().isoformat())
    try:
        work = Work(arguments, files, parts)
    except SystemExit:
        if not parts.done:
            parts.remove()
        raise
    total = work.run()
    if arguments.on_fault == "stop":
        print(*total.faults(), sep="\n", end="\n" if total.dropped else "", file=sys.stderr)
    total.say() if arguments.on_fault == "skip" else None
    total.write(out.with_name(f"{out.name}.report.json"), out)
    if total["samples"] == 0 or (total.dropped and arguments.on_fault == "stop"):
        parts.remove()
        why = f"all {total.dropped} entries at fault" if total.dropped else "no entries"
        if total["samples"]:
            why = f"{total.dropped} entries at fault; repair them or --on-fault skip"
        sys.exit(f"nothing written: {why}")
    parts.finish(work.writer)
    print(f"{out}: {total['samples']} samples, {total.dropped} entries skipped")


if __name__ == "__main__":
    run(main, "packing")
