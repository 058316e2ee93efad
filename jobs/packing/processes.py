# SPDX-License-Identifier: Apache-2.0
"""Entries become samples in as many processes as there are cores, and come back in their order."""

import ctypes
import itertools
import multiprocessing
import os
import signal
from collections import deque
from concurrent.futures import ProcessPoolExecutor

from packing.record import EntryFault

BATCH = 8  # entries handed over at once
AHEAD = 3  # batches that wait for each process
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Sampler:
    """What an entry becomes: ("sample", tokens, mask, items, answers, notes, files of the items), or ("fault",
    kind, text)."""

    def __init__(self, maker, media, tokens):
        self.maker, self.media, self.tokens = maker, media, tokens

    def sample(self, entry):
        try:
            record = self.maker.record(entry)
            items = self.media.items(record)
            files = {id(item): file_name(s) for name in items for item, s in zip(items[name], record.sources[name])}
            tokens, mask, items = self.tokens.sample(record, items)
            notes = record.notes + self.media.notes
            return "sample", tokens, mask, items, record.answers, notes, [files.get(id(item), "") for item in items]
        except EntryFault as fault:
            return "fault", fault.kind, str(fault)


def file_name(source):
    return source if isinstance(source, str) and not source.startswith("data:") else ""


def begin(sampler):
    global own
    own = sampler
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's affair


def sample_batch(batch):
    return [own.sample(entry) for entry in batch]


def outcomes(entries, sampler, processes):
    """Place, name and outcome of each of `entries`, pairs of a place and an entry."""
    if processes == 1:
        for place, entry in entries:
            yield place, entry.name, sampler.sample(entry)
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, context, begin, (sampler,)) as pool:
        waiting = deque()
        try:
            while batch := list(itertools.islice(entries, BATCH)):
                heads = [(place, entry.name) for place, entry in batch]
                waiting.append((heads, pool.submit(sample_batch, [entry for _, entry in batch])))
                if len(waiting) > AHEAD * processes:
                    yield from finished(waiting.popleft())
            while waiting:
                yield from finished(waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)


def finished(waited):
    heads, future = waited
    for (place, name), outcome in zip(heads, future.result()):
        yield place, name, outcome
