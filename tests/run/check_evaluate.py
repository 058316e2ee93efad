# SPDX-License-Identifier: Apache-2.0
"""run.mode = "evaluate" says the loss of a checkpoint and writes what the model generates."""

import json

import zea_run as zr


class Evaluate(zr.ZeaTest):
    def test_checkpoint(self):
        weights = zr.make_weights(self.folder / "weights.h5")
        names = {
            "classes": ["a", "b"],
            "token_bytes": [b""] * 4 + [bytes([61 + i]) for i in range(zr.VOCABULARY - 4)],
        }
        labelled = [(*sample, i % 2) for i, sample in enumerate(zr.mixed_samples(7))]
        data = zr.make_dataset(self.folder / "data.h5", labelled, **names)
        deck = zr.write_deck(self.folder, weights, data)
        run, evaluated = self.folder / "run", self.folder / "evaluated"
        # Several microbatches, so that units of one are gathered while another is under way.
        held_out = [f'data.eval="{data}"', "eval.every=2", "schedule.steps=2", "data.packing=false"]
        self.assert_code(zr.run_zea(2, ["-i", deck, "-d", run, *held_out], run), 0)

        result = zr.run_zea(
            2,
            ["-r", run, "-d", evaluated, 'run.mode="evaluate"', "eval.generate_tokens=3"],
            evaluated,
        )

        self.assert_code(result, 0)
        self.assertRegex(result.output, r"evaluation at step 2: loss [0-9.]+ over 7 samples")
        (line,) = zr.metrics(evaluated)
        (while_training,) = [line for line in zr.metrics(run) if line["kind"] == "eval"]
        self.assertEqual([line[k] for k in ("kind", "step", "samples")], ["eval", 2, 7])
        self.assertEqual(line["labelled"], 7)
        self.assertEqual(line["loss"], while_training["loss"])
        self.assertEqual(zr.checkpoints(evaluated), [])
        text = (evaluated / "predictions.jsonl").read_text()
        predictions = [json.loads(entry) for entry in text.splitlines()]
        self.assertEqual([entry["sample"] for entry in predictions], list(range(7)))
        self.assertTrue(all(len(entry["generated"]) <= 3 for entry in predictions))
        self.assertTrue(all(entry["answer"] for entry in predictions))


zr.main()
