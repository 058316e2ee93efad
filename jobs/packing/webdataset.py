# SPDX-License-Identifier: Apache-2.0
"""Tars as WebDataset has them: members that share a name up to its first dot are an entry. Images and
sound stand at the marks of .json (conversations, messages, or text or caption), or before the text of
.txt."""

import itertools
import tarfile
import zlib
from pathlib import PurePosixPath

from packing.forms import has_turns
from packing.json_lines import parsed
from packing.record import PLURALS, Entry, EntryFault

MODALITIES = dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif", "bmp"), "image") | dict.fromkeys(("wav", "flac"), "audio")
TEXTS = ("json", "txt", "caption")


def count(path):
    return None


def key_of(member):
    folder, _, name = member.name.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}"


def ending_of(member):
    return member.name.rpartition("/")[2].partition(".")[2].lower()


def checked(member, limits):
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise EntryFault("outside", f"{member.name} lies outside the tar")
    if not member.isreg():
        raise EntryFault("outside", f"{member.name} is a link or a device, not a file")
    most = limits.most_json_bytes if ending_of(member) in TEXTS else limits.most_item_bytes
    if member.size > most:
        raise EntryFault("too large", f"{member.name} has {member.size} bytes, more than {most}")


def value_of(texts):
    value = parsed(texts["json"]) if "json" in texts else {}
    if not isinstance(value, dict):
        raise EntryFault("turns", "its .json is no object")
    if not has_turns(value):
        text = texts.get("txt", texts.get("caption"))
        try:
            value["text"] = text.decode().strip() if text is not None else value.get("text", value.get("caption"))
        except UnicodeDecodeError as fault:
            raise EntryFault("text", f"its .txt is not UTF-8: {fault.reason}") from None
        if not isinstance(value["text"], str):
            raise EntryFault("turns", "has neither conversations, messages nor a text")
    return value


def check_items(value, inside, ignored):
    """A caption is about something, inside or named."""
    named = [value.get(name) for pair in PLURALS.items() for name in pair]
    if not has_turns(value) and not any([*inside.values(), *named]):
        raise EntryFault(
            "items",
            f"its text has no image or sound beside it; left out are {', '.join(sorted(ignored)) or 'no members'}; "
            f"allowed are .{', .'.join(MODALITIES)}; text alone goes into .json as conversations or messages",
        )


def entry_of(name, members, tar, limits):
    """The members are read in any case, since a stream gives them once."""
    inside, texts, ignored = {"image": [], "audio": []}, {}, set()
    try:
        for member in members:
            ending = ending_of(member)
            if ending not in MODALITIES and ending not in TEXTS:
                ignored.add(f".{ending}")
                continue
            checked(member, limits)
            data = tar.extractfile(member).read()
            if ending in TEXTS:
                texts[ending] = data
            else:
                inside[MODALITIES[ending]].append(data)
        value = value_of(texts)
        check_items(value, inside, ignored)
        return Entry(name, value, inside, notes=[f"members left out: {ending}" for ending in sorted(ignored)])
    except EntryFault as fault:
        return Entry(name, None, {}, fault)


def entries(path, limits, skip):
    try:
        with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r|*") as tar:
            members = (member for member in tar if not member.isdir())
            for index, (key, group) in enumerate(itertools.groupby(members, key_of)):
                if index >= skip:
                    entry = entry_of(f"{path}[{key.removeprefix('/')}]", group, tar, limits)
                    yield entry._replace(read=file.tell())
                tar.members = []  # which a tar keeps of all that it has passed
    except (tarfile.TarError, OSError, EOFError, zlib.error) as fault:
        yield Entry(str(path), None, {}, EntryFault("unreadable", f"cannot be read further: {fault}"))
