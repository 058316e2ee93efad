# SPDX-License-Identifier: Apache-2.0
"""The sentences of .github/SECURITY.md, each with the tests that show it. Those on other users of the machine are
shown here, by a second user (as root; elsewhere they are skipped)."""

import os
import re
import shutil
import subprocess
import unittest
from pathlib import Path

import zea_run as zr

ROOT = Path(__file__).parents[2]
OTHER = 65534  # nobody, on most systems
FOR_EVER = "schedule.steps=1000000"
# The begin of each sentence, and where it is shown: a file of tests/ and the name of a test in it.
SHOWN = {
    "Whoever writes the deck": [("run/check_directories.py", "test_a_table_of_a_section_says_what_its_keys_do")],
    "The files of a run directory": [("run/check_reproduce.py", "test_a_run_that_began_with_a_checkpoint")],
    "Weights, configs, tokenizers": [
        ("fuzz/test_corpus.cpp", "IsReadOrRefusedAfterChanges"),
        ("run/check_bad_input.py", "BadInput"),
    ],
    "HDF5 files are read": [("unit/h5/test_h5_reader.cpp", "OfTreesThatLeadToThemselves")],
    "zea unpickles nothing": [("unit/io/test_foreign_weights.cpp", "FilesOfOthersNameTheRemedy")],
    "A checkpoint outside": [
        ("run/check_directories.py", "test_a_checkpoint_outside_a_run_names_no_folder_to_write_to")
    ],
    "Names in files": [("run/check_bad_input.py", "test_names_that_a_terminal_would_obey")],
    "A changed byte": [("run/check_damage.py", "test_one_that_is_named_is_refused")],
    "Packers take": [
        ("reference/check_pack_formats.py", "test_faults_of_tars"),
        ("reference/check_pack_sources.py", "test_paths_that_lead_inside"),
    ],
    "Chat templates are": [("reference/check_pack_templates.py", "test_templates_run_under_limits")],
    "A run needs no rights": [("run/check_security.py", "test_a_run_of_the_other_user")],
    "Permissions of all files": [("run/check_security.py", "test_a_private_run")],
    "With a umask of 022": [("run/check_security.py", "test_a_run_that_others_may_read")],
    "Memory that ranks share": [("run/check_security.py", "test_shared_memory")],
    "Ranks on one node": [("run/check_ports.py", "test_ranks_of_one_node_listen_on_none")],
    "In a directory that another": [("run/check_security.py", "test_links_that_the_other_user_left")],
    "Links to folders": [("run/check_security.py", "test_links_to_folders_are_followed")],
    "Another user who locks": [("run/check_security.py", "test_a_lock_of_the_other_user")],
    "No program loads": [
        ("run/check_install.py", "test_nothing_loads_libraries_from_the_working_directory")
    ],
}


class Page(unittest.TestCase):
    def test_every_sentence_has_its_tests(self):
        page = (ROOT / ".github/SECURITY.md").read_text()
        sentences = [" ".join(item.split()) for item in re.findall(r"(?ms)^- (.*?)(?=^- |^$|\Z)", page)]
        self.assertEqual(len(sentences), len(SHOWN))
        for sentence in sentences:
            self.assertEqual(sum(sentence.startswith(begin) for begin in SHOWN), 1, sentence)

    def test_the_tests_are_there(self):
        for file, name in (test for tests in SHOWN.values() for test in tests):
            self.assertIn(name, (ROOT / "tests" / file).read_text(), file)


def as_other(script, *arguments):
    """Runs a line of sh as the second user."""
    return subprocess.run(
        ["sh", "-c", script, "sh", *map(str, arguments)],
        user=OTHER, group=OTHER, extra_groups=[], cwd="/", capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@unittest.skipUnless(os.geteuid() == 0, "only root can act as a second user")
class SecondUser(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        self.folder.chmod(0o755)  # so that nothing but a run's own permissions keeps the other user out
        self.deck = zr.write_inputs(self.folder, zr.mixed_samples(8), schedule=["steps = 4"])
        self.run_directory = self.folder / "run"
        self.addCleanup(os.umask, os.umask(0o022))

    def train(self, *keys, code=0):
        every = ["checkpoint.every=2", "log.trace_step=2", f"data.eval={self.folder}/train.h5", *keys]
        return self.run_in(self.run_directory, 2, "-i", self.deck, *every, code=code)

    def entries(self):
        return [self.run_directory, *self.run_directory.rglob("*")]

    def test_a_private_run(self):
        os.umask(0o077)
        self.train()
        self.assertGreater(len(self.entries()), 12)
        for path in self.entries():
            self.assertEqual(path.lstat().st_mode & 0o077, 0, path)
            self.assertNotEqual(as_other('head -c 1 "$1" || ls "$1"', path).returncode, 0, path)

    def test_a_run_that_others_may_read(self):
        with zr.start(2, ["-i", self.deck, "-d", self.run_directory, FOR_EVER], self.run_directory) as run:
            run.wait_for_step(2)
            for name in ("SAVE", "STOP"):
                self.assertNotEqual(as_other(': > "$1"', self.run_directory / name).returncode, 0)
            for process in run.rank_processes():
                self.assertNotEqual(as_other('kill -TERM "$1"', process).returncode, 0)
            for path in self.entries():
                changes = 'test -d "$1" && mkdir "$1/new" || ( : >> "$1" ) || mv "$1" "$1.away" || rm -rf "$1"'
                self.assertNotEqual(as_other(changes, path).returncode, 0, path)
            self.assertEqual(as_other('cat "$1"', self.run_directory / "metrics.jsonl").returncode, 0)
            (self.run_directory / "STOP").touch()
            self.assertEqual(run.wait(), 75, run.output)

    def test_shared_memory(self):
        before = set(Path("/dev/shm").iterdir())
        with zr.start(2, ["-i", self.deck, "-d", self.run_directory, FOR_EVER], self.run_directory) as run:
            run.wait_for_step(2)
            for path in set(Path("/dev/shm").iterdir()) - before:  # MPI's own
                self.assertEqual(path.lstat().st_mode & 0o077, 0, path)
            for process in run.rank_processes():
                maps = Path(f"/proc/{process}/maps").read_text()
                self.assertRegex(maps, r"(?m) /dev/shm/#\d+ \(deleted\)$")
                for name in ("maps", "mem", "environ", "fd/1", "map_files"):
                    opened = as_other('exec 3< "$1" || ls "$1"', f"/proc/{process}/{name}")
                    self.assertNotEqual(opened.returncode, 0, name)

    def test_links_that_the_other_user_left(self):
        shared, own = self.folder / "shared", self.folder / "own"
        shared.mkdir()
        shared.chmod(0o1777)
        names = ["deck.used.toml", "job_info.json", "log.txt", "metrics.jsonl", "LOCK", "job_info.json.tmp"]
        for number, name in enumerate(names):
            own.write_text("kept")
            self.run_directory = shared / str(number)
            made = as_other('mkdir -m 0777 "$1" && ln -s "$2" "$1/$3"', self.run_directory, own, name)
            self.assertEqual(made.returncode, 0, made.stderr)
            zr.run_zea(2, ["-i", self.deck, "-d", self.run_directory], self.run_directory)
            self.assertEqual(own.read_text(), "kept", name)

    def test_links_to_folders_are_followed(self):
        disk = self.folder / "disk"
        disk.mkdir()
        self.run_directory.mkdir()
        (self.run_directory / "checkpoints").symlink_to(disk)
        self.train()
        self.assertEqual(sorted(path.name for path in disk.iterdir()), ["step-00000002", "step-00000004"])

    def test_a_lock_of_the_other_user(self):
        self.run_directory.mkdir()
        holder = subprocess.Popen(
            ["flock", self.run_directory, "sh", "-c", "echo held; exec sleep 100"],
            user=OTHER, group=OTHER, extra_groups=[], cwd="/", stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.addCleanup(holder.stdout.close)
        self.addCleanup(holder.wait)
        self.addCleanup(holder.terminate)
        self.assertEqual(holder.stdout.readline(), "held\n")
        result = self.train(code=7)
        self.assertRegex(result.output, r"is locked \(flock\) by process \d+ \(\w+\) of user nobody, which no start")

    def test_a_run_of_the_other_user(self):
        if as_other('test -x "$1" && "$1" --version', zr.ZEA).returncode:
            self.skipTest("the other user cannot start the program")
        own = self.folder / "own"
        own.mkdir()
        shutil.chown(own, OTHER, OTHER)
        result = as_other('exec "$1" -i "$2" -d "$3/run"', zr.ZEA, self.deck, own)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual({path.stat().st_uid for path in own.rglob("*")}, {OTHER})


zr.main()
