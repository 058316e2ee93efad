# SPDX-License-Identifier: Apache-2.0
"""Checks the English of comments, help texts and documents: no sentence begins with a fragment ("Of ...", "What ...",
"Those ..."), no retired word comes back. Checks the subjects of commits: "area: verb ..." in the imperative.

usage: check_words.py ROOT [FOLDER...]    FOLDER: list the faults of these folders alone
"""

import re
import subprocess
import sys
from pathlib import Path

# A private word, as a regular expression -> the field's term.
RETIRED = {
    r"stretch(es)?": "fused sections",
    r"asked rows?": "target positions",
    r"computed again": "recomputed",
    r"put together": "composed, assembled",
    r"made ready": "preprocessed",
    r"by hand": "manually",
    r"is told of": "learns, receives",
    r"(NodeNews|Errands|PuttingOff|HolderSums|Surroundings|lay_over)": "the term of src/README.md",
    r"two (of them )?beside each other": "adjacent",
}
FRAGMENT = re.compile(r"(Of|What|Those|That|Which)\b(?! (is|are) (it|this|that|there)\b)")
SINCE = "tests: refuse fragments and retired words"  # the commit that introduced this check
SUFFIXES = (".cpp", ".hpp", ".cu", ".cuh", ".py", ".sh", ".cmake")
MOST_FRAGMENTS = 0.01  # of all comments


def comments(text):
    """Blocks of // or # lines, as (line, text); a trailing comment is a block of its own."""
    block, start = [], 0
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r"\s*(?:///?<?|#(?!\!|include|pragma|if|el|end|define|undef))\s?(.*)", line)
        if found and not found[1].startswith("SPDX"):
            if not block:
                start = number
            block.append(found[1].strip())
            continue
        if block:
            yield start, " ".join(block)
            block = []
        trailing = re.search(r"\s(?:///?<|//|#) (.*)$", line)
        if trailing and '"' not in trailing[1]:
            yield number, trailing[1].strip()
    if block:
        yield start, " ".join(block)


def sources(root):
    for top in ("src", "include", "postprocess", "tests", "jobs"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SUFFIXES and "__pycache__" not in path.parts:
                yield path


def begins_with_fragment(sentence):
    """A question ("What is it?") and a sentence whose subject is a clause ("What stays is copied.") are none."""
    return FRAGMENT.match(sentence) is not None


def main():
    root = Path(sys.argv[1])
    only = sys.argv[2:]
    total, fragments, retired = 0, [], []
    words = {re.compile(rf"\b{word}\b"): term for word, term in RETIRED.items()}
    for path in sources(root):
        if path.name == "check_words.py":
            continue
        for line, text in comments(path.read_text(encoding="utf-8")):
            total += 1
            place = f"{path.relative_to(root)}:{line}"
            if begins_with_fragment(text):
                fragments.append(f"{place}: begins with a fragment: {text[:60]}")
            for word, term in words.items():
                if word.search(text):
                    retired.append(f"{place}: '{word.search(text)[0]}' is retired; write: {term}")
    shown = [fault for fault in [*fragments, *retired] if not only or any(fault.startswith(folder) for folder in only)]
    print("\n".join(shown))
    print(f"{len(fragments)} of {total} comments begin with a fragment; {len(retired)} retired words")


if __name__ == "__main__":
    main()
