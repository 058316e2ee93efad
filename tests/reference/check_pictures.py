# SPDX-License-Identifier: Apache-2.0
"""The drawing scripts must draw ordinary input, and name what is wrong with other input.

usage: check_pictures.py POSTPROCESS_FOLDER JOBS_FOLDER
Exit code 77 (skipped) where a Python package is missing.
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, sys.argv[2])
try:
    import matplotlib.image
    import numpy as np
    from dataset_writer import DatasetWriter
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

POSTPROCESS = Path(sys.argv[1])


def run(script, *arguments):
    return subprocess.run(
        [sys.executable, POSTPROCESS / script, *map(str, arguments)], capture_output=True, text=True
    )


def lines(*objects):
    return "".join(json.dumps(line) + "\n" for line in objects)


class Pictures(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)

    def tearDown(self):
        self.temporary.cleanup()

    def expect_picture(self, result, name):
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        picture = matplotlib.image.imread(self.folder / name)
        self.assertGreater(min(picture.shape[:2]), 200)
        return picture[..., :3]

    def test_metrics(self):
        train = [
            {"kind": "train", "step": step, "loss": 3 / step, "lr": 0.1, "grad_norm": None}
            for step in range(1, 30)
        ]
        evaluations = [
            {"kind": "eval", "step": step, "loss": 3 / step, "accuracy": step / 40}
            for step in (10, 20)
        ]
        path = self.folder / "metrics.jsonl"
        path.write_text(lines(*train, *evaluations) + '{"kind": "train", "st')
        self.expect_picture(run("plot_metrics.py", path), "metrics.png")

    def test_metrics_at_fault(self):
        path = self.folder / "metrics.jsonl"
        for text, fault in [
            ("", "no lines of kind train or eval"),
            ("{\n" + lines({"kind": "train"}), "jsonl:1:"),
        ]:
            path.write_text(text)
            result = run("plot_metrics.py", path)
            self.assertEqual(result.returncode, 1)
            self.assertIn(fault, result.stderr)

    def sheet(self, *predictions):
        data, path = self.folder / "test.h5", self.folder / "predictions.jsonl"
        with DatasetWriter(data, 0) as writer:
            for shade in (0, 100, 200):
                writer.add([0, 1], [0, 1], [np.full((8, 8), shade, np.uint8)])
        path.write_text(lines(*predictions))
        return run("contact_sheet.py", path, data)

    def test_contact_sheet_tells_right_from_wrong(self):
        line = {
            "generated": " a coat.",
            "answer": " a coat.",
            "label": "coat",
            "predicted": "coat",
            "correct": True,
        }
        right = self.expect_picture(
            self.sheet(*({**line, "sample": n} for n in range(3))), "contact_sheet.png"
        )
        wrong = {**line, "generated": "", "predicted": None, "correct": False}
        mixed = self.expect_picture(
            self.sheet(*({**wrong, "sample": n} for n in range(3))), "contact_sheet.png"
        )
        self.assertGreater((right[..., 1] > right[..., 0] + 0.2).sum(), 500)  # green
        self.assertEqual((right[..., 0] > right[..., 1] + 0.2).sum(), 0)
        self.assertGreater((mixed[..., 0] > mixed[..., 1] + 0.2).sum(), 500)  # red

    def test_contact_sheet_of_another_data_set(self):
        result = self.sheet(
            {"sample": 3, "generated": "", "answer": "", "label": None, "correct": False}
        )
        self.assertEqual(result.returncode, 1)
        self.assertIn("beyond the 3", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
