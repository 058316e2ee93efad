# SPDX-License-Identifier: Apache-2.0
"""How fast checkpoints are written and read, against dd past the kernel's buffers on the same disk,
taking turns.

    bench_checkpoint.py BENCH_CHECKPOINT [--mib N] [--directory D] [--rounds N] [--least-write R]
                        [--least-read R] -- MPIRUN [OPTION ...]

Ends with 1 where the median rate of a save, from the request to the manifest's final name, or of
loading on as many ranks, is less than that share of dd's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANKS = 2


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", default=None, help="on the disk to measure")
    parser.add_argument("--least-write", type=float, default=0)
    parser.add_argument("--least-read", type=float, default=0)
    parser.add_argument("mpirun", nargs="+")
    return parser.parse_args()


def forget(directory):
    """Drops a directory's files from the kernel's buffers."""
    for path in Path(directory).rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bench(mpirun, program, ranks, *arguments):
    command = [*mpirun, "-n", str(ranks), program, *map(str, arguments)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def dd(mib, *arguments):
    """MiB/s."""
    begin = time.monotonic()
    subprocess.run(
        ["dd", "bs=16M", f"count={mib // 16}", *arguments], check=True, capture_output=True
    )
    return mib / (time.monotonic() - begin)


def main():
    asked = options()
    rates = {name: [] for name in ("dd write", "save", "dd read", "load")}
    with tempfile.TemporaryDirectory(dir=asked.directory, prefix="zea-bench-") as name:
        folder = Path(name)
        plain = folder / "plain"
        for _ in range(asked.rounds):
            plain.unlink(missing_ok=True)
            rates["dd write"].append(
                dd(asked.mib, "if=/dev/zero", f"of={plain}", "oflag=direct", "conv=fsync")
            )
            saves = bench(asked.mpirun, asked.program, RANKS, "save", folder / "c", asked.mib)
            rates["save"] += [save["mib"] / save["seconds"] for save in saves]
            forget(folder)
            rates["dd read"].append(dd(asked.mib, f"if={plain}", "of=/dev/null", "iflag=direct"))
            checkpoint = saves[-1]["path"]
            load = bench(asked.mpirun, asked.program, RANKS, "load", checkpoint)[0]
            rates["load"].append(saves[-1]["mib"] / load["seconds"])
            subprocess.run(["rm", "-r", str(folder / "c")], check=True)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    for name, found in rates.items():
        print(f"{name:9} MiB/s: median {medians[name]:6.0f} of {[round(rate) for rate in found]}")
    write = medians["save"] / medians["dd write"]
    read = medians["load"] / medians["dd read"]
    print(f"save / dd {write:.2f}, load / dd {read:.2f}")
    sys.exit(write < asked.least_write or read < asked.least_read)


if __name__ == "__main__":
    main()
