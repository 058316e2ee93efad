# SPDX-License-Identifier: Apache-2.0
"""The drawing scripts must draw ordinary input, and name what is wrong with other input.

usage: check_pictures.py POSTPROCESS_FOLDER JOBS_FOLDER
Exit code 77 (skipped) where a Python package is missing.
"""

import io
import json
import sys
import unittest
from pathlib import Path

sys.path.insert(0, sys.argv[2])
try:
    import matplotlib.image
    import matplotlib.pyplot  # noqa: F401 for the scripts
    import numpy as np
    from dataset_writer import Clip, DatasetWriter
    from PIL import Image
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

import forked_script
from folder_case import FolderCase

POSTPROCESS = Path(sys.argv[1])


def run(script, *arguments):
    return forked_script.run(POSTPROCESS / script, *arguments)


def lines(*objects):
    return "".join(json.dumps(line) + "\n" for line in objects)


class Pictures(FolderCase):
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

    def make_run(self, name, losses, first_step=1):
        """Appends steps, as a run that starts or goes on in that directory does."""
        directory = self.folder / name
        directory.mkdir(exist_ok=True)
        steps = [
            {"kind": "train", "step": step, "loss": loss, "lr": 0.1}
            for step, loss in enumerate(losses, first_step)
        ]
        with (directory / "metrics.jsonl").open("a") as file:
            file.write(lines(*steps))
        return directory

    def plot(self, *arguments):
        """The picture and what was said."""
        result = run("plot_metrics.py", *arguments, "--out", self.folder / "out.png")
        self.assertEqual(result.returncode, 0, result.stderr)
        return matplotlib.image.imread(self.folder / "out.png"), result.stderr

    def test_metrics_of_run_directories(self):
        a, b = self.make_run("a", [3, 2, 1]), self.make_run("b", [4, 3, 2])
        self.expect_picture(run("plot_metrics.py", a, b), "a/metrics.png")
        both = self.plot(a, b)[0]
        self.assertFalse(np.array_equal(both, self.plot(a, a / "metrics.jsonl")[0]))
        np.testing.assert_array_equal(self.plot(a)[0], self.plot(a / "metrics.jsonl")[0])

    def test_metrics_of_a_run_that_went_on_from_an_earlier_checkpoint(self):
        """Log lines of the abandoned steps are not part of the run."""
        straight = self.plot(self.make_run("straight", [5, 4, 3, 2]))[0]
        branched = self.make_run("branched", [5, 4, 9, 9, 9, 9])
        abandoned = self.plot(branched)[0]
        self.make_run("branched", [3, 2], first_step=3)
        np.testing.assert_array_equal(self.plot(branched)[0], straight)
        self.assertFalse(np.array_equal(abandoned, straight))

    def test_metrics_with_a_torn_line(self):
        whole = self.plot(self.make_run("whole", [3, 2, 1]))[0]
        torn = self.make_run("torn", [3, 2, 1])
        text = (torn / "metrics.jsonl").read_text().split("\n")
        (torn / "metrics.jsonl").write_text("\n".join([*text[:2], '{"kind": "tr', *text[2:]]))
        picture, said = self.plot(torn)
        np.testing.assert_array_equal(picture, whole)
        self.assertIn("torn/metrics.jsonl:3: not a line of metrics, left out", said)

    def test_metrics_at_fault(self):
        empty, run_directory = self.folder / "metrics.jsonl", self.make_run("run", [1])
        empty.write_text("[]\n" + lines({"kind": "checkpoint", "step": 1}))
        for arguments, fault in [
            ([empty], "metrics.jsonl: holds no lines of kind train or eval"),
            ([self.folder / "none"], "none does not exist; give run directories, or"),
            ([self.folder / "run/.."], "holds no lines"),
            ([run_directory, "--out", self.folder / "no/a.png"], "cannot write"),
            ([run_directory, "--out", self.folder / "a.xyz"], "Format 'xyz' is not supported"),
            ([run_directory] * 7, "7 runs; at most 6 can be told apart"),
        ]:
            with self.subTest(fault=fault):
                result = run("plot_metrics.py", *arguments)
                self.assertEqual(result.returncode, 1)
                self.assertIn(fault, result.stderr)
                self.assertNotIn("Traceback", result.stderr)
        empty.unlink()
        result = run("plot_metrics.py", self.folder)
        self.assertIn("holds no metrics.jsonl", result.stderr)

    def schedule(self, text):
        path = self.folder / "plan.txt"
        path.write_text(text)
        return run("plot_schedule.py", path, "--out", self.folder / "schedule.png")

    def test_schedule(self):
        """Boxes lie where their times are, in the colour of what they are."""
        plan = (
            "[mesh]\npipeline 1f1b: 2 groups in a replica; costs\n"
            "  passes llm.pp0 F:0:0:0:30 B:0:0:70:100\n  passes llm.pp1 F:1:0:30:50 B:1:0:50:70\n"
        )
        picture = self.expect_picture(self.schedule(plan), "schedule.png")
        red, blue = picture[..., 0], picture[..., 2]
        forward, backward = blue > red + 0.25, red > blue + 0.25
        rows = np.flatnonzero(forward.any(axis=1))
        first = forward[rows.min() + 8], backward[rows.min() + 8]
        width = np.flatnonzero(first[1]).max() - np.flatnonzero(first[0]).min()
        self.assertLess(abs(first[0].sum() / width - 0.3), 0.03)
        self.assertLess(abs(first[1].sum() / width - 0.3), 0.03)
        other = self.expect_picture(self.schedule(plan.replace(":30", ":20")), "schedule.png")
        self.assertFalse(np.array_equal(picture, other))

    def test_schedule_at_fault(self):
        for text, fault in [
            ("ranks\n", "plan.txt: holds no lines of passes; give what zea -n prints of a deck"),
            ("  passes llm.pp0 F:0:0\n", "plan.txt:1: 'F:0:0' is no pass"),
            ("\n  passes llm.pp0 Q:0:0:1:2\n", "plan.txt:2: 'Q:0:0:1:2' is no pass"),
        ]:
            with self.subTest(fault=fault):
                result = self.schedule(text)
                self.assertEqual(result.returncode, 1)
                self.assertIn(fault, result.stderr)
        self.assertIn("cannot read", run("plot_schedule.py", self.folder / "none").stderr)

    PLAN = {
        "ranks": 8, "hardware": "made up", "figures": "published",
        "seconds": 2.0, "mfu": 0.4, "idle_share": 0.1,
        "drawing": {
            "replicas": 2, "node_of_rank": [0, 0, 1, 1],
            "modules": [{"name": "llm", "first_rank": 0, "pp": 2, "encoder_dp": 1, "cp": 1, "tp": 2}],
            "stage_groups": [{"name": "llm.pp0", "first_rank": 0, "ranks": 2}],
            "timeline": [
                {"stage_group": 0, "what": "forward", "begin": 0.0, "end": 0.6},
                {"stage_group": 0, "what": "backward", "begin": 0.8, "end": 2.0},
            ],
        },
    }  # fmt: skip

    def plan(self, plan):
        path = self.folder / "plan.json"
        path.write_text(plan if isinstance(plan, str) else json.dumps(plan))
        return run("plot_plan.py", path, "--out", self.folder / "plan.png")

    def test_plan(self):
        """The timeline's boxes are as wide as their seconds; of a search the best layout is drawn."""
        picture = self.expect_picture(self.plan(self.PLAN), "plan.png")
        forward = np.abs(picture[..., :3] - np.array([0x7F, 0xA8, 0xD9]) / 255).max(axis=2) < 0.02
        backward = np.abs(picture[..., :3] - np.array([0xE5, 0x9A, 0x6A]) / 255).max(axis=2) < 0.02
        row = np.flatnonzero(forward.sum(axis=1) > 100)[5]
        self.assertLess(abs(backward[row].sum() / forward[row].sum() - 2), 0.05)
        search = {key: self.PLAN[key] for key in ("ranks", "hardware", "figures")}
        best = {key: value for key, value in self.PLAN.items() if key not in search}
        found = self.expect_picture(self.plan({**search, "layouts": [best, {}]}), "plan.png")
        self.assertTrue(np.array_equal(picture, found))

    def test_plan_at_fault(self):
        for plan, fault in [
            ("ranks", "plan.json is not JSON"),
            ({"ranks": 2}, "plan.json has no drawing (KeyError: 'drawing'); give what zea -n --json"),
            ({**self.PLAN, "layouts": []}, "no layout fits"),
        ]:
            with self.subTest(fault=fault):
                result = self.plan(plan)
                self.assertEqual(result.returncode, 1)
                self.assertIn(fault, result.stderr)

    def sheet(self, *predictions, arguments=(), items=None):
        data, path = self.folder / "test.h5", self.folder / "predictions.jsonl"
        with DatasetWriter(data, 0) as writer:
            for item in items or [np.full((8, 8), shade, np.uint8) for shade in (0, 100, 200)]:
                writer.add([0, 1], [0, 1], [item])
        path.write_text(lines(*predictions))
        return run("contact_sheet.py", path, data, *arguments)

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

    def beside(self, *others):
        """Two runs of three samples, the first of which is wrong of all of them."""
        first = [{"sample": n, "generated": "no", "answer": "yes"} for n in range(3)]
        path = self.folder / "other.jsonl"
        path.write_text(lines(*others))
        return self.sheet(*first, arguments=["--beside", path])

    def test_contact_sheet_of_two_runs(self):
        better = [{"sample": n, "generated": " yes", "answer": "yes"} for n in range(3)]
        picture = self.expect_picture(self.beside(*better), "contact_sheet.png")
        self.assertGreater((picture[..., 1] > picture[..., 0] + 0.2).sum(), 500)  # green
        self.assertGreater((picture[..., 0] > picture[..., 1] + 0.2).sum(), 30)  # red
        same = [{"sample": n, "generated": "no ", "answer": "yes"} for n in range(3)]
        picture = self.expect_picture(self.beside(*same), "contact_sheet.png")
        self.assertEqual((picture[..., 0] > picture[..., 1] + 0.2).sum(), 0)  # none differs
        result = self.sheet(*same[:1], arguments=["--beside", self.folder / "none.jsonl"])
        self.assertIn("none.jsonl: cannot be read", result.stderr)
        (self.folder / "last.jsonl").write_text(lines(same[2]))
        result = self.sheet(*same[:1], arguments=["--beside", self.folder / "last.jsonl"])
        self.assertIn("no sample in common", result.stderr)

    def test_contact_sheet_of_encoded_images_after_audio(self):
        blue = io.BytesIO()
        Image.new("RGB", (30, 20), (0, 0, 255)).save(blue, "PNG")
        clip = Clip(np.zeros(160, np.int16), 16000)
        prediction = {"sample": 0, "generated": "x", "answer": "x"}
        picture = self.expect_picture(self.sheet(prediction, items=[blue.getvalue(), clip]), "contact_sheet.png")
        self.assertGreater((picture[..., 2] > picture[..., 0] + 0.9).sum(), 500)
        self.expect_picture(self.sheet({**prediction, "sample": 1}, items=[blue.getvalue(), clip]), "contact_sheet.png")

    def test_contact_sheet_takes_any_of_several_answers_and_text_as_it_is(self):
        said = {"sample": 0, "generated": "$\\frac{1$", "answer": "a", "answers": ["b", "$\\frac{1$"]}
        picture = self.expect_picture(self.sheet(said), "contact_sheet.png")
        self.assertEqual((picture[..., 0] > picture[..., 1] + 0.2).sum(), 0)  # no red

    def test_contact_sheet_at_fault(self):
        whole = {"sample": 0, "generated": "x", "answer": "x"}
        for prediction, arguments, fault in (
            ({"generated": "x"}, (), "without the number of their sample"),
            ({"sample": 0}, (), "line 1: is no prediction"),
            (whole, ("--count", 0), "0 is not at least 1"),
            (whole, ("--out", self.folder / "no/a.png"), "cannot draw"),
        ):
            result = self.sheet(prediction, arguments=arguments)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(fault, result.stderr)
            self.assertNotIn("Traceback", result.stderr)

    def test_contact_sheet_of_another_data_set(self):
        result = self.sheet(
            {"sample": 3, "generated": "", "answer": "", "label": None, "correct": False}
        )
        self.assertEqual(result.returncode, 1)
        self.assertIn("beyond the 3", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
