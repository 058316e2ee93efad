# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are damaged: a run goes on from the newest one that is whole and says what it
passed over; one that is asked for by name is refused."""

import os
import re
import shutil
import subprocess

import zea_run as zr

STEPS = 6


def piece_of(shard):
    """File position of the largest piece of data in a shard."""
    with zr.h5py.File(shard, "r") as file:
        found = []
        file.visititems(
            lambda _, entry: (
                found.append((entry.nbytes, entry.id.get_offset()))
                if isinstance(entry, zr.h5py.Dataset)
                else None
            )
        )
    return max(found)[1]


def flip(checkpoint, _):
    flip_bit(checkpoint / "rank-00001.h5")


def flip_bit(shard):
    place = piece_of(shard) + 5
    with shard.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def truncate(checkpoint, _):
    path = checkpoint / "rank-00000.h5"
    os.truncate(path, path.stat().st_size - 1)


def remove(checkpoint, _):
    (checkpoint / "rank-00001.h5").unlink()


def swap(checkpoint, _):
    a, b, c = (checkpoint / f"{name}.h5" for name in ("rank-00000", "rank-00001", "other"))
    a.rename(c), b.rename(a), c.rename(b)


def mix_steps(checkpoint, older):
    shutil.copy(older / "rank-00001.h5", checkpoint / "rank-00001.h5")


def link(checkpoint, older):
    (checkpoint / "rank-00001.h5").unlink()
    (checkpoint / "rank-00001.h5").symlink_to(older / "rank-00001.h5")


def change_manifest(checkpoint, wrong):
    path = checkpoint / "manifest.json"
    text = path.read_text()
    assert wrong[0] in text
    path.write_text(text.replace(*wrong, 1))


def other_version(checkpoint, _):
    change_manifest(checkpoint, ('"version": "2"', '"version": "9"'))


def flip_manifest(checkpoint, _):
    change_manifest(checkpoint, ('"step":6', '"step":7'))


def replace_a_dataset(checkpoint, replace):
    """replace(file, name, values) makes a dataset of the largest of a shard in another way."""
    with zr.h5py.File(checkpoint / "rank-00001.h5", "r+") as file:
        found = []
        file.visititems(
            lambda name, entry: (
                found.append((entry.nbytes, name)) if isinstance(entry, zr.h5py.Dataset) else None
            )
        )
        name = max(found)[1]
        values = file[name][()]
        del file[name]
        replace(file, name, values)


def store_outside(checkpoint, _):
    """The very values, in a file of their own."""
    data = checkpoint.parent / "data"

    def replace(file, name, values):
        data.write_bytes(values.tobytes())
        external = [(str(data), 0, values.nbytes)]
        file.create_dataset(name, values.shape, values.dtype, external=external)
        assert (file[name][()] == values).all()

    replace_a_dataset(checkpoint, replace)


def link_outside(checkpoint, _):
    other = checkpoint.parent / "other.h5"

    def replace(file, name, values):
        with zr.h5py.File(other, "w") as target:
            target["values"] = values
        file[name] = zr.h5py.ExternalLink(str(other), "values")
        assert (file[name][()] == values).all()

    replace_a_dataset(checkpoint, replace)


def name_outside(checkpoint, _):
    """A manifest that is whole by its digest, and names a shard by a path; its values are there."""
    (checkpoint / "rank-00001.h5").rename(checkpoint.parent / "rank-00001.h5")
    path = checkpoint / "manifest.json"
    text = path.read_text().replace('"rank-00001.h5"', '"../rank-00001.h5"')
    path.write_text(text)
    said = subprocess.run([zr.ZEA_INSPECT, "--check", checkpoint], capture_output=True, text=True).stderr
    digest = re.search("its digest should be ([0-9a-f]{32})", said)[1]
    path.write_text(re.sub('"digest": "[0-9a-f]{32}"', f'"digest": "{digest}"', text))


OUTSIDE = {
    store_outside: "keeps its data in external files",
    link_outside: "is a soft or external link",
    name_outside: "plain name",
}

# Damages of the newest checkpoint, and the file that must be named.
DAMAGES = {
    flip: "rank-00001.h5",
    truncate: "rank-00000.h5",
    remove: "rank-00001.h5",
    swap: "rank-0000",
    mix_steps: "rank-00001.h5",
    link: "rank-00001.h5",
    flip_manifest: "manifest.json",
    other_version: "manifest.json",
    store_outside: "rank-00001.h5",
    link_outside: "rank-00001.h5",
    name_outside: "manifest.json",
}


class Damage(zr.ZeaTest):
    @classmethod
    def setUpClass(cls):
        cls.shared = zr.make_folder(cls.addClassCleanup)
        cls.deck = zr.write_inputs(cls.shared, zr.mixed_samples(22))
        cls.whole = cls.shared / "whole"
        keys = [f"schedule.steps={STEPS}", "checkpoint.every=2", "checkpoint.keep=0"]
        result = zr.run_zea(2, ["-i", cls.deck, "-d", cls.whole, *keys], cls.whole)
        assert result.code == 0, result.output

    def damaged_copy(self, name, damage):
        directory = self.folder / name
        shutil.copytree(self.whole, directory)
        # The log then has only the lines after the resume.
        (directory / "metrics.jsonl").unlink()
        oldest, older, newest = zr.checkpoints(directory)
        damage(newest, older)
        return directory, oldest, older, newest

    def assert_same_end(self, directory):
        self.assert_same_arrays(
            zr.read_checkpoint(directory / "checkpoints" / f"step-{STEPS:08}"),
            zr.last_arrays(self.whole),
        )

    def test_the_newest_whole_one_is_taken(self):
        for damage in (flip, remove, mix_steps, flip_manifest, link_outside):
            named = DAMAGES[damage]
            with self.subTest(damage.__name__):
                directory, _, older, newest = self.damaged_copy(damage.__name__, damage)
                result = zr.run_zea(2, ["-r", directory], directory)
                self.assert_code(result, 0)
                self.assertIn("passed over", result.output)
                self.assertIn(f"{newest}/{named}", result.output)
                self.assertRegex(result.output, OUTSIDE.get(damage, "passed over"))
                self.assertIn(f"resumed {older}", result.output)
                self.assertEqual(zr.train_lines(directory)[0]["step"], 5)
                self.assert_same_end(directory)
                self.assertTrue((newest.parent / f"{newest.name}.replaced-1").exists())

    def test_consolidate_takes_the_newest_whole_one(self):
        for damage, named in DAMAGES.items():
            with self.subTest(damage.__name__):
                directory, _, older, newest = self.damaged_copy(damage.__name__, damage)
                target = self.folder / f"{damage.__name__}.h5"
                command = [zr.ZEA_CONSOLIDATE, "--optimizer", directory, target]
                done = subprocess.run(command, timeout=60, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertRegex(done.stderr, f"passed over {newest}, which is damaged .*{named}.* taking {older}")
                self.assertIn(f"took {older}: step 4 of run", done.stdout)
                compare = [zr.ZEA_CONSOLIDATE.with_name("zea-compare"), "--optimizer", older, target]
                subprocess.run(compare, timeout=60, check=True, capture_output=True)
                command[-2:] = [newest, self.folder / "refused.h5"]  # named, it is the one that is meant
                refused = subprocess.run(command, timeout=60, capture_output=True, text=True)
                self.assertEqual(refused.returncode, 4, refused.stderr)
                self.assertFalse((self.folder / "refused.h5").exists())

    def test_one_that_is_named_is_refused(self):
        for damage in (truncate, other_version):
            with self.subTest(damage.__name__):
                directory, _, _, newest = self.damaged_copy(damage.__name__, damage)
                before = sorted(path.name for path in newest.parent.iterdir())
                result = zr.run_zea(2, ["-r", newest], directory)
                self.assert_code(result, 4)
                self.assertIn(f"{newest}/{DAMAGES[damage]}", result.output)
                self.assertEqual(sorted(path.name for path in newest.parent.iterdir()), before)

    def test_data_outside_the_shard_is_refused(self):
        """Neither external storage nor an external link is followed."""
        for outside in (store_outside, link_outside):
            with self.subTest(outside.__name__):
                _, _, _, newest = self.damaged_copy(outside.__name__, outside)
                shard = newest / "rank-00001.h5"
                said = subprocess.run([zr.ZEA_INSPECT, "--check", newest], capture_output=True, text=True)
                self.assertEqual(said.returncode, 4, said.stderr)
                self.assertRegex(said.stderr, f"{shard}: .*({OUTSIDE[outside]})")

    def test_two_damaged_ones(self):
        directory, oldest, older, newest = self.damaged_copy("two", flip)
        flip(older, None)
        result = zr.run_zea(1, ["-r", directory], directory)
        self.assert_code(result, 0)
        for passed in (older, newest):
            self.assertIn(f"{passed}/rank-00001.h5", result.output)
        self.assertIn(f"resumed {oldest}", result.output)

    def test_none_is_left(self):
        directory, oldest, older, newest = self.damaged_copy("none", flip)
        for checkpoint in (older, oldest):
            flip(checkpoint, None)
        result = zr.run_zea(1, ["-r", directory], directory)
        self.assert_code(result, 4)
        self.assertIn("none of its checkpoints can be opened", result.output)
        for passed in (oldest, older, newest):
            self.assertIn(f"{passed}/rank-00001.h5", result.output)
        command = [zr.ZEA_CONSOLIDATE, "--optimizer", directory, self.folder / "none.h5"]
        done = subprocess.run(command, timeout=60, capture_output=True, text=True)
        self.assertEqual(done.returncode, 4)
        for passed in (older, newest):
            self.assertIn(f"passed over {passed}", done.stderr)
        self.assertIn(f"{oldest}/rank-00001.h5", done.stderr)


if __name__ == "__main__":
    zr.main()
