# SPDX-License-Identifier: Apache-2.0
"""The setting of every part, and how a part runs zea."""

import json
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from machine import Outcome, Tree, run

# Small steps of a small model: the comparison is of numbers, not of time.
STEPS, BATCH = 6, 16


class TimeIsUp(Exception):
    """A part has had its share of the time; says what it was at."""


@dataclass
class Setting:
    tree: Tree
    device: str  # cuda, or cpu to try the script itself
    gpus: int  # ranks that have one each
    folder: Path  # for what is made on the way
    mpirun: list
    quick: bool
    end: float  # of the time that is left for what is done now, on the monotonic clock

    @contextmanager
    def within(self, seconds):
        """Limits its body to so many seconds of the remaining time."""
        end = self.end
        self.end = min(end, time.monotonic() + seconds)
        try:
            yield
        finally:
            self.end = end

    def left(self):
        return self.end - time.monotonic()

    def is_over(self):
        return time.monotonic() > self.end - 5

    def run(self, command, seconds, env=None):
        """Raises TimeIsUp in place of a program's end by a limit that it was not to have."""
        limit = min(seconds, self.left())
        found = run(command, limit, env=env) if limit > 0 else None
        if not found or (found.code == 124 and limit < seconds):
            raise TimeIsUp(" ".join(map(str, command[:6])) + (f" ...:\n{found.tail()}" if found else " ..."))
        return found

    def on_ranks(self, ranks, program, *arguments, seconds, env=None):
        command = [*self.mpirun, "-n", ranks, program, *arguments]
        return self.run(command, seconds, {"OMP_NUM_THREADS": "1", **self.tree.environment(), **(env or {})})

    def precisions(self):
        return ("fp32",) if self.quick else ("fp32", "bf16")

    def rank_counts(self):
        """One rank, as many as there are GPUs, and several on one GPU."""
        return sorted({1, self.gpus, 2})


@dataclass
class Training:
    """A run of zea that has ended, well or not."""

    outcome: Outcome
    folder: Path

    @property
    def ok(self):
        return self.outcome.ok

    def lines(self, kind="train"):
        path = self.folder / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        return [line for line in lines if line["kind"] == kind]

    def numbers(self):
        """(loss, norm of the gradient) of each step."""
        return [(line["loss"], line["grad_norm"]) for line in self.lines()]

    def log(self):
        path = self.folder / "log.txt"
        return path.read_text() if path.is_file() else ""

    def checkpoint(self, step):
        return self.folder / "checkpoints" / f"step-{step:08d}"


def train(setting, name, deck, ranks, *overrides, device=None, seconds=240, resumed=None, env=None, program=None):
    """Runs `deck`, or goes on from the checkpoint `resumed`, in a folder of its own; `program`: one that starts zea."""
    folder = setting.folder / "runs" / name
    folder.parent.mkdir(exist_ok=True)
    device = device or setting.device
    source = ["-r", resumed] if resumed else ["-i", deck]
    keys = [*overrides, f"run.device={device}", "run.watchdog_seconds=120"]
    if device == "cuda" and ranks > setting.gpus:
        keys.append(f"run.ranks_per_gpu={-(-ranks // setting.gpus)}")
    program, arguments = program or setting.tree.zea, [*source, "-d", folder, *keys]
    outcome = setting.on_ranks(ranks, program, *arguments, seconds=seconds, env=env)
    return Training(outcome, folder)


def write_deck(folder, model, data, row_tokens, batch=BATCH, steps=STEPS, more=""):
    """`model`: lines of the section; `more`: further sections."""
    (folder / "deck.toml").write_text(
        f"[model]\n{model}\n[data]\ntrain = \"{data}\"\nrow_tokens = {row_tokens}\nshuffle = false\n"
        f"[schedule]\nsteps = {steps}\nglobal_batch = {batch}\n"
        f'[optim]\nlr = 1e-3\ndecay = "constant"\n[log]\nevery = 1\n'
        f"[checkpoint]\nat_end = false\n{more}"
    )
    return folder / "deck.toml"
