# SPDX-License-Identifier: Apache-2.0
"""The report: what was packed, what was left out and why, with the first examples; and the progress of packing."""

import json
import os
import re
import sys
import time
import traceback
import zlib

MOST_CHARACTERS = 1000  # of an example
# Characters that a terminal takes for orders: C0 but tabs and line ends, C1, what turns the direction of writing, halves of characters.
CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
EXAMPLES = 20  # of a reason; as many faults end packing
PERIOD = 10  # seconds between lines where there is no terminal


def printable(text):
    return CONTROL.sub(
        lambda found: "".join(f"\\x{byte:02x}" for byte in found[0].encode(errors="surrogatepass")), text
    )


class Screen:
    """A stream to which texts of files are printed without what a terminal takes for orders."""

    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        return self.stream.write(printable(text))

    def __getattr__(self, name):
        return getattr(self.stream, name)


def said(fault):
    """Returns the message of an error; for one that a user cannot know, also its name and where it arose."""
    if isinstance(fault, (OSError, EOFError, zlib.error, ValueError)) and str(fault):
        return str(fault)
    where = traceback.extract_tb(fault.__traceback__)[-1:]
    return " ".join(
        [type(fault).__name__, str(fault), *(f"({os.path.basename(at.filename)}:{at.lineno})" for at in where)]
    )


def run(main, what):
    """A program of which every end is a sentence. `what` it does, for faults that name no file."""
    sys.stdout, sys.stderr = Screen(sys.stdout), Screen(sys.stderr)
    # HDF5's objects say once more, one by one, that they cannot be written.
    sys.excepthook = sys.unraisablehook = lambda *_: None
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on")
    except MemoryError:
        sys.exit("there is no memory left; the same command goes on, perhaps with fewer --processes")
    except (OSError, RuntimeError) as fault:  # HDF5's are both, with the number in their text
        number = fault.errno if getattr(fault, "errno", None) else re.search(r"errno = (\d+)|$", str(fault))[1]
        why = os.strerror(int(number)) if number else said(fault)
        print(
            f"{getattr(fault, 'filename', None) or what}: {why}; see to room and rights there, and start again",
            file=sys.stderr,
        )
        sys.stderr.flush()
        os._exit(1)  # HDF5 may crash where it closes what it could not write
    except Exception as fault:
        sys.exit(f"{what}: {said(fault)}; this is a bug of zea")


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
            found["examples"].append(printable(example[:MOST_CHARACTERS]).replace("\n", "\\x0a"))

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
        screen = getattr(sys.stderr, "stream", sys.stderr)
        print(f"\r[{'#' * filled}{'-' * (30 - filled)}] {text}\x1b[K", end=end, file=screen, flush=True)
