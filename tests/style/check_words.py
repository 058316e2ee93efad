# SPDX-License-Identifier: Apache-2.0
"""Checks the English of comments, docstrings and pages: no comment and no sentence of a page begins with a fragment
("Of ...", "What ...", "Those ..."), and no retired word comes back. Checks the subjects of commits since this check
exists: "area: verb ..." below 72 characters.

usage: check_words.py ROOT
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

FOLDERS = ("src", "include", "postprocess", "jobs", "inputs", "tests")
SUFFIXES = (".cpp", ".hpp", ".cu", ".cuh", ".py", ".sh", ".sbatch", ".cmake", ".toml")
FRAGMENT = re.compile(r"(Of|What|Those|That|Which)\b")
# A private word -> the field's term.
RETIRED = {
    r"computed again": "recomputed",
    r"put together": "composed, assembled",
    r"made ready": "preprocessed",
    r"asked rows?": "target positions",
    r"stretch(es)?": "fused section",
    r"by hand": "manually",
    r"is told of": "learns, receives",
}
SUBJECT = re.compile(r"[a-z0-9][a-z0-9 ,/_.-]*: [a-z]")
FIRST = "style: check the English of comments and of commit subjects"


def comments(text):
    """Blocks of // or # lines, as (line, text); a comment after code is a block of its own."""
    block, start = [], 0
    for number, line in enumerate(text.splitlines(), 1):
        whole = re.match(r"\s*(?:///?<?|#(?!!|include|pragma|if|el|end|define|undef))\s?(.*)", line)
        if whole and not whole[1].startswith("SPDX"):
            start = start if block else number
            block.append(whole[1].strip())
            continue
        if block:
            yield start, " ".join(block)
            block = []
        behind = re.search(r"\s(?:///?<|//|#) (.*)$", line)
        if behind and '"' not in behind[1]:
            yield number, behind[1].strip()
    if block:
        yield start, " ".join(block)


def docstrings(text):
    """(line, text) of every docstring of a Python file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (found := ast.get_docstring(node)):
            yield node.body[0].lineno, " ".join(found.split())


def sentences(text):
    """(line, text) of every sentence and table cell of a page, outside of code; a heading is none."""
    block, start, is_code = [], 0, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        is_fence = line.startswith("```")
        ends = not line.strip() or is_fence or re.match(r"#|\||\s*(-|\d+\.) ", line)
        if block and ends:
            yield from ((start, part) for part in re.split(r"(?<=[.!?:;]) ", " ".join(block)))
            block = []
        is_code = is_code != is_fence
        if line.startswith("|"):
            yield from ((number, cell.strip()) for cell in re.sub("`[^`]*`", "`", line).split("|"))
        elif line.strip() and not is_code and not is_fence and not line.startswith("#"):
            start = start if block else number
            block.append(re.sub(r"`[^`]*`|\*\*|^\s*(-|\d+\.) ", "", line).strip())


def faults_of_texts(root):
    words = {re.compile(rf"\b{word}\b"): term for word, term in RETIRED.items()}
    sources = [path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in SUFFIXES]
    pages = [*root.glob("*.md"), *(path for folder in FOLDERS for path in (root / folder).rglob("*.md"))]
    count = 0
    for path in sorted({*sources, *pages}):
        text = path.read_text(encoding="utf-8", errors="replace")  # the corpus has files that are no text
        found = sentences(text) if path.suffix == ".md" else comments(text)
        for line, text in (*found, *(docstrings(text) if path.suffix == ".py" else ())):
            count += 1
            if FRAGMENT.match(text) and not text.endswith("?"):
                yield f"{path.relative_to(root)}:{line}: begins with a fragment: {text[:60]}"
            for word, term in words.items():
                if used := word.search(text):
                    yield f"{path.relative_to(root)}:{line}: '{used[0]}' is retired; write: {term}"
    assert count > 10000, "the comments were not found"


def faults_of_subjects(root):
    """Nothing where this is no clone."""
    log = ["git", "-C", str(root), "log", "--no-merges", "--format=%h %s"]
    done = subprocess.run(log, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines() if done.returncode == 0 and (root / ".git").exists() else ():
        commit, _, subject = line.partition(" ")
        if not SUBJECT.match(subject) or len(subject) > 72:
            yield f"commit {commit}: '{subject}'; write: 'area: verb ...', at most 72 characters"
        if subject == FIRST:
            return


def main():
    root = Path(sys.argv[1]).resolve()
    faults = [*faults_of_texts(root), *faults_of_subjects(root)]
    print("\n".join(faults))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
