# SPDX-License-Identifier: Apache-2.0
"""zea --plan on a data set: what it finds can be planned, takes the seconds that zea -n says, and trains; what the deck
sets is kept; what cannot be is refused with a sentence."""

import json
import subprocess
from pathlib import Path

import zea_run as zr

INPUTS = Path(__file__).parents[2] / "inputs"
HARDWARE = INPUTS / "hardware/epyc_core.toml"
CONFIG = {**zr.CONFIG, "text_config": {**zr.CONFIG["text_config"], "num_hidden_layers": 4}}


class PlanSearch(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        config = self.folder / "config.json"
        config.write_text(json.dumps(CONFIG))
        weights = self.folder / "weights.h5"
        subprocess.run([zr.ZEA_IMPORT, "--random", config, weights], check=True, timeout=60, capture_output=True)
        data = zr.make_dataset(self.folder / "train.h5", zr.mixed_samples(40))
        self.deck = self.folder / "deck.toml"
        self.deck.write_text(
            f'[model]\nweights = "{weights}"\n[data]\ntrain = "{data}"\nrow_tokens = 64\n'
            "[schedule]\nsteps = 2\nglobal_batch = 12\n[mesh.llm]\npp = 1\n"
        )

    def search(self, *arguments):
        return zr.answer("--plan", "--hardware", HARDWARE, "-i", self.deck, *arguments)

    def test_layouts_that_are_found_take_these_seconds_and_train(self):
        decks = self.folder / "decks"
        result = self.search("--ranks", "4", "--out", decks, "--json")
        self.assert_code(result, 0)
        found = json.loads(result.output)
        self.assertEqual(len(found["layouts"]), 10)
        self.assertEqual((found["ranks"], found["ranks_per_node"], found["figures"]), (4, 2, "published"))
        seconds = [layout["seconds"] for layout in found["layouts"]]
        self.assertEqual(seconds, sorted(seconds))
        for number, layout in enumerate(found["layouts"], 1):
            self.assertFalse([key for key in layout["overrides"] if key.startswith("mesh.llm.pp")])
            deck = decks / f"layout_{number:02}.toml"
            self.assertIn("pp = 1", deck.read_text())
            plan = zr.answer("-n", "--ranks", "4", "--hardware", HARDWARE, "-i", deck)
            self.assert_code(plan, 0)
            self.assertIn("time of a step (mean of steps 1 to 2) on one core", plan.output)
            told = plan.output.split("by published figures: ")[1].split(",")[0].split()
            self.assertAlmostEqual(float(told[0]) * {"s": 1, "ms": 1e-3}[told[1]] / layout["seconds"], 1, delta=0.01)
        directory = self.folder / "run"
        run = zr.run_zea(4, ["-i", decks / "layout_01.toml", "-d", directory], directory)
        self.assert_code(run, 0)
        self.assertEqual(list(run.losses()), [1, 2])

    def test_plans_as_json_and_side_by_side(self):
        plan = zr.answer("-n", "--json", "--ranks", "2", "--hardware", HARDWARE, "-i", self.deck)
        self.assert_code(plan, 0)
        told = json.loads(plan.output)
        drawing = told["drawing"]
        self.assertEqual(drawing["node_of_rank"][0], 0)
        self.assertEqual({module["name"] for module in drawing["modules"]}, {"llm", "vision"})
        end = max(span["end"] for span in drawing["timeline"])
        self.assertGreater(end, 0)
        busy = sum(span["end"] - span["begin"] for span in drawing["timeline"] if span["stage_group"] == 0)
        self.assertLessEqual(busy, 1.0001 * end)
        both = ["-i", self.deck, "--compare", "mesh.llm.tp=2"]
        compared = zr.answer("-n", "--ranks", "2", "--hardware", HARDWARE, *both)
        self.assert_code(compared, 0)
        row = next(line for line in compared.output.splitlines() if line.startswith("  seconds"))
        self.assertAlmostEqual(float(row.split()[1]) / told["seconds"], 1, delta=0.5)
        self.assertEqual(len(row.split()), 3)

    def test_goodput(self):
        result = self.search("--ranks", "2", "--mtbf", "8")
        self.assert_code(result, 2)
        self.assertIn("--mtbf needs the time of a checkpoint", result.output)
        hardware = self.folder / "hardware.toml"
        hardware.write_text(HARDWARE.read_text().replace("memory_gib", "storage_gb_per_s = 0.5\nmemory_gib"))
        told = zr.answer("--plan", "--hardware", hardware, "-i", self.deck, "--ranks", "2", "--mtbf", "8")
        self.assert_code(told, 0)
        self.assertIn("with a failure every 8 hours: training waits while ranks write at 0.5 GB/s", told.output)
        asked = ["--plan", "--json", "--hardware", hardware, "-i", self.deck, "--ranks", "2", "--mtbf", "8"]
        for layout in json.loads(zr.answer(*asked).output)["layouts"]:
            self.assertGreaterEqual(layout["checkpoints"]["every"], 1)
            self.assertTrue(0.5 < layout["checkpoints"]["goodput"] < 1)
        directory = self.folder / "measured"
        run = zr.run_zea(2, ["-i", self.deck, "-d", directory, "checkpoint.every=1"], directory)
        self.assert_code(run, 0)
        measured = self.search("--ranks", "2", "--mtbf", "8", "-d", directory)
        self.assert_code(measured, 0)
        self.assertIn("s, as measured; a restart takes", measured.output)

    def test_text_names_samples_and_reasons(self):
        result = self.search("--ranks", "2", "--memory", "1GiB")
        self.assert_code(result, 0)
        self.assertIn("by steps 1 to 2 of data.train", result.output)
        self.assertIn("within 1 GiB a rank: ", result.output)
        self.assertIn("  10  mesh.", result.output)

    def test_what_cannot_be_is_refused(self):
        nothing = self.search("--ranks", "2", "--memory", "0.01MiB")
        self.assert_code(nothing, 2)
        self.assertIn("none fits", nothing.output)
        self.assert_code(self.search("--ranks", "2", "--memory", "0.01MiB", "--json"), 2)
        impossible = self.search("--ranks", "2", "mesh.llm.tp=4")
        self.assert_code(impossible, 2)
        self.assertIn("no layout of 2 ranks can be planned with what the deck sets", impossible.output)
        no_grid = self.search("--ranks", "2", "mesh.llm.ep=3")
        self.assert_code(no_grid, 2)
        self.assertRegex(no_grid.output, r"what the deck sets; the first that was tried: .*mesh\.llm\.ep = 3")
        (self.folder / "hardware.toml").write_text("[node]\nrank = 2\n")
        wrong = zr.answer("-n", "--hardware", self.folder / "hardware.toml", "-i", self.deck)
        self.assert_code(wrong, 2)
        self.assertIn("node.rank is not a key; did you mean node.ranks?", wrong.output)


zr.main()
