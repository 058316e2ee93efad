# SPDX-License-Identifier: Apache-2.0
"""Merges the traces that the ranks of a run wrote for a step (log.trace_step) into one file for
chrome://tracing or ui.perfetto.dev, and prints where each rank's time went.

usage: merge_traces.py RUN ... [--out trace.json]

RUN is a run directory (all files of its trace/), a folder of traces, or a rank's file. Time 0 is a
barrier of all ranks, so their clocks agree within its duration.
"""

import argparse
import json
import sys
from pathlib import Path


def find_files(path):
    """The ranks' files of a run, or the file itself."""
    if path.is_file():
        return [path]
    folder = path / "trace" if (path / "trace").is_dir() else path
    files = sorted(folder.glob("rank-*.json"))
    if not files:
        sys.exit(f"{path} holds no trace/rank-*.json; a run with log.trace_step = N writes them in step N")
    return files


def read_trace(path):
    try:
        trace = json.loads(path.read_text(encoding="utf-8"))
        return trace["otherData"]["rank"], trace["otherData"]["step"], trace["traceEvents"]
    except (OSError, ValueError, TypeError, KeyError) as fault:
        sys.exit(f"{path} is not a trace of zea's: {fault!r}")


def seconds_in(events, category):
    """Returns the seconds that events of a category cover."""
    total, until = 0, 0
    spans = [(event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") == category]
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total / 1e6


def merge(files):
    """(step, {rank: events}) of files that must be of one step."""
    ranks, steps = {}, set()
    for file in files:
        rank, step, events = read_trace(file)
        if rank in ranks:
            sys.exit(f"{file} is a second trace of rank {rank}; give those of one run")
        ranks[rank] = events
        steps.add(step)
    if len(steps) > 1:
        sys.exit(f"traces of steps {sorted(steps)}; give those of one step")
    return steps.pop(), dict(sorted(ranks.items()))


def describe(rank, events):
    ends = [event["ts"] + event["dur"] for event in events if event["ph"] == "X"]
    actions, communication, waits = (
        seconds_in(events, category) for category in ("action", "communication", "wait")
    )
    return (
        f"rank {rank}: {max(ends, default=0) / 1e6:.6f} s, in actions {actions:.6f} s, of these waiting "
        f"{waits:.6f} s; communication under way for {communication:.6f} s"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, default=Path("trace.json"))
    arguments = parser.parse_args()
    step, ranks = merge([file for run in arguments.runs for file in find_files(run)])
    events = [event for events in ranks.values() for event in events]
    for rank in ranks:
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
    trace = {"displayTimeUnit": "ms", "otherData": {"step": step}, "traceEvents": events}
    try:
        arguments.out.write_text(json.dumps(trace), encoding="utf-8")
    except OSError as fault:
        sys.exit(f"cannot write {arguments.out}: {fault}")
    print("\n".join(describe(rank, events) for rank, events in ranks.items()))
    print(f"wrote {arguments.out}: step {step}, {len(ranks)} ranks")


main()
