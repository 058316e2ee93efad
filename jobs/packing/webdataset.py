# SPDX-License-Identifier: Apache-2.0
"""Tars as WebDataset has them: members that share a name up to its first dot are an entry. Images and
sound stand at the marks of .json (conversations, messages, or text or caption), or before the text of
.txt."""

import itertools
from pathlib import PurePosixPath

from packing.forms import has_turns
from packing.json_lines import parsed
from packing.record import PLURALS, Entry, EntryFault
from packing.source_files import MARK, READ_FAULTS, is_litter, opened
from packing.tar_members import FILES, FOLDER, Tar

MODALITIES = dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif", "bmp"), "image") | dict.fromkeys(
    ("wav", "flac"), "audio"
)
TEXTS = ("json", "txt", "caption")


def count(path):
    return None


def key_of(member):
    """Members of one are an entry; why the tar is not read further has one of its own."""
    if member.is_end:
        return None
    folder, _, name = member.name.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}"


def ending_of(member):
    return member.name.rpartition("/")[2].partition(".")[2].lower()


def checked(member, limits):
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise EntryFault("outside", f"{member.name} lies outside the tar")
    if member.fault:
        raise EntryFault(member.fault.kind, f"{member.name} cannot be read: {member.fault}")
    if member.kind not in FILES:
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
            value["text"] = (
                text.removeprefix(MARK).decode().strip()
                if text is not None
                else value.get("text", value.get("caption"))
            )
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
    inside, texts, ignored, most = {"image": [], "audio": []}, {}, set(), limits.most_entry_bytes
    try:
        for member in members:
            if member.is_end:
                raise member.fault
            ending = ending_of(member)
            if ending not in MODALITIES and ending not in TEXTS:
                ignored.add(f".{ending:.20}")
                continue
            checked(member, limits)
            most -= member.size
            if most < 0:
                raise EntryFault("too large", f"its members have more than {limits.most_entry_bytes} bytes")
            data = tar.read()
            if ending in TEXTS:
                texts[ending] = data
            else:
                inside[MODALITIES[ending]].append(data)
        value = value_of(texts)
        check_items(value, inside, ignored)
        return Entry(name, value, inside, notes=[f"members left out: {ending}" for ending in sorted(ignored)])
    except EntryFault as fault:
        return Entry(name, None, {}, fault)
    except READ_FAULTS as fault:
        return Entry(name, None, {}, EntryFault("unreadable", f"cannot be read: {fault}"))


def entries(path, limits, skip):
    with opened(path, is_text=False) as (file, raw):
        tar = Tar(file)
        members = (member for member in tar.members() if member.kind != FOLDER and not is_litter(member.name))
        for index, (key, group) in enumerate(itertools.groupby(members, key_of)):
            if index >= skip:
                name = str(path) if key is None else f"{path}[{key.removeprefix('/')}]"
                yield entry_of(name, group, tar, limits)._replace(read=raw.tell())
