# SPDX-License-Identifier: Apache-2.0
"""The record that an entry of any format becomes: messages of text and items, and where the items are.

An entry's value is JSON-like. record_maker.py makes the record of it.
"""

from typing import NamedTuple

MARKS = {"image": "<image>", "audio": "<audio>", "video": "<video>"}
ITEMS = {"image": "images", "audio": "clips of sound", "video": "videos"}
PLURALS = {"image": "images", "audio": "audios", "video": "videos"}
# Keys by which data sets say whether a turn of the assistant is learned.
LEARNED = ("weight", "loss", "train", "training", "trainable", "learn")


class EntryFault(Exception):
    """Why an entry cannot be packed; `kind` is what the report counts it under."""

    def __init__(self, kind, text):
        super().__init__(kind, text)
        self.kind = kind

    def __str__(self):
        return self.args[1]


class Entry(NamedTuple):
    """`inside`: bytes of items by modality, which come with the entry; `fault`: why it is none; `read`:
    bytes of its file up to its end or a little beyond, where the reader tells no number of entries; `notes`: what
    the reader left out of it."""

    name: str
    value: object
    inside: dict = {}
    fault: EntryFault | None = None
    read: int = 0
    notes: list = []


class Item(NamedTuple):
    """Stands in a turn for the item of that number among the record's of its modality."""

    modality: str
    number: int


class Message(NamedTuple):
    role: str
    parts: list  # texts and Items
    is_list: bool = False  # the entry wrote it as a list of parts
    fields: dict = {}  # the whole message, as chat templates read it
    is_learned: bool = True


class Record(NamedTuple):
    messages: list
    sources: dict  # by modality: paths, data URIs, or bytes
    value: dict
    notes: list  # what was left out of it
    answers: list = []  # that are right, where several are
    tools: list | None = None

    def marks(self, modality):
        parts = (part for message in self.messages for part in message.parts)
        return sum(isinstance(part, Item) and part.modality == modality for part in parts)
