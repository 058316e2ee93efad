# SPDX-License-Identifier: Apache-2.0
"""Builds zea with every bug of bugs.py planted in it, and shows that each one is found. Without a bug every finder must
pass; with each bug in turn its finders must fail. Prints a table.

usage: run_bugs.py ROOT                                    checks that every bug still fits the sources of ROOT
       run_bugs.py ROOT TREE BUILD CMAKE CTEST MPIRUN...   copies ROOT to TREE, plants, builds into BUILD, and runs all
ZEA_BUGS: a regular expression of the bugs to run.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from bugs import BUGS

PAGE = "tests/planted/README.md"
COPIED = ["CMakeLists.txt", "CMakePresets.json", "README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md"]
FOLDERS = ["include", "inputs", "jobs", "postprocess", "src", "tests"]
PROGRAMS = ["zea", "zea_import", "zea_consolidate", "prepare_items", "unit_data", "mpi_axes", "mpi_engine", "mpi_optim",
            "unit_spec", "run_model", "extract_log_mel"]
CHOICE = "ZEA_PLANTED"
HEADER = f"""// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

namespace zea {{
/// Returns whether {CHOICE} names this bug.
inline bool planted(std::string_view bug) {{
  const char* const chosen = std::getenv("{CHOICE}");
  return chosen != nullptr && bug == chosen;
}}
}}  // namespace zea
"""
DONE, SICK, DIFFERENT = 0, 8, 9  # exit codes of zea


def planted_sources(root):
    """The files with bugs, by name: their texts with all of them. Fails where a text does not occur exactly once."""
    texts = {}
    for bug in BUGS:
        text = texts.get(bug.file) or (root / bug.file).read_text()
        found = text.count(bug.right)
        if found != 1:
            sys.exit(f"{bug.file}: bug {bug.name} replaces a text that occurs {found} times, not once:\n{bug.right}")
        texts[bug.file] = text.replace(bug.right, bug.planted())
    for name, text in texts.items():
        first, rest = text.split("\n", 1)
        texts[name] = f'{first}\n#include "core/planted.hpp"\n{rest}'
    return {**texts, "src/core/planted.hpp": HEADER}


def row_of(bug):
    """The row of a bug in the page's table, less its last column."""
    model, *overrides = bug.verify or ["-"]
    verify = ", ".join([model, *(f"`{word}`" for words in overrides for word in words.split())])
    return f"| {bug.says} | {verify} | `{bug.test[0]}` | {'yes' if bug.run else '-'} |"


def check_page(root):
    rows = re.findall(r"^(\|.*\|.*\|.*\|.*\|).*\|$", (root / PAGE).read_text(), re.MULTILINE)[2:]
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert rows == [row_of(bug) for bug in BUGS], f"{PAGE} has another table than bugs.py"


def write_if_other(path, text):
    if not path.exists() or path.read_bytes() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)


def plant(root, tree):
    """Copies the sources and plants the bugs. Files that are the same keep their times, for the next build."""
    planted = planted_sources(root)
    files = [root / name for name in COPIED] + [path for name in FOLDERS for path in (root / name).rglob("*")]
    for path in files:
        name = path.relative_to(root)
        if path.is_symlink() or not path.is_file() or "__pycache__" in name.parts or str(name) in planted:
            continue
        write_if_other(tree / name, path.read_bytes())
        shutil.copymode(path, tree / name)
    for name, text in planted.items():
        write_if_other(tree / name, text.encode())
    if not (tree / ".venv").exists() and (root / ".venv").exists():
        (tree / ".venv").symlink_to((root / ".venv").resolve())


def build(tree, folder, cmake):
    if not (folder / "CMakeCache.txt").exists():
        without_gpus = ["-DZEA_ENABLE_NCCL=OFF", "-DZEA_ENABLE_CUDA_KERNELS=OFF"]
        options = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DZEA_UNITY_BUILD=ON", *without_gpus]
        if root := os.environ.get("ZEA_TORCH_ROOT"):
            options.append(f"-DZEA_TORCH_ROOT={root}")
        subprocess.run([cmake, "-S", tree, "-B", folder, *options], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([cmake, "--build", folder, "--target", *PROGRAMS], check=True, stdout=subprocess.DEVNULL)


def open_runs(tree, folder, mpirun):
    """The module that runs zea, which takes its programs from the command line."""
    tools = [folder / "src/zea", folder / "postprocess/zea-import", folder / "postprocess/zea-consolidate"]
    sys.argv[1:] = map(str, [*tools, tree / "jobs", *mpirun])
    sys.path.insert(0, str(tree / "tests/run"))
    import zea_run

    return zea_run


def write_decks(runs, tree, folder):
    """Decks in fp64, by the name of their model."""
    llava = json.loads(json.dumps(runs.CONFIG))
    llava["tie_word_embeddings"] = llava["text_config"]["tie_word_embeddings"] = True
    texts = [runs.text_sample(i, 3 + 2 * (i % 5)) for i in range(12)]
    models = {"llava": (llava, runs.mixed_samples(12))}
    for name in ("qwen3_next", "glm4_moe"):
        models[name] = json.loads((tree / f"tests/fuzz/corpus/config/good_{name}.json").read_text()), texts
    decks = {}
    for name, (config, samples) in models.items():
        (folder / name).mkdir()
        with mock.patch.object(runs, "CONFIG", config):
            decks[name] = runs.write_inputs(folder / name, samples, precision=['preset = "fp64"'])
    return decks


class Finders:
    """A finder of bugs returns whether all is well, and what it said."""

    def __init__(self, runs, decks, folder, ctest):
        self.runs, self.decks, self.folder, self.ctest = runs, decks, folder, ctest

    def verify(self, model, *overrides):
        words = " ".join(overrides).split()
        result = self.runs.run_zea(4, ["--verify-layout", "-i", self.decks[model], *words])
        assert result.code in (DONE, DIFFERENT), f"zea --verify-layout {words}: {result.output}"
        first = re.search(r"^first difference: (.*)", result.output, re.MULTILINE)
        return result.code == DONE, first[1] if first else ""

    def run(self, model, *overrides):
        words = ["schedule.steps=3", *" ".join(overrides).split()]
        with tempfile.TemporaryDirectory(prefix="zea-planted-") as folder:
            directory = Path(folder) / "run"
            result = self.runs.run_zea(4, ["-i", self.decks[model], "-d", directory, *words])
        assert result.code in (DONE, SICK), f"zea {words}: {result.output}"
        first = re.search(r"copies of parameters differ: [^;]*", result.output)
        return result.code == DONE, first[0] if first else ""

    def test(self, name, tests):
        command = [self.ctest, "--test-dir", self.folder, "-R", f"^{name}$", "--output-on-failure"]
        chosen = {"GTEST_FILTER": tests} if tests else {}
        done = subprocess.run(command, env={**os.environ, **chosen}, capture_output=True, text=True)
        passed = "   Passed  " in done.stdout
        failed = re.search(r"\*\*\*(Failed|Timeout)", done.stdout) is not None  # ranks that differ may wait for ever
        assert passed != failed, f"{name} neither passed nor failed:\n{done.stdout}"
        return passed, ""


def timed(finder, *arguments):
    start = time.monotonic()
    is_well, said = finder(*arguments)
    return is_well, time.monotonic() - start, said


def run_all(finders, bugs):
    """The bugs that something missed."""
    for finder in (finders.verify, finders.test, finders.run):
        for arguments in dict.fromkeys(getattr(bug, finder.__name__) for bug in bugs):
            if not arguments:
                continue
            is_well, seconds, said = timed(finder, *arguments)
            assert is_well, f"without a bug {finder.__name__} finds one in {arguments}: {said}"
            print(f"no bug, {finder.__name__} {' '.join(arguments)}: {seconds:.1f} s", flush=True)
    missed = []
    for bug in bugs:
        os.environ[CHOICE] = bug.name
        columns = []
        for finder in (finders.verify, finders.test, finders.run):
            arguments = getattr(bug, finder.__name__)
            if not arguments:
                columns.append("-")
                continue
            is_well, seconds, said = timed(finder, *arguments)
            columns.append("missed" if is_well else f"{seconds:.1f} s")
            if said:
                print(f"{bug.name}: {said}", flush=True)
        print(row_of(bug), ", ".join(columns), "|", flush=True)
        if "missed" in columns:
            missed.append(bug.name)
    return missed


def main():
    root = Path(sys.argv[1]).resolve()
    planted_sources(root)
    check_page(root)
    if len(sys.argv) == 2:
        return
    tree, folder, (cmake, ctest, *mpirun) = Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve(), sys.argv[4:]
    plant(root, tree)
    build(tree, folder, cmake)
    runs = open_runs(tree, folder, mpirun)
    bugs = [bug for bug in BUGS if re.search(os.environ.get("ZEA_BUGS", ""), bug.name)]
    os.environ.pop(CHOICE, None)
    with tempfile.TemporaryDirectory(prefix="zea-planted-") as scratch:
        finders = Finders(runs, write_decks(runs, tree, Path(scratch)), folder, ctest)
        if missed := run_all(finders, bugs):
            sys.exit(f"not found: {', '.join(missed)}")
    print(f"{len(bugs)} of {len(bugs)} found")


main()
