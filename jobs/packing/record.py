# SPDX-License-Identifier: Apache-2.0
"""The record that an entry of any format becomes: turns of text and items, and where the items are.

An entry's value is JSON-like: {"conversations": [{"from", "value"}]} as LLaVA writes it, {"messages":
[{"role", "content"}]} as OpenAI does, or {"text": caption} beside an image.
"""

import re
from typing import NamedTuple

MARKS = {"image": "<image>", "audio": "<audio>", "video": "<video>"}
ITEMS = {"image": "images", "audio": "clips of sound", "video": "videos"}
PLURALS = {"image": "images", "audio": "audios", "video": "videos"}
ROLES = {"human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant", "system": "system"}
SPLIT = re.compile("(" + "|".join(MARKS.values()) + ")")


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
    is_list: bool  # the entry wrote it as a list of parts


class Record(NamedTuple):
    messages: list
    sources: dict  # by modality: paths, data URIs, or bytes
    value: dict
    notes: list  # what was left out of it
    answers: list = []  # that are right, where several are

    def marks(self, modality):
        parts = (part for message in self.messages for part in message.parts)
        return sum(isinstance(part, Item) and part.modality == modality for part in parts)


def names_items(value, inside):
    """Whether an entry says that it has some, be they nothing."""
    return any(name in value or PLURALS[name] in value or name in inside for name in MARKS)


def sources_of(value, inside, modality):
    """Those that come with the entry, or else those that it names."""
    if inside.get(modality):
        return list(inside[modality])
    names = value.get(modality)
    names = value.get(PLURALS[modality]) if names is None else names
    names = [] if names is None else [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise EntryFault("turns", f"{modality} must be a path or a list of paths")
    return names


def answers_of(value):
    answers = value.get("answers") or []
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise EntryFault("turns", "answers must be a list of texts")
    return answers


class RecordMaker:
    """`prompt`: the question that a caption answers."""

    def __init__(self, prompt=""):
        self.prompt = prompt

    def record(self, entry):
        if entry.fault:
            raise entry.fault
        value = entry.value
        if not isinstance(value, dict):
            raise EntryFault("turns", "has no conversations")
        sources = {modality: sources_of(value, entry.inside, modality) for modality in MARKS}
        self.next = dict.fromkeys(MARKS, 0)
        if value.get("conversations") is None and "messages" in value:
            messages = [self.message(n, m, sources) for n, m in enumerate(self.listed(value, "messages"))]
        elif value.get("conversations") is None and isinstance(value.get("text"), str):
            if names_items(value, entry.inside) and not any(sources.values()):
                raise EntryFault("items", "the image, sound or video beside its text is null")
            messages = self.caption(value, sources)
        else:
            turns = enumerate(self.listed(value, "conversations"))
            messages = [self.turn(n, turn, value["conversations"]) for n, turn in turns]
        check_order(messages)
        notes = [*entry.notes, *["tools left out"] * bool(value.get("tools"))]
        return Record(messages, sources, value, notes, answers_of(value))

    def listed(self, value, key):
        found = value.get(key)
        if not isinstance(found, list) or not found:
            raise EntryFault("turns", f"has no {key}")
        return found

    def turn(self, number, turn, turns):
        """LLaVA's: human and gpt by turns, perhaps behind a system's."""
        after_system = isinstance(turns[0], dict) and turns[0].get("from") == "system"
        speaker = ("human", "gpt")[(number - after_system) % 2]
        if after_system and number == 0:
            speaker = "system"
        if not isinstance(turn, dict) or turn.get("from") != speaker or not isinstance(turn.get("value"), str):
            raise EntryFault("turns", f'turn {number} must be {{"from": "{speaker}", "value": text}}')
        return self.of_text(ROLES[speaker], turn["value"])

    def of_text(self, role, text):
        """Marks stand for items in a user's turns alone."""
        pieces = SPLIT.split(text) if role == "user" else [text]
        modality = {mark: name for name, mark in MARKS.items()}
        parts = [self.item(modality[p]) if role == "user" and p in modality else p for p in pieces]
        return Message(role, [part for part in parts if part != ""] or [""], False)

    def item(self, modality):
        self.next[modality] += 1
        return Item(modality, self.next[modality] - 1)

    def caption(self, value, sources):
        parts = [self.item(modality) for modality in MARKS for _ in sources[modality]]
        prompt = value.get("prompt", self.prompt)
        if not isinstance(prompt, str):
            raise EntryFault("turns", "its prompt is no text")
        answer = Message("assistant", [value["text"]], False)
        return [Message("user", [*parts, prompt] if prompt or not parts else parts, True), answer]

    def message(self, number, message, sources):
        """OpenAI's."""
        role = message.get("role") if isinstance(message, dict) else None
        if role in ("tool", "function") or (isinstance(message, dict) and message.get("tool_calls")):
            raise EntryFault("tools", f"message {number} is a call of a tool or its answer")
        content = message.get("content") if isinstance(message, dict) else None
        if role not in ("system", "user", "assistant") or not isinstance(content, (str, list)):
            raise EntryFault(
                "turns", f'message {number} must be {{"role": "system", "user" or "assistant", "content": text or parts}}'
            )
        if isinstance(content, str):
            return self.of_text(role, content)
        parts = [self.part(number, part, sources) for part in content]
        if role != "user" and not all(isinstance(part, str) for part in parts):
            raise EntryFault("turns", f"message {number} of the {role} holds more than text")
        return Message(role, parts or [""], True)

    def part(self, number, part, sources):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
            return part["text"]
        if kind in ("image_url", "input_image"):
            link = part.get("image_url")
            return self.named("image", link.get("url") if isinstance(link, dict) else link, number, sources)
        if kind == "input_audio" and isinstance(part.get("input_audio"), dict):
            data = part["input_audio"].get("data")
            link = f"data:audio/any;base64,{data}" if isinstance(data, str) else None
            return self.named("audio", link, number, sources)
        if kind in MARKS:
            source = next((part[key] for key in (kind, "path", "url") if key in part), None)
            return self.item(kind) if source is None else self.named(kind, source, number, sources)
        raise EntryFault("turns", f"message {number} has a part of type {kind}, which is not known, or lacks its content")

    def named(self, modality, source, number, sources):
        if not isinstance(source, str):
            raise EntryFault("turns", f"message {number} has a part of type {modality} that names none")
        sources[modality].insert(self.next[modality], source)
        return self.item(modality)


def check_order(messages):
    """A system's message or none, then user and assistant by turns; the last is the assistant's."""
    talk = messages[messages[0].role == "system" :]
    for number, message in enumerate(talk):
        if message.role != ("user", "assistant")[number % 2]:
            raise EntryFault("turns", f"the {message.role}'s message {number} is not where it should be: user and "
                             "assistant take turns, a system's message comes first")
    if len(talk) % 2 or not talk:
        raise EntryFault("turns", "ends with a human turn")
