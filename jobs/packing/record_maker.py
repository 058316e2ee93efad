# SPDX-License-Identifier: Apache-2.0
"""Makes the record of an entry, whose conversation has one of the forms of forms.py."""

import re

from packing.forms import form_of
from packing.record import LEARNED, MARKS, PLURALS, EntryFault, Item, Message, Record

SPLIT = re.compile("(" + "|".join(MARKS.values()) + ")")
YES, NO = (True, 1, "true", "1"), (False, 0, "false", "0")


def names_items(value, inside):
    """Whether an entry says that it has some, be they nothing."""
    return any(name in value or PLURALS[name] in value or name in inside for name in MARKS)


def sources_of(value, inside, modality):
    """Returns the items that come with the entry, or else those that it names."""
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


def is_learned(number, fields):
    """Whether the assistant's turn is learned, by whichever key says it."""
    for key in LEARNED:
        value = fields.get(key)
        value = value.lower() if isinstance(value, str) else value
        if value is None or (isinstance(value, (bool, int, float, str)) and value in YES):
            continue
        if not isinstance(value, (bool, int, float, str)) or value not in NO:
            raise EntryFault("turns", f'message {number} has "{key}": {value!r}; allowed are 0 and 1, false and true')
        return False
    return True


class RecordMaker:
    """`prompt`: the question that a caption answers. `modalities`: those whose marks in a text stand for items; others
    are text where the entry has no such item. `is_prompt`: the last turn is the user's, and nothing is learned."""

    def __init__(self, prompt="", modalities=tuple(MARKS), is_prompt=False):
        self.prompt, self.modalities, self.is_prompt = prompt, modalities, is_prompt

    def record(self, entry):
        if entry.fault:
            raise entry.fault
        value = entry.value
        if not isinstance(value, dict):
            raise EntryFault("turns", "has no conversations")
        self.sources = {modality: sources_of(value, entry.inside, modality) for modality in MARKS}
        self.next = dict.fromkeys(MARKS, 0)
        self.has_items, self.notes = names_items(value, entry.inside), list(entry.notes)
        form = form_of(value, self)
        messages = form.messages
        self.check(messages)
        notes = [*self.notes, *form.notes]
        return Record(messages, self.sources, value, notes, answers_of(value), form.tools)

    def check(self, messages):
        if (messages[-1].role == "assistant") == self.is_prompt:
            raise EntryFault("turns", "ends with an answer" if self.is_prompt else "ends with a human turn")
        if not self.is_prompt and not any(m.is_learned for m in messages if m.role == "assistant"):
            raise EntryFault("mask", "has no turn that is learned: each turn of the assistant is marked as not to be")

    def of_text(self, number, role, text, fields):
        """Marks stand for items in a user's turns alone."""
        modality = {mark: name for name, mark in MARKS.items() if name in self.modalities or self.sources[name]}
        pieces = SPLIT.split(text) if role == "user" else [text]
        as_text = {p for p in pieces if role == "user" and p in MARKS.values() and p not in modality}
        self.notes += [f"{mark} is text, since the model takes no such items" for mark in sorted(as_text)]
        parts = [self.item(modality[p]) if role == "user" and p in modality else p for p in pieces]
        return Message(role, joined(parts) or [""], False, fields, is_learned(number, fields))

    def item(self, modality):
        self.next[modality] += 1
        return Item(modality, self.next[modality] - 1)

    def of_parts(self, number, role, content, fields):
        parts = [self.part(number, part) for part in content]
        if role not in ("user", "tool") and not all(isinstance(part, str) for part in parts):
            raise EntryFault("turns", f"message {number} of the {role} holds more than text")
        return Message(role, parts or [""], True, fields, is_learned(number, fields))

    def part(self, number, part):
        """Returns a part of a message's content, in the forms of OpenAI and transformers."""
        if isinstance(part, str):
            return part
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
            return part["text"]
        if kind in ("image_url", "input_image"):
            link = part.get("image_url")
            return self.named("image", link.get("url") if isinstance(link, dict) else link, number)
        if kind == "input_audio" and isinstance(part.get("input_audio"), dict):
            data = part["input_audio"].get("data")
            link = f"data:audio/any;base64,{data}" if isinstance(data, str) else None
            return self.named("audio", link, number)
        if isinstance(kind, str) and kind in MARKS:
            source = next((part[key] for key in (kind, "path", "url") if part.get(key) is not None), None)
            return self.item(kind) if source is None else self.named(kind, source, number)
        raise EntryFault("turns", f"message {number} has a part of type {kind}, which is not known, or lacks its content")

    def named(self, modality, source, number):
        if not isinstance(source, str):
            raise EntryFault("turns", f"message {number} has a part of type {modality} that names none")
        self.sources[modality].insert(self.next[modality], source)
        return self.item(modality)


def joined(parts):
    """Texts that follow each other are one."""
    found = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        elif part != "":
            found.append(part)
    return found
