# SPDX-License-Identifier: Apache-2.0
"""A CSV beside images: a column of their files' names (file_name, file, image, path), one of texts (text,
caption, answer), and perhaps one of questions (prompt, question)."""

import csv
import io

from packing.json_lines import MOST_VALUES
from packing.record import Entry, EntryFault
from packing.source_files import opened

COLUMNS = {
    "image": ("file_name", "filename", "file", "image", "path"),
    "text": ("text", "caption", "answer"),
    "prompt": ("prompt", "question"),
}


def count(path):
    return None


def columns_of(head):
    found = {name: next((c for c in names if c in head), None) for name, names in COLUMNS.items()}
    for name in ("image", "text"):
        if found[name] is None:
            raise EntryFault(
                "columns", f"its first line names no column {' or '.join(COLUMNS[name])}; it has {', '.join(head):.200}"
            )
    return {name: column for name, column in found.items() if column}


class Lines:
    """Lines of a text, of which those of a row have at most so many characters."""

    def __init__(self, file, most):
        self.file, self.most, self.taken = file, most, 0

    def __iter__(self):
        return self

    def __next__(self):
        line = self.file.readline(self.most + 1)
        self.taken += len(line)
        if self.taken > self.most or line.count(",") > MOST_VALUES:
            raise EntryFault("too large", f"cannot be read further: a row has more than {self.most} characters")
        if not line:
            raise StopIteration
        return line


def entries(path, limits, skip):
    """Bytes that are no UTF-8 become what no text may hold."""
    csv.field_size_limit(limits.most_json_bytes)
    with opened(path) as (file, raw):
        lines = Lines(io.TextIOWrapper(file, "utf-8", "surrogateescape", newline=""), limits.most_json_bytes)
        rows = csv.DictReader(lines)
        columns = columns_of(rows.fieldnames or [])
        for index, row in enumerate(rows):
            lines.taken = 0
            if index >= skip:
                value = {name: row[column] for name, column in columns.items() if row[column] is not None}
                yield Entry(f"{path}:{rows.line_num}", value, read=raw.tell())
