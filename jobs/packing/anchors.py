# SPDX-License-Identifier: Apache-2.0
"""Marks around the contents of messages, which show where a chat template writes each of them.

Marks are made of code points that stand for no character, and lie within the white space at a content's ends, which a
template may strip."""

import re

NOT_CHARACTERS = re.compile("[\ufdd0-\ufdef]")
FIRST, LAST, CLOSE, ZERO = "\ufdd2", "\ufdd3", "\ufdd4", 0xFDE0
MARK = re.compile("([\ufdd2\ufdd3])([\ufde0-\ufde9]+)\ufdd4")


def mark(kind, number):
    return kind + "".join(chr(ZERO + int(digit)) for digit in str(number)) + CLOSE


def marked_text(text, number, first=True, last=True):
    core = text.strip()
    begin = text.index(core)
    before, after = mark(FIRST, number) * first, mark(LAST, number) * last
    return f"{text[:begin]}{before}{core}{after}{text[begin + len(core):]}"


def marked_content(content, number):
    """With marks around its text; as it is where there is none."""
    if isinstance(content, str):
        return marked_text(content, number) if content.strip() else content
    if not isinstance(content, list):
        return content
    texts = [place for place, part in enumerate(content) if isinstance(part.get("text"), str) and part["text"].strip()]
    marked = list(content)
    for place in texts:
        first, last = place == texts[0], place == texts[-1]
        marked[place] = {**content[place], "text": marked_text(content[place]["text"], number, first, last)}
    return marked


def margins(content):
    """White space before the first mark of a content and behind the last, which a template writes or strips."""
    texts = [content] if isinstance(content, str) else [part.get("text") for part in content or []]
    texts = [text for text in texts if isinstance(text, str) and text.strip()] or [""]
    return texts[0][: len(texts[0]) - len(texts[0].lstrip())], texts[-1][len(texts[-1].rstrip()) :]


def marked_messages(messages, chosen):
    return [
        {**message, "content": marked_content(message.get("content"), number)} if chosen(message) else message
        for number, message in enumerate(messages)
    ]


class Anchors:
    """`text` without its marks, and by a message's number where its content begins first and ends last."""

    def __init__(self, text):
        self.first, self.last = {}, {}
        pieces, before, length = [], 0, 0
        for found in MARK.finditer(text):
            pieces.append(text[before : found.start()])
            length += len(pieces[-1])
            before = found.end()
            number = int("".join(str(ord(digit) - ZERO) for digit in found[2]))
            if found[1] == FIRST:
                self.first.setdefault(number, length)
            else:
                self.last[number] = length
        self.text = "".join([*pieces, text[before:]])
