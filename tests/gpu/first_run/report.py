# SPDX-License-Identifier: Apache-2.0
"""The report: what each part found, written anew after each, so that it is there whatever comes next."""

import datetime
from dataclasses import dataclass, field


@dataclass
class Part:
    """Findings of one part, in the order in which they were made."""

    name: str
    lines: list = field(default_factory=list)
    good: int = 0
    bad: int = 0
    left_out: int = 0
    is_cut: bool = False
    seconds: float = 0
    result: str = ""  # a line for whoever waits

    def say(self, line):
        self.lines.append(line)

    def check(self, what, holds, details=""):
        """A finding that is good or bad; with what a program said where it is bad."""
        self.good, self.bad = self.good + bool(holds), self.bad + (not holds)
        self.say(f"- {'ok' if holds else '**WRONG**'}: {what}")
        if not holds:
            self.quote(details)

    def leave_out(self, what, why):
        """Reports a part that is left out. Lines of `why` after the first one are quoted output of programs."""
        self.left_out += 1
        first, _, said = why.partition("\n")
        self.say(f"- left out: {what}: {first}")
        self.quote(said)

    def cut(self, at):
        """Its share of the time is over."""
        self.is_cut = True
        self.leave_out("what follows", f"the part's share of the time was over at {at}")

    def quote(self, said):
        if said.strip():
            self.say("\n```text\n" + said.strip() + "\n```\n")

    def table(self, head, rows):
        self.say("")
        for cells in (head, ["---"] * len(head), *rows):
            self.say("| " + " | ".join(str(cell) for cell in cells) + " |")
        self.say("")

    @property
    def verdict(self):
        if self.bad:
            return f"{self.bad} wrong"
        if self.is_cut:
            return "cut short"
        return "good" if self.good or not self.left_out else "left out"


class Report:
    def __init__(self, path, title):
        self.path, self.title, self.parts = path, title, []

    def write(self):
        text = [f"# {self.title}", "", f"{datetime.datetime.now():%Y-%m-%d %H:%M}", ""]
        text += ["| part | found | good | wrong | left out | seconds |", "|---|---|---|---|---|---|"]
        for part in self.parts:
            cells = [part.name, part.verdict, part.good, part.bad, part.left_out, f"{part.seconds:.0f}"]
            text.append("| " + " | ".join(map(str, cells)) + " |")
        for part in self.parts:
            text += ["", f"## {part.name}", "", *part.lines]
        self.path.write_text("\n".join(text) + "\n")

    @property
    def wrong(self):
        return sum(part.bad for part in self.parts)
