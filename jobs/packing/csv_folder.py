# SPDX-License-Identifier: Apache-2.0
"""A CSV beside images: a column of their files' names (file_name, file, image, path), one of texts (text,
caption, answer), and perhaps one of questions (prompt, question)."""

import csv
import sys

from packing.record import Entry, EntryFault

COLUMNS = {
    "image": ("file_name", "filename", "file", "image", "path"),
    "text": ("text", "caption", "answer"),
    "prompt": ("prompt", "question"),
}


def count(path):
    return None


def columns_of(path, head):
    found = {name: next((c for c in names if c in head), None) for name, names in COLUMNS.items()}
    for name in ("image", "text"):
        if found[name] is None:
            sys.exit(f"{path}: its first line names no column {' or '.join(COLUMNS[name])}; it has {', '.join(head)}")
    return {name: column for name, column in found.items() if column}


def entries(path, limits, skip):
    csv.field_size_limit(limits.most_json_bytes)
    with open(path, encoding="utf-8-sig", newline="") as file:
        try:
            rows = csv.DictReader(file)
            columns = columns_of(path, rows.fieldnames or [])
            for index, row in enumerate(rows):
                if index < skip:
                    continue
                value = {name: row[column] for name, column in columns.items() if row[column] is not None}
                yield Entry(f"{path}:{rows.line_num}", value, read=file.buffer.tell())
        except (csv.Error, UnicodeDecodeError) as fault:
            yield Entry(str(path), None, {}, EntryFault("unreadable", f"cannot be read further: {fault}"))
