# SPDX-License-Identifier: Apache-2.0
"""The entries of a JSON list, as LLaVA has them, one at a time, so that one at fault costs no other, and a file
of any length takes the memory of its longest entry."""

import re

from packing.record import EntryFault

CHUNK = 1 << 20
MOST_VALUES = 4_000_000  # of an entry, which each take far more memory than text
# Up to a bracket, or in the list itself a comma, that is in no text.
WITHIN = rb'(?:[^%s"]++|"(?:[^"\\]++|\\.)*+")*+([%s])'
TO_BRACKET, TO_SEPARATOR = (re.compile(WITHIN % (marks, marks), re.DOTALL) for marks in (rb"\[\]{}", rb"\[\]{},"))


def pieces(file, most):
    """The text of each, from the list's "[" on; of a longer one than `most` bytes None."""
    data = file.read(CHUNK)
    begin = place = data.index(b"[") + 1
    depth, brackets = 1, 0
    while depth:
        found = (TO_SEPARATOR if depth == 1 else TO_BRACKET).match(data, place)
        if not found:
            length = len(data) - begin
            if length > 2 * most:
                raise EntryFault("too large", f"cannot be read further: an entry has more than {most} bytes")
            more = file.read(min(max(CHUNK, length), most + 1))
            if not more:
                raise EntryFault("unreadable", "cannot be read further: it ends within its list, so it was cut")
            data, place, begin = data[begin:] + more, place - begin, 0
            continue
        place, mark = found.end(), found[1]
        brackets = brackets + 1 if depth > 1 else 0
        if brackets > 2 * MOST_VALUES:
            raise EntryFault("too large", f"cannot be read further: an entry has more than {MOST_VALUES} values")
        depth += {b"[": 1, b"{": 1, b",": 0}.get(mark, -1)
        if depth == 0 or mark == b",":
            piece = data[begin : place - 1].strip()
            if piece or mark == b",":
                yield piece if len(piece) <= most else None
            begin = place
    if mark != b"]" or data[place:].strip() or any(more.strip() for more in iter(lambda: file.read(CHUNK), b"")):
        raise EntryFault("not JSON", "cannot be read further: more follows its list")
