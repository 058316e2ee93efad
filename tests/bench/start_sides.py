# SPDX-License-Identifier: Apache-2.0
"""How benchmarks start their two sides, one thread to a rank: zea's bench_step, and a script of PyTorch's."""

import argparse
import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path


def bench_parser(description, rounds, steps, steps_help="timed steps of each variant in a round"):
    """Returns a parser with the options that all comparisons have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="build folder")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--steps", type=int, default=steps, help=steps_help)
    parser.add_argument("--mpirun", default="mpirun --allow-run-as-root --oversubscribe --bind-to none")
    return parser


def environment(**more):
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **more}


def call(command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment())
    if done.returncode:
        raise SystemExit(f"{command}: {done.returncode}: {done.stderr}{done.stdout}")
    return done.stdout


def run_zea(mpirun, build, folder, ranks, steps, variants):
    program = [build / "tests/bench/bench_step", folder / "deck.toml", steps, *variants]
    return json.loads(call([*shlex.split(mpirun), "-n", ranks, *program]).splitlines()[-1])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def run_peer(script, folder, ranks, steps, variants):
    port, started = free_port(), []
    for rank in range(ranks):
        where = environment(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        command = [sys.executable, Path(__file__).with_name(script), folder / "peer.json", steps, *variants]
        started.append(
            subprocess.Popen([*map(str, command)], env=where, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        )
    answers = [rank.communicate() for rank in started]
    if any(rank.returncode for rank in started):
        raise SystemExit("\n".join(error for _, error in answers))
    return json.loads(answers[0][0].splitlines()[-1])
