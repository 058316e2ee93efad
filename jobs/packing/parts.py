# SPDX-License-Identifier: Apache-2.0
"""Packing in parts, each kept when it is whole, so that a packer that was killed goes on behind them.

A part is a data set of what became of so many entries, and beside it the tally of these and the place of
the next entry. In the end parts become one file, or are the files of a folder."""

import fcntl
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import h5py
from dataset_writer import sync
from packing.folder_index import NAME, write_index
from packing.report import Tally


def fingerprint(arguments, files):
    """Returns a fingerprint of everything that decides the result: options, and size and time of the files read."""
    options = {k: str(v) for k, v in sorted(vars(arguments).items()) if k not in ("processes", "sources")}
    folders = [Path(part["weights"]) for part in (arguments.composed or {}).values()] or [arguments.model]
    model = [path for folder in folders if folder for path in sorted(folder.glob("*.j*"))]
    read = [*files, *model, *(p for p in (arguments.tokenizer, arguments.chat_template) if p)]
    seen = [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in read if p.is_file()]
    return hashlib.sha256(json.dumps([options, seen]).encode()).hexdigest()


class Parts:
    def __init__(self, out, mark, date):
        self.out, self.folder = out, out.with_name(f"{out.name}.parts")
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "LOCK").exists() and any(self.folder.iterdir()):
            sys.exit(f"{self.folder} is not empty, and holds no parts of a packer; remove it, or name another --out")
        self.lock = open(self.folder / "LOCK", "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"{self.folder}: another packer is writing there")
        except OSError as error:  # some file systems have no locks
            print(f"{self.folder} has no locks ({error.strerror}): let no other packer write there", file=sys.stderr)
        state = self.folder / "state.json"
        found = json.loads(state.read_text()) if state.is_file() else {}
        if found.get("fingerprint") != mark:
            for path in self.folder.iterdir():
                if path.name != "LOCK":
                    path.unlink()
            found = {"fingerprint": mark, "date": date}
            write_json(state, found)
        self.date = found["date"]
        self.done = self._read_done()

    def _read_done(self):
        done = []
        while True:
            path = self.folder / f"{len(done):06}.json"
            if not path.is_file() or not path.with_suffix(".h5").is_file():
                return done
            done.append(json.loads(path.read_text()))

    @property
    def next(self):
        return tuple(self.done[-1]["next"]) if self.done else (0, 0)

    def tally(self):
        total = Tally()
        for part in self.done:
            total.join(part["tally"])
        return total

    def path(self, number=None):
        return self.folder / f"{len(self.done) if number is None else number:06}.h5"

    def commit(self, tally, following):
        """Behind the part's file, which is whole by then."""
        part = {"tally": tally.counts, "next": following}
        write_json(self.path().with_suffix(".json"), part)
        self.done.append(part)

    def files(self):
        """Returns the paths of parts with samples."""
        return [self.path(n) for n, part in enumerate(self.done) if part["tally"]["samples"]]

    def finish(self, make_writer):
        """To a file, or to a folder where the output has no ending .h5."""
        if self.out.suffix == ".h5":
            self._join(make_writer)
            self.remove()
            return
        kept = self.files()
        write_index(self.folder, kept)  # which takes its time: who is killed here goes on
        os.replace(self.folder, self.out)
        sync(self.out.parent)
        names = {path.name for path in kept} | {NAME}
        for path in self.out.iterdir():
            if path.name not in names:
                path.unlink()

    def _join(self, make_writer):
        files = self.files()
        if len(files) == 1:
            os.replace(files[0], self.out)
            return
        with make_writer(self.out) as writer:
            for path in files:
                with h5py.File(path) as file:
                    writer.append(file)

    def remove(self):
        shutil.rmtree(self.folder)
        self.lock.close()


def write_json(path, value):
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(json.dumps(value) + "\n", encoding="utf-8")
    sync(unfinished)
    os.replace(unfinished, path)
    sync(path.parent)
