# SPDX-License-Identifier: Apache-2.0
"""Where programs and libraries of a tree have the loader search for libraries: their RPATH and RUNPATH."""

import re
import subprocess

RELOCATABLE = 1


def linked_files(folder):
    """Programs and shared libraries; object files are none."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                head = file.read(18)
            if head[:4] == b"\x7fELF" and head[16] != RELOCATABLE:
                yield path


def search_paths(path):
    """The elements of each of its lists."""
    said = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
    return [found.split(":") for found in re.findall(r"R(?:UN)?PATH\).*\[(.*)\]", said)]


def unsafe_search_paths(folder):
    """Elements that depend on the working directory, which may be anybody's; an empty one is that directory. And how
    many files were looked at."""
    files = list(linked_files(folder))
    unsafe = [
        f"{path}: {element!r}"
        for path in files
        for elements in search_paths(path)
        for element in elements
        if not re.match(r"/|\$ORIGIN(/|$)", element)
    ]
    return unsafe, len(files)
