# SPDX-License-Identifier: Apache-2.0
"""Two programs that train, each started once, that take turns of a few steps: one is idle while the other computes.

So a compiler's work is paid once, a machine that grows slow slows both alike, and neither has the other's threads
beside it. Both read lines "NUMBER-OF-THE-VARIANT STEPS", each rank from its own pipe, and answer with a line of JSON.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from start_sides import free_port

HERE = Path(__file__).resolve().parent


def environment(threads, **more):
    """Returns the environment of both sides: ranks of one thread do not spin while they wait; several threads do as
    OpenMP likes."""
    passive = {"OMP_WAIT_POLICY": "passive"} if threads == 1 else {}
    return {**os.environ, "OMP_NUM_THREADS": str(threads), **passive, **more}


class Side:
    """The processes of one side. `self.orders`: files to write to, one for every rank; `self.answers`: of rank 0."""

    def __init__(self, name, folder):
        self.name, self.processes, self.orders, self.answers = name, [], [], None
        self.complaints = (folder / f"{name}.err").open("w+")

    def start(self, command, **how):
        command = [*map(str, command)]
        self.processes.append(subprocess.Popen(command, text=True, stderr=self.complaints, **how))
        return self.processes[-1]

    def turn(self, variant, steps):
        """{"seconds": [...], "losses": [...]} of the next steps of a variant, which is a number."""
        self.ask(variant, steps)
        return self.answer()

    def ask(self, variant, steps):
        for order in self.orders:
            order.write(f"{variant} {steps}\n")
            order.flush()

    def answer(self):
        line = self.answers.readline()
        if not line:
            self.close()
            self.complaints.seek(0)
            raise SystemExit(f"{self.name} ended before its turn did:\n{self.complaints.read()[-4000:]}")
        return json.loads(line)

    def close(self):
        for order in self.orders:
            order.close()
        for process in self.processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def start_zea(build, mpirun, folder, ranks, threads, variants):
    """bench_step: every rank reads from a FIFO of its own, as mpirun's standard input reaches rank 0 only."""
    side = Side("zea", folder)
    for rank in range(ranks):
        path = folder / f"turns.{rank}"
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        side.orders.append(os.fdopen(os.open(path, os.O_RDWR), "w"))  # for reading, too: so it opens at once
    program = [build / "tests/bench/bench_step", folder / "deck.toml", f"turns:{folder}", *variants]
    command = [*shlex.split(mpirun), "-n", ranks, *program, f"run.threads={threads}"]
    started = side.start(command, env=environment(threads), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    side.answers = started.stdout
    return side


def start_peer(folder, ranks, threads, variants):
    peer = json.loads((folder / "peer.json").read_text())
    (folder / "peer.json").write_text(json.dumps(peer | {"threads": threads}))
    side, port = Side("peer", folder), free_port()
    for rank in range(ranks):
        where = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        where |= {"TORCHINDUCTOR_COMPILE_THREADS": str(threads)}
        where |= {"TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(folder / "compiled"))}
        started = side.start(
            [sys.executable, "-B", HERE / "peer_training.py", folder / "peer.json", *variants],
            env=environment(threads, **where),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        side.orders.append(started.stdin)
        side.answers = side.answers or started.stdout
    return side
