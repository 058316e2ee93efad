# SPDX-License-Identifier: Apache-2.0
"""Entries become samples in as many processes as there are cores, and come back in their order."""

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from packing.record import EntryFault
from packing.report import said

BATCH = 8  # entries handed over at once, or fewer of so many bytes
BATCH_BYTES = 8 << 20
AHEAD = 3  # batches that wait for each process, or fewer of so many bytes
AHEAD_BYTES = 256 << 20
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Sampler:
    """Converts entries: to ("sample", tokens, mask, items, answers, notes, files of the items), or ("fault", kind,
    text)."""

    def __init__(self, maker, media, tokens, most_text):
        self.maker, self.media, self.tokens, self.most_text = maker, media, tokens, most_text

    def sample(self, entry):
        try:
            record = self.maker.record(entry)
            self.check_length(record)
            items = self.media.items(record)
            files = {id(item): file_name(s) for name in items for item, s in zip(items[name], record.sources[name])}
            tokens, mask, items = self.tokens.sample(record, items)
            notes = record.notes + self.media.notes
            return "sample", tokens, mask, items, record.answers, notes, [files.get(id(item), "") for item in items]
        except EntryFault as fault:
            return "fault", fault.kind, str(fault)
        except Exception as fault:  # no entry ends packing, whatever is in it
            return "fault", "unforeseen", f"cannot be packed: {said(fault)}"

    def check_length(self, record):
        """A tokenizer takes some 250 bytes for each character."""
        texts = (part for message in record.messages for part in message.parts if isinstance(part, str))
        count = sum(map(len, texts))
        if count > self.most_text:
            raise EntryFault(
                "too large", f"its text has {count} characters, more than {self.most_text} (--max-item-mib / 64)"
            )


def file_name(source):
    return source if isinstance(source, str) and not source.startswith("data:") else ""


def begin(sampler):
    global own
    own = sampler
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's affair


def sample_batch(batch):
    return [own.sample(pickle.loads(entry)) for entry in batch]


def packed(entry):
    try:
        return pickle.dumps(entry)
    except RecursionError:
        return pickle.dumps(entry._replace(value=None, fault=EntryFault("not JSON", "is nested too deeply")))


def batches(entries):
    """Places and names of some entries, and what is handed over of them."""
    heads, batch, held = [], [], 0
    for place, entry in entries:
        heads.append((place, entry.name))
        batch.append(packed(entry))
        held += len(batch[-1])
        if len(batch) == BATCH or held >= BATCH_BYTES:
            yield heads, batch, held
            heads, batch, held = [], [], 0
    if batch:
        yield heads, batch, held


def outcomes(entries, sampler, processes):
    """Place, name and outcome of each of `entries`, pairs of a place and an entry."""
    if processes == 1:
        for place, entry in entries:
            yield place, entry.name, sampler.sample(entry)
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, context, begin, (sampler,)) as pool:
        waiting, ahead = deque(), 0
        try:
            for heads, batch, held in batches(entries):
                while waiting and (len(waiting) >= AHEAD * processes or ahead + held > AHEAD_BYTES):
                    ahead -= waiting[0][2]
                    yield from finished(*waiting.popleft()[:2])
                waiting.append((heads, pool.submit(sample_batch, batch), held))
                ahead += held
            while waiting:
                yield from finished(*waiting.popleft()[:2])
        except BrokenProcessPool:
            sys.exit(
                "a process that packs was ended, perhaps since memory ran out; the same command goes on, perhaps with fewer "
                "--processes"
            )
        finally:
            pool.shutdown(cancel_futures=True)


def finished(heads, future):
    for (place, name), outcome in zip(heads, future.result()):
        yield place, name, outcome
