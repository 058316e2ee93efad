# SPDX-License-Identifier: Apache-2.0
"""score.py against cases computed on paper.

usage: check_scores.py POSTPROCESS_FOLDER
"""

import json
import sys
import unittest
from pathlib import Path

import forked_script
from folder_case import FolderCase

SCORE = Path(sys.argv[1]) / "score.py"


class Scores(FolderCase):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "predictions.jsonl"

    def run_score(self, *arguments):
        return forked_script.run(SCORE, self.path, *arguments)

    def score(self, *pairs, **keys):
        """Returns the score of pairs: a generated text and its answer, or list of answers."""
        lines = []
        for number, (said, answer) in enumerate(pairs):
            known = {"answers": answer} if isinstance(answer, list) else {"answer": answer}
            lines.append({"sample": number, "generated": said, **known, **keys})
        self.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        result = self.run_score("--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_lines_end_where_json_lines_do(self):
        self.path.write_text('{"generated": "a\u2028b\x85", "answer": "a\u2028b"}\n', encoding="utf-8")
        result = self.run_score("--json")
        self.assertEqual(json.loads(result.stdout)["exact"], 1, result.stderr)

    def test_exact_match(self):
        scores = self.score((" Paris\n", "Paris"), ("paris", "Paris"), ("The Paris.", " paris"), ("x", ["y", "x"]))
        self.assertEqual((scores["exact"], scores["squad"]), (2 / 4, 4 / 4))

    def test_multiple_choice(self):
        right = [("B", "B"), ("(b)", "B"), ("B. a dog", "B) a dog"), ("The answer is C.", "C"), ("Answer: (D)", "D")]
        wrong = [("A", "B"), ("A dog", "A"), ("I think so", "I"), ("", "B")]
        self.assertEqual(self.score(*right)["choice"], 1)
        self.assertEqual(self.score(*wrong)["choice"], 0)
        self.assertEqual(self.score(*right, *wrong, ("B", "Paris"))["choice"], 5 / 9)
        lines = [("B\nBecause it is red.", "B"), ("The answer is B\nand not A.", "B"), ("The answer is **B**.", "B")]
        self.assertEqual(self.score(*lines, ("It is\nA", "A"))["choice"], 3 / 4)
        self.assertIsNone(self.score(("B", "Paris"))["choice"])

    def test_a_letter_that_more_follows(self):
        right = ["The answer is B because it barks", "Answer: **B** as said", "the answer is B, not C"]
        self.assertEqual(self.score(*((said, "B") for said in right))["choice"], 1)
        words = [("The answer is a dog", "A"), ("The answer is I think", "I"), ("The answer is b because", "B")]
        names = [("Answer: X-ray", "X"), ("The answer is D'Artagnan", "D"), ("Answer: Berlin", "B"), ("B it is", "B")]
        self.assertEqual(self.score(*words, *names)["choice"], 0)

    def test_word_error_rate(self):
        # One substitution and one insertion of 3 words; one deletion of 2; all of 1 and 2 more.
        cases = [("a x c d", "a b c"), ("Two", "one two"), ("no no no", "yes")]
        self.assertAlmostEqual(self.score(*cases)["wer"], (2 + 1 + 3) / (3 + 2 + 1))
        self.assertEqual(self.score(("A  b", "a b"))["wer"], 0)
        # As many edits from both answers: the longer one is nearer.
        self.assertAlmostEqual(self.score(("two dogs", ["dogs", "two black dogs"]))["wer"], 1 / 3)

    def test_anls(self):
        # Distances of 1 / 5, 3 / 6 (half: nothing), and 1 / 6 from the nearer answer.
        self.assertAlmostEqual(self.score(("hallo", "Hello"))["anls"], 0.8)
        self.assertEqual(self.score(("abcxyz", "abcdef"))["anls"], 0)
        cases = [("hallo", "hello"), ("abcxyz", "abcdef"), ("kitten", ["mitten", "sitting"])]
        self.assertAlmostEqual(self.score(*cases)["anls"], (0.8 + 0 + 5 / 6) / 3)

    def test_classes(self):
        self.assertIsNone(self.score(("a", "a"))["class"])
        self.assertEqual(self.score(("a", "b"), correct=True)["class"], 1)
        scores = self.score(("a", ""), ("b", "b"), correct=True)
        self.assertEqual((scores["class"], scores["without_answer"]), (1, 1))
        self.assertEqual(self.score(("a", ""), correct=False)["class"], 0)

    def test_lines_without_an_answer(self):
        scores = self.score(("a", "a"), ("b", ""), ("c", " "))
        self.assertEqual([scores[key] for key in ("predictions", "without_answer", "exact")], [1, 2, 1])

    def test_text_and_faults(self):
        self.path.write_text('{"generated": "a", "answer": "a"}\n')
        result = self.run_score("--metric", "exact")
        self.assertIn("1 predictions", result.stdout)
        self.assertIn("exact  1.0000", result.stdout)
        self.assertNotIn("wer", result.stdout)
        for line in ("[1]", '{"generated": null, "answer": "a"}', '{"generated": "a", "answers": "cat"}', "[" * 9999):
            self.path.write_text(f"\n{line}\n")
            result = self.run_score()
            self.assertEqual(result.returncode, 1)
            self.assertIn("line 2: is no prediction", result.stderr)
        for data in (b"\xff", None):
            self.path.write_bytes(data) if data else self.path.unlink()
            result = self.run_score()
            self.assertEqual(result.returncode, 1)
            self.assertIn("predictions.jsonl: cannot be read", result.stderr)
            self.assertNotIn("Traceback", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
