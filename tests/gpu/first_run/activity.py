# SPDX-License-Identifier: Apache-2.0
"""Activity of a GPU while a program runs: launches (kernels, copies, fills) by kind, and their total time."""

import functools
import json
import re
from dataclasses import dataclass

OF_TRACE = {"kernel", "gpu_memcpy", "gpu_memset"}
# Names in a kernel's template arguments that do not say what it computes; the same for integers: they count.
PLUMBING = re.compile(
    r"const|(un)?signed|void|bool|char|u?int\w*|long|short|true|false|lambda|operator|std|array|Array|type|\w+_traits|"
    r"__nv_h?dl_\w+|gpu_kernel_impl\w*|Tensor(Iterator\w*|ListMetadata)?|Scalar|\w*OffsetCalculator|(Load|Store)With\w*"
)
MOST_WORDS, MOST_CHARACTERS = 5, 100


@dataclass
class Activity:
    """Activity of a run or a step."""

    busy: float  # seconds in which it did anything
    kinds: dict  # (launches, seconds) by name

    @property
    def launches(self):
        return sum(launches for launches, _ in self.kinds.values())


class NotRecorded(Exception):
    """Says why; what follows its first line is what programs said."""


def busy_of(spans):
    """The time in which any of (begin, end) runs."""
    busy, until = 0, float("-inf")
    for begin, end in sorted(spans):
        busy += max(0, end - max(begin, until))
        until = max(until, end)
    return busy


def activity_of(launches, unit, shared=1):
    """Returns the activity of (name, begin, end), with times in units of so many seconds, for each of the steps that
    share them."""
    kinds = {}
    for name, begin, end in launches:
        count, seconds = kinds.get(short(name), (0, 0))
        kinds[short(name)] = (count + 1 / shared, seconds + unit * (end - begin) / shared)
    return Activity(unit * busy_of((begin, end) for _, begin, end in launches) / shared, kinds)


def of_trace(path):
    """Returns the activity of a Chrome trace of PyTorch's profiler, which counts in microseconds."""
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") in OF_TRACE]
    return activity_of([(event["name"], event["ts"], event["ts"] + event["dur"]) for event in events], 1e-6)


def nccl_spans(path):
    """(name, begin, end) of NCCL's kernels in such a trace, in seconds, in the order of their launches."""
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "kernel"]
    kernels = [event for event in events if "nccl" in event["name"].lower()]
    kernels.sort(key=lambda event: event["args"]["correlation"])
    return [(event["name"], 1e-6 * event["ts"], 1e-6 * (event["ts"] + event["dur"])) for event in kernels]


def of_recording(folder):
    """(name, begin, end), in ns and as they began, of the files, one a process, that record_activity.cpp wrote."""
    files = [*folder.iterdir()]
    if not files:
        raise NotRecorded("no recording was written")
    lines = [line.split("\t") for file in files for line in file.read_text().splitlines()]
    if not lines:
        raise NotRecorded("the recording is empty")
    return sorted(((name, int(begin), int(end)) for begin, end, _, name in lines), key=lambda launch: launch[1])


def of_step(two, four):
    """Returns the activity of the last launches, those that a run of four steps has in addition to a run of two:
    loading weights, which sometimes takes longer, is not among them."""
    return activity_of(four[len(two) :], 1e-9, shared=2)


@functools.cache
def short(name):
    """A kernel's name without namespaces and parameters, and of its template arguments what tells kinds apart."""
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    base = re.match(r"[\w:]+(?=[<(])", name)
    if not base:
        return name
    words = []
    for word in re.findall(r"\b[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*", template_arguments(name[base.end() :])):
        last = word.split("::")[-1]
        if not PLUMBING.fullmatch(last) and last not in words:
            words.append(last)
    found = base[0].split("::")[-1] + (f"<{', '.join(words[:MOST_WORDS])}>" if words else "")
    return found if len(found) <= MOST_CHARACTERS else found[: MOST_CHARACTERS - 3] + "..."


def template_arguments(rest):
    """Up to the bracket that closes the first; nothing where a name has none."""
    depth = 0
    for place, letter in enumerate(rest):
        depth += (letter == "<") - (letter == ">")
        if depth <= 0:
            return rest[:place]
    return rest


def costliest(step, most=12):
    """Rows of a table: kinds by their time, with launches, ms and share, and a row of those that are left."""
    kinds = sorted(((f"`{name}`", *kind) for name, kind in step.kinds.items()), key=lambda kind: -kind[2])
    total, rest = sum(seconds for *_, seconds in kinds) or 1, kinds[most:]
    if rest:
        kinds[most:] = [(f"{len(rest)} other kinds", sum(kind[1] for kind in rest), sum(kind[2] for kind in rest))]
    return [
        [name, f"{launches:g}", f"{1e3 * seconds:.2f}", f"{100 * seconds / total:.1f} %"]
        for name, launches, seconds in kinds
    ]
