# SPDX-License-Identifier: Apache-2.0
"""Reads parameters and optimizer states of a checkpoint, whole or in part, from all shards. One file that needs only
h5py and numpy and may be copied. postprocess/README.md ("A checkpoint") describes the format.

usage: read_checkpoint.py CHECKPOINT                          the tensors, their shapes, types and states
       read_checkpoint.py CHECKPOINT NAME [--state STATE] [--box 0:4,:] [--out FILE.npy]

    from read_checkpoint import Checkpoint
    checkpoint = Checkpoint("runs/x")                         # or one of its checkpoints/step-NNNNNNNN
    checkpoint.step, checkpoint.names(), checkpoint.states(name)
    checkpoint.read(name)                                     # the parameter
    checkpoint.read(name, "exp_avg", np.s_[0:4, :])           # a box of an optimizer state

CHECKPOINT is a checkpoint, or a run, whose newest checkpoint is read. Values have the stored type, but bfloat16 is
returned as float32. 8-bit moments of adamw_8bit are decoded: "exp_avg" and "exp_avg_sq" are floats with every
optimizer; "exp_avg_codes" and "exp_avg_scales" are the stored values. Hashes are not checked (zea-inspect --check
does).
"""

import argparse
import json
import sys
from pathlib import Path

import h5py
import numpy as np

PARAMETER = "parameter"
DTYPES = {"bfloat16": "float32"}  # numpy has none


def find_checkpoint(path):
    """`path` itself where it is a checkpoint, else the newest complete one of the run."""
    path = Path(path)
    if (path / "manifest.json").is_file():
        return path
    for folder in (path / "checkpoints", path):
        found = [entry.parent for entry in folder.glob("step-*/manifest.json") if entry.parent.name[5:].isdigit()]
        if found:
            return max(found, key=lambda checkpoint: int(checkpoint.name[5:]))
    raise FileNotFoundError(f"{path}: holds no complete checkpoint (a directory step-NNNNNNNN with manifest.json)")


def dynamic_codes(is_signed):
    """The parts of a scale that the 256 codes of adamw_8bit stand for, ascending."""
    codes = [0.0, 1.0]
    for decade in range(7):
        parts = (1 if is_signed else 2) << decade
        middles = (0.1 + 0.9 * (np.arange(parts) + 0.5) / parts) * 10.0 ** (decade - 6)
        codes += [*middles, *(-middles if is_signed else [])]
    return np.sort(codes)


class Checkpoint:
    """A complete checkpoint."""

    def __init__(self, path):
        self.path = find_checkpoint(path)
        self.manifest = json.loads((self.path / "manifest.json").read_text(encoding="utf-8"))
        if self.manifest["format"] != "zea.checkpoint" or self.manifest["version"] not in ("1", "2"):
            raise ValueError(f"{self.path}: format {self.manifest['format']}, version {self.manifest['version']}")
        self.step = self.manifest["position"]["step"]
        self.config = json.loads(self.manifest["config"])
        self._shapes = {tensor["name"]: tuple(tensor["shape"]) for tensor in self.manifest["tensors"]}
        self._pieces = {}
        for piece in self.manifest["pieces"]:
            self._pieces.setdefault((piece["tensor"], piece["state"]), []).append(piece)

    def names(self):
        return list(self._shapes)

    def states(self, name):
        """Returns the states of a parameter that read() knows: "parameter", then its optimizer's states."""
        stored = [state for tensor, state in self._pieces if tensor == name]
        decoded = {state.removesuffix("_codes") for state in stored if state.endswith("_codes")}
        return stored + sorted(decoded)

    def shape(self, name, state=PARAMETER):
        """Returns the parameter's shape; for scales, with one for so many elements of the last dim."""
        each, shape = self._pieces_of(name, state)[0].get("elements_of_each", 1), self._shapes[name]
        return shape if each == 1 else (*shape[:-1], shape[-1] // each)

    def dtype(self, name, state=PARAMETER):
        """The type in which it is stored, as a name."""
        return self._pieces_of(name, state)[0]["dtype"]

    def read(self, name, state=PARAMETER, box=None):
        """A numpy array of a whole state, or of the box that slices of step 1 (and indices) cut out of it."""
        if (name, state) not in self._pieces and (name, f"{state}_codes") in self._pieces:
            return self._decoded(name, state)[() if box is None else box]
        shape, dtype = self.shape(name, state), self.dtype(name, state)
        begin, end, dropped = _box_of(shape, box)
        found = np.empty([b - a for a, b in zip(begin, end)], DTYPES.get(dtype, dtype))
        filled = 0
        for piece in self._pieces_of(name, state):
            first = [max(a, o) for a, o in zip(begin, piece["offset"])]
            last = [min(b, o + n) for b, o, n in zip(end, piece["offset"], piece["length"])]
            if any(a >= b for a, b in zip(first, last)):
                continue
            source = tuple(slice(a - o, b - o) for a, b, o in zip(first, last, piece["offset"]))
            target = tuple(slice(a - o, b - o) for a, b, o in zip(first, last, begin))
            with h5py.File(self.path / piece["file"], "r", locking=False) as file:
                found[target] = file[piece["dataset"]][source]
            filled += int(np.prod([b - a for a, b in zip(first, last)]))
        if filled != found.size:
            raise ValueError(f"{self.path}: pieces of {name} ({state}) hold {filled} of {found.size} elements")
        return found.reshape([n for n, is_dropped in zip(found.shape, dropped) if not is_dropped])

    def _pieces_of(self, name, state):
        if name not in self._shapes:
            raise KeyError(f"{self.path} has no tensor {name}")
        if (name, state) in self._pieces:
            return self._pieces[name, state]
        if (name, f"{state}_codes") in self._pieces:
            return self._pieces[name, f"{state}_codes"]
        raise KeyError(f"{self.path}: {name} has no {state}; it has {', '.join(self.states(name))}")

    def _decoded(self, name, state):
        codes, scales = self.read(name, f"{state}_codes"), self.read(name, f"{state}_scales")
        parts = dynamic_codes(is_signed=state == "exp_avg").astype(scales.dtype)[codes]
        return parts * np.repeat(scales, codes.shape[-1] // scales.shape[-1], axis=-1)


def _box_of(shape, box):
    """Where a box begins and ends in each dim, and which dims an index drops."""
    entries = () if box is None else box if isinstance(box, tuple) else (box,)
    if len(entries) > len(shape):
        raise IndexError(f"{len(entries)} slices for {len(shape)} dims")
    begin, end, dropped = [], [], []
    for length, entry in zip(shape, (*entries, *[slice(None)] * (len(shape) - len(entries)))):
        is_index = not isinstance(entry, slice)
        if is_index and not -length <= entry < length:
            raise IndexError(f"index {entry} of a dim of {length}")
        first, last, step = (entry % length, entry % length + 1, 1) if is_index else entry.indices(length)
        if step != 1:
            raise IndexError("slices of a box have step 1")
        begin.append(first)
        end.append(max(first, last))
        dropped.append(is_index)
    return begin, end, dropped


def parse_box(text):
    """ "0:4,:" as slices."""

    def number(part):
        return int(part) if part.strip() else None

    return tuple(
        slice(*map(number, entry.split(":"))) if ":" in entry else int(entry) for entry in text.split(",")
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a checkpoint, or a run with checkpoints")
    parser.add_argument("name", metavar="NAME", nargs="?", help="a tensor; without it, all are listed")
    parser.add_argument("--state", default=PARAMETER, help="exp_avg, momentum_buffer, ... (default: the parameter)")
    parser.add_argument("--box", type=parse_box, help="slices of it, as numpy writes them: 0:4,:")
    parser.add_argument("--out", help="write the array to this file (.npy) instead of printing it")
    arguments = parser.parse_args()
    try:
        checkpoint = Checkpoint(arguments.checkpoint)
        if arguments.name is None:
            print(f"{checkpoint.path}: step {checkpoint.step}, {checkpoint.manifest['mesh']}")
            for name in checkpoint.names():
                print(name, list(checkpoint.shape(name)), checkpoint.dtype(name), *checkpoint.states(name)[1:])
            return
        values = checkpoint.read(arguments.name, arguments.state, arguments.box)
        if arguments.out:
            np.save(arguments.out, values)
        else:
            print(values)
    except (OSError, ValueError, LookupError) as fault:
        sys.exit(f"read_checkpoint.py: {fault.args[0] if isinstance(fault, KeyError) else fault}")


if __name__ == "__main__":
    main()
