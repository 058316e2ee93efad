# SPDX-License-Identifier: Apache-2.0
"""JSON lines, an entry each: messages as OpenAI has them, or conversations. A file that begins with a list is read as one."""

import json

from packing.json_list import MOST_VALUES, pieces
from packing.record import Entry, EntryFault
from packing.source_files import opened


def count(path):
    return None


def lines_of(file, most):
    """Lines with something in them, with their numbers; of a longer one than `most` bytes None."""
    number = 0
    while line := file.readline(most + 1):
        number += 1
        too_long = len(line) > most
        while len(line) > most and not line.endswith(b"\n"):
            line = file.readline(most + 1)
        if line.strip():
            yield number, None if too_long else line


def parsed(text):
    """Raises EntryFault."""
    marks = (b",", b"[", b"{") if isinstance(text, bytes) else (",", "[", "{")
    if sum(map(text.count, marks)) > MOST_VALUES:
        raise EntryFault("too large", f"has more than {MOST_VALUES} values")
    try:
        return json.loads(text)
    except ValueError as fault:  # also of bytes that are no text, and of a number of too many digits
        raise EntryFault("not JSON", f"is not JSON: {fault}") from None
    except RecursionError:
        raise EntryFault("not JSON", "is nested too deeply") from None


def entry_of(name, text, read, most):
    try:
        if text is None:
            raise EntryFault("too large", f"has more than {most} bytes")
        return Entry(name, parsed(text), read=read)
    except EntryFault as fault:
        return Entry(name, None, {}, fault, read)


def named(entry):
    """With the id that it gives itself."""
    own = entry.value.get("id") if isinstance(entry.value, dict) else None
    return entry._replace(name=f"{entry.name} (id {own!s:.80})") if isinstance(own, (str, int)) else entry


def entries(path, limits, skip):
    """Returns the entries of a list or of lines, whatever the file's ending says."""
    most = limits.most_json_bytes
    with opened(path) as (file, raw):
        is_list = file.peek(4096).lstrip().startswith(b"[")
        found = enumerate(pieces(file, most)) if is_list else lines_of(file, most)
        for index, (number, text) in enumerate(found):
            if index < skip:
                continue
            entry = entry_of(f"{path}[{number}]" if is_list else f"{path}:{number}", text, raw.tell(), most)
            if index == 0 and entry.fault and not is_list and path.name.endswith((".json", ".json.gz")):
                raise EntryFault("not JSON", f"{entry.fault}; allowed are a list of entries, or an object in each line")
            yield named(entry) if is_list else entry
