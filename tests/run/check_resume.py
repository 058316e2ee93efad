# SPDX-License-Identifier: Apache-2.0
"""A resumed run is bitwise the run that was never interrupted, at the same layout; of several data sets
with weights, also in a folder, the samples are the same at any number of ranks."""

import re
import shutil

import zea_run as zr
from packing.folder_index import write_index


class Resume(zr.ZeaTest):
    def check_bitwise(self, preset):
        deck = zr.write_inputs(
            self.folder,
            zr.mixed_samples(22),
            schedule=["steps = 12"],  # more than two epochs, each in an order of its own
            precision=[f'preset = "{preset}"'],
            checkpoint=["every = 6", "keep = 0"],
            **{"mesh.vision": ['strategy = "no_shard"']},
        )
        whole, rest = self.folder / "whole", self.folder / "rest"

        shuffled = ["-i", deck, "data.shuffle=true"]
        self.assert_code(zr.run_zea(2, [*shuffled, "-d", whole], whole), 0)
        half = whole / "checkpoints" / "step-00000006"
        self.assert_code(zr.run_zea(2, ["-r", half, "-d", rest], rest), 0)

        expected = zr.numbers_of_steps(whole)
        self.assertEqual(list(expected), list(range(1, 13)))
        self.assertEqual(zr.numbers_of_steps(rest), {step: expected[step] for step in range(7, 13)})
        end = zr.read_checkpoint(whole / "checkpoints" / "step-00000012")
        self.assertEqual({state for _, state in end}, {"parameter", "exp_avg", "exp_avg_sq"})
        self.assert_same_arrays(end, zr.last_arrays(rest))

    def test_steps_that_were_skipped(self):
        """A spike that the data holds right after the checkpoint is judged by the steps before it."""
        odd, steps = 25, 28
        samples = [zr.text_sample(1)] * 4 * steps
        for i in range(4 * (odd - 1), 4 * odd):
            samples[i] = zr.text_sample(i + 2)
        deck = zr.write_inputs(
            self.folder,
            samples,
            schedule=[f"steps = {steps}"],
            optim=["spike_deviations = 6.0", "spike_window = 5"],
            checkpoint=[f"every = {odd - 1}", "keep = 0"],
        )
        whole, rest = self.folder / "whole", self.folder / "rest"

        self.assert_code(zr.run_zea(2, ["-i", deck, "-d", whole, "optim.lr=0.02"], whole), 0)
        before = zr.checkpoints(whole)[0]
        self.assert_code(zr.run_zea(2, ["-r", before, "-d", rest], rest), 0)

        for run in (whole, rest):
            skips = [line for line in zr.metrics(run) if line["kind"] == "skip"]
            self.assertEqual([line["step"] for line in skips], [odd])
            self.assertEqual(skips[0]["samples"], list(range(4 * (odd - 1), 4 * odd)))
            self.assertEqual(skips[0]["in_a_row"], 1)
            self.assertIn("loss is", skips[0]["fault"])
            said = (run / "log.txt").read_text()
            self.assertIn(f"step {odd}: loss is", said)
            self.assertIn("(1 in a row of at most 5); samples 96, 97, 98, 99", said)
        expected = zr.numbers_of_steps(whole)
        after = {step: expected[step] for step in range(odd, steps + 1)}
        self.assertEqual(zr.numbers_of_steps(rest), after)
        self.assert_same_arrays(zr.last_arrays(whole), zr.last_arrays(rest))

    def test_likely_mistakes_are_reported(self):
        """A longer data set, whose samples come in another order, and steps that are done already."""
        deck = zr.write_inputs(self.folder, zr.mixed_samples(10), schedule=["steps = 2"])
        run, longer = self.folder / "run", self.folder / "longer"
        self.assert_code(zr.run_zea(1, ["-i", deck, "-d", run], run), 0)
        more = zr.make_dataset(self.folder / "more.h5", zr.mixed_samples(12))
        keys = [f"data.train={more}", "data.allow_changed=true", "schedule.steps=3"]
        went_on = zr.run_zea(1, ["-r", run, "-d", longer, *keys], longer)
        self.assert_code(went_on, 0)
        self.assertIn("has 12 samples, where the run that is resumed had 10: its position, sample", went_on.output)
        again = zr.run_zea(1, ["-r", run, "schedule.steps=1", "optim.warmup_steps=0"], run)
        self.assert_code(again, 0)
        self.assertIn("nothing is left to train: step 2 is done, and schedule.steps = 1", again.output)
        self.assertNotIn("where the run that is resumed had", again.output)

    def test_more_steps_scale_the_schedule_or_keep_it(self):
        """Both are told, by the plan, too; no step has rate 0."""
        deck = zr.write_inputs(self.folder, zr.mixed_samples(10), optim=["decay = 'linear'"], schedule=["steps = 4"])
        run = self.folder / "run"
        self.assert_code(zr.run_zea(1, ["-i", deck, "-d", run, "optim.warmup_steps=0"], run), 0)
        rates = [0.005, 0.00375, 0.0025, 0.00125]
        zr.np.testing.assert_allclose([line["lr"] for line in zr.train_lines(run)], rates, rtol=1e-12)
        for name, keys, rates, said in (
            ("stretched", [], [0.0025, 0.001875], "learning rate 0.0025, after 0.00125 at step 4; the schedule"),
            ("kept", ["optim.decay_until=4"], [0.00125] * 2, "learning rate 0.00125, after 0.00125 at step 4."),
            ("floor", ["optim.decay_until=4", "optim.min_lr=0.001"], [0.002] * 2, "learning rate 0.002, after 0.00125"),
        ):
            with self.subTest(name):
                again = self.folder / name
                keys = ["schedule.steps=8", *keys]
                went_on = zr.run_zea(1, ["-r", run, "-d", again, *keys], again)
                self.assert_code(went_on, 0)
                zr.np.testing.assert_allclose([line["lr"] for line in zr.train_lines(again)][:2], rates, rtol=1e-12)
                self.assertIn(said, went_on.output)
                self.assertIn(said, zr.answer("-n", "-r", run, *keys).output)

    def test_other_data_of_as_many_samples(self):
        """Is refused, or taken where the deck says so; the same is taken wherever it lies."""
        deck = self.mixed_deck((1.0, 1.0))
        one, many, run = self.folder / "one.h5", self.folder / "many", self.folder / "run"
        write_index(many, sorted(many.glob("*.h5")))
        self.assert_code(zr.run_zea(1, ["-i", deck, "-d", run, "schedule.steps=4"], run), 0)

        def resumed(name, *sets, code=3, more=()):
            train = ", ".join(f'{{path = "{path}", weight = 1.0}}' for path in sets)
            directory = self.folder / name
            keys = [f"data.train=[{train}]", "schedule.steps=5", *more]
            result = zr.run_zea(1, ["-r", run, "-d", directory, *keys], directory)
            self.assert_code(result, code)
            return result.output

        other = self.folder / "other"
        shutil.copytree(many, other)
        self.assertNotIn("is not what", resumed("moved", shutil.copy(one, other.parent / "moved.h5"), other, code=0))
        self.assertIn("its data sets stand in another order", resumed("order", many, one))
        samples = zr.mixed_samples(5)
        samples[3][1][-1] = 0
        masked = zr.make_dataset(self.folder / "masked.h5", samples)
        self.assertIn(f"{masked} holds other samples. Give the old data", resumed("masked", masked, many))
        part = zr.mixed_samples(9)[3:6]
        part[1][0][-1] = 5
        zr.make_dataset(other / "1.h5", part)
        self.assertEqual((other / "1.h5").stat().st_size, (many / "1.h5").stat().st_size)
        self.assertIn(f"{other} holds other samples", resumed("part", one, other))
        told = resumed("taken", one, other, code=0, more=["data.allow_changed=true"])
        self.assertIn(f"{other} holds other samples; the run goes on behind sample 16 of 14 in their old order", told)

    def test_fp32(self):
        self.check_bitwise("fp32")

    def test_bf16(self):
        self.check_bitwise("bf16")

    def mixed_deck(self, weights_of_sets=(2.0, 1.0)):
        weights = zr.make_weights(self.folder / "weights.h5")
        one = zr.make_dataset(self.folder / "one.h5", zr.mixed_samples(5))
        (self.folder / "many").mkdir(exist_ok=True)
        for part in range(3):
            zr.make_dataset(self.folder / f"many/{part}.h5", zr.mixed_samples(9)[3 * part : 3 * part + 3])
        pairs = zip((one, self.folder / "many"), weights_of_sets)
        sets = ", ".join(f'{{path = "{path}", weight = {weight}}}' for path, weight in pairs)
        more = {"schedule": ["steps = 8"], "precision": ['preset = "fp64"'], "checkpoint": ["every = 4", "keep = 0"]}
        deck = zr.write_deck(self.folder, weights, one, **more)
        text = deck.read_text().replace(f'train = "{one}"', f"train = [{sets}]")
        deck.write_text(text.replace("shuffle = false", "shuffle = true"))
        return deck

    def check_other_ranks(self, ranks, others):
        """A run of several sets that goes on with other ranks is that which does not."""
        whole, rest = self.folder / "whole", self.folder / "rest"
        self.assert_code(zr.run_zea(ranks, ["-i", self.mixed_deck(), "-d", whole], whole), 0)
        half = whole / "checkpoints" / "step-00000004"
        self.assert_code(zr.run_zea(others, ["-r", half, "-d", rest], rest), 0)
        expected, found = zr.numbers_of_steps(whole), zr.numbers_of_steps(rest)
        self.assertEqual(sorted(found), [5, 6, 7, 8])
        for step, numbers in found.items():
            for ours, theirs in zip(numbers, expected[step]):
                self.assertAlmostEqual(ours, theirs, delta=1e-10 * max(1, abs(theirs)))
        lines = [(path / "log.txt").read_text() for path in (whole, rest)]
        took = [next(line for line in text.splitlines() if "the first 8 steps took" in line) for text in lines]
        self.assertEqual(*[line[line.index("of data.train") :] for line in took])
        self.assertRegex(took[0], r"one.h5 \d+ samples \([\d.]+ epochs of 5\), .*many \d+ samples \(.* of 9\)")
        one, many = (int(re.search(rf"{name} (\d+) samples", took[0])[1]) for name in ("one.h5", "many"))
        self.assertGreater(one, many, "weights 2 and 1")
        return half

    def test_several_data_sets_on_more_ranks(self):
        self.check_other_ranks(1, 3)

    def test_several_data_sets_on_fewer_ranks(self):
        half = self.check_other_ranks(2, 1)
        other = self.folder / "other"
        changed = zr.run_zea(1, ["-i", self.mixed_deck((2.0, 1.5)), "-r", half, "-d", other], other)
        self.assert_code(changed, 2)
        self.assertIn("data.train = sets of weight 2, 1.5, but the run that is resumed has", changed.output)


zr.main()
