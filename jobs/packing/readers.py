# SPDX-License-Identifier: Apache-2.0
"""Which reader takes a source. Each is a module with entries(path, limits, skip), which gives the entries
from number `skip` on without reading those before where it can, and count(path), how many there are or
None where only reading tells."""

import sys

from packing import csv_folder, json_lines, llava_json, parquet, webdataset

READERS = {
    "json": (llava_json, (".json",)),
    "lines": (json_lines, (".jsonl", ".jsonl.gz", ".ndjson")),
    "webdataset": (webdataset, (".tar", ".tar.gz", ".tgz")),
    "parquet": (parquet, (".parquet",)),
    "csv": (csv_folder, (".csv",)),
}


def files_of(source):
    """A folder stands for its files of the first of these kinds that it holds."""
    if not source.is_dir():
        return [source]
    names = sorted(path for path in source.iterdir() if path.is_file())
    for endings in (READERS[kind][1] for kind in ("csv", "parquet", "webdataset", "lines", "json")):
        found = [path for path in names if path.name.endswith(endings)]
        if found:
            return found
    sys.exit(f"{source} holds no file that ends with {', '.join(e for _, kinds in READERS.values() for e in kinds)}")


def reader_of(path, kind):
    if not path.is_file():
        sys.exit(f"{path}: there is no such file")
    if kind != "auto":
        return READERS[kind][0]
    for reader, endings in READERS.values():
        if path.name.endswith(endings):
            return reader
    sys.exit(f"{path}: its ending tells no format; name it: --format {', '.join(READERS)}")


def read_all(files, kind, limits, start=(0, 0)):
    """Entries, each behind the place where the next one is (number of the file, and in it) and the bytes that
    were read by then, those of earlier files included."""
    first, skip = start
    for number in range(first, len(files)):
        reader, before = reader_of(files[number], kind), bytes_of(files[:number])
        for count, entry in enumerate(reader.entries(files[number], limits, skip), skip + 1):
            yield ((number, count), before + entry.read), entry
        skip = 0


def bytes_of(files):
    return sum(path.stat().st_size for path in files)


def count_all(files, kind):
    counts = [reader_of(path, kind).count(path) for path in files]
    return None if None in counts else sum(counts)
