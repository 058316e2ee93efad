# SPDX-License-Identifier: Apache-2.0
"""Parquet with a column of messages or conversations, or of a text (text, caption), and images inside
(image, images: bytes, or {"bytes", "path"} as datasets has them) or by their paths."""

import json
import sys

from packing.record import PLURALS, Entry, EntryFault

ROWS = 16  # read at once
MOST_GROUP_BYTES = 8 << 30


def opened(path):
    try:
        import pyarrow.parquet
    except ImportError:
        sys.exit(f"{path}: Parquet takes the package pyarrow; .venv/bin/pip install -r jobs/requirements-parquet.txt")
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as fault:
        sys.exit(f"{path}: cannot be read as Parquet: {fault}")


def count(path):
    return opened(path).metadata.num_rows


def source_of(cell):
    """Bytes that are inside, or the path of what is not; a cell that has neither as it is, which Media refuses."""
    return cell.get("bytes") or cell.get("path") or cell if isinstance(cell, dict) else cell


def entry_of(name, row):
    value, inside = {k: v for k, v in row.items() if v is not None}, {}
    for modality, plural in PLURALS.items():
        cells = [value.pop(key) for key in (modality, plural) if key in value]
        cells = [cell for found in cells for cell in (found if isinstance(found, list) else [found])]
        inside[modality] = [source_of(cell) for cell in cells]
    for key in ("conversations", "messages"):
        if isinstance(value.get(key), str):  # as JSON
            try:
                value[key] = json.loads(value[key])
            except (ValueError, RecursionError) as fault:  # also of a number of too many digits
                return Entry(name, None, {}, EntryFault("not JSON", f"its {key} are not JSON: {fault}"))
    if "text" not in value and "caption" in value:
        value["text"] = value["caption"]
    return Entry(name, without_none(value), inside)


def without_none(value):
    """Columns of structures give all their fields, also those that a row has not."""
    if isinstance(value, dict):
        return {key: without_none(v) for key, v in value.items() if v is not None}
    return [without_none(v) for v in value] if isinstance(value, list) else value


def entries(path, limits, skip):
    file = opened(path)
    number = 0
    for group in range(file.metadata.num_row_groups):
        head = file.metadata.row_group(group)
        if number + head.num_rows <= skip:
            number += head.num_rows
            continue
        if head.total_byte_size > MOST_GROUP_BYTES:
            fault = f"a group of rows takes {head.total_byte_size} bytes, more than {MOST_GROUP_BYTES}"
            yield Entry(f"{path}[{number}]", None, {}, EntryFault("too large", fault))
            return
        try:
            for batch in file.iter_batches(ROWS, row_groups=[group]):
                for row in batch.to_pylist():
                    if number >= skip:
                        yield entry_of(f"{path}[{number}]", row)
                    number += 1
        except (OSError, ValueError) as fault:
            yield Entry(f"{path}[{number}]", None, {}, EntryFault("unreadable", f"cannot be read further: {fault}"))
            return
