# SPDX-License-Identifier: Apache-2.0
"""Checks who includes whom, where functions are defined, file sizes, the first line, and empty names.

usage: check_structure.py ROOT
"""

import re
import sys
from pathlib import Path

# A folder may include itself and the folders in its row.
PLAN = ["core", "deck", "spec", "layout", "schedule", "estimate"]  # plain values: each may include those before it
MAY_INCLUDE = {
    **{folder: PLAN[:place] for place, folder in enumerate(PLAN)},
    "files": ["core"],
    "h5": ["core", "files"],
    "io": ["core", "spec", "layout", "files", "h5"],
    "data": ["core", "spec", "layout", "schedule", "files", "h5", "io"],
    "library": [*PLAN, "files", "h5", "io", "data"],
    "comm": ["core", "layout"],
    "kernels": ["core"],
    "model": ["core", "spec", "layout", "kernels"],
    "batch": ["core", "spec", "layout", "data", "model"],
    "parallel": ["core", "layout", "schedule", "comm", "kernels", "model", "batch"],
    "optim": ["core", "deck", "schedule", "kernels", "parallel"],
    "checkpoint": ["core", "spec", "layout", "schedule", "files", "io", "comm", "parallel"],
    "watch": ["core", "files", "comm"],
    "preflight": ["core", "deck", "files", "io", "comm", "parallel"],
    "train": [*PLAN, *"files h5 io data comm kernels model batch parallel optim checkpoint watch".split()],
    "app": [*PLAN, *"files io data library comm kernels parallel optim checkpoint watch preflight train".split()],
}
# Third-party headers that only one folder may include.
WALLS = {
    "mpi.h": ["comm"],
    "nccl.h": ["comm"],
    "cuda_runtime.h": ["comm", "kernels"],
    "hdf5.h": ["h5"],
    "Kokkos_Core.hpp": ["kernels"],
    "jpeglib.h": ["data"],
    "png.h": ["data"],
    "FLAC/stream_decoder.h": ["data"],
    "toml++/toml.h": ["deck"],
    "CLI/CLI.hpp": ["deck"],
}
# Modules have the names that families give them. Only these name one: families, the keys of decks, the constants.
MAY_NAME_MODULES = re.compile(r"_spec\.cpp$|/deck/|/core/decoder\.hpp$|/spec/modality\.hpp$")
NAMES_MODULE = re.compile(r'"(?:vision|audio|llm)"|"(?:[^"\n]|\\")*\b(?:model|mesh|precision)\.(?:vision|audio|llm)\b')
MAX_LINES = 500
MAX_COLUMNS = 120
# A function at namespace scope: its declaration in a header, its definition in a source.
FUNCTION = r"^(?!\s|using|return|typedef|#|static)[\w:<>,&*\s]+?[\s&*](?:\w+::)?(\w+)\([^;{}]*?\)(?: noexcept)?"
DECLARES = re.compile(FUNCTION + ";", re.MULTILINE)
DEFINES = re.compile(FUNCTION + r" \{", re.MULTILINE)
UNNAMED_NAMESPACE = re.compile(r"^namespace \{\n.*?^\}  ?$", re.MULTILINE | re.DOTALL)
EMPTY_NAMES = re.compile(r"(^|_)(utils?|helpers?|misc|common)(_|\.|$)")


def folder_of(path, root):
    parts = path.relative_to(root).parts
    return parts[1] if parts[0] == "src" and len(parts) > 2 else None


def includes(text):
    return re.findall(r'^#include [<"]([^>"]+)[>"]', text, re.MULTILINE)


def test_faults(path, text, root):
    """CTest runs the tests of every file, and one translation unit may be made of any of them."""
    if path.is_relative_to(root / "tests/unit"):  # whose CMakeLists.txt takes every test_*.cpp of each folder
        if path.parent.name not in [*MAY_INCLUDE, "support"] or path.parent.parent != root / "tests/unit":
            yield "it must lie in a folder of tests/unit that is named after the one of src that it tests"
        elif not re.search(rf"\b{path.parent.name}\b", (root / "tests/unit/CMakeLists.txt").read_text()):
            yield f"tests/unit/CMakeLists.txt does not name the folder {path.parent.name}"
    elif not re.search(rf"\b{path.stem}\b", (path.parent / "CMakeLists.txt").read_text()):
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
    if path.match("tests/*/test_*.cpp") or path.is_relative_to(root / "tests/unit"):
        yield from test_faults(path, text, root)
    folder = folder_of(path, root)
    if folder is None:
        return
    if not MAY_NAME_MODULES.search(str(path)):
        for number, line in enumerate(lines, 1):
            if NAMES_MODULE.search(line.split("//")[0]):
                yield f"line {number} names a module, which is its family's to name; ask the model for modules()"
    for header in includes(text):
        target = header.split("/")[0]
        if target in MAY_INCLUDE and target != folder and target not in MAY_INCLUDE[folder]:
            yield f"includes {header}; {folder} may include {', '.join(MAY_INCLUDE[folder])}"
        if header in WALLS and folder not in WALLS[header]:
            yield f"includes {header}, which only {', '.join(WALLS[header])} may"


def functions_by_folder(paths, pattern, root):
    found = {}
    for path in paths:
        text = UNNAMED_NAMESPACE.sub("", re.sub("//.*", "", path.read_text(encoding="utf-8")))
        for name in pattern.findall(text):
            found.setdefault(name, {}).setdefault(folder_of(path, root), path)
    return found


def definition_faults(sources, root):
    """A function that a low folder declares and a higher one defines would be an include backwards, unseen."""
    sources = [path for path in sources if folder_of(path, root)]
    defined = functions_by_folder([path for path in sources if path.suffix != ".hpp"], DEFINES, root)
    declared = functions_by_folder([path for path in sources if path.suffix == ".hpp"], DECLARES, root)
    assert len(declared.keys() & defined.keys()) > 500, "the functions were not found"
    for name, headers in declared.items():
        for folder, header in headers.items():
            if folder not in defined.get(name, {folder: None}):
                yield f"{header.relative_to(root)}: declares {name}, which {', '.join(defined[name])} defines"


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
    faults += definition_faults(sources, root)
    print("\n".join(faults))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
