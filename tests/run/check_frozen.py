# SPDX-License-Identifier: Apache-2.0
"""Frozen encoder and language model, trained projector: their values are written with the first
checkpoint and are hard links in all that follow, over resumes, too; each checkpoint is whole by
itself, and what is frozen may change between starts."""

import json
import shutil
import subprocess

import zea_run as zr

RANKS = 2


def frozen_files(checkpoint):
    return sorted(checkpoint.glob("frozen-*.h5"))


def inodes(checkpoint):
    return [path.stat().st_ino for path in frozen_files(checkpoint)]


class Frozen(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        self.weights = zr.make_weights(self.folder / "weights.h5")
        train = zr.make_dataset(self.folder / "train.h5", zr.mixed_samples(22))
        frozen = {f"model.{module}": ["train = false"] for module in ("vision", "llm")}
        self.deck = zr.write_deck(self.folder, self.weights, train, **frozen)
        self.directory = self.folder / "run"

    def train(self, steps, *overrides, every=2):
        result = zr.run_zea(
            RANKS,
            [
                *["-i", self.deck, "-d", self.directory, f"schedule.steps={steps}"],
                *[f"checkpoint.every={every}", *overrides],
            ],
            self.directory,
        )
        self.assert_code(result, 0)
        return result

    def resume(self, steps, *overrides):
        keys = [f"schedule.steps={steps}", "checkpoint.every=2", *overrides]
        result = zr.run_zea(RANKS, ["-r", self.directory, *keys], self.directory)
        self.assert_code(result, 0)
        return result

    def saves(self):
        return [line for line in zr.metrics(self.directory) if line["kind"] == "checkpoint"]

    def assert_whole(self):
        for checkpoint in zr.checkpoints(self.directory):
            subprocess.run([zr.ZEA_INSPECT, "--check", checkpoint], check=True, capture_output=True)

    def export(self, weights):
        """A Hugging Face directory: its file, and where that has the bytes of frozen tensors."""
        folder = self.folder / "exported"
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([zr.ZEA_CONSOLIDATE, weights, f"{folder}/"], check=True, capture_output=True)
        file = folder / "model.safetensors"
        data = file.read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        tensors = json.loads(data[8:begin])
        return file, {
            name: (tensor["dtype"], tensor["shape"], *(begin + offset for offset in tensor["data_offsets"]))
            for name, tensor in tensors.items()
            if name.startswith(("language_model.", "vision_tower."))
        }

    def frozen_tensors(self, weights):
        """Type, shape and bytes of each."""
        file, tensors = self.export(weights)
        data = file.read_bytes()
        tensors = {name: (*kind, data[begin:end]) for name, (*kind, begin, end) in tensors.items()}
        self.assertGreater(len(tensors), 20)
        return tensors

    def test_goes_out_as_it_came_in(self):
        """In the type of the file and bit for bit, through checkpoints, resume and export."""
        narrow = self.folder / "narrow.h5"
        convert = [zr.ZEA_CONSOLIDATE, self.weights, narrow, "--dtype", "bfloat16"]
        subprocess.run(convert, check=True, capture_output=True)
        for weights, preset in ((self.weights, "bf16"), (narrow, "fp32")):
            expected = self.frozen_tensors(weights)
            with self.subTest(weights=weights.name, preset=preset):
                self.directory = self.folder / weights.stem
                result = self.train(2, f"model.weights={weights}", f"precision.preset={preset}")
                self.assertEqual("float32 held as bfloat16" in result.output, weights == self.weights, result.output)
                self.assertEqual(self.frozen_tensors(self.directory), expected)
                self.resume(4, "mesh.llm.strategy=no_shard")  # which writes them anew
                self.assertEqual(self.frozen_tensors(self.directory), expected)

    def test_rounded_where_the_file_has_changed(self):
        before = self.frozen_tensors(self.weights)
        file, tensors = self.export(self.weights)
        weights, name = file.parent.rename(self.folder / "weights"), "language_model.model.layers.0.mlp.up_proj.weight"
        keys = [f"model.weights={weights}", "schedule.steps=100000", "precision.preset=bf16", "checkpoint.every=0"]
        with zr.start(RANKS, ["-i", self.deck, "-d", self.directory, *keys], self.directory) as run:
            run.wait_for_step(1)
            with open(weights / file.name, "r+b") as file:
                file.seek(tensors[name][2])
                file.write(zr.np.float32(1).tobytes())
            (self.directory / "STOP").touch()
            self.assertEqual(run.wait(), 75, run.output)
            self.assertIn("what the run started from has changed since", run.output)
        after = self.frozen_tensors(self.directory)
        self.assertEqual({n for n in before if before[n] != after[n]}, {name})

    def test_written_once(self):
        result = self.train(8, "checkpoint.keep=2")
        saves = self.saves()
        self.assertEqual([line["linked_bytes"] > 0 for line in saves], [False, True, True, True])
        whole = {line["bytes"] + line["linked_bytes"] for line in saves}
        self.assertEqual(whole, {saves[0]["bytes"]})
        self.assertLess(saves[1]["bytes"], saves[0]["bytes"] / 4)
        self.assertEqual(result.output.count("of frozen values linked"), 3)
        self.assertNotIn("written again", result.output)
        older, newest = zr.checkpoints(self.directory)
        self.assertEqual(
            [path.name for path in frozen_files(newest)], ["frozen-00000.h5", "frozen-00001.h5"]
        )
        self.assertEqual(inodes(older), inodes(newest))
        self.assertEqual([path.stat().st_nlink for path in frozen_files(newest)], [2, 2])
        self.assert_whole()

        # The files equal those of a run that saved once, bit for bit.
        linked, self.directory = self.directory, self.folder / "once"
        self.train(8, every=0)
        self.assert_same_arrays(zr.read_checkpoint(newest), zr.last_arrays(self.directory))
        # The same directory resumes with the same files, and so does a copied one.
        shutil.copytree(newest, self.folder / "copied" / "checkpoints" / newest.name)
        before = inodes(newest)
        self.directory = linked
        self.resume(12, "checkpoint.keep=1")
        self.assertEqual(inodes(zr.checkpoints(linked)[-1]), before)
        self.directory = self.folder / "copied"
        self.resume(12)
        self.assert_whole()
        self.assert_same_arrays(zr.last_arrays(linked), zr.last_arrays(self.directory))

    def test_damage_of_the_shared_file(self):
        self.train(4, "checkpoint.keep=0")
        checkpoints = zr.checkpoints(self.directory)
        self.assertEqual(len(checkpoints), 2)
        damaged = frozen_files(checkpoints[0])[1]
        with zr.h5py.File(damaged, "r+") as file:
            pieces = []
            file.visititems(
                lambda _, e: pieces.append(e) if isinstance(e, zr.h5py.Dataset) else None
            )
            largest = max(pieces, key=lambda piece: piece.nbytes)
            largest[(0,) * largest.ndim] += 1

        result = zr.run_zea(RANKS, ["-r", self.directory], self.directory)

        self.assert_code(result, 4)
        self.assertIn("none of its checkpoints can be opened", result.output)
        for checkpoint in checkpoints:
            self.assertIn(f"{checkpoint / damaged.name}: tensor ", result.output)

    def test_what_is_frozen_changes(self):
        """Each start writes what it freezes, and the rest of a run is linked again."""
        self.train(4, "checkpoint.keep=0")
        self.resume(8, "model.llm.train=true")
        self.resume(12, "model.llm.train=false")
        found = zr.checkpoints(self.directory)
        self.assertEqual([int(path.name[-2:]) for path in found], [2, 4, 6, 8, 10, 12])
        self.assert_whole()
        for first, second in zip(found[::2], found[1::2]):
            self.assertEqual(inodes(first), inodes(second))
        self.assertEqual(len({tuple(inodes(checkpoint)) for checkpoint in found}), 3)
        arrays = [zr.read_checkpoint(checkpoint) for checkpoint in found]
        start = zr.read_arrays(self.weights)
        for name, values in start.items():
            if name.startswith("__"):
                continue
            states = [array[(name, "parameter")].tobytes() for array in arrays]
            if name.startswith("vision_tower."):
                self.assertEqual(set(states), {values.tobytes()}, name)
            if name.startswith("language_model."):
                self.assertEqual(states[0], values.tobytes(), name)
                self.assertEqual(states[3], states[5], name)
        head = ("language_model.lm_head.weight", "parameter")
        self.assertNotEqual(arrays[1][head].tobytes(), arrays[3][head].tobytes())


zr.main()
