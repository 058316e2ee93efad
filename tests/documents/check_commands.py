# SPDX-License-Identifier: Apache-2.0
"""Every command of the documents runs: those of blocks ```sh as command_table.py says, decks of blocks ```toml are
planned, Python of blocks ```python runs. No command may be missing from the table, and no row of it from the documents.

usage: check_commands.py ROOT BUILD CTEST [long] -- MPIRUN [OPTION ...]
ZEA_COMMANDS=<regex> chooses commands; ZEA_SHOW_COMMANDS=1 prints each with its seconds. Exit code 77 (skipped) where
Python packages or the pictures of Fashion-MNIST are missing.
"""

import importlib.util
import json
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zlib
from pathlib import Path

from command_table import DECKS, TABLE
from pages import commands_of, read_pages

OWN, MPIRUN = sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :]
MPIRUN[0] = shutil.which(MPIRUN[0])  # not the one before it in the path of commands
ROOT, BUILD, CTEST = Path(OWN[0]).resolve(), Path(OWN[1]).resolve(), OWN[2]
IS_LONG = OWN[3:] == ["long"]
PICTURES = Path("/usr/share/datasets/fashion-mnist")
LIMIT_SECONDS = 3600 if IS_LONG else 600
COPIED = ["inputs", "jobs", "postprocess", "tests/bench", "tests/style", "src", "include"]
PACKAGES = ["h5py", "numpy", "matplotlib", "tokenizers", "torch", "transformers"]


def png(seed):
    """A small picture of one colour."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = 28
    pixels = (b"\0" + bytes([seed * 40 % 256] * 3 * size)) * size
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


class Place:
    """A folder as the project's after the quickstart, but small; programs are those of the build."""

    def __init__(self, folder):
        self.folder = folder
        launchers = folder / "launchers"
        launchers.mkdir()
        mpirun = launchers / "mpirun"
        mpirun.write_text('#!/bin/sh\nexec {} "$@"\n'.format(" ".join(f"'{word}'" for word in MPIRUN)))
        mpirun.chmod(mpirun.stat().st_mode | stat.S_IXUSR)
        programs = [launchers, folder / "build/release/src", folder / "build/release/postprocess"]
        self.environment = {
            **os.environ,
            "PATH": ":".join([*map(str, programs), os.environ["PATH"]]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def fill(self):
        for name in COPIED:
            shutil.copytree(ROOT / name, self.folder / name)
        for name in ("CMakePresets.json", "CMakeLists.txt"):
            shutil.copy(ROOT / name, self.folder / name)
        shutil.copy(ROOT / "tests/run.sh", self.folder / "tests")
        (self.folder / ".venv").symlink_to(ROOT / ".venv")
        (self.folder / "build").mkdir()
        for preset in ("release", "ci"):
            (self.folder / "build" / preset).symlink_to(BUILD)
        self.make_run()
        self.make_gpt2()
        self.make_talks()

    def make_run(self):
        """The quickstart, small: data, weights, a run of 4 steps with checkpoints, what came of it."""
        small = "schedule.steps=4 optim.warmup_steps=1 checkpoint.every=2 checkpoint.keep=0 eval.samples=8 log.every=1"
        self.expect(f"BIN=build/release LIMIT=128 jobs/quickstart.sh {small}")

    def make_gpt2(self):
        """A Hugging Face directory, and a text."""
        text = "".join(path.read_text() for path in (ROOT / "src").rglob("*.hpp"))
        (self.folder / "notes.txt").write_text(text[:200_000])
        self.expect(".venv/bin/python jobs/pack_text.py notes.txt --train-bpe 512 --max-tokens 512 --out gpt2_text")
        config = json.loads((ROOT / "inputs/gpt2_124m.json").read_text())
        vocabulary = len(json.loads((self.folder / "gpt2_text/tokenizer.json").read_text())["model"]["vocab"])
        end = vocabulary - 1
        small = {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 512, "vocab_size": vocabulary}
        config |= small | {key: end for key in ("bos_token_id", "eos_token_id") if key in config}
        (self.folder / "gpt2_small.json").write_text(json.dumps(config))
        self.expect("zea-import --random gpt2_small.json gpt2_small.h5 && zea-consolidate gpt2_small.h5 gpt2/")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(self.folder / "gpt2_text" / name, self.folder / "gpt2")

    def make_talks(self):
        """Conversations with pictures."""
        (self.folder / "pictures").mkdir()
        talks = []
        for seed in range(4):
            (self.folder / f"pictures/{seed}.png").write_bytes(png(seed))
            turns = [("human", "<image> What is this?"), ("gpt", "A colour.")]
            talks.append(
                {
                    "id": str(seed),
                    "image": f"{seed}.png",
                    "conversations": [{"from": who, "value": what} for who, what in turns],
                }
            )
        (self.folder / "talks.json").write_text(json.dumps(talks))

    def run(self, command):
        """None, or what a command said that failed."""
        begin = time.monotonic()
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT_SECONDS,
            check=False,
        )
        if os.environ.get("ZEA_SHOW_COMMANDS"):
            print(f"{time.monotonic() - begin:6.1f} s  {command}", flush=True)
        return None if done.returncode == 0 else f"{command}\nends with {done.returncode}:\n{done.stdout[-3000:]}"

    def expect(self, command):
        fault = self.run(command)
        assert fault is None, fault


def blocks(language):
    return [(page, block) for page in read_pages(ROOT) for block in page.blocks if block.language == language]


def table_rows():
    """(page and line, command, way) of every command, once."""
    rows = {}
    for page, block in blocks("sh"):
        for command in commands_of(block):
            if command in TABLE:
                rows.setdefault(command, (f"{page.name}:{block.line}", command, TABLE[command](command)))
    return list(rows.values())


def names_of_tests():
    listed = subprocess.run([CTEST, "--test-dir", BUILD, "-N"], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in listed.splitlines() if line.lstrip().startswith("Test ")}


class Table(unittest.TestCase):
    def test_has_every_command_and_no_other(self):
        commands = {command for _, block in blocks("sh") for command in commands_of(block)}
        self.assertEqual(sorted(commands - TABLE.keys()), [], "commands of the documents that no row tests")
        self.assertEqual(sorted(TABLE.keys() - commands), [], "rows whose command no document has")

    def test_names_tests_that_exist(self):
        names = names_of_tests()
        for where, command, way in table_rows():
            self.assertTrue(way.quick or way.by, command)
            self.assertEqual([name for name in way.by if name not in names], [], f"{where}: {command}")

    def test_knows_every_block(self):
        languages = {block.language for page in read_pages(ROOT) for block in page.blocks}
        self.assertLessEqual(languages, {"sh", "toml", "python", "json", "text", "cmake", "cpp"})
        for _, block in blocks("json"):
            json.loads("\n".join(block.lines))


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="zea-documents-")
        cls.addClassCleanup(folder.cleanup)
        cls.place = Place(Path(folder.name))
        cls.place.fill()

    def test_1_they_run(self):
        """In the order of the pages: later ones use what earlier ones made."""
        for where, command, way in table_rows():
            if not re.search(os.environ.get("ZEA_COMMANDS", ""), command):
                continue
            for part in (IS_LONG and way.long) or way.quick:
                with self.subTest(where):
                    self.assertIsNone(self.place.run(part))

    def test_2_decks_are_planned(self):
        for page, block in blocks("toml"):
            with self.subTest(f"{page.name}:{block.line}"):
                way = DECKS[block.lines[0]]
                if isinstance(way, str):
                    self.assertIn(way, names_of_tests())
                    continue
                ranks, keys = way
                (self.place.folder / "block.toml").write_text("\n".join([*block.lines, ""]))
                self.assertIsNone(self.place.run(f"zea -n --ranks {ranks} -i block.toml {' '.join(keys)}"))

    def test_3_python_runs(self):
        for page, block in blocks("python"):
            with self.subTest(f"{page.name}:{block.line}"):
                (self.place.folder / "block.py").write_text("\n".join([*block.lines, ""]))
                self.assertIsNone(self.place.run(".venv/bin/python block.py"))


def missing():
    lacks = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if not PICTURES.is_dir():
        lacks.append(f"{PICTURES} (apt-get install dataset-fashion-mnist)")
    return lacks


if __name__ == "__main__":
    if missing():
        print(f"skipped: no {', '.join(missing())}")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
