# SPDX-License-Identifier: Apache-2.0
"""What a GPU did while a program ran: launches (kernels, copies, fills), and how long it was busy with them."""

import json
import shutil
import sqlite3
from contextlib import closing

OF_TRACE = {"kernel", "gpu_memcpy", "gpu_memset"}
OF_NSYS = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")


def busy_of(spans):
    """The time in which any of (begin, end) runs."""
    busy, until = 0, float("-inf")
    for begin, end in sorted(spans):
        busy += max(0, end - max(begin, until))
        until = max(until, end)
    return busy


def of_trace(path):
    """(launches, busy seconds) of a Chrome trace of PyTorch's profiler, which counts in microseconds."""
    events = json.loads(path.read_text())["traceEvents"]
    spans = [(event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") in OF_TRACE]
    return len(spans), 1e-6 * busy_of(spans)


def has_nsys():
    return shutil.which("nsys") is not None


def under_nsys(path):
    """The command before a program whose activity goes to the SQLite file `path`."""
    asked = ["--trace=cuda", "--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=node", "--export=sqlite"]
    return ["nsys", "profile", *asked, "--force-overwrite=true", f"--output={path.with_suffix('')}"]


def of_nsys(path):
    """(launches, busy seconds) of a whole run; nsys makes no table of what there was none of."""
    with closing(sqlite3.connect(path)) as file:
        there = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        asked = [f"SELECT start, end FROM {table}" for table in OF_NSYS if table in there]
        spans = [span for one in asked for span in file.execute(one)]
    return len(spans), 1e-9 * busy_of(spans)
