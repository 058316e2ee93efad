# SPDX-License-Identifier: Apache-2.0
"""The common part of tests of the whole program: tiny weights and data, running zea under mpirun, and reading the files
of a run.

A script that imports this is started with the programs to use:
    check_x.py ZEA ZEA_IMPORT ZEA_CONSOLIDATE JOBS_FOLDER MPIRUN [MPIRUN_OPTION ...]
It ends with exit code 77 (skipped) where a Python package is missing. No run outlives its time
limit, nor the script.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

PROGRAMS = [Path(argument) for argument in sys.argv[1:5]]
ZEA, ZEA_IMPORT, ZEA_CONSOLIDATE, JOBS = PROGRAMS
ZEA_INSPECT = ZEA_CONSOLIDATE.with_name("zea-inspect")
MPIRUN = sys.argv[5:]
sys.path[:0] = [str(JOBS), *(str(Path(__file__).parents[2] / part) for part in ("tests/support", "postprocess"))]
from script_main import main  # noqa: E402, F401

try:
    import h5py
    import numpy as np
    from dataset_writer import DatasetWriter
    from read_checkpoint import Checkpoint
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

LIMIT = 240  # seconds, of a run that takes some: machines are slow, and do other things
IMAGE_TOKEN, FEATURES, VOCABULARY, IMAGE_SIZE = 3, 4, 40, 8
CONFIG = {
    "model_type": "llava",
    "image_token_index": IMAGE_TOKEN,
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
    "tie_word_embeddings": False,
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": IMAGE_SIZE,
        "patch_size": 4,
    },
    "text_config": {
        "model_type": "llama",
        "hidden_size": 24,
        "intermediate_size": 40,
        "vocab_size": VOCABULARY,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    },
}


def make_weights(path, seed=1):
    """A weights file of random numbers for CONFIG."""
    config = path.with_suffix(".json")
    config.write_text(json.dumps(CONFIG))
    subprocess.run(
        [ZEA_IMPORT, "--random", config, "--seed", str(seed), path], check=True, timeout=60
    )
    return path


def image_sample(seed, text_tokens=8):
    """Token ids, loss mask and items of a sample with one image."""
    draw = np.random.default_rng(seed)
    tokens = [1, *[IMAGE_TOKEN] * FEATURES, *draw.integers(4, VOCABULARY, text_tokens).tolist(), 2]
    pixels = draw.integers(0, 256, (IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
    return tokens, [0] * (1 + FEATURES) + [1] * (text_tokens + 1), [pixels]


def text_sample(seed, text_tokens=10, learnt=1):
    """A sample without an image; `learnt` 0: without a target."""
    draw = np.random.default_rng(seed)
    tokens = [1, *draw.integers(4, VOCABULARY, text_tokens).tolist(), 2]
    return tokens, [0, *[learnt] * (text_tokens + 1)], []


def make_dataset(path, samples, **names):
    """Where `names` say nothing else, the text of a token is its number."""
    texts = [f"{token} ".encode() for token in range(VOCABULARY)]
    with DatasetWriter(path, IMAGE_TOKEN, **{"token_bytes": texts, **names}) as writer:
        for sample in samples:
            writer.add(*sample)
    return path


def mixed_samples(count):
    """Samples of unequal lengths, every third without an image."""
    return [
        text_sample(i, 5 + i % 4) if i % 3 == 2 else image_sample(i, 4 + i % 5)
        for i in range(count)
    ]


def children_of(process):
    tasks = Path(f"/proc/{process}/task")
    with contextlib.suppress(OSError):
        return [int(c) for task in tasks.iterdir() for c in (task / "children").read_text().split()]
    return []


def is_stopped(process):
    """Returns whether all threads of a process have stopped: each first finishes its system call."""
    for thread in Path(f"/proc/{process}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            if thread.read_text().rpartition(")")[2].split()[0] not in "TZX":
                return False
    return True


def processes_of(directory):
    """Process ids of everything that has the run directory in its command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(directory) in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def end_with_parent(by=signal.SIGTERM):
    """So that a run ends when this script is killed, too."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, by)


class Run:
    """A run under way. `with start(...) as run:` kills what is left of it at the end."""

    def __init__(self, command, limit_seconds, directory=None):
        self.directory, self.deadline = directory, time.monotonic() + limit_seconds
        self.output_file = tempfile.TemporaryFile()
        self.command = [str(word) for word in command]
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=self.output_file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TERM": "xterm"},  # mpirun gives ranks a terminal; its own output is none
            preexec_fn=end_with_parent,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.output_file.close()

    def kill(self):
        """mpirun ends its ranks at SIGTERM; if it does not, this kills them."""
        if self.process.poll() is not None:
            return
        ranks = self.rank_processes()
        self.resume_ranks(ranks)
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        for process in [*ranks, self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()

    @property
    def output(self):
        """So far. The run writes where this file stands: it must not be moved while the run goes on."""
        file = self.output_file.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")

    def rank_processes(self):
        """Process ids of the ranks, in their order."""
        if self.command[0] == str(ZEA):
            return [self.process.pid]
        ranks = {}
        for child in children_of(self.process.pid):
            with contextlib.suppress(OSError):
                for entry in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                    if entry.startswith(b"OMPI_COMM_WORLD_RANK="):
                        ranks[int(entry.split(b"=")[1])] = child
        return [ranks[rank] for rank in sorted(ranks)]

    def pause_ranks(self):
        """So that a test has the time it needs."""
        ranks = self.rank_processes()
        for process in ranks:
            os.kill(process, signal.SIGSTOP)
        while not all(is_stopped(process) for process in ranks):
            time.sleep(0.001)

    def resume_ranks(self, ranks=None):
        for process in ranks or self.rank_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)

    def wait(self):
        """Exit code."""
        try:
            return self.process.wait(max(0.1, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the run did not end in time; it said:\n{self.output}") from None

    def wait_until(self, happened, what):
        while not happened():
            if self.process.poll() is not None:
                if happened():  # between the two looks
                    return
                raise AssertionError(f"the run ended before {what}; it said:\n{self.output}")
            if time.monotonic() > self.deadline:
                raise AssertionError(f"no {what} in time; the run said:\n{self.output}")
            time.sleep(0.002)

    def wait_for_step(self, step):
        self.wait_until(lambda: last_step(self.directory) >= step, f"step {step}")


def start(ranks, arguments, directory=None, limit_seconds=LIMIT):
    """One rank needs no mpirun."""
    launcher = [*MPIRUN, "-n", ranks] if ranks > 1 else []
    return Run([*launcher, ZEA, *arguments], limit_seconds, directory)


class Result:
    def __init__(self, code, output, directory):
        self.code, self.output, self.directory = code, output, directory

    def losses(self):
        return {line["step"]: line["loss"] for line in train_lines(self.directory)}


def run_zea(ranks, arguments, directory=None, limit_seconds=LIMIT):
    with start(ranks, arguments, directory, limit_seconds) as run:
        return Result(run.wait(), run.output, directory)


def answer(*arguments):
    """zea without mpirun."""
    with Run([ZEA, *arguments], LIMIT) as run:
        return Result(run.wait(), run.output, None)


def whole_lines(directory):
    """Returns the complete lines of metrics.jsonl; the last line may be in progress."""
    path = Path(directory) / "metrics.jsonl"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def metrics(directory):
    return [json.loads(line) for line in whole_lines(directory)]


def train_lines(directory):
    return [line for line in metrics(directory) if line["kind"] == "train"]


def last_step(directory):
    lines = (line for line in reversed(whole_lines(directory)) if '"train"' in line)
    return next((json.loads(line)["step"] for line in lines), 0)


def numbers_of_steps(directory):
    """Returns for every logged step the values that must not depend on time; a step that was run twice must agree."""
    keys = ("loss", "grad_norm", "lr", "targets", "bad_items", "skipped_steps")
    numbers = {}
    for line in train_lines(directory):
        found = [line[key] for key in keys]
        if numbers.setdefault(line["step"], found) != found:
            raise AssertionError(f"step {line['step']} was {numbers[line['step']]}, then {found}")
    return numbers


def checkpoints(directory):
    """Complete checkpoints, oldest first."""
    return sorted(
        path.parent for path in Path(directory).glob("checkpoints/step-*[0-9]/manifest.json")
    )


def predictions(directory):
    """Returns the predictions of a run's last evaluation, in the order of samples."""
    lines = (Path(directory) / "predictions.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def read_checkpoint(path):
    """Whole arrays by (tensor, state), as they are stored."""
    checkpoint = Checkpoint(path)
    stored = dict.fromkeys((piece["tensor"], piece["state"]) for piece in checkpoint.manifest["pieces"])
    return {key: checkpoint.read(*key) for key in stored}


def last_arrays(directory):
    """Returns the arrays of a run's newest checkpoint."""
    return read_checkpoint(checkpoints(directory)[-1])


def read_arrays(path):
    """All datasets of a weights file or of a model.h5."""
    arrays = {}
    with h5py.File(path, "r") as file:
        file.visititems(
            lambda name, entry: (
                arrays.update({name: entry[()]}) if isinstance(entry, h5py.Dataset) else None
            )
        )
    return arrays


def write_deck(folder, weights, train, **sections):
    """A deck of 4 samples per step in their order; `sections` are more lines of TOML by section."""
    tables = {
        "model": [f'weights = "{weights}"'],
        "data": [f'train = "{train}"', "row_tokens = 32", "shuffle = false"],
        "optim": ["lr = 0.005", "warmup_steps = 2"],
        "schedule": ["global_batch = 4"],
    }
    for section, lines in sections.items():
        tables.setdefault(section, []).extend(lines)
    deck = folder / "deck.toml"
    deck.write_text(
        "".join("\n".join([f"[{section}]", *lines, ""]) for section, lines in tables.items())
    )
    return deck


def write_inputs(folder, samples, **sections):
    """Weights, a data set, and a deck that names them, which is returned. With a section "eval" the data set is also
    evaluated."""
    weights = make_weights(folder / "weights.h5")
    train = make_dataset(folder / "train.h5", samples)
    if "eval" in sections:
        sections["data"] = [f'eval = "{train}"', *sections.get("data", [])]
    return write_deck(folder, weights, train, **sections)


def make_folder(add_cleanup):
    temporary = tempfile.TemporaryDirectory(prefix="zea-run-")
    add_cleanup(temporary.cleanup)
    return Path(temporary.name)


class ZeaTest(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        self.folder = make_folder(self.addCleanup)

    def assert_code(self, result, code):
        self.assertEqual(result.code, code, f"zea said:\n{result.output}")

    def run_in(self, directory, ranks, *arguments, code=0):
        """A run that ends with that code."""
        result = run_zea(ranks, [*arguments, "-d", directory], directory)
        self.assert_code(result, code)
        return result

    def assert_same_losses(self, losses, expected, delta):
        self.assertEqual(losses.keys(), expected.keys())
        for step, loss in losses.items():
            self.assertAlmostEqual(loss, expected[step], delta=delta, msg=f"step {step}")

    def assert_same_arrays(self, a, b):
        self.assertEqual(a.keys(), b.keys())
        for name in a:
            self.assertEqual(a[name].tobytes(), b[name].tobytes(), f"{name} differs")
