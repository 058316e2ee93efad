# SPDX-License-Identifier: Apache-2.0
"""The project's documents: every page of Markdown but the changelog, taken apart into headings, links, code spans and
blocks."""

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

FENCE = re.compile(r"^```(\w*)$")
CODE_SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass
class Block:
    """A block between fences."""

    language: str
    line: int
    lines: list


@dataclass
class Page:
    path: Path
    name: str  # from the root
    lines: list  # outside of blocks: (number, text)
    blocks: list
    anchors: set = field(default_factory=set)

    def code_spans(self):
        """(line, text) of every `text` outside of blocks."""
        return [(number, span) for number, text in self.lines for span in CODE_SPAN.findall(text)]

    def links(self):
        return [
            (number, target) for number, text in self.lines for target in LINK.findall(CODE_SPAN.sub("", text))
        ]


def anchor(heading):
    """As GitHub makes it of a heading."""
    text = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return text.replace(" ", "-")


def read_page(path, root):
    page = Page(path, str(path.relative_to(root)), [], [])
    block = None
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(text)
        if block is not None and text == "```":
            page.blocks.append(block)
            block = None
        elif block is not None:
            block.lines.append(text)
        elif fence:
            block = Block(fence[1], number, [])
        else:
            page.lines.append((number, text))
            if text.startswith("#"):
                page.anchors.add(anchor(text.lstrip("#")))
    assert block is None, f"{page.name}: the block of line {block.line} has no end"
    return page


def page_paths(root):
    """Returns the pages that git has, or would add; without git, all outside of generated folders."""
    command = ["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        paths = [root / line for line in done.stdout.splitlines()]
    else:
        made = {".venv", "build", ".git"}
        paths = [path for path in root.rglob("*.md") if not made & set(path.relative_to(root).parts)]
    return sorted(path for path in paths if path.is_file() and path.name != "CHANGELOG.md")


def read_pages(root):
    pages = [read_page(path, root) for path in page_paths(root)]
    assert len(pages) > 5, "the documents were not found"
    return pages


def commands_of(block):
    """The commands of a block of sh: without comments, continued lines joined."""
    commands, begun = [], ""
    for text in block.lines:
        text = re.sub(r"(^|\s+)#\s.*$", "", text).rstrip()
        begun += text.removesuffix("\\")
        if text.endswith("\\") or text.endswith("|"):
            begun = begun.rstrip() + " "
            continue
        if begun.strip():
            commands.append(re.sub(r"\s+", " ", begun.strip()))
        begun = ""
    return commands
