# SPDX-License-Identifier: Apache-2.0
"""JSON lines, an entry each: messages as OpenAI has them, or conversations. Also gzipped."""

import gzip
import json
import zlib

from packing.record import Entry, EntryFault


def count(path):
    return None


def lines_of(path, most):
    """Lines with something in them, with their numbers and what of the file was read by then; of a longer one
    than `most` bytes None."""
    with open(path, "rb") as raw, gzip.open(raw) if path.name.endswith(".gz") else raw as file:
        number = 0
        while line := file.readline(most + 1):
            number += 1
            too_long = len(line) > most
            while len(line) > most and not line.endswith(b"\n"):
                line = file.readline(most + 1)
            if line.strip():
                yield number, None if too_long else line, raw.tell()


def parsed(text):
    """Raises EntryFault."""
    try:
        return json.loads(text)
    except ValueError as fault:  # also of bytes that are no text, and of a number of too many digits
        raise EntryFault("not JSON", f"is not JSON: {fault}") from None
    except RecursionError:
        raise EntryFault("not JSON", "is nested too deeply") from None


def entries(path, limits, skip):
    most = limits.most_json_bytes
    try:
        for index, (number, line, read) in enumerate(lines_of(path, most)):
            if index < skip:
                continue
            name = f"{path}:{number}"
            try:
                if line is None:
                    raise EntryFault("too large", f"has more than {most} bytes")
                yield Entry(name, parsed(line), read=read)
            except EntryFault as fault:
                yield Entry(name, None, {}, fault, read)
    except (OSError, EOFError, zlib.error) as fault:
        yield Entry(str(path), None, {}, EntryFault("unreadable", f"cannot be read further: {fault}"))
