# SPDX-License-Identifier: Apache-2.0
"""Times NCCL between ranks that share a GPU, for one measurement of a lease; mpirun starts it.

usage: ranks.py order|communicators cuda|cpu STORE ELEMENTS
STORE is a file by which ranks find each other. Rank 0's last line of output is JSON.
order: a reduce-scatter of ELEMENTS fp32 per rank, then an all-gather of the same size in the same or another
communicator, then a small all-gather in a third one. The JSON has the begin and end of each, in seconds after the
first begin.
communicators: seconds and bytes of each communicator, from its making to the end of its first call.
"""

import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "first_run"))
from activity import nccl_spans  # noqa: E402

WHAT, DEVICE, STORE, ELEMENTS = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
RANK, RANKS = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
ON_GPU, SMALL, FEW_BLOCKS = DEVICE == "cuda", 1024, 8


def backend_options(holds_few_sms):
    if not ON_GPU:
        return None
    options = dist.ProcessGroupNCCL.Options()
    if holds_few_sms:
        options.config.max_ctas = FEW_BLOCKS
    return options


def make_group(ranks, holds_few_sms=False):
    return dist.new_group(ranks, backend="nccl" if ON_GPU else "gloo", pg_options=backend_options(holds_few_sms))


def wait():
    if ON_GPU:
        torch.cuda.synchronize()


def spans_of(calls):
    """(begin, end) of each call: on a GPU its kernel's, on the host from its start to its completion."""
    if not ON_GPU:
        begins, works = [], []
        for call in calls:
            begins.append(time.perf_counter())
            works.append(call())
        spans = []
        for begin, work in zip(begins, works):
            work.wait()
            spans.append((begin, time.perf_counter()))
        return spans
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for work in [call() for call in calls]:
            work.wait()
        wait()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        kernels = nccl_spans(path)
    if len(kernels) != len(calls):
        raise SystemExit(f"{len(kernels)} kernels of NCCL ran in place of {len(calls)}: {kernels}")
    return [span for _, *span in kernels]


def order():
    everyone = list(range(RANKS))
    shared, reducing, other = (make_group(everyone) for _ in range(3))
    whole, shard = torch.ones(RANKS * ELEMENTS, device=DEVICE), torch.empty(ELEMENTS, device=DEVICE)
    gathered, own = torch.empty_like(whole), torch.ones_like(shard)
    few, all_few = torch.ones(SMALL, device=DEVICE), torch.empty(RANKS * SMALL, device=DEVICE)
    found = {}
    for name, reduces_in in (("one communicator", shared), ("two", reducing)):
        calls = [
            lambda: dist.reduce_scatter_tensor(shard, whole, group=reduces_in, async_op=True),
            lambda: dist.all_gather_into_tensor(gathered, own, group=shared, async_op=True),
            lambda: dist.all_gather_into_tensor(all_few, few, group=other, async_op=True),
        ]
        for call in calls:  # connects
            call().wait()
        wait()
        dist.barrier()
        spans = spans_of(calls)
        if shard[0].item() != RANKS:
            raise SystemExit(f"the reduce-scatter gave {shard[0].item()} in place of {RANKS}")
        first = spans[0][0]
        names = ("reduce-scatter", "its all-gather", "the other all-gather")
        found[name] = {call: (begin - first, end - first) for call, (begin, end) in zip(names, spans)}
    return found


def used_bytes():
    """Returns the used bytes of the GPU, by all processes; on the host, of this process."""
    if ON_GPU:
        free, whole = torch.cuda.mem_get_info()
        return whole - free
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def communicators():
    """Makes each kind of group three times."""
    everyone = list(range(RANKS))
    pairs = [everyone[i : i + 2] for i in range(0, RANKS, 2)]
    kinds = {"all": [everyone], "all, few SMs": [everyone], "pairs": pairs}
    value, found = torch.ones(SMALL, device=DEVICE), {}
    for kind, members in kinds.items():
        found[kind] = []
        for _ in range(3):
            dist.barrier()
            before, start = used_bytes(), time.perf_counter()
            dist.barrier()
            groups = [make_group(ranks, "few" in kind) for ranks in members]
            dist.all_reduce(value, group=next(g for g, ranks in zip(groups, members) if RANK in ranks))
            wait()
            seconds = time.perf_counter() - start
            dist.barrier()
            each = (used_bytes() - before) / (RANKS if ON_GPU else 1)
            found[kind].append((seconds, each))
            dist.barrier()
    return found


def main():
    torch.set_num_threads(1)
    if ON_GPU:
        os.environ["NCCL_HOSTID"] = f"{socket.gethostname()}-{RANK}"  # else NCCL refuses ranks that share a GPU
        torch.cuda.set_device(RANK % torch.cuda.device_count())
        torch.ones(1, device=DEVICE)
    dist.init_process_group("gloo", init_method=f"file://{STORE}", rank=RANK, world_size=RANKS)
    found = {"order": order, "communicators": communicators}[WHAT]()
    if RANK == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


main()
