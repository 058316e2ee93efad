# SPDX-License-Identifier: Apache-2.0
"""The facts that job_info.json and manifests hold, and zea --reproduce: the same run, a run that differs, and which
facts (commit, layout, deck, data, weights) differ."""

import json
import subprocess
from pathlib import Path

import zea_run as zr

DIFFERS = 9
STEPS = 6


class Reproduce(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        self.deck = zr.write_inputs(self.folder, zr.mixed_samples(12), schedule=[f"steps = {STEPS}"])
        self.run_directory, self.again = self.folder / "run", self.folder / "run-reproduced"

    def train(self, *arguments, ranks=2):
        return self.run_in(self.run_directory, ranks, "-i", self.deck, *arguments)

    def reproduce(self, *arguments, ranks=2, code=0, run=None):
        result = zr.run_zea(ranks, ["--reproduce", run or self.run_directory, *arguments])
        self.assert_code(result, code)
        return result.output

    def starts(self, run=None):
        return json.loads(((run or self.run_directory) / "job_info.json").read_text())["starts"]

    def change_job_info(self, change):
        path = self.run_directory / "job_info.json"
        info = json.loads(path.read_text())
        change(info)
        path.write_text(json.dumps(info))

    def test_what_is_kept(self):
        self.train("mesh.llm.tp=2", "data.eval=" + str(self.folder / "train.h5"))
        (start,) = self.starts()
        facts = start["facts"]
        self.assertRegex(start["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual((start["from_step"], len(start["hosts"])), (0, 1))
        self.assertRegex(facts["build"]["commit"], r"^([0-9a-f]{40}(-dirty)?|unknown)$")
        self.assertIn(f"commit: {facts['build']['commit']}\n", zr.answer("-c").output)
        self.assertEqual((facts["ranks"], facts["threads"], facts["gpus"]), (2, 1, []))
        self.assertRegex(facts["layout"], r"\bllm \w+ tp 2\b")
        self.assertEqual(len(facts["processors"]), 1)
        train = {"path": str(self.folder / "train.h5"), "samples": 12}
        (data,), (held_out,) = facts["data"], facts["eval data"]
        for found in (data, held_out):
            self.assertEqual({key: found[key] for key in train}, train)
            self.assertRegex(found["hash"], "^[0-9a-f]{32}$")
        (weights,) = facts["weights"]
        self.assertEqual(weights["path"], str(self.folder / "weights.h5"))
        manifest = json.loads((zr.checkpoints(self.run_directory)[-1] / "manifest.json").read_text())
        self.assertEqual(json.loads(manifest["job_info"]), start)

    def test_the_commit_is_that_of_the_sources(self):
        source = Path(__file__).parents[2]
        git = ["git", "-C", source, "rev-parse", "HEAD"]
        head = subprocess.run(git, capture_output=True, text=True)
        if head.returncode:
            self.skipTest("the sources are in no repository")
        self.assertIn(f"commit: {head.stdout.strip()}", zr.answer("-c").output)

    def test_the_same_run(self):
        self.train("checkpoint.every=2", "run.seed=3")
        output = self.reproduce()
        self.assertIn(f"reproduced {self.run_directory} in {self.again}, up to step {STEPS}\n", output)
        self.assertIn("commit, libraries, processors, layout, deck, data and weights are the same\n", output)
        self.assertIn(f"numbers of {STEPS} logged steps: the same bit for bit\n", output)
        self.assertRegex(output, rf"checkpoint of step {STEPS}: \d+ tensors, the same bit for bit\n")
        self.assertIn("the run is the same bit for bit\n", output)
        self.assert_same_arrays(zr.last_arrays(self.run_directory), zr.last_arrays(self.again))
        with self.subTest("its first steps, elsewhere"):
            output = self.reproduce("--steps", "4", "-d", self.folder / "first")
            self.assertEqual(zr.last_step(self.folder / "first"), 4)
            self.assertIn("numbers of 4 logged steps: the same bit for bit\n", output)
            self.assertIn("checkpoint of step 4: ", output)
        with self.subTest("not over another run"):
            self.assertIn("holds checkpoints of an earlier run", self.reproduce(code=2))

    def test_a_run_that_was_stopped_and_resumed(self):
        keys = ["schedule.steps=400", "checkpoint.every=50"]
        with zr.start(2, ["-i", self.deck, "-d", self.run_directory, *keys], self.run_directory) as run:
            run.wait_for_step(3)
            (self.run_directory / "STOP").touch()
            self.assertEqual(run.wait(), 75, run.output)
        stopped = zr.last_step(self.run_directory)
        self.assertLess(stopped, 400)
        output = self.reproduce()
        self.assertIn(f"up to step {stopped}\n", output)
        self.assertIn("the run is the same bit for bit\n", output)
        self.run_in(self.run_directory, 2, "-r", self.run_directory)
        output = self.reproduce("-d", self.folder / "whole")
        self.assertIn(f"start 2 of the run went on from step {stopped}, with the same facts\n", output)
        self.assertIn("numbers of 400 logged steps: the same bit for bit\n", output)

    def test_a_run_that_began_with_a_checkpoint(self):
        self.train()
        branch = self.folder / "branch"
        self.run_in(branch, 2, "-r", self.run_directory, "schedule.steps=9")
        (start,) = self.starts(branch)
        self.assertEqual(start["from_step"], STEPS)
        output = self.reproduce(run=branch)
        self.assertIn("numbers of 3 logged steps: the same bit for bit\n", output)

    def test_other_weights(self):
        self.train()
        zr.make_weights(self.folder / "weights.h5", seed=2)
        output = self.reproduce(code=DIFFERS)
        self.assertRegex(output, r'facts that differ:\n  weights/0/hash: was "\w+", is "\w+"\n')
        self.assertRegex(output, r"logged steps: differ; first at step 1: loss was \d.* and is \d")
        self.assertRegex(output, rf"checkpoint of step {STEPS}: differs; first in \S+ \(\w+\), element \d+ of \d+\n")
        self.assertIn("\nthe run differs\n", output)

    def test_other_data_deck_and_layout(self):
        self.train()
        zr.make_dataset(self.folder / "train.h5", zr.mixed_samples(13))
        output = self.reproduce("optim.lr=0.01", "mesh.llm.tp=2", code=DIFFERS)
        for fact in ("data/0/hash", "data/0/samples: was 12, is 13", "deck", "layout: was "):
            self.assertIn(f"\n  {fact}", output)
        self.assertRegex(output, r"differ; first at step \d: ")

    def test_a_later_difference_is_found_at_its_step(self):
        self.train()
        path = self.run_directory / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if line["kind"] == "train" and line["step"] >= 4:
                line["grad_norm"] *= 1 + 2**-52
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        output = self.reproduce(code=DIFFERS)
        self.assertIn("differ; first at step 4: grad_norm was ", output)
        self.assertRegex(output, rf"checkpoint of step {STEPS}: \d+ tensors, the same bit for bit\n")

    def test_facts_that_change_no_bit(self):
        self.train()

        def change(info):
            info["starts"][0]["facts"]["build"]["commit"] = "0" * 40
            info["starts"][0]["facts"]["processors"] = ["an abacus"]

        self.change_job_info(change)
        output = self.reproduce()
        self.assertIn(f'  build/commit: was "{"0" * 40}", is ', output)
        self.assertIn('  processors/0: was "an abacus", is ', output)
        self.assertIn("the run is the same bit for bit\n", output)

    def test_what_cannot_be_reproduced(self):
        self.train()
        info = self.run_directory / "job_info.json"
        text = info.read_text()
        for broken, code, sentence in (
            (text[:-9], 4, "job_info.json"),
            (text.replace("zea.job_info 1", "zea.job_info 9"), 4, 'its format is not "zea.job_info 1"'),
            ('{"format": "zea.job_info 1", "starts": []}', 4, "it lists no start"),
        ):
            info.write_text(broken)
            self.assertIn(sentence, self.reproduce(code=code))
        info.unlink()
        self.assertIn(f"{info}: cannot open", self.reproduce(code=4))
        info.write_text(text)
        (self.run_directory / "metrics.jsonl").write_text("")
        self.assertIn("holds no step, so there is nothing to compare with", self.reproduce(code=2))
        self.assertFalse(self.again.exists())


zr.main()
