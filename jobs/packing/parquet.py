# SPDX-License-Identifier: Apache-2.0
"""Parquet with a column of messages or conversations, or of a text (text, caption), and images inside
(image, images: bytes, or {"bytes", "path"} as datasets has them) or by their paths."""

import contextlib
import resource
import sys

from packing.json_lines import parsed
from packing.record import PLURALS, Entry, EntryFault

ROWS = 16  # read at once, or fewer of so many bytes
BATCH_BYTES = 64 << 20


@contextlib.contextmanager
def bounded_memory(most):
    """So many more bytes than there are: a page or a dictionary takes what its file says, and a cell what they say."""
    with open("/proc/self/statm") as state:
        taken = int(state.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    bounds = [bound for bound in (taken + most, soft) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
    try:
        yield
    except MemoryError:
        raise EntryFault("too large", f"takes more than {most} bytes of memory") from None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def opened(path):
    try:
        import pyarrow.parquet
    except ImportError:
        sys.exit(f"{path}: Parquet takes the package pyarrow; .venv/bin/pip install -r jobs/requirements-parquet.txt")
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())  # which takes what is asked for, and no more
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as fault:
        raise EntryFault("unreadable", f"cannot be read as Parquet: {fault}") from None


def count(path):
    try:
        return opened(path).metadata.num_rows
    except EntryFault:  # of which reading tells
        return None


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
                value[key] = parsed(value[key].removeprefix("\ufeff"))
            except EntryFault as fault:
                return Entry(name, None, {}, EntryFault(fault.kind, f"its text of {key} {fault}"))
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
    end = 0
    for group in range(file.metadata.num_row_groups):
        head = file.metadata.row_group(group)
        number, end = end, end + head.num_rows
        if end <= skip:
            continue
        rows = max(1, min(ROWS, BATCH_BYTES * head.num_rows // max(1, head.total_byte_size)))
        batches = file.iter_batches(rows, row_groups=[group], use_threads=False)
        while number < end:
            try:
                with bounded_memory(2 * limits.most_entry_bytes):
                    found = next(batches).to_pylist()
            except (EntryFault, OSError, ValueError, StopIteration) as fault:
                text = f"these rows up to {end} cannot be read: {fault}"
                yield Entry(f"{path}[{number}]", None, {}, EntryFault(getattr(fault, "kind", "unreadable"), text))
                break
            for row in found:
                if number >= skip:
                    yield entry_of(f"{path}[{number}]", row)
                number += 1
