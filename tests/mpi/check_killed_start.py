# SPDX-License-Identifier: Apache-2.0
"""A rank that is killed at any call by which it makes, sends or receives shared memory leaves nothing in /dev/shm.

usage: check_killed_start.py BENCH_COLLECTIVES MPIRUN...
Skipped (77) where strace is missing or may not trace.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from shared_memory_names import names_of

# Kills: the system call, which one of its calls, and a text that identifies it. The second sendmsg comes when the
# program allocates a buffer.
KILLS = [
    ("openat", 1, "O_TMPFILE"),
    ("fallocate", 1, "O_TMPFILE"),
    ("bind", 1, "zea-"),
    ("sendmsg", 1, "SCM_RIGHTS"),
    ("recvmsg", 1, ""),
    ("sendmsg", 2, "SCM_RIGHTS"),
]
NAMING = "link,linkat,symlink,symlinkat,rename,renameat,renameat2"


def run(mpirun, program, folder, options):
    """Returns what strace wrote of both ranks, of which the second is under `options`."""
    logs = [folder / "first", folder / "second"]
    ranks = []
    for log, extra in zip(logs, [["-e", f"trace={NAMING}"], options]):
        ranks += [":", "-n", "1", "strace", "-f", "-o", str(log), *extra, program]
    subprocess.run(
        # Without TCP, which binds sockets of its own.
        [*mpirun, "--mca", "btl", "self,vader", *ranks[1:]],
        input="all_reduce float32 1000000 node_allocated 3\n",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=120,
        check=False,
    )
    return [log.read_text() for log in logs]


def left_by(texts):
    return names_of({line.split()[0] for text in texts for line in text.splitlines()})


def check_no_names(mpirun, program, folder):
    first, second = run(mpirun, program, folder, ["-e", f"trace={NAMING},sendmsg"])
    assert "SCM_RIGHTS" in second, "the ranks send each other no memory: this test would see nothing"
    assert "/dev/shm" not in first + second, "a segment has a name"


def check_kill(mpirun, program, folder, call, when, sign):
    inject = f"inject={call}:signal=SIGKILL:when={when}"
    # Many files are opened: only those below /dev/shm count.
    where = ["-P", "/dev/shm"] if call == "openat" else []
    # The reservation is for the nameless file that was opened before.
    also = ",openat" if call == "fallocate" else ""
    texts = run(mpirun, program, folder, [*where, "-e", f"trace={call}{also},{NAMING}", "-e", inject])
    assert "killed by SIGKILL" in texts[1], f"not killed at {call} {when}"
    assert call in texts[1] and sign in texts[1], texts[1]
    left = left_by(texts)
    assert not left, f"killed at {call} {when}: left in /dev/shm: {left}"


def main():
    program, *mpirun = sys.argv[1:]
    if not shutil.which("strace") or subprocess.run(["strace", "true"], capture_output=True, check=False).returncode:
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="zea-test-") as folder:
        check_no_names(mpirun, program, Path(folder))
        for kill in KILLS:
            check_kill(mpirun, program, Path(folder), *kill)


main()
