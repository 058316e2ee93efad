# SPDX-License-Identifier: Apache-2.0
"""Files as others leave them: gzip is unpacked, a byte-order mark passed over, what an operating system adds is
no data, and what is no data set at all is known by its first bytes."""

import contextlib
import gzip
import zlib
from pathlib import PurePosixPath

from packing.record import EntryFault

READ_FAULTS = (OSError, EOFError, zlib.error)
MARK = b"\xef\xbb\xbf"
LITTER = (".DS_Store", "Thumbs.db", "desktop.ini")
# By their first bytes, in lower case, behind so many others.
KINDS = [
    (0, b"version https://git-lfs", "a pointer of git-lfs in place of the file; run git lfs pull"),
    (0, b"<!doctype html", "a web page in place of the file; fetch the file itself"),
    (0, b"<html", "a web page in place of the file; fetch the file itself"),
]
ARCHIVES = [
    *KINDS,
    (0, b"pk\3\4", "a zip archive; unpack it, and name the files in it"),
    (0, b"bzh", "packed by bzip2; unpack it: bunzip2"),
    (0, b"\xfd7zxz", "packed by xz; unpack it: unxz"),
    (0, b"(\xb5/\xfd", "packed by zstd; unpack it: unzstd"),
    (0, b"7z\xbc\xaf", "a 7z archive; unpack it, and name the files in it"),
]


def kind_of(head, kinds):
    head = head.lower()
    return next((text for place, start, text in kinds if head.startswith(start, place)), None)


def is_litter(name):
    """Whether macOS or Windows put a file of that name beside those of the user."""
    path = PurePosixPath(name)
    return path.name.startswith("._") or path.name in LITTER or "__MACOSX" in path.parts


@contextlib.contextmanager
def opened(path, is_text=True):
    """A file's bytes behind the byte-order mark, unpacked, and the file itself, whose place tells what of it was read."""
    with open(path, "rb") as raw:
        head = raw.peek(64)[:64]
        kind = kind_of(head, ARCHIVES)
        if kind:
            raise EntryFault("unreadable", f"is {kind}")
        with gzip.open(raw) if head.startswith(b"\x1f\x8b") else raw as file:
            head = file.peek(4)[:4] if is_text else b""
            if head[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in head:
                raise EntryFault(
                    "encoding", "is UTF-16 or no text; allowed is UTF-8: iconv -f UTF-16 -t UTF-8 OLD > NEW"
                )
            if head.startswith(MARK):
                file.read(len(MARK))
            yield file, raw
