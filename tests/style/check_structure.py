# SPDX-License-Identifier: Apache-2.0
"""Checks what a reader relies on: who includes whom, file sizes, the first line, and names that say nothing.

usage: check_structure.py ROOT
"""

import os
import re
import sys
from pathlib import Path

# A folder may include itself and what stands in its row.
MAY_INCLUDE = {
    "core": [],
    "deck": ["core"],
    "plan": ["core", "deck"],
    "comm": ["core", "plan"],
    "io": ["core", "plan"],
    "data": ["core", "plan", "io"],
    "kernels": ["core"],
    "model": ["core", "plan", "kernels"],
    "batch": ["core", "plan", "data", "model"],
    "parallel": ["core", "plan", "comm", "model", "batch", "kernels"],
    "optim": ["core", "deck", "plan", "kernels", "parallel"],
    "checkpoint": ["core", "plan", "comm", "io", "parallel"],
    "watch": ["core", "comm", "io"],
    "preflight": ["core", "deck", "comm", "io", "parallel"],
    "train": [
        *["core", "deck", "plan", "comm", "io", "data", "model", "batch", "parallel", "optim", "checkpoint", "watch"]
    ],
}
# Rooms of plan/: each may include itself and those before it. "plan", which puts a Plan together, is what stands in no
# folder of plan/, but for what every room may use.
PLAN_ROOMS = ["model", "mesh", "tokens", "units", "steps", "buffers", "schedule", "plan", "estimate", "describe"]
OF_ALL_ROOMS = ["faults.hpp"]
# Third-party headers that stay behind one folder's walls.
WALLS = {
    "mpi.h": ["comm"],
    "nccl.h": ["comm"],
    "cuda_runtime.h": ["comm", "kernels"],
    "hdf5.h": ["io"],
    "Kokkos_Core.hpp": ["kernels"],
    "jpeglib.h": ["data"],
    "png.h": ["data"],
    "FLAC/stream_decoder.h": ["data"],
    "toml++/toml.h": ["deck"],
    "CLI/CLI.hpp": ["deck"],
}
# Modules have the names that families give them. Only these name one: families, the keys of decks, the constants.
MAY_NAME_MODULES = re.compile(r"_spec\.cpp$|/deck/|/core/decoder\.hpp$|/plan/model/modality\.hpp$")
NAMES_MODULE = re.compile(r'"(?:vision|audio|llm)"|"(?:[^"\n]|\\")*\b(?:model|mesh|precision)\.(?:vision|audio|llm)\b')
MAX_LINES = 500
MAX_COLUMNS = 120
EMPTY_NAMES = re.compile(r"(^|_)(utils?|helpers?|misc|common)(_|\.|$)")


def folder_of(path, root):
    parts = path.relative_to(root).parts
    if parts[0] == "include" and len(parts) > 3:
        return parts[2]
    return parts[1] if parts[0] == "src" and len(parts) > 2 else None


def room_of(parts):
    """Of a path below plan/, as parts: "model" of ("model", "extent.hpp"); None of what every room may use."""
    if len(parts) > 1:
        return parts[0]
    return None if parts[0] in OF_ALL_ROOMS else "plan"


def below_plan(path, root):
    """Its parts there; None where it is elsewhere."""
    for plan in (root / "src/plan", root / "include/zea/plan"):
        if path.is_relative_to(plan):
            return path.relative_to(plan).parts
    return None


def room_faults(path, root, headers):
    own = room_of(below_plan(path, root))
    if own not in (None, *PLAN_ROOMS):
        yield f"is in no room of plan/; these are {', '.join(PLAN_ROOMS)}"
        return
    allowed = PLAN_ROOMS[: PLAN_ROOMS.index(own) + 1] if own else []
    what = f"plan/{', '.join(allowed)}" if own else "nothing of plan/"
    for header in headers:
        named = re.fullmatch(r"(?:zea/)?plan/(.*)", header)
        beside = Path(os.path.normpath(path.parent / header))
        target = named[1].split("/") if named else below_plan(beside, root) if beside.is_file() else None
        room = room_of(target) if target else None
        if room and room not in allowed:
            yield f"includes {header}; it may include {what}"


def includes(text):
    return re.findall(r'^#include [<"]([^>"]+)[>"]', text, re.MULTILINE)


def test_faults(path, text):
    """CTest runs the tests of every file, and one translation unit may be made of any of them."""
    if not re.search(rf"\b{path.stem}\b", (path.parent / "CMakeLists.txt").read_text()):
        yield "its folder's CMakeLists.txt does not list it"
    if not re.search(rf"^namespace zea(::\w+)?::{path.stem} {{$", text, re.MULTILINE):
        yield f"its namespace must be named after it: zea::{path.stem}"


def faults_of(path, root):
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    if path.suffix != ".sh" and "SPDX-License-Identifier" not in "\n".join(lines[:2]):
        yield "its first line must be the SPDX line"
    if len(lines) > MAX_LINES:
        yield f"{len(lines)} lines; at most {MAX_LINES}: split it by idea"
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS:
            yield f"line {number} has {len(line)} columns; at most {MAX_COLUMNS}"
    if EMPTY_NAMES.search(path.name):
        yield "its name says nothing"
    if path.parent.parent == root / "tests" and path.match("test_*.cpp"):
        yield from test_faults(path, text)
    folder = folder_of(path, root)
    if folder is None:
        return
    if not MAY_NAME_MODULES.search(str(path)):
        for number, line in enumerate(lines, 1):
            if NAMES_MODULE.search(line.split("//")[0]):
                yield f"line {number} names a module, which is its family's to name; ask the model for modules()"
    if folder == "plan":
        yield from room_faults(path, root, includes(text))
    for header in includes(text):
        target = header.split("/")[1] if header.startswith("zea/") else None
        if target and target != folder and target not in MAY_INCLUDE[folder]:
            yield f"includes {header}; {folder} may include {', '.join(MAY_INCLUDE[folder])}"
        if header in WALLS and folder not in WALLS[header]:
            yield f"includes {header}, which only {', '.join(WALLS[header])} may"


def main():
    root = Path(sys.argv[1])
    sources = [
        path
        for top in ("src", "include", "tests", "postprocess")
        for path in sorted((root / top).rglob("*"))
        if path.suffix in (".cpp", ".hpp", ".cu", ".cuh", ".py", ".sh")
    ]
    assert len(sources) > 100, "the sources were not found"
    faults = [f"{path.relative_to(root)}: {fault}" for path in sources for fault in faults_of(path, root)]
    print("\n".join(faults))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
