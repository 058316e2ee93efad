# SPDX-License-Identifier: Apache-2.0
"""Prints how long collectives of two ranks take: gloo's, MPI's, zea's over MPI, and zea's in shared memory.

All take turns within a round, so that a machine that is busy slows them alike; where there are enough cores every
rank is bound to one. A time is the median over rounds (and the minimum); a ratio is how many times faster than gloo
and MPI the last two are, by medians.

usage: bench_collectives.py PROGRAM [--rounds 7] [--ranks 2] [--without-gloo] [--mpirun "mpirun --oversubscribe"]
"""

import argparse
import multiprocessing
import os
import shlex
import statistics
import subprocess
import time

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
SIZES = (4 << 10, 25 << 20)
CALLS = {4 << 10: 5000, 25 << 20: 8}
GLOO_CALLS = {4 << 10: 50, 25 << 20: 5}
WAYS = ("gloo", "MPI", "mpi", "node", "node_allocated")
TITLES = ("torch gloo", "raw MPI", "zea over MPI", "zea shared", "zea in place")


def gloo_rank(rank, ranks, port, orders, answers):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if ranks <= os.cpu_count():
        os.sched_setaffinity(0, {rank})
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    while order := orders.get():
        collective, dtype, size, calls = order
        dtype = getattr(torch, dtype)
        whole = torch.zeros(size // dtype.itemsize, dtype=dtype)
        part = torch.zeros(len(whole) // ranks, dtype=dtype)
        other = torch.zeros_like(whole)
        call = {
            "all_reduce": lambda: dist.all_reduce(whole),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
            "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
            "all_to_all": lambda: dist.all_to_all_single(other, whole),
        }[collective]
        try:
            call()
            dist.barrier()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            answers.put((time.perf_counter() - start) / calls)
        except RuntimeError:  # gloo does not have every collective for every type
            answers.put(None)


class Gloo:
    def __init__(self, ranks):
        context = multiprocessing.get_context("spawn")
        self.orders = [context.SimpleQueue() for _ in range(ranks)]
        self.answers = [context.SimpleQueue() for _ in range(ranks)]
        port = 20000 + os.getpid() % 20000
        self.processes = [
            context.Process(target=gloo_rank, args=(r, ranks, port, self.orders[r], self.answers[r]))
            for r in range(ranks)
        ]
        for process in self.processes:
            process.start()

    def time(self, collective, dtype, size, way):
        for queue in self.orders:
            queue.put((collective, dtype, size, GLOO_CALLS[size]))
        times = [queue.get() for queue in self.answers]
        return None if None in times else max(times)

    def end(self):
        for queue in self.orders:
            queue.put(None)
        for process in self.processes:
            process.join()


class Zea:
    def __init__(self, mpirun, ranks, program):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
        binding = "core" if ranks <= os.cpu_count() else "none"
        self.process = subprocess.Popen(
            [*shlex.split(mpirun), "--bind-to", binding, "-n", str(ranks), program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def time(self, collective, dtype, size, way):
        if way == "MPI" and dtype != "float32":
            return None  # MPI has no such type
        print(collective, dtype, size, way, CALLS[size], file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer, "bench_collectives ended early; its message is above"
        return float(answer)

    def end(self):
        self.process.stdin.close()
        assert self.process.wait() == 0


def show(seconds):
    if not seconds:
        return "-"
    pair = (statistics.median(seconds), min(seconds))
    return " / ".join(f"{t * 1e6:.2f} us" if t < 1e-3 else f"{t * 1e3:.2f} ms" for t in pair)


def ratio(slow, fast):
    return f"{statistics.median(slow) / statistics.median(fast):.1f}" if slow and fast else "-"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--without-gloo", action="store_true")
    parser.add_argument("--mpirun", default="mpirun --allow-run-as-root --oversubscribe")
    arguments = parser.parse_args()

    zea = Zea(arguments.mpirun, arguments.ranks, arguments.program)
    gloo = None if arguments.without_gloo else Gloo(arguments.ranks)
    cases = [(c, dtype, size) for c in COLLECTIVES for dtype in ("float32", "bfloat16") for size in SIZES]
    times = {(case, way): [] for case in cases for way in WAYS}
    for _ in range(arguments.rounds):
        for case in cases:
            for way in WAYS:
                source = gloo if way == "gloo" else zea
                taken = source.time(*case, way) if source else None
                if taken is not None:
                    times[case, way].append(taken)
    zea.end()
    if gloo:
        gloo.end()

    row = "{:<15}{:<10}{:>7}" + "{:>25}" * len(WAYS) + "{:>16}{:>16}"
    print(f"{arguments.ranks} ranks, {arguments.rounds} rounds: median / minimum of one call; how many times faster")
    print(row.format("", "", "", *TITLES, "shared/gloo,MPI", "in place/g,M"))
    for case in cases:
        gloo_times, mpi_times = times[case, "gloo"], times[case, "MPI"]
        ratios = [
            ratio(gloo_times, times[case, way]) + ", " + ratio(mpi_times, times[case, way])
            for way in ("node", "node_allocated")
        ]
        size = f"{case[2] >> 10} KB" if case[2] < 1 << 20 else f"{case[2] >> 20} MB"
        print(row.format(case[0], case[1], size, *(show(times[case, way]) for way in WAYS), *ratios))


if __name__ == "__main__":
    main()
