# SPDX-License-Identifier: Apache-2.0
"""Packs plain text into zea data sets for a language model.

The sources are text files, folders of them (*.txt, *.jsonl, either with .gz), or JSON lines, whose
objects have their text under --field. A file is one document, or several if lines match --separator;
a JSON line is one. Each document is followed by the end token and cut into samples of at most
--max-tokens; a sample starts with the last token of the one before, so every token except the first
of a document is a target exactly once.

Tokens come from a tokenizer.json (--tokenizer), from the bytes of the text (--bytes), or from a
byte-level BPE trained on the training text (--train-bpe SIZE).

Writes to the folder --out: train.h5 and test.h5 (held out: every N-th document for --hold-out N,
or every N-th sample if there are fewer than N documents), tokenizer.json and tokenizer_config.json,
which zea-import copies for transformers.
"""

import argparse
import gzip
import json
import re
import sys
import zlib
from pathlib import Path

from dataset_writer import DatasetWriter
from packing.report import run
from packing.source_files import is_litter
from token_bytes import read_tokenizer, special_texts, token_bytes
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

NO_IMAGES = -1
SUFFIXES = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")
BATCH = 1000  # documents that are encoded at once


def source_files(sources):
    """Files in the order of the sources; those of a folder by name."""
    for source in sources:
        if not source.is_dir():
            yield source
            continue
        found = sorted(path for path in source.rglob("*") if path.name.endswith(SUFFIXES) and not is_litter(path))
        if not found:
            sys.exit(f"{source} holds no file that ends with {', '.join(SUFFIXES)}")
        yield from found


def read_text(path):
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
        return text.removeprefix("\ufeff")  # the mark that some editors put before all text
    except UnicodeDecodeError as fault:
        remedy = "; write it as UTF-8: iconv -f UTF-16 -t UTF-8 OLD > NEW" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        sys.exit(f"{path} is not UTF-8: {fault.reason} at byte {fault.start}{remedy}")
    except (OSError, EOFError, zlib.error) as fault:
        sys.exit(f"{path} cannot be read: {fault}")


def read_json_lines(path, field):
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as fault:
            sys.exit(f"{path}:{number} is not JSON: {fault}")
        text = entry.get(field) if isinstance(entry, dict) else None
        if not isinstance(text, str):
            sys.exit(f'{path}:{number} has no text under "{field}"; see --field')
        yield text


def split_at(separator, text):
    """As re.split, which would also give the separator's groups."""
    begin = 0
    for match in re.finditer(separator, text, flags=re.MULTILINE):
        yield text[begin : match.start()]
        begin = match.end()
    yield text[begin:]


def documents_of(path, arguments):
    """The documents of a file that hold more than white space."""
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        texts = read_json_lines(path, arguments.field)
    elif arguments.separator:
        # With the line ends of Windows "$" would match nowhere, behind "\r".
        texts = split_at(arguments.separator, read_text(path).replace("\r\n", "\n"))
    else:
        texts = [read_text(path)]
    for text in texts:
        if not text or text.isspace():
            continue
        try:
            text.encode()
        except UnicodeEncodeError as fault:
            sys.exit(f"{path} holds text that is not valid Unicode: {fault.reason}")
        yield text


def split_documents(documents, hold_out):
    """(train, test): every hold_out-th document is held out, if there are so many."""
    if not hold_out or len(documents) < hold_out:
        return documents, []
    test = documents[hold_out - 1 :: hold_out]
    return [text for n, text in enumerate(documents, 1) if n % hold_out], test


def byte_level(end):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, [end], sorted(pre_tokenizers.ByteLevel.alphabet())


def train_tokenizer(documents, vocabulary, end):
    tokenizer, special, alphabet = byte_level(end)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def make_tokenizer(arguments, documents):
    if arguments.tokenizer:
        return read_tokenizer(arguments.tokenizer)
    smallest = len(pre_tokenizers.ByteLevel.alphabet()) + 1
    if arguments.bytes:
        return train_tokenizer([], smallest, arguments.eos)
    if arguments.train_bpe < smallest:
        sys.exit(f"--train-bpe {arguments.train_bpe}: {smallest} tokens or more, one per byte")
    return train_tokenizer(documents, arguments.train_bpe, arguments.eos)


def samples_of(ids, most):
    """Runs of at most `most` ids, each from the last of the one before; none of a single id."""
    for begin in range(0, len(ids) - 1, most - 1):
        yield ids[begin : begin + most]


class Packer:
    """Writes samples, and what was written."""

    def __init__(self, arguments, tokenizer):
        self.end = tokenizer.token_to_id(arguments.eos)
        if self.end is None:
            sys.exit(f"the tokenizer has no token {arguments.eos}; see --eos")
        self.tokenizer, self.most, self.out = tokenizer, arguments.max_tokens, arguments.out
        self.pieces, self.special = token_bytes(tokenizer), special_texts(tokenizer)

    def samples(self, documents):
        for begin in range(0, len(documents), BATCH):
            batch = documents[begin : begin + BATCH]
            for encoding in self.tokenizer.encode_batch(batch, add_special_tokens=False):
                yield from samples_of([*encoding.ids, self.end], self.most)

    def write(self, name, samples):
        with DatasetWriter(self.out / name, NO_IMAGES, None, self.pieces, special_texts=self.special) as writer:
            for tokens in samples:
                writer.add(tokens, [1] * len(tokens))
            count, tokens = len(writer.labels), len(writer.tokens)
            if count == 0:
                sys.exit(f"{self.out / name} would be empty: the tokenizer makes no tokens of the text")
        print(f"{self.out / name}: {count} samples, {tokens} tokens")

    def write_all(self, train, test, hold_out):
        if test or not hold_out:
            self.write("train.h5", self.samples(train))
            (self.out / "test.h5").unlink(missing_ok=True)  # of a run with other arguments
            if test:
                self.write("test.h5", self.samples(test))
            return
        samples = list(self.samples(train))
        if len(samples) < hold_out:
            sys.exit(
                f"the text makes {len(samples)} samples, and --hold-out {hold_out} holds none of them "
                f"out; give more text, a smaller --hold-out, or --hold-out 0"
            )
        self.write("train.h5", (s for n, s in enumerate(samples, 1) if n % hold_out))
        self.write("test.h5", samples[hold_out - 1 :: hold_out])

    def write_tokenizer(self, eos):
        self.tokenizer.save(str(self.out / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": eos, "eos_token": eos}
        (self.out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", type=Path, nargs="+", help="files and folders")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    tokens = parser.add_mutually_exclusive_group(required=True)
    tokens.add_argument("--tokenizer", type=Path, help="tokenizer.json of the model")
    tokens.add_argument("--bytes", action="store_true", help="a token for each byte")
    tokens.add_argument("--train-bpe", type=int, metavar="SIZE", help="train a BPE of SIZE tokens")
    parser.add_argument("--max-tokens", type=int, default=512, help="longest sample")
    parser.add_argument("--separator", help="regular expression between a file's documents")
    parser.add_argument("--field", default="text", help="where a JSON line has its text")
    parser.add_argument("--eos", default="<|endoftext|>", help="token after a document")
    parser.add_argument("--hold-out", type=int, default=20, metavar="N", help="0: nothing")
    arguments = parser.parse_args()
    if arguments.max_tokens < 2:
        parser.error("--max-tokens: 2 or more, since a target needs a token before it")
    if arguments.hold_out < 0 or arguments.hold_out == 1:
        parser.error("--hold-out: 2 or more, or 0 for no held-out data")
    return arguments


def main():
    arguments = parse_arguments()
    try:
        files = list(source_files(arguments.sources))
        documents = [text for path in files for text in documents_of(path, arguments)]
    except re.error as fault:
        sys.exit(f"--separator {arguments.separator} is not a regular expression: {fault}")
    if not documents:
        sys.exit("the sources hold no text")
    train, test = split_documents(documents, arguments.hold_out)
    arguments.out.mkdir(parents=True, exist_ok=True)
    packer = Packer(arguments, make_tokenizer(arguments, train))
    packer.write_all(train, test, arguments.hold_out)
    packer.write_tokenizer(arguments.eos)


if __name__ == "__main__":
    run(main, "packing")
