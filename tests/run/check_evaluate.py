# SPDX-License-Identifier: Apache-2.0
"""run.mode = "evaluate" says the loss of a checkpoint and writes what the model generates; "generate"
writes that alone, also behind samples that are only prompts."""

import json
import os
import signal
import time

import zea_run as zr


class Evaluate(zr.ZeaTest):
    def test_checkpoint(self):
        weights = zr.make_weights(self.folder / "weights.h5")
        names = {
            "classes": ["a", "b"],
            "token_bytes": [b""] * 4 + [bytes([61 + i]) for i in range(zr.VOCABULARY - 4)],
        }
        answers = {3: ["one", "two  words"], 5: ["<>"]}
        labelled = [(*sample, i % 2, answers.get(i, [])) for i, sample in enumerate(zr.mixed_samples(7))]
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
        self.assertEqual({entry["sample"]: entry["answers"] for entry in predictions if "answers" in entry}, answers)

    def test_an_answer_ends_with_its_turn(self):
        weights = zr.make_weights(self.folder / "weights.h5")
        turns = [1, 4, 5, 6, 7, 8, 9, 10], [0, 0, 1, 1, 0, 0, 1, 1], []
        zr.make_dataset(self.folder / "data.h5", [turns])
        deck = zr.write_deck(self.folder, weights, self.folder / "data.h5")

        _, directory = self.generate(deck, "said", "eval.generate_tokens=2")

        (line,) = zr.predictions(directory)
        self.assertEqual((line["prompt"], line["answer"]), ("1 4 ", "5 6 "))

    def test_masked_samples_are_reported(self):
        """Once, whether they are loaded for a loss, for generation or for both."""
        weights = zr.make_weights(self.folder / "weights.h5")
        tokens, mask, _ = zr.image_sample(1)
        broken = tokens, mask, [b"\xff\xd8\xff\xe0 this is no JPEG"]
        data = zr.make_dataset(self.folder / "data.h5", [broken, *zr.mixed_samples(5), broken])
        deck = zr.write_deck(self.folder, weights, data)
        for mode, tokens in (("evaluate", 0), ("evaluate", 2), ("generate", 2)):
            directory = self.folder / f"{mode}{tokens}"
            keys = [f'run.mode="{mode}"', f'data.eval="{data}"', f"eval.generate_tokens={tokens}"]
            keys.append('data.bad_items="mask"')
            result = zr.run_zea(2, ["-i", deck, "-d", directory, *keys], directory)
            self.assert_code(result, 0)
            (line,) = zr.metrics(directory)
            self.assertEqual((line["samples"], line["bad_items"]), (7, 2))
            for sample in (0, 6):
                self.assertEqual(result.output.count(f"sample {sample}, item 0 is masked: "), 1, result.output)
            if tokens > 0:
                self.assertEqual([line["sample"] for line in zr.predictions(directory)], [1, 2, 3, 4, 5])
        # Into the same directory: no predictions of before stay.
        nothing = zr.make_dataset(self.folder / "nothing.h5", [broken])
        self.assert_code(zr.run_zea(2, ["-i", deck, "-d", directory, *keys, f'data.eval="{nothing}"'], directory), 0)
        self.assertEqual(zr.predictions(directory), [])

    def test_what_is_left_has_results(self):
        """The data set has so many samples that the run would not reach its end in time."""
        weights = zr.make_weights(self.folder / "weights.h5")
        data = zr.make_dataset(self.folder / "data.h5", zr.mixed_samples(20_000))
        deck = zr.write_deck(self.folder, weights, data)
        ends = {
            "stop": lambda run, directory: (directory / "STOP").touch(),
            "signal": lambda run, directory: os.kill(run.rank_processes()[1], signal.SIGUSR2),
            "limit": None,
        }
        for name, ask in ends.items():
            directory = self.folder / name
            keys = ['run.mode="evaluate"', f'data.eval="{data}"', "eval.generate_tokens=1"]
            limit = [] if ask else ["-t", "0:00:05"]
            with zr.start(2, ["-i", deck, "-d", directory, *limit, *keys], directory) as run:
                if ask:
                    run.wait_until(lambda: "plan: " in run.output, "the log")
                    time.sleep(1)
                    ask(run, directory)
                self.assertEqual(run.wait(), 75, run.output)
                said = run.output
            (line,) = zr.metrics(directory)
            self.assertIn(f"ends with {line['samples']} samples: the run is asked to leave", said)
            self.assertLess(line["samples"], 20_000)
            self.assertEqual(len(zr.predictions(directory)), line["samples"])
            self.assertEqual(said.count(f"found the file STOP in {directory}: leaving"), int(name == "stop"), said)
            self.assertFalse((directory / "STOP").exists())

    def test_without_targets_there_is_no_loss(self):
        weights = zr.make_weights(self.folder / "weights.h5")
        asked = [(tokens, [0] * len(mask), *rest) for tokens, mask, *rest in zr.mixed_samples(3)]
        data = zr.make_dataset(self.folder / "data.h5", asked)
        deck = zr.write_deck(self.folder, weights, data)
        evaluated = self.folder / "evaluated"
        keys = ['run.mode="evaluate"', f'data.eval="{data}"']

        result = zr.run_zea(1, ["-i", deck, "-d", evaluated, *keys], evaluated)

        self.assert_code(result, 0)
        self.assertIn("no targets, so no loss, in 3 samples", result.output)
        (line,) = zr.metrics(evaluated)
        self.assertIsNone(line["loss"])

    def test_training_goes_on_where_predictions_cannot_be_written(self):
        """As it does where checkpoints cannot be, if it is told to."""
        weights = zr.make_weights(self.folder / "weights.h5")
        data = zr.make_dataset(self.folder / "data.h5", zr.mixed_samples(4))
        deck = zr.write_deck(self.folder, weights, data)
        keys = [f'data.eval="{data}"', "eval.every=1", "eval.generate_tokens=2", "schedule.steps=2"]
        for on_failure, code in (("continue", 0), ("stop", 7)):
            run = self.folder / on_failure
            (run / "predictions.jsonl").mkdir(parents=True)
            more = [*keys, f'checkpoint.on_failure="{on_failure}"']
            result = zr.run_zea(1, ["-i", deck, "-d", run, *more], run)
            self.assert_code(result, code)
            self.assertIn("predictions.jsonl: Is a directory", result.output)
        self.assertEqual(zr.last_step(self.folder / "continue"), 2)

    def generate(self, deck, name, *keys):
        """Returns the text generated after each sample, and the run's directory."""
        directory = self.folder / name
        asked = ['run.mode="generate"', f'data.eval="{self.folder}/data.h5"', *keys]
        self.assert_code(zr.run_zea(1, ["-i", deck, "-d", directory, *asked], directory), 0)
        lines = map(json.loads, (directory / "predictions.jsonl").read_text().splitlines())
        return {line["sample"]: line["generated"] for line in lines}, directory

    def test_generation(self):
        weights = zr.make_weights(self.folder / "weights.h5")
        samples = list(zr.mixed_samples(6))
        tokens, mask, *rest = samples[4]
        samples[4] = (tokens, [0] * len(mask), *rest)
        data = zr.make_dataset(self.folder / "data.h5", samples)
        deck = zr.write_deck(self.folder, weights, data)
        ten = "eval.generate_tokens=10"

        said, directory = self.generate(deck, "said", ten)
        self.assertEqual(sorted(said), list(range(6)))
        (line,) = zr.metrics(directory)
        self.assertEqual((line["kind"], line["samples"]), ("generate", 6))
        self.assertEqual(line["generated"], sum(len(text.split()) for text in said.values()))
        self.assertNotIn("loss", line)

        likeliest, _ = self.generate(deck, "likeliest", ten, "eval.temperature=3", "eval.top_p=1e-9")
        self.assertEqual(likeliest, said)

        longest = max(said, key=lambda sample: len(said[sample].split()))
        words = said[longest].split()
        self.assertGreater(len(words), 1)
        token = words[-1]
        stopped, _ = self.generate(deck, "stopped", ten, f"eval.stop_tokens=[{token}]")
        self.assertEqual(stopped[longest].split(), words[: words.index(token)])
        cut, _ = self.generate(deck, "cut", ten, f'eval.stop_texts=["{token} "]')
        self.assertEqual(cut[longest], said[longest][: said[longest].index(f"{token} ")])

        wordless = zr.make_dataset(self.folder / "wordless.h5", samples, token_bytes=None)
        keys = ['run.mode="generate"', f'data.eval="{wordless}"', ten]
        refused = zr.run_zea(1, ["-i", deck, "-d", self.folder / "wordless", *keys])
        self.assert_code(refused, 3)
        self.assertIn("does not say what text its tokens are", refused.output)

        named = {"special_texts": [b"<end>" if i == int(token) else b"" for i in range(zr.VOCABULARY)]}
        texts = [b"" if i == int(token) else f"{i} ".encode() for i in range(zr.VOCABULARY)]
        zr.make_dataset(self.folder / "data.h5", samples, token_bytes=texts, **named)
        ended, _ = self.generate(deck, "ended", ten, 'eval.stop_texts=["<end>"]')
        self.assertEqual(ended[longest].split(), words[: words.index(token)])

        drawn, _ = self.generate(deck, "drawn", ten, "eval.temperature=3")
        self.assertNotEqual(drawn, said)
        again, _ = self.generate(deck, "again", ten, "eval.temperature=3")
        self.assertEqual(again, drawn)
        other, _ = self.generate(deck, "other", ten, "eval.temperature=3", "run.seed=5")
        self.assertNotEqual(other, drawn)


zr.main()
