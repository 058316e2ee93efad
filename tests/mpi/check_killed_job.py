# SPDX-License-Identifier: Apache-2.0
"""A job that is killed while its ranks share memory leaves nothing in /dev/shm.

usage: check_killed_job.py BENCH_COLLECTIVES MPIRUN...
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from shared_memory_names import names_of


def children(pid):
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def shares_memory(pid):
    """Its own and its peer's, which have no names."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sum("/dev/shm/#" in line and line.endswith("(deleted)") for line in maps) >= 2


def main():
    program, *mpirun = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="zea-test-") as folder:
        # Open MPI leaves files of its own where its mpirun is killed, too: elsewhere, to be removed.
        check([*mpirun, "--mca", "btl_vader_backing_directory", folder, "-n", "2", program])


def check(command):
    job = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    print("all_reduce float32 1000000 node_allocated 3", file=job.stdin, flush=True)
    assert float(job.stdout.readline()) > 0
    ranks = children(job.pid)
    assert len(ranks) == 2, ranks
    print("all_reduce float32 1000000 node_allocated 1000000", file=job.stdin, flush=True)
    end = time.monotonic() + 30
    while not all(shares_memory(rank) for rank in ranks):
        assert time.monotonic() < end, "the ranks share no memory: this test would see nothing"
        time.sleep(0.01)
    for pid in [*ranks, job.pid]:
        os.kill(pid, signal.SIGKILL)
    job.wait()
    left = names_of(ranks)
    assert not left, f"left in /dev/shm: {left}"


main()
