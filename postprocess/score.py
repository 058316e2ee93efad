# SPDX-License-Identifier: Apache-2.0
"""Scores predictions: compares the generated texts of predictions.jsonl with its answers.

usage: score.py RUN/predictions.jsonl... [--metric NAME]... [--json]

Each line's `generated` is compared with `answer`, or with each of a list `answers`, and the best match counts. Lines
without an answer are skipped (except for class) and counted. Metrics (all of them without --metric):

exact     fraction whose text is an answer, apart from white space around it
squad     the same in lower case, without punctuation and the articles a, an, the, as SQuAD 1.1 compares
          (Rajpurkar et al. 2016, arXiv:1606.05250)
choice    fraction that names the answer's letter: the first single letter A to Z at the beginning, as in "B", "(B)",
          "B." or "B) the second", or after "answer is" or "answer:", where a capital that is no word (A and I are)
          may be followed by more text, as in "The answer is B because"; of lines whose answer has a letter
wer       word error rate: (substitutions + deletions + insertions) / words of the answers, over all lines, in lower
          case; may exceed 1
anls      average normalized Levenshtein similarity (Biten et al. 2019, arXiv:1905.13648): the mean of 1 - d if
          d < 0.5, else 0; d: edit distance in characters / length of the longer text, in lower case
class     fraction whose text names the sample's class and no other, as in evaluation; of lines with a label
"""

import argparse
import json
import re
import string
import sys
from pathlib import Path

ALONE = r"([A-Z])(?=\s*$|[).:,\]*])"  # a letter with nothing but a mark behind it on its line
CAPITAL = r"(?-i:([B-HJ-Z])(?![\w'’-]))"  # no word, nor the begin of one: X-ray, D'Artagnan
LETTER = re.compile(
    rf"\A\W*{ALONE}|answer(?:\s+is|:)\W*(?:{ALONE}|{CAPITAL})", re.IGNORECASE | re.MULTILINE
)


def edits(a, b):
    """The fewest substitutions, deletions and insertions that make `a` of `b` (Levenshtein 1966)."""
    above = range(len(b) + 1)
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (x != y)))
        above = row
    return above[-1]


def is_exact(said, answer):
    return said.strip() == answer.strip()


def squad_form(text):
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def is_squad(said, answer):
    return squad_form(said) == squad_form(answer)


def letter_of(text):
    found = LETTER.search(text.strip())
    return found[found.lastindex].upper() if found else None


def similarity(said, answer):
    said, answer = said.strip().lower(), answer.strip().lower()
    longest = max(len(said), len(answer))
    distance = edits(said, answer) / longest if longest else 0
    return 1 - distance if distance < 0.5 else 0


def mean(values):
    return sum(values) / len(values) if values else None


def best(score):
    return lambda lines: mean([max(score(said, answer) for answer in answers) for said, answers, _ in lines])


def choice(lines):
    asked = [(letter_of(said), {letter_of(a) for a in answers} - {None}) for said, answers, _ in lines]
    return mean([said in letters for said, letters in asked if letters])


def word_error_rate(lines):
    wrong = words = 0
    for said, answers, _ in lines:
        said = said.lower().split()
        found = ((edits(a, said), len(a)) for a in (answer.lower().split() for answer in answers))
        faults, length = min(found, key=lambda one: (one[0] / one[1], one[0]))
        wrong += faults
        words += length
    return wrong / words if words else None


def classes(lines):
    return mean([bool(line["correct"]) for _, _, line in lines if "correct" in line])


METRICS = {
    "exact": best(is_exact),
    "squad": best(is_squad),
    "choice": choice,
    "wer": word_error_rate,
    "anls": best(similarity),
    "class": classes,
}


def said_answers(line):
    return line.get("answers") or [line.get("answer", "")]


def answers_of(line):
    return [answer for answer in said_answers(line) if answer.strip()]


def checked(line):
    answers = said_answers(line)
    if not isinstance(answers, list) or not all(isinstance(text, str) for text in (line["generated"], *answers)):
        raise TypeError("generated and each answer must be texts")
    return line


def read_predictions(path):
    """The lines of a file, or a sentence and the end."""
    try:
        texts = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as fault:
        sys.exit(f"{path}: cannot be read: {fault}")
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            if text.strip():
                lines.append(checked(json.loads(text)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
            sys.exit(f"{path}, line {number}: is no prediction ({type(fault).__name__}: {fault})")
    return lines


def score(path, metrics):
    predictions = [(line["generated"], answers_of(line), line) for line in read_predictions(path)]
    lines = [prediction for prediction in predictions if prediction[1]]
    scores = {name: METRICS[name](predictions if name == "class" else lines) for name in metrics}
    return {"predictions": len(lines), "without_answer": len(predictions) - len(lines)} | scores


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("predictions", type=Path, nargs="+")
    parser.add_argument("--metric", action="append", choices=METRICS, help="one of those above; may be repeated")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each file")
    arguments = parser.parse_args()
    for path in arguments.predictions:
        scores = score(path, arguments.metric or METRICS)
        if arguments.json:
            print(json.dumps({"file": str(path)} | scores))
            continue
        left_out = f", {scores['without_answer']} without an answer left out" if scores["without_answer"] else ""
        print(f"{path}: {scores['predictions']} predictions{left_out}")
        for name in arguments.metric or METRICS:
            print(f"  {name:7}{'-' if scores[name] is None else format(scores[name], '.4f')}")


if __name__ == "__main__":
    main()
