# SPDX-License-Identifier: Apache-2.0
"""The members of a tar, one after the other, from a file that is read once. Whatever a header says takes no more
memory than is allowed; what is wrong with a member costs no other, as long as its length is known."""

from typing import NamedTuple

from packing.record import EntryFault
from packing.source_files import READ_FAULTS

BLOCK = 512
MOST_HEADER_BYTES = 1 << 20  # of a long name, or of the fields of pax
MOST_HEADERS = 16  # of a member
MOST_SIZE = 1 << 40
FILES, FOLDER, LONG_NAME, PAX, SPARSE = b"0\0" b"7", b"5", b"L", b"xX", b"S"
DESCRIBING = b"LKxXg"
EMPTY = b"1234565"  # links, devices and folders, whose size says nothing


class Member(NamedTuple):
    name: str
    size: int = 0
    kind: bytes = b"0"
    fault: EntryFault | None = None
    is_end: bool = False  # no member, but why there is no other


def number_of(field):
    """Octal digits, or bytes behind a mark."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    return int(field.split(b"\0")[0].strip() or b"0", 8)


def size_of(field):
    try:
        return number_of(field)
    except ValueError:
        raise EntryFault("unreadable", f"cannot be read further: a member of {field!r:.40} bytes") from None


def is_header(head):
    try:
        return sum(head) - sum(head[148:156]) + 8 * ord(" ") == number_of(head[148:156])
    except ValueError:
        return False


def pax_fields(data):
    fields, place = {}, 0
    while place < len(data):
        length = int(data[place : data.index(b" ", place, place + 20)])
        key, _, value = data[place : place + length].partition(b" ")[2].partition(b"=")
        fields[key] = value[:-1]
        if length < 5:
            raise ValueError(f"a field of {length} bytes")
        place += length
    return fields


class Tar:
    def __init__(self, file):
        self.file, self.left, self.rest = file, 0, 0

    def read(self):
        """Returns the contents of the latest member."""
        data = self.file.read(self.left)
        if len(data) < self.left:
            raise EntryFault("unreadable", "the tar ends within it: it was cut")
        self.left = 0
        return data

    def headers(self):
        """Returns the headers of members, and None after the tar's end. Everything between them is skipped."""
        was_end = False
        while True:
            self.file.seek(self.left + self.rest, 1)
            head = self.file.read(BLOCK)
            self.left = self.rest = 0
            if not head and was_end:
                return
            if len(head) < BLOCK:
                raise EntryFault(
                    "unreadable", "cannot be read further: it lacks the zeros that end a tar, so it was cut"
                )
            if not head.strip(b"\0"):
                was_end = True
                continue
            if not is_header(head):
                raise EntryFault(
                    "unreadable", f"cannot be read further: no header of tar at byte {self.file.tell() - BLOCK}"
                )
            kind, was_end = head[156:157], False
            size = 0 if kind in EMPTY else size_of(head[124:136])
            self.hold(size)
            yield head, kind, size

    def hold(self, size):
        if not 0 <= size <= MOST_SIZE:
            raise EntryFault("unreadable", f"cannot be read further: a member of {size} bytes")
        self.left, self.rest = size, -size % BLOCK

    def members(self):
        """The last says why there is no other, where that is not the end of the tar."""
        try:
            yield from self.described()
        except EntryFault as fault:
            yield Member("", fault=fault, is_end=True)
        except READ_FAULTS as fault:
            yield Member("", fault=EntryFault("unreadable", f"cannot be read further: {fault}"), is_end=True)

    def described(self):
        name, fields, count, fault = None, {}, 0, None
        for head, kind, size in self.headers():
            count += 1
            if kind in DESCRIBING:
                if size > MOST_HEADER_BYTES or count > MOST_HEADERS:
                    fault = f"{size} bytes and {count} headers describe it; allowed are {MOST_HEADER_BYTES} and {MOST_HEADERS}"
                elif kind == LONG_NAME:
                    name = self.read().split(b"\0")[0]
                elif kind in PAX:
                    try:
                        fields |= pax_fields(self.read())
                    except ValueError:
                        fault = "the fields of pax that describe it are damaged"
                continue
            if kind == SPARSE:
                self.pass_sparse(head)
            if b"size" in fields and kind not in EMPTY:
                size = int(fields[b"size"]) if fields[b"size"].isdigit() else -1
                self.hold(size)
            if kind == SPARSE or any(key.startswith(b"GNU.sparse") for key in fields):
                fault = "it is sparse; pack it without --sparse"
            full = text_of(fields.get(b"path", name) or name_in(head))
            yield Member(full, size, FOLDER if full.endswith("/") else kind, fault and EntryFault("unreadable", fault))
            name, fields, count, fault = None, {}, 0, None

    def pass_sparse(self, head):
        """The blocks of a map, of which each says whether another follows."""
        is_more = head[482]
        while is_more:
            block = self.file.read(BLOCK)
            is_more = len(block) == BLOCK and block[504]


def name_in(head):
    prefix = head[345:500] if head.startswith(b"ustar\0", 257) else b""
    return b"/".join(filter(None, (part.split(b"\0")[0] for part in (prefix, head[:100]))))


def text_of(name):
    return name.decode("utf-8", "surrogateescape")
