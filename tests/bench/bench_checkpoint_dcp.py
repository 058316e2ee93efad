# SPDX-License-Identifier: Apache-2.0
"""zea's checkpoints against PyTorch's torch.distributed.checkpoint (gloo): the same tensors, the
same disk, two processes each, taking turns.

    bench_checkpoint_dcp.py BENCH_CHECKPOINT [--mib N] [--directory D] [--rounds N] -- MPIRUN [...]

Seconds to save, blocked by an asynchronous save whose next update comes at once, and to load what
2 ranks wrote on 1 and what 1 wrote on 2, from the disk.
"""

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench_checkpoint import bench, forget, options

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.multiprocessing as mp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


def shapes_of(checkpoint):
    manifest = json.loads((Path(checkpoint) / "manifest.json").read_text())
    return {tensor["name"]: tensor["shape"] for tensor in manifest["tensors"]}


def state_dict(shapes, mesh, make):
    """A value and two moments of each tensor, cut along the first dim."""
    return {
        f"{state}.{name}": distribute_tensor(make(shape), mesh, [Shard(0)])
        for name, shape in shapes.items()
        for state in ("parameter", "exp_avg", "exp_avg_sq")
    }


def timed(action):
    dist.barrier()
    begin = time.monotonic()
    result = action()
    dist.barrier()
    return time.monotonic() - begin, result


def work(rank, size, port, task, shapes, checkpoint, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    # The thread that saves in the background must not share one with the barriers below.
    background = dist.new_group(backend="gloo")
    mesh = init_device_mesh("cpu", (size,))
    if task == "load":
        state = state_dict(shapes, mesh, torch.zeros)
        found = [timed(lambda: dcp.load(state, checkpoint_id=checkpoint))[0]]
    else:
        state = state_dict(shapes, mesh, torch.rand)
        found = []
        for number in range(3):
            place = f"{checkpoint}-{number}"
            if task == "save":
                found.append(timed(lambda: dcp.save(state, checkpoint_id=place))[0])
            else:
                dist.barrier()
                begin = time.monotonic()
                future = dcp.async_save(state, checkpoint_id=place, process_group=background)
                found.append(time.monotonic() - begin)
                future.result()
            dist.barrier()
    if rank == 0:
        results.put(found)
    dist.destroy_process_group()


def run_dcp(size, task, shapes, checkpoint, port=[29611]):
    port[0] += 1
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(work, (size, port[0], task, shapes, str(checkpoint), results), nprocs=size)
    return results.get()


def measure(asked, folder, seconds):
    def zea(ranks, *arguments):
        return bench(asked.mpirun, asked.program, ranks, *arguments)

    for writers in (2, 1):
        ours = zea(writers, "save", folder / "zea", asked.mib)
        shapes = shapes_of(ours[-1]["path"])
        theirs = run_dcp(writers, "save", shapes, folder / "dcp")
        if writers == 2:
            seconds["zea save"] += [save["seconds"] for save in ours]
            seconds["dcp save"] += theirs
        readers = 3 - writers
        forget(folder)
        name = f"load {writers} -> {readers}"
        seconds[f"zea {name}"].append(zea(readers, "load", ours[-1]["path"])[0]["seconds"])
        forget(folder)
        seconds[f"dcp {name}"] += run_dcp(readers, "load", shapes, folder / "dcp-2")
        shutil.rmtree(folder)
    ours = zea(2, "async", folder / "zea", asked.mib)
    seconds["zea blocked"] += [save["blocked_seconds"] for save in ours]
    seconds["dcp blocked"] += run_dcp(2, "async", shapes, folder / "dcp")
    shutil.rmtree(folder)


def main():
    asked = options()
    things = ("save", "blocked", "load 2 -> 1", "load 1 -> 2")
    seconds = {f"{who} {thing}": [] for thing in things for who in ("zea", "dcp")}
    with tempfile.TemporaryDirectory(dir=asked.directory, prefix="zea-bench-") as name:
        for _ in range(asked.rounds):
            measure(asked, Path(name) / "round", seconds)
    for thing in things:
        ours, theirs = (statistics.median(seconds[f"{who} {thing}"]) for who in ("zea", "dcp"))
        print(f"{thing:12} zea {ours:.3f} s, dcp {theirs:.3f} s, dcp / zea {theirs / ours:.2f}")
        print(f"{'':12} zea {seconds[f'zea {thing}']}, dcp {seconds[f'dcp {thing}']}")


if __name__ == "__main__":
    main()
