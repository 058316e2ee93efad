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
    """A bar on a terminal; elsewhere a line now and then."""

    def __init__(self, total, done):
        self.total, self.begun, self.first = total, time.monotonic(), done
        self.shown, self.is_terminal = self.begun, sys.stderr.isatty()

    def show(self, tally, last=False):
        now = time.monotonic()
        if now - self.shown < (0.2 if self.is_terminal else PERIOD) and not (last and self.is_terminal):
            return
        self.shown = now
        rate = (tally["entries"] - self.first) / max(now - self.begun, 1e-9)
        text = f"{tally['entries']:,}{f' of {self.total:,}' if self.total else ''} entries, {rate:,.0f}/s, {tally.dropped:,} dropped"
        if not self.is_terminal:
            print(text, file=sys.stderr)
            return
        filled = round(30 * tally["entries"] / self.total) if self.total else 0
        bar = f"[{'#' * filled}{'-' * (30 - filled)}] " if self.total else ""
        print(f"\r{bar}{text}\x1b[K", end="\n" if last else "", file=sys.stderr, flush=True)
