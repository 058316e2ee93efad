# SPDX-License-Identifier: Apache-2.0
"""What was packed and what was left out, why, with the first examples; and how far packing is."""

import json
import os
import sys
import time

EXAMPLES = 20  # of a reason; as many faults end packing
PERIOD = 10  # seconds between lines where there is no terminal


class Tally:
    def __init__(self, counts=None):
        self.counts = counts or {"entries": 0, "samples": 0, "tokens": 0, "targets": 0, "dropped": {}, "notes": {}}

    def __getitem__(self, name):
        return self.counts[name]

    @property
    def dropped(self):
        return sum(kind["count"] for kind in self["dropped"].values())

    def faults(self):
        return [text for kind in self["dropped"].values() for text in kind["examples"]]

    def add_sample(self, name, tokens, mask, notes):
        self.counts["entries"] += 1
        self.counts["samples"] += 1
        self.counts["tokens"] += len(tokens)
        self.counts["targets"] += sum(mask[1:])
        for note in notes:
            self._add("notes", note, name)

    def add_fault(self, name, kind, text):
        self.counts["entries"] += 1
        self._add("dropped", kind, f"{name}: {text}")

    def _add(self, what, kind, example):
        found = self.counts[what].setdefault(kind, {"count": 0, "examples": []})
        found["count"] += 1
        if len(found["examples"]) < EXAMPLES:
            found["examples"].append(example)

    def join(self, other):
        for name in ("entries", "samples", "tokens", "targets"):
            self.counts[name] += other[name]
        for what in ("dropped", "notes"):
            for kind, found in other[what].items():
                own = self.counts[what].setdefault(kind, {"count": 0, "examples": []})
                own["count"] += found["count"]
                own["examples"] = (own["examples"] + found["examples"])[:EXAMPLES]

    def write(self, path, out):
        text = json.dumps({"data set": str(out), **self.counts}, indent=2, ensure_ascii=True)
        unfinished = path.with_name(path.name + ".tmp")
        unfinished.write_text(text + "\n", encoding="utf-8")
        os.replace(unfinished, path)

    def say(self):
        for title, what in (("dropped", "dropped"), ("of those packed", "notes")):
            for kind, found in sorted(self[what].items()):
                print(f"{title}: {found['count']} ({kind}), the first: {found['examples'][0]}", file=sys.stderr)


class Progress:
    """A bar on a terminal; elsewhere a line now and then. How far it is, the number of entries tells, or,
    where that is not known (None), the bytes that were read."""

    def __init__(self, entries, most_bytes, done):
        self.entries, self.most_bytes, self.read = entries, most_bytes, 0
        self.begun, self.first = time.monotonic(), done
        self.shown, self.is_terminal = self.begun, sys.stderr.isatty()

    def show(self, tally, read):
        self.read = read
        if time.monotonic() - self.shown >= (0.2 if self.is_terminal else PERIOD):
            self.write(tally, "")

    def end(self, tally, is_whole):
        """The last bytes may hold no entry."""
        if is_whole:
            self.read = self.most_bytes
        if self.is_terminal:
            self.write(tally, "\n")

    def part(self, tally):
        done, whole = (tally["entries"], self.entries) if self.entries is not None else (self.read, self.most_bytes)
        return min(1, done / whole) if whole else 1

    def write(self, tally, end):
        self.shown = time.monotonic()
        rate = (tally["entries"] - self.first) / max(self.shown - self.begun, 1e-9)
        part, entries = self.part(tally), f"{tally['entries']:,}"
        if self.entries is not None:
            text = f"{entries} of {self.entries:,} entries"
        else:
            text = f"{entries} entries, {100 * part:.0f} % of {self.most_bytes / 2**20:,.1f} MiB read"
        text = f"{text}, {rate:,.0f}/s, {tally.dropped:,} dropped"
        if not self.is_terminal:
            print(text, file=sys.stderr)
            return
        filled = round(30 * part)
        print(f"\r[{'#' * filled}{'-' * (30 - filled)}] {text}\x1b[K", end=end, file=sys.stderr, flush=True)
