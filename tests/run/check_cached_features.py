# SPDX-License-Identifier: Apache-2.0
"""data.cache_features: the losses of a run without it, bit for bit; a resumed run goes on with the
same features; checkpoints are whole; a run that dies while it computes them leaves what it has."""

import shutil
import subprocess

import zea_run as zr

RANKS = 2


class CachedFeatures(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        self.weights = zr.make_weights(self.folder / "weights.h5")
        train = zr.make_dataset(self.folder / "train.h5", zr.mixed_samples(22))
        held_out = zr.make_dataset(self.folder / "eval.h5", zr.mixed_samples(9))
        vision = {"model.vision": ["train = false"]}
        self.deck = zr.write_deck(self.folder, self.weights, train, **vision)
        self.keys = [f"data.eval={held_out}", "eval.every=6", "schedule.steps=12", "optim.decay=constant"]
        self.keys += ["data.packing=false"]  # microbatches of one sample, where a test says nothing else
        self.cached = [f"data.cache_features={self.folder / 'features'}"]

    def train(self, name, *keys, code=0, ranks=RANKS):
        return self.run_in(self.folder / name, ranks, "-i", self.deck, *self.keys, *keys, code=code)

    def resume(self, name, *keys):
        directory = self.folder / name
        self.assert_code(zr.run_zea(RANKS, ["-r", directory, *keys], directory), 0)

    def last_arrays(self, name):
        return zr.last_arrays(self.folder / name)

    def evaluations(self, name):
        lines = zr.metrics(self.folder / name)
        return [line["loss"] for line in lines if line["kind"] == "eval"]

    def test_same_run(self):
        plain = self.train("plain")
        first = self.train("first", *self.cached)
        self.assertIn("features of vision: 15 items in 1 of 1 parts", first.output)
        second = self.train("second", *self.cached)
        self.assertIn("features of vision are read from", second.output)
        for name, result in (("first", first), ("second", second)):
            self.assertEqual(result.losses(), plain.losses())
            self.assertEqual(self.evaluations(name), self.evaluations("plain"))
            self.assert_same_arrays(self.last_arrays(name), self.last_arrays("plain"))

        # An interrupted run resumes with the same features, and is complete.
        self.train("halves", *self.cached, "checkpoint.every=5", "schedule.steps=5")
        self.resume("halves", "schedule.steps=12")
        self.train("whole", *self.cached, "checkpoint.every=5")
        self.assert_same_arrays(self.last_arrays("halves"), self.last_arrays("whole"))
        for checkpoint in zr.checkpoints(self.folder / "halves"):
            subprocess.run([zr.ZEA_INSPECT, "--check", checkpoint], check=True, capture_output=True)

        # Without the folder, from a checkpoint of a run that had it; and on another layout with it.
        self.resume("halves", "schedule.steps=14", "data.cache_features=")
        alone = self.train("alone", *self.cached, ranks=1)
        self.assertIn("features of vision are read from", alone.output)

    def test_packed_rows(self):
        """Encoded in other company, an image's features round otherwise, and no more."""
        packed = ["data.packing=true", "data.row_tokens=64"]
        plain = self.train("plain", *packed).losses()
        cached = self.train("cached", *packed, *self.cached).losses()
        self.assertEqual(plain.keys(), cached.keys())
        for step, loss in plain.items():
            self.assertAlmostEqual(cached[step], loss, delta=1e-4 * loss)

    def test_refusals(self):
        self.train("first", *self.cached)
        outside = self.folder / "outside"  # any run directory
        shutil.copytree(zr.checkpoints(self.folder / "first")[-1], outside)
        other = self.run_in(self.folder / "other", 1, "-r", outside, code=2)
        self.assertIn(f"which that deck has as {self.folder}/features", other.output)
        other = self.train("other", *self.cached, "data.image_mean=[0.5, 0.5, 0.5]", code=3, ranks=1)
        self.assertIn("made with other preprocessing, so", other.output)
        other = self.train("other", *self.cached, "precision.preset=bf16", code=3, ranks=1)
        self.assertIn("made with other type, other weights, so", other.output)
        weights = zr.make_weights(self.folder / "others.h5", seed=2)
        other = self.train("other", *self.cached, f"model.weights={weights}", code=3, ranks=1)
        self.assertIn("made with other weights, so", other.output)
        data = zr.make_dataset(self.folder / "others_train.h5", zr.mixed_samples(25)[3:])
        other = self.train("other", *self.cached, f"data.train={data}", code=3, ranks=1)
        self.assertIn("is not the one whose features are kept", other.output)
        other = self.train("other", *self.cached, "model.vision.train=true", code=2, ranks=1)
        self.assertIn("but vision trains (model.vision.train = true)", other.output)


zr.main()
