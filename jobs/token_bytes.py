# SPDX-License-Identifier: Apache-2.0
"""The bytes of each token id of a Hugging Face tokenizer, so that others can decode without it."""

import json
import re
import sys

from tokenizers import Tokenizer


# Other forms of a tokenizer, and where a tokenizer.json comes from.
OTHER_FORMS = {
    "tekken.json": "put a tokenizer.json of the same tokens beside it",
    "tokenizer.model": "transformers makes one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
    "vocab.json": "transformers makes one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
}


def read_tokenizer(path):
    if not path.is_file():
        others = [name for name in OTHER_FORMS if (path.parent / name).is_file()]
        has = f", only a {others[0]}: {OTHER_FORMS[others[0]]}" if others else ""
        sys.exit(f"{path.parent} has no {path.name}{has}")
    with path.open("rb") as file:
        if file.read(24).startswith(b"version https://git-lfs"):
            sys.exit(f"{path} is a pointer of git-lfs, not the file itself; fetch the files with git lfs pull")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as fault:  # the library throws nothing narrower
        sys.exit(f"{path} is not a tokenizer.json: {fault}")
    # Some files ask for these, which would lose the end of long documents, and lengthen short ones.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def byte_of_character():
    """Byte-level BPE: printable Latin-1 stands for itself, U+0100 and on for the other bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + n): byte for n, byte in enumerate(others)
    }


def token_bytes(tokenizer):
    """Bytes of the ids 0 .. vocabulary - 1; empty for special tokens and for unused ids."""
    description = json.loads(tokenizer.to_str())
    added = {token["id"] for token in description["added_tokens"]}
    special = {token["id"] for token in description["added_tokens"] if token["special"]}
    byte_level = '"ByteLevel"' in json.dumps([description["decoder"], description["pre_tokenizer"]])
    decode = decode_byte_level() if byte_level else decode_sentencepiece
    vocabulary = tokenizer.get_vocab()
    pieces = [b""] * (max(vocabulary.values()) + 1)
    for text, number in vocabulary.items():
        if number not in special:
            pieces[number] = text.encode() if byte_level and number in added else decode(text)
    return pieces


def special_texts(tokenizer):
    """Returns the names of special tokens, UTF-8, by id up to the last; empty for others."""
    added = json.loads(tokenizer.to_str())["added_tokens"]
    special = {token["id"]: token["content"].encode() for token in added if token["special"]}
    return [special.get(number, b"") for number in range(max(special, default=-1) + 1)]


def decode_byte_level():
    byte = byte_of_character()
    return lambda text: (
        bytes(byte[c] for c in text) if all(c in byte for c in text) else text.encode()
    )


def decode_sentencepiece(text):
    """Llama's kind: U+2581 is a space, <0x0A> a single byte."""
    single = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", text)
    return bytes([int(single[1], 16)]) if single else text.replace("\u2581", " ").encode()
