# SPDX-License-Identifier: Apache-2.0
"""How fast zea-consolidate is beside a plain copy of the same bytes, and how much memory it takes.

usage: bench_consolidate.py MAKE_CHECKPOINT ZEA_CONSOLIDATE [--folder DIR] [--mib 4096] [--ranks 8]
       [--rounds 3] [--memory 256MiB] [--moments] [--dcp] [--least-rate 0.8] [--most-resident 400]

Makes a checkpoint of random tensors in a folder of its own below DIR (three times its size must be
free), then takes turns: cp and sync of its files, and every kind of target. Prints seconds, the
rate, the rate as a part of cp's, and the peak of resident memory: medians over the rounds, and the
largest peak. With --least-rate or --most-resident what misses them makes the exit code 1. With
--dcp the same bytes go through torch.distributed.checkpoint.dcp_to_torch_save once, for comparison.
"""

import argparse
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DCP_SAVE = """
import sys, torch, torch.distributed.checkpoint as dcp
count = int(sys.argv[2]) // 16
dcp.save({f"t{i}": torch.rand(4 << 20) for i in range(count)}, checkpoint_id=sys.argv[1])
"""
DCP_CONSOLIDATE = """
import sys
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
dcp_to_torch_save(sys.argv[1], sys.argv[2])
"""


def sync_all(path):
    """Waits until a file, or the files of a directory, are on the disk."""
    for file in [path] if path.is_file() else sorted(path.iterdir()):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def measure(command, target):
    """Seconds until the target is on the disk, and the peak of resident memory in MiB."""
    begin = time.monotonic()
    process = subprocess.Popen([str(word) for word in command])
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{command} failed with status {status}")
    sync_all(target)
    return time.monotonic() - begin, usage.ru_maxrss / 1024


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def cases(arguments, source, folder):
    """Name, command and target of everything that is measured; the copy comes first."""
    yield "cp and sync", ["cp", "-r", source, folder / "copy"], folder / "copy"
    tool = [arguments.zea_consolidate, "--memory", arguments.memory]
    state = ["--optimizer"] if arguments.moments else []
    yield "one weights file", [*tool, *state, source, folder / "out.h5"], folder / "out.h5"
    yield "3 shards", [*tool, "--ranks", "3", source, folder / "out-3"], folder / "out-3"
    if arguments.moments:
        return  # others have no place for them
    single, directory = folder / "out.safetensors", folder / "out-hf"
    yield "one safetensors", [*tool, source, single], single
    several = ["--max-shard-size", "1GB"]
    yield "directory of 1GB files", [*tool, *several, source, f"{directory}/"], directory


def bench(arguments, folder):
    """Whether all kept to the limits."""
    source = folder / "checkpoint"
    moments = ["moments"] if arguments.moments else []
    make = [arguments.make_checkpoint, source, arguments.mib, arguments.ranks, *moments]
    subprocess.run([str(word) for word in make], check=True)
    sync_all(source)
    mib = sum(file.stat().st_size for file in source.iterdir()) / 2**20
    found = {}
    for _ in range(arguments.rounds):
        for name, command, target in cases(arguments, source, folder):
            found.setdefault(name, []).append(measure(command, target))
            remove(target)
            os.sync()
    seconds = {name: statistics.median(run[0] for run in runs) for name, runs in found.items()}
    good = True
    for name, runs in found.items():
        rate, resident = seconds["cp and sync"] / seconds[name], max(run[1] for run in runs)
        kept = rate >= arguments.least_rate and resident <= arguments.most_resident
        good = good and kept
        print(
            f"{name:24} {seconds[name]:7.2f} s {mib / seconds[name]:7.0f} MiB/s "
            f"{rate:6.2f} of cp {resident:6.0f} MiB resident{'' if kept else '  too bad'}"
        )
    return good


def bench_dcp(arguments, folder):
    source, target = folder / "dcp", folder / "dcp.pt"
    python = [sys.executable, "-c"]
    subprocess.run([*python, DCP_SAVE, source, str(arguments.mib)], check=True)
    sync_all(source)
    seconds, resident = measure([*python, DCP_CONSOLIDATE, source, target], target)
    print(
        f"{'dcp_to_torch_save':24} {seconds:7.2f} s {arguments.mib / seconds:7.0f} MiB/s "
        f"{'':12} {resident:6.0f} MiB resident"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("make_checkpoint", type=Path, help="the program of that name")
    parser.add_argument("zea_consolidate", type=Path, help="the program of that name")
    parser.add_argument("--folder", type=Path, help="where to make a folder (default: /tmp's)")
    parser.add_argument("--mib", type=int, default=4096, help="size of the checkpoint")
    parser.add_argument("--ranks", type=int, default=8, help="its number of shard files")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="256MiB", help="that zea-consolidate may use")
    parser.add_argument("--moments", action="store_true", help="optimizer state in the checkpoint")
    parser.add_argument("--dcp", action="store_true", help="compare with torch's own tool")
    parser.add_argument("--least-rate", type=float, default=0, help="as a part of cp's")
    parser.add_argument("--most-resident", type=float, default=math.inf, help="MiB")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zea-bench-", dir=arguments.folder) as folder:
        good = bench(arguments, Path(folder))
        if arguments.dcp:
            bench_dcp(arguments, Path(folder))
    sys.exit(not good)


if __name__ == "__main__":
    main()
