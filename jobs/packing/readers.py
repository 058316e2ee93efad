# SPDX-License-Identifier: Apache-2.0
"""The reader of each source. A reader is a module with entries(path, limits, skip), which gives the entries from number
`skip` on, without reading those before if it can, and count(path), the number of entries, or None if only reading
tells."""

import sys

from packing import csv_folder, json_lines, parquet, webdataset
from packing.record import Entry, EntryFault
from packing.report import said
from packing.source_files import is_litter

READERS = {
    "json": (json_lines, (".json", ".json.gz")),
    "lines": (json_lines, (".jsonl", ".jsonl.gz", ".ndjson")),
    "webdataset": (webdataset, (".tar", ".tar.gz", ".tgz")),
    "parquet": (parquet, (".parquet",)),
    "csv": (csv_folder, (".csv",)),
}
# Files that the hub's tools write about a data set.
ABOUT = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")


def files_of(source, kind):
    """A folder stands for its files of one format, or of `kind`. Where it has several, which are meant cannot be told:
    a table beside tars tells of the same pictures."""
    if not source.is_dir():
        return [source]
    names = sorted(path for path in source.iterdir() if path.is_file() and not is_litter(path.name))
    found = {}
    for path in names:
        for reader, (_, endings) in READERS.items():
            if path.name.endswith(endings) and path.name not in ABOUT and kind in ("auto", reader):
                found.setdefault("JSON" if reader in ("json", "lines") else reader, []).append(path)
    if not found:
        sys.exit(
            f"{source} holds no file that ends with {', '.join(e for _, kinds in READERS.values() for e in kinds)}"
        )
    if len(found) > 1:
        some = "; ".join(f"{len(paths)} of {reader} ({paths[0].name})" for reader, paths in found.items())
        sys.exit(f"{source} holds files of several formats: {some}; name the files, or one format: --format")
    return next(iter(found.values()))


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
    were read by then, those of earlier files included. Whatever ends a file early is one more, at fault."""
    first, skip = start
    for number in range(first, len(files)):
        path, before = files[number], bytes_of(files[:number])
        try:
            for count, entry in enumerate(reader_of(path, kind).entries(path, limits, skip), skip + 1):
                yield ((number, count), before + entry.read), entry
        except Exception as fault:  # libraries throw what they like at damaged files
            if not isinstance(fault, EntryFault):
                fault = EntryFault("unreadable", f"cannot be read further: {said(fault)}")
            yield ((number + 1, 0), bytes_of(files[: number + 1])), Entry(str(path), None, {}, fault)
        skip = 0


def bytes_of(files):
    return sum(path.stat().st_size for path in files)


def count_all(files, kind):
    counts = [reader_of(path, kind).count(path) for path in files]
    return None if None in counts else sum(counts)
