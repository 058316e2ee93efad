# SPDX-License-Identifier: Apache-2.0
"""Pipelines before they run: what zea -n prints of them, the picture that is drawn of it, stages cut
by measured costs, and templates that are refused."""

import json
import re
import subprocess
import sys
from pathlib import Path

import zea_run as zr

PLOT = Path(__file__).parents[2] / "postprocess/plot_schedule.py"
UNITS = ["vision.embed", "vision.layers.0", "vision.projector", "llm.embed", "llm.merge"]
UNITS += ["llm.layers.0", "llm.layers.1", "llm.head"]


class PipelinePlan(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        config = self.folder / "config.json"
        config.write_text(json.dumps(zr.CONFIG))
        self.deck = self.folder / "deck.toml"
        self.deck.write_text(
            f'[model]\nconfig = "{config}"\n[data]\ntrain = "none.h5"\nrow_tokens = 32\n[schedule]\nglobal_batch = 4\n'
        )

    def zea(self, code, *arguments):
        result = zr.answer("-i", self.deck, *arguments)
        self.assert_code(result, code)
        return result.output

    def plan(self, *overrides, ranks=2, code=0):
        return self.zea(code, "-n", "--ranks", str(ranks), *overrides)

    def stages(self, text):
        """The units of each stage, as the table names them."""
        rows = re.findall(r"^  (llm\.pp\d+) +[\d.]+ +(\d+) .*\d\.\d\d  (.*)$", text, re.MULTILINE)
        return {int(stage): units.split(", ") for _, stage, units in rows}

    def test_plan_and_picture(self):
        text = self.plan("mesh.llm.pp=2", "mesh.schedule=zero_bubble")
        self.assertIn("pipeline zero_bubble: 2 groups in a replica", text)
        self.assertIn("% with 4,", text)
        self.assertRegex(text, r"llm\.pp0 +\|F0")
        units = [unit for stage in sorted(self.stages(text).items()) for unit in stage[1]]
        self.assertEqual((units[0], units[-1]), ("vision.embed", "llm.head"))

        plan, picture = self.folder / "plan.txt", self.folder / "schedule.png"
        plan.write_text(text)
        command = [sys.executable, PLOT, plan, "--out", picture]
        drawn = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if "jobs/requirements.txt" in drawn.stderr:
            self.skipTest(drawn.stderr.strip())
        self.assertEqual((drawn.returncode, drawn.stderr), (0, ""))
        self.assertEqual(picture.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")

    def test_one_group_has_no_pipeline(self):
        self.assertNotRegex(self.plan(), "(?m)^pipeline |passes")

    def test_templates(self):
        text = self.plan('mesh.llm.stages=[["llm.embed..llm.layers.0"], ["llm.layers.1", "llm.head"]]')
        self.assertEqual(self.stages(text)[1], ["llm.layers.1", "llm.head"])
        for stages, fault in [
            ('[["llm.embed..llm.layers.0"], ["llm.head"]]', "leaves out llm.layers.1"),
            ('[["llm.embed..llm.layers.1"], ["llm.layers.1", "llm.head"]]', "llm.layers.1 twice"),
            ('[["llm.embed..llm.layer.1"], ["llm.head"]]', "did you mean llm.layers.1?"),
        ]:
            with self.subTest(fault=fault):
                self.assertIn(fault, self.plan(f"mesh.llm.stages={stages}", code=2))

    def test_measured_costs_cut_stages(self):
        costs = self.folder / "costs.json"
        said = self.zea(0, "--profile", costs, "mesh.llm.pp=2", "model.vision.train=false")
        self.assertIn(f"written to {costs}", said)
        measured = json.loads(costs.read_text())
        self.assertEqual(list(measured["units"]), sorted(UNITS))
        for name, unit in measured["units"].items():
            self.assertGreater(unit["forward"], 0, name)
        block = measured["units"]["llm.layers.1"]
        self.assertGreater(min(block.values()), 0)

        for name, unit in measured["units"].items():
            for what in unit:
                unit[what] = 1.0 if name == "llm.layers.0" else 0.001
        costs.write_text(json.dumps(measured))
        text = self.plan("mesh.llm.pp=3", f"mesh.profile={costs}", ranks=3)
        self.assertIn(f"in milliseconds (measured: {costs})", text)
        self.assertIn(["llm.layers.0"], self.stages(text).values())

    def test_whatever_trains_is_measured_as_trained(self):
        costs, wanted = self.folder / "costs.json", sorted(UNITS)
        for overrides in [
            ["model.activation_checkpointing=auto", "mesh.rank_memory_mib=1000"],
            ["data.cache_features=features", "model.vision.train=false"],
            ['model.llm.lora.targets=["q_proj"]', 'model.vision.lora.targets=["q_proj"]'],
            ["run.mode=evaluate", "data.eval=none.h5"],
            ['optim.frozen=["*embed_tokens*"]', 'optim.lr_factors=["vision = 0.5"]'],
        ]:
            with self.subTest(overrides=overrides):
                self.zea(0, "--profile", costs, *overrides)
                self.assertEqual(sorted(json.loads(costs.read_text())["units"]), wanted)
                costs.unlink()

    def test_profiles_at_fault(self):
        costs = self.folder / "costs.json"
        text = self.plan(f"mesh.profile={costs}", code=2)
        self.assertIn("write it with zea --profile, or leave mesh.profile empty", text)
        costs.write_text('{"units": {"vision.embed": {}}}')
        text = self.plan(f"mesh.profile={costs}", code=2)
        self.assertIn('has no seconds "forward" of unit vision.embed', text)
        self.assertIn("measure first", self.zea(2, "-n", "--profile", costs))
        text = self.zea(2, "--profile", costs, "data.row_tokens=4")
        self.assertIn("hold no item of vision", text)


if __name__ == "__main__":
    zr.main()
