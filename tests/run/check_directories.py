# SPDX-License-Identifier: Apache-2.0
"""A run keeps to its directory and to its batches: a second start, branches, other paths to the same
checkpoint, and settings that would change what a resumed run sees."""

import os
import resource
import shutil

import zea_run as zr


class Directories(zr.ZeaTest):
    @classmethod
    def setUpClass(cls):
        shared = zr.make_folder(cls.addClassCleanup)
        cls.deck, cls.earlier = zr.write_inputs(shared, zr.mixed_samples(9)), shared / "run"
        keys = ["schedule.steps=6", "checkpoint.every=2", "checkpoint.keep=0"]
        result = zr.run_zea(1, ["-i", cls.deck, "-d", cls.earlier, *keys], cls.earlier)
        assert result.code == 0, result.output

    def setUp(self):
        super().setUp()
        self.run_directory = self.folder / "run"
        shutil.copytree(self.earlier, self.run_directory)

    def zea(self, code, *arguments):
        result = zr.run_zea(1, list(arguments), self.run_directory)
        self.assert_code(result, code)
        return result

    def names(self):
        return sorted(path.name for path in (self.run_directory / "checkpoints").iterdir())

    def test_second_start_is_refused(self):
        before = self.names()
        result = self.zea(2, "-i", self.deck, "-d", self.run_directory, "schedule.steps=4")

        self.assertIn("holds checkpoints of an earlier run", result.output)
        self.assertEqual(self.names(), before)

    def test_branch_from_an_older_checkpoint(self):
        # A trailing slash, as a shell completes it, names the same checkpoint.
        older = f"{self.run_directory}/checkpoints/step-00000002/"
        self.zea(0, "-r", older, "schedule.steps=5", "optim.lr=1e-4")

        self.assertEqual(
            self.names(),
            ["step-00000002", "step-00000004", "step-00000004.replaced-1", "step-00000005",
             "step-00000006.replaced-1"],
        )
        result = self.zea(0, "-r", self.run_directory, "schedule.steps=5")
        self.assertRegex(result.output, r"resumed .*step-00000005")

    def test_what_lies_behind_is_set_aside_once_the_start_is_known_to_work(self):
        before = self.names()
        older = f"{self.run_directory}/checkpoints/step-00000002"
        self.zea(3, "-r", older, "schedule.steps=5", "data.train=/nowhere.h5")
        self.assertEqual(self.names(), before)

        result = self.zea(0, "-r", older, "schedule.steps=5")
        self.assertRegex(result.output, r"a later checkpoint is set aside.*step-00000004.replaced-1")

    def test_going_on_in_the_directory_of_another_run_is_refused(self):
        """It would remove what is older than its own."""
        other = self.run_directory.parent / "other"
        result = zr.run_zea(1, ["-i", self.deck, "-d", other, "schedule.steps=2"], other)
        self.assert_code(result, 0)
        before = self.names()

        result = self.zea(2, "-r", other, "-d", self.run_directory, "schedule.steps=8")

        self.assertIn("holds checkpoints of another run", result.output)
        self.assertEqual(self.names(), before)

    def test_a_table_of_a_section_says_what_its_keys_do(self):
        other = self.run_directory.parent / "other"
        self.zea(0, "-r", self.run_directory, "schedule.steps=7", f'run={{directory="{other}"}}')
        self.assertEqual([path.name for path in zr.checkpoints(other)], ["step-00000007"])
        with self.subTest("and no more"):
            self.zea(0, "-i", self.deck, "-r", self.run_directory, "schedule.steps=7", "run={watchdog_seconds=60}")
            self.assertEqual(self.names()[-1], "step-00000007")
        result = self.zea(2, "-r", self.run_directory, 'model.llm={lora={targets=["q_proj"]}}')
        self.assertIn("model.llm.lora on a command line with -r", result.output)

    def test_a_directory_that_is_not_utf8_is_refused(self):
        """Or the first checkpoint would be."""
        result = self.zea(2, "-i", self.deck, "-d", os.fsdecode(b"caf\xe9"))
        self.assertIn("the run directory caf\\xe9 is not UTF-8", result.output)

    def test_links_of_a_stranger_are_not_followed(self):
        own = self.folder / "own"
        own.write_text("kept")
        for name in ("deck.used.toml", "log.txt", "metrics.jsonl"):
            linked = self.folder / name.partition(".")[0]
            linked.mkdir()
            (linked / name).symlink_to(own)
            result = self.zea(7, "-i", self.deck, "-d", linked, "schedule.steps=2")
            self.assertIn(f"cannot write {linked}/{name}: it is a symbolic link", result.output)
            self.assertEqual(own.read_text(), "kept")

    def test_a_checkpoint_outside_a_run_names_no_folder_to_write_to(self):
        downloaded = self.folder / "downloaded"
        shutil.copytree(self.run_directory / "checkpoints/step-00000002", downloaded)
        before = self.names()
        result = self.zea(2, "-r", downloaded, "schedule.steps=8")
        self.assertIn(f"{downloaded} lies in no run directory", result.output)
        self.assertIn("Name the run directory: -d DIRECTORY", result.output)
        self.assertEqual(self.names(), before)
        self.zea(0, "-r", downloaded, "-d", self.folder / "other", "schedule.steps=3")

    def test_a_limit_on_files_is_named(self):
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (32 << 10, most))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, (most, most))
        # mpirun itself needs larger files.
        result = zr.answer("-i", self.deck, "-d", self.folder / "limited", "schedule.steps=2")
        self.assert_code(result, 7)
        self.assertIn("the limit on a file's size is 32768 bytes (ulimit -f", result.output)

    def test_another_batch_is_refused(self):
        for change in ("schedule.global_batch=3", "run.seed=7", "data.shuffle=true"):
            result = self.zea(2, "-r", self.run_directory, "schedule.steps=8", change)
            self.assertIn(change.split("=")[0], result.output)
            self.assertIn("its position in the data", result.output)


zr.main()
