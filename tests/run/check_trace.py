# SPDX-License-Identifier: Apache-2.0
"""The Chrome trace of a step: actions once, spans that nest, ranks on one clock; and the script that joins them."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import zea_run as zr

MERGE = Path(__file__).resolve().parents[2] / "postprocess" / "merge_traces.py"
STEP, MICROBATCHES = 3, 2
UNITS = [
    "vision.embed",
    "vision.layers.0",
    "vision.projector",
    "llm.embed",
    "llm.merge",
    "llm.layers.0",
    "llm.layers.1",
    "llm.head",
]
BESIDE = ["load", "zero gradients", "control all-reduce", "optimizer"]


def spans(trace):
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def names(trace, category):
    return Counter(span["name"] for span in spans(trace) if span["cat"] == category)


class Trace(zr.ZeaTest):
    @classmethod
    def setUpClass(cls):
        """A run that all tests look at: four samples of 14 tokens are two rows for each of two ranks."""
        cls.shared = zr.make_folder(cls.addClassCleanup)
        cls.deck = zr.write_inputs(cls.shared, [zr.image_sample(i) for i in range(16)])
        cls.train_in(cls.shared / "run")

    @classmethod
    def train_in(cls, directory):
        cls.directory = directory
        keys = ["schedule.steps=4", "data.row_tokens=16", f"log.trace_step={STEP}"]
        cls.result = zr.run_zea(2, ["-i", cls.deck, "-d", directory, *keys], directory)

    def traces(self):
        self.assert_code(self.result, 0)
        self.assertIn(f"wrote the trace of step {STEP}", self.result.output)
        files = sorted((self.directory / "trace").iterdir())
        self.assertEqual([file.name for file in files], ["rank-00000.json", "rank-00001.json"])
        return [json.loads(file.read_text()) for file in files]

    def assert_nest(self, trace):
        """In a row, spans lie in each other or beside each other."""
        rows = {}
        for span in spans(trace):
            rows.setdefault(span["tid"], []).append((span["ts"], span["ts"] + span["dur"], span["name"]))
        for row in rows.values():
            open_until = []
            for begin, end, name in sorted(row, key=lambda span: (span[0], -span[1])):
                self.assertGreaterEqual(end, begin)
                while open_until and open_until[-1][0] <= begin + 1e-3:
                    open_until.pop()
                for until, outer in open_until:
                    self.assertLessEqual(end, until + 1e-3, f"{name} outlasts {outer}")
                open_until.append((end, name))

    def test_every_action_is_there_once(self):
        for trace in self.traces():
            actions = names(trace, "action")
            for unit in UNITS:
                for microbatch in range(MICROBATCHES):
                    self.assertEqual(actions[f"forward {unit} microbatch {microbatch}"], 1, actions)
                    self.assertEqual(actions[f"backward {unit} microbatch {microbatch}"], 1, actions)
            for name in BESIDE:
                self.assertEqual(actions[name], 1, actions)
            self.assertEqual(actions["make microbatch"], MICROBATCHES)
            self.assertEqual(trace["otherData"], {"rank": trace["otherData"]["rank"], "step": STEP})
            self.assert_nest(trace)

    def test_communications_and_waits_are_named(self):
        for trace in self.traces():
            calls, waits = names(trace, "communication"), names(trace, "wait")
            self.assertEqual(sum(call.startswith("all_reduce 8 float64 #") for call in calls), 1, calls)
            self.assertTrue(any("reduce_scatter" in call and "of llm." in call for call in calls), calls)
            self.assertEqual(max(calls.values()), 1, "every call has a number of its own")
            for call in calls:
                self.assertIn(f"start {call}", waits)

    def test_ranks_are_on_one_clock(self):
        """A rank may lose its core between the barrier and its clock: such a run does not count."""
        tolerance = 20000  # microseconds
        for attempt in range(5):
            if self.seen_too_early() < tolerance:
                return
            self.train_in(self.shared / f"again-{attempt}")
        self.assertLess(self.seen_too_early(), tolerance)

    def seen_too_early(self):
        """Nobody leaves the step's all-reduce before the last one has entered it; by how much it looks so."""
        traces = self.traces()
        for trace in traces:
            self.assertLess(min(span["ts"] for span in spans(trace)), 1e6)
            self.assertGreaterEqual(min(span["ts"] for span in spans(trace)), 0)
        calls = [
            next(span for span in spans(trace) if span["name"].startswith("all_reduce 8 float64"))
            for trace in traces
        ]
        left = min(call["ts"] + call["dur"] for call in calls)
        return max(call["ts"] for call in calls) - left

    def test_the_traces_of_all_ranks_join(self):
        traces = self.traces()
        out = self.folder / "joined.json"
        done = subprocess.run(
            [sys.executable, "-B", MERGE, self.directory, "--out", out], capture_output=True, text=True, timeout=60
        )

        self.assertEqual(done.returncode, 0, done.stderr)
        joined = json.loads(out.read_text())
        self.assertEqual({span["pid"] for span in spans(joined)}, {0, 1})
        self.assertEqual(len(spans(joined)), sum(len(spans(trace)) for trace in traces))
        self.assertRegex(done.stdout, r"rank 1: [0-9.]+ s, in actions")
        self.assertIn("step 3, 2 ranks", done.stdout)

        twice = subprocess.run(
            [sys.executable, "-B", MERGE, self.directory, self.directory, "--out", out],
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertNotEqual(twice.returncode, 0)
        self.assertIn("second trace of rank 0", twice.stderr)

    def test_a_step_that_never_comes_is_refused(self):
        keys = ["schedule.steps=4", "log.trace_step=5"]
        result = zr.run_zea(1, ["-i", self.deck, "-d", self.folder / "run", *keys])
        self.assert_code(result, 2)
        self.assertIn("log.trace_step = 5 is above schedule.steps = 4", result.output)


if __name__ == "__main__":
    zr.main()
