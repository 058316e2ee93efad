# SPDX-License-Identifier: Apache-2.0
"""A JSON list of entries, as LLaVA has them."""

import functools
import json
import sys

from packing.record import Entry


@functools.lru_cache(1)
def listed(path):
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as fault:  # also of bytes that are no text, and of a number of too many digits
        sys.exit(f"{path}: {fault}")
    except RecursionError:
        sys.exit(f"{path}: is nested too deeply")
    if not isinstance(entries, list):
        sys.exit(f"{path}: must be a list of entries, is a {type(entries).__name__}")
    return entries


def count(path):
    return len(listed(path))


def entries(path, limits, skip):
    for index, value in enumerate(listed(path)[skip:], skip):
        name = value.get("id") if isinstance(value, dict) else None
        yield Entry(f"{path}[{index}] (id {name})", value)
