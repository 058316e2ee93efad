# SPDX-License-Identifier: Apache-2.0
"""zea's checkpoints against PyTorch's torch.distributed.checkpoint (gloo): the same tensors, the
same disk, two processes each, taking turns.

    bench_checkpoint_dcp.py BENCH_CHECKPOINT [--mib N] [--directory D] [--rounds N] -- MPIRUN [...]

Seconds to save, blocked by an asynchronous save whose next update comes at once or after 0.3 s of
work (all the time that training stands still, and the share of the work that is done without a
save), and to load what 2 ranks wrote on 1 and what 1 wrote on 2: from the disk, beside the time
that dd takes to read as many bytes of it past the kernel's buffers, and again from those buffers.
"""

import json
import os
import shutil
import statistics
import subprocess
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


PAUSES = (0, 0.3)  # seconds of work between a save and the next update


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


class Work:
    """Work for a core that lasts so long."""

    def __init__(self, seconds):
        self.values, self.seconds = torch.rand(256, 256), seconds
        self.result = torch.empty_like(self.values)

    def run(self):
        """How much was done."""
        end, products = time.monotonic() + self.seconds, 0
        while time.monotonic() < end:
            torch.mm(self.values, self.values, out=self.result)
            products += 1
        return products


def save_in_background(state, place, background, work):
    """Seconds blocked, and the work that was done before the next update."""
    dist.barrier()
    begin = time.monotonic()
    future = dcp.async_save(state, checkpoint_id=place, process_group=background)
    blocked = time.monotonic() - begin
    worked = work.run()
    # The state is copied already: the next update waits for nothing.
    future.result()
    return blocked, worked


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
        task, _, seconds = task.partition(" ")
        steps = Work(float(seconds or 0))
        alone = steps.run()
        for number in range(3):
            place = f"{checkpoint}-{number}"
            if task == "save":
                found.append(timed(lambda: dcp.save(state, checkpoint_id=place))[0])
            else:
                blocked, worked = save_in_background(state, place, background, steps)
                found.append((blocked, worked / max(1, alone)))
            dist.barrier()
    if rank == 0:
        results.put(found)
    dist.destroy_process_group()


def run_dcp(size, task, shapes, checkpoint, port=[29611]):
    port[0] += 1
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(work, (size, port[0], task, shapes, str(checkpoint), results), nprocs=size)
    return results.get()


def dd_seconds(folder):
    """To read a checkpoint's files from the disk."""
    forget(folder)
    begin = time.monotonic()
    for path in folder.glob("*.distcp"):
        command = ["dd", f"if={path}", "of=/dev/null", "bs=16M", "iflag=direct"]
        subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - begin


def measure(asked, folder, seconds, dcp_first):
    """dcp_first: who reads first, when the disk has just had the saves."""

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
        ways = {
            "zea": lambda: [zea(readers, "load", ours[-1]["path"])[0]["seconds"]],
            "dcp": lambda: run_dcp(readers, "load", shapes, folder / "dcp-2"),
        }
        for who in ("dcp", "zea") if dcp_first else ("zea", "dcp"):
            load = ways[who]
            forget(folder)
            seconds[f"{who} load {writers} -> {readers}"] += load()
            seconds[f"{who} again {writers} -> {readers}"] += load()
        seconds[f"dd load {writers} -> {readers}"].append(dd_seconds(folder / "dcp-2"))
        shutil.rmtree(folder)
    measure_async(zea, shapes, folder, asked.mib, seconds)


def measure_async(zea, shapes, folder, mib, seconds):
    """The worst case, an update at once, and a step of work before it."""
    for pause in PAUSES:
        ours = zea(2, "async", folder / "zea", mib, pause)
        seconds[f"zea blocked {pause}"] += [save["blocked_seconds"] for save in ours]
        seconds[f"zea worked {pause}"] += [save["worked"] / max(1, save["worked_alone"]) for save in ours]
        shutil.rmtree(folder)
        theirs = run_dcp(2, f"async {pause}", shapes, folder / "dcp")
        seconds[f"dcp blocked {pause}"] += [blocked for blocked, _ in theirs]
        seconds[f"dcp worked {pause}"] += [worked for _, worked in theirs]
        shutil.rmtree(folder)


def main():
    asked = options()
    blocked = [f"{what} {pause}" for pause in PAUSES for what in ("blocked", "worked")]
    loads = [f"{how} {ranks}" for ranks in ("2 -> 1", "1 -> 2") for how in ("load", "again")]
    things, programs = ["save", *blocked, *loads], ["zea", "dcp", "dd"]
    seconds = {f"{who} {thing}": [] for thing in things for who in programs}
    with tempfile.TemporaryDirectory(dir=asked.directory, prefix="zea-bench-") as name:
        for number in range(asked.rounds):
            measure(asked, Path(name) / "round", seconds, dcp_first=number % 2 == 1)
    for thing in things:
        found = {who: seconds[f"{who} {thing}"] for who in programs}
        median = {who: statistics.median(values) for who, values in found.items() if values}
        ratio = median["zea"] / median["dcp"] if median["dcp"] > 0 else float("nan")
        print(f"{thing:12} zea / dcp {ratio:.2f}")
        for who, value in median.items():
            print(f"    {who:9} {value:.3f} of {[round(one, 3) for one in found[who]]}")


if __name__ == "__main__":
    main()
