# SPDX-License-Identifier: Apache-2.0
"""The machine: zea's programs and GPUs, and running a program with a time limit."""

import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]


@dataclass
class Outcome:
    command: str
    code: int  # 124: it was ended at its time limit
    output: str
    seconds: float

    @property
    def ok(self):
        return self.code == 0

    def tail(self, lines=12):
        return "\n".join(self.output.strip().splitlines()[-lines:])


def run(command, seconds, env=None, cwd=None):
    """Never raises: what a program does wrong is a finding. Its processes end with it."""
    words = [str(word) for word in command]
    start = time.monotonic()
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **(env or {})},
        cwd=cwd,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        code = process.returncode
    except subprocess.TimeoutExpired:
        output, code = end(process), 124
    return Outcome(" ".join(words), code, output, time.monotonic() - start)


def end(process):
    """Returns its output. mpirun ends the ranks that it started, which are not of its process group, if it may."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.communicate(timeout=10)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


class Tree:
    """Programs of a build folder, or of a tree that was packed."""

    def __init__(self, folder):
        self.folder = folder.resolve()
        self.is_build = (self.folder / "src/zea").is_file()
        if not self.is_build and not (self.folder / "bin/zea").is_file():
            raise SystemExit(f"first_run: {folder} is neither a build folder (src/zea) nor a packed tree (bin/zea)")

    @property
    def zea(self):
        return self.folder / ("src/zea" if self.is_build else "bin/zea")

    def tool(self, name):
        return self.folder / ("postprocess" if self.is_build else "bin") / name

    def test(self, name):
        return self.folder / ("tests/gpu" if self.is_build else "libexec/zea/tests") / name

    def environment(self):
        """For tests of a packed tree, which has a script to find libtorch for zea alone."""
        if self.is_build:
            return {}
        place = re.search(r"libtorch: \S+ in ([^;]*);", run([self.zea, "-c"], 120).output)
        if not place:
            return {}
        torch = Path(os.environ.get("ZEA_TORCH_ROOT") or place[1])  # which tells where it was built
        found = [torch / "lib", *sorted(torch.parent.glob("nvidia/*/lib")), os.environ.get("LD_LIBRARY_PATH", "")]
        return {"LD_LIBRARY_PATH": ":".join(map(str, filter(None, found)))}


def default_tree():
    packed = (PROJECT / "../..").resolve()
    return packed if (packed / "bin/zea").is_file() else PROJECT / "build/ci"


def launcher_of(tree):
    """mpirun of the machine, or of the tree where that is not Open MPI's, for ranks that may be more than cores."""
    packed = tree.folder / "bin/zea-mpirun"
    has_its_own = shutil.which("mpirun") and re.search("Open ?(MPI|RTE)", run(["mpirun", "--version"], 60).output)
    launcher = packed if packed.exists() and not has_its_own else "mpirun"
    return [launcher, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


def query_gpus(what):
    """Lines of nvidia-smi's answer, each split at commas; none without it."""
    if not shutil.which("nvidia-smi"):
        return []
    asked = run(["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"], 30)
    return [[cell.strip() for cell in line.split(",")] for line in asked.output.splitlines()] if asked.ok else []
