# SPDX-License-Identifier: Apache-2.0
"""Draws the architecture from the includes of the source: folders in storeys, each above all that it includes. In a box
stand the folders that it rests on directly; those that these rest on themselves are left out.

usage: draw_architecture.py ROOT           prints the drawing
       draw_architecture.py ROOT PAGE.md   fails where the first block ```text of the page is another
"""

import re
import sys
from pathlib import Path

import check_structure as structure

GAP = "  "


def sources(root):
    for path in sorted((root / "src").rglob("*")):
        if path.suffix in (".cpp", ".hpp", ".cu", ".cuh") and structure.folder_of(path, root):
            yield path


def included_folders(root):
    """Returns for every folder those whose headers it includes."""
    found = {folder: set() for folder in structure.MAY_INCLUDE}
    for path in sources(root):
        folder = structure.folder_of(path, root)
        targets = {header.split("/")[0] for header in structure.includes(path.read_text(encoding="utf-8"))}
        found[folder].update(targets & found.keys() - {folder})
    return found


def below(folder, included):
    """All that it rests on, directly or not."""
    own = included[folder]
    return own.union(*(below(target, included) for target in own))


def storey(folder, included):
    return 1 + max((storey(target, included) for target in included[folder]), default=0)


def direct(folder, included):
    """Without those that another one of them rests on."""
    own = included[folder]
    return sorted(own - set().union(*(below(target, included) for target in own)))


def box(folder, included):
    lines = [folder]
    rests_on = direct(folder, included)
    if rests_on:
        lines.append("on " + ", ".join(rests_on))
    width = max(map(len, lines))
    edge = "+" + "-" * (width + 2) + "+"
    return [edge, *(f"| {line:<{width}} |" for line in lines), edge]


def row(boxes):
    height = max(map(len, boxes))
    padded = [lines + [" " * len(lines[0])] * (height - len(lines)) for lines in boxes]
    return [GAP.join(parts) for parts in zip(*padded)]


def drawing(root):
    included = included_folders(root)
    storeys = {}
    for folder in sorted(included):
        storeys.setdefault(storey(folder, included), []).append(folder)
    rows = [row([box(folder, included) for folder in storeys[level]]) for level in sorted(storeys, reverse=True)]
    width = max(len(line) for lines in rows for line in lines)
    return "\n".join(line.center(width).rstrip() for lines in rows for line in lines)


def main():
    root = Path(sys.argv[1]).resolve()
    made = drawing(root)
    if len(sys.argv) == 2:
        print(made)
        return 0
    shown = re.search(r"^```text\n(.*?)\n?^```$", Path(sys.argv[2]).read_text(), re.MULTILINE | re.DOTALL)
    if shown and shown[1] == made:
        return 0
    print(f"{sys.argv[2]}: its drawing is not that of the includes, which is\n{made}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
