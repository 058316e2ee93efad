# SPDX-License-Identifier: Apache-2.0
"""The outputs of the offline tools equal the checkpoint that they come from: a run resumes from them bit for bit, on
any number of ranks, and a new run starts from their weights."""

import contextlib
import itertools
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

import zea_run as zr


COMPARE = zr.ZEA_CONSOLIDATE.with_name("zea-compare")


def run_tool(*command, code=0):
    done = subprocess.run(command, timeout=60, capture_output=True, text=True)
    assert done.returncode == code, f"{command}: {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def run_on_a_terminal(*command):
    """Returns the output of a program on a terminal."""
    try:
        terminal, inner = os.openpty()
    except OSError as error:
        raise unittest.SkipTest(f"this machine has no terminals ({error})") from error
    process = subprocess.Popen(command, stdout=inner, stderr=inner, stdin=subprocess.DEVNULL)
    os.close(inner)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal is gone when the program is
        while part := os.read(terminal, 4096):
            shown += part
    os.close(terminal)
    assert process.wait(60) == 0, shown
    return shown.decode()


def consolidate(*arguments):
    return run_tool(zr.ZEA_CONSOLIDATE, *arguments)


def write_as_version_1(checkpoint):
    """As zea wrote it whose manifest named files without a hash of what is no tensor's in them."""
    path = checkpoint / "manifest.json"
    text = path.read_text().replace('"version": "2"', '"version": "1"')
    text = re.sub(r'\{"name":("[^"]*\.h5"),"rest_hash":"[0-9a-f]{32}"\}', r"\1", text)
    text = re.sub(r'"view_hash": "[0-9a-f]{32}",\n', "", text)
    path.write_text(text)
    digest = re.search("its digest should be ([0-9a-f]{32})", run_tool(zr.ZEA_INSPECT, checkpoint, code=4))
    path.write_text(re.sub('"digest": "[0-9a-f]{32}"', f'"digest": "{digest[1]}"', text))
    for shard in checkpoint.glob("*-0*.h5"):
        with zr.h5py.File(shard, "r+") as file:
            file.attrs.modify("version", zr.np.bytes_("1"))


class Companions(zr.ZeaTest):
    def test_they_go_along_where_their_directory_is_gone(self):
        source = self.folder / "hf"
        texts = {"tokenizer.json": "{}", "tekken.json": "[]", "chat_template.jinja": "\u00e9\n"}
        consolidate(zr.make_weights(self.folder / "weights.h5"), f"{source}/")
        for name, text in texts.items():
            (source / name).write_text(text)
        data = zr.make_dataset(self.folder / "train.h5", zr.mixed_samples(4))
        deck = zr.write_deck(self.folder, source, data, schedule=["steps = 2"], checkpoint=["every = 2"])

        def check(run, *arguments):
            done = zr.run_zea(1, [*arguments, "-d", run])
            self.assertEqual(done.code, 0, done.output)
            with tempfile.TemporaryDirectory(dir=self.folder) as out:
                consolidate(run, f"{out}/")
                for name, text in texts.items():
                    self.assertEqual(Path(out, name).read_text(), text)
            self.assertEqual(sorted(path.name for path in (run / "companions").iterdir()), sorted(texts))

        first, second, third = (self.folder / name for name in ("first", "second", "third"))
        (first / "companions").mkdir(parents=True)
        (first / "companions/vocab.json").write_text("of a run that wrote no checkpoint")
        check(first, "-i", deck)
        shutil.rmtree(source)
        check(second, "-r", first, "schedule.steps=4")
        check(second, "-r", second, "schedule.steps=6")
        consolidate("--optimizer", second, self.folder / "state.h5")
        check(third, "-r", self.folder / "state.h5", "schedule.steps=8")
        shutil.copytree(zr.checkpoints(second)[-1], self.folder / "elsewhere")
        check(second, "-r", self.folder / "elsewhere", "schedule.steps=9")


class Offline(zr.ZeaTest):
    @classmethod
    def setUpClass(cls):
        """A run on 2 ranks, with a checkpoint half way."""
        made = zr.make_folder(cls.addClassCleanup)
        cls.deck = zr.write_inputs(
            made,
            zr.mixed_samples(22),
            schedule=["steps = 6"],
            checkpoint=["every = 3", "keep = 0"],
        )
        run = zr.run_zea(2, ["-i", cls.deck, "-d", made / "whole"])
        assert run.code == 0, run.output
        cls.expected = {}  # what resuming gives, by ranks
        cls.half = made / "whole" / "checkpoints" / "step-00000003"

    def resume(self, ranks, source, name, *keys):
        """Returns the state of a resumed run at its end, and the numbers of its steps."""
        run = self.folder / name
        self.assert_code(zr.run_zea(ranks, ["-r", source, "-d", run, *keys], run), 0)
        return zr.last_arrays(run), zr.numbers_of_steps(run)

    def assert_resumes_alike(self, ranks, source):
        """As from the checkpoint itself, bit for bit."""
        if ranks not in self.expected:
            self.expected[ranks] = self.resume(ranks, self.half, f"expected-{ranks}")
        expected, steps = self.expected[ranks]
        found, found_steps = self.resume(ranks, source, f"found-{ranks}")
        self.assertEqual(list(steps), [4, 5, 6])
        self.assertEqual(steps, found_steps)
        self.assertEqual({state for _, state in found}, {"parameter", "exp_avg", "exp_avg_sq"})
        self.assert_same_arrays(expected, found)

    def test_a_file_with_optimizer_state_is_resumed(self):
        file = self.folder / "half.h5"
        consolidate("--optimizer", self.half, file)
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                self.assert_resumes_alike(ranks, file)

    def test_a_file_is_resumed_at_any_layout(self):
        file = self.folder / "half.h5"
        consolidate("--optimizer", self.half, file)
        ddp = ["mesh.llm.strategy=no_shard", "mesh.vision.strategy=no_shard"]
        for name, keys in (
            ("tensor", ["mesh.llm.tp=2"]),
            ("context", ["mesh.llm.cp=2", "mesh.llm.cp_block=4", *ddp]),
            ("pipeline", ["mesh.llm.pp=2", *ddp]),
            ("disjoint", ["mesh.placement=disjoint", "mesh.vision.encoder_dp=1"]),
        ):
            with self.subTest(name):
                found, steps = self.resume(2, file, f"{name}-file", *keys)
                expected, expected_steps = self.resume(2, self.half, f"{name}-checkpoint", *keys)
                self.assertEqual(list(steps), [4, 5, 6])
                self.assertEqual(steps, expected_steps)
                self.assert_same_arrays(found, expected)

    def test_a_resharded_checkpoint_is_resumed(self):
        four, three = self.folder / "four", self.folder / "three"
        consolidate("--ranks", "4", self.half, four)
        consolidate("--ranks", "3", four, three)
        manifest = json.loads((three / "manifest.json").read_text())
        files = [file["name"] for file in manifest["files"]]
        self.assertEqual(files, [f"rank-0000{rank}.h5" for rank in range(3)])
        elements = dict.fromkeys(files, 0)
        for piece in manifest["pieces"]:
            elements[piece["file"]] += int(zr.np.prod(piece["length"]))
        self.assertLess(max(elements.values()) - min(elements.values()), 4)
        self.assert_same_arrays(zr.read_checkpoint(self.half), zr.read_checkpoint(three))
        self.assert_same_arrays(
            zr.read_arrays(self.half / "model.h5"), zr.read_arrays(three / "model.h5")
        )
        for ranks in (2, 3):
            with self.subTest(ranks=ranks):
                self.assert_resumes_alike(ranks, three)

    def test_the_first_version_is_read_and_converted(self):
        run, converted = self.folder / "run", self.folder / "converted"
        old = run / "checkpoints" / self.half.name
        shutil.copytree(self.half, old)
        write_as_version_1(old)
        note = f"{old}: of format version 1, where only tensors have hashes"
        said = run_tool(zr.ZEA_INSPECT, "--check", old)
        self.assertIn(note, said)
        self.assertIn("every hash is right (model.h5 has none)", said)
        self.assert_resumes_alike(2, old)
        resumed = zr.run_zea(2, ["-r", run], run)
        self.assert_code(resumed, 0)
        self.assertIn(f"warning: {note}", resumed.output)

        consolidate("--ranks", "2", old, converted)
        self.assertNotIn("version 1", run_tool(zr.ZEA_INSPECT, "--check", converted))
        self.assertEqual('"version": "2"', re.search('"version": "."', (converted / "manifest.json").read_text())[0])
        self.assertIn(" 0 differences", run_tool(COMPARE, "--optimizer", self.half, converted))
        self.assert_resumes_alike(2, converted)
        # The contents of tensors are still checked.
        shard = old / "rank-00001.h5"
        with zr.h5py.File(shard, "r") as file:
            places = []
            file.visititems(
                lambda _, item: places.append(item.id.get_offset()) if hasattr(item, "shape") else None
            )
        bytes_of_shard = bytearray(shard.read_bytes())
        bytes_of_shard[places[0]] ^= 1
        shard.write_bytes(bytes_of_shard)
        self.assertIn("damaged", run_tool(zr.ZEA_INSPECT, "--check", old, code=4))

    def test_frozen_values_of_the_first_version_are_written_anew(self):
        """Their files are of that version, which a manifest of this one does not take."""
        run = self.folder / "run"
        frozen = ["-i", self.deck, "-d", run, "model.vision.train=false", "schedule.steps=2"]
        self.assert_code(zr.run_zea(2, frozen, run), 0)
        write_as_version_1(zr.checkpoints(run)[-1])
        self.assert_code(zr.run_zea(2, ["-r", run, "schedule.steps=3"], run), 0)
        self.assertIn("every hash is right", run_tool(zr.ZEA_INSPECT, "--check", zr.checkpoints(run)[-1]))

    def test_a_terminal_sees_a_bar(self):
        shown = run_on_a_terminal(zr.ZEA_CONSOLIDATE, self.half, self.folder / "shown.h5")
        self.assertRegex(shown, r"\r\[#{30}\] 100\.0 %  \d+ of \d+ MiB  \d+ MiB/s")
        silent = run_tool(zr.ZEA_CONSOLIDATE, self.half, self.folder / "silent.h5")
        self.assertNotIn("%", silent)

    def test_state_of_any_source_is_the_same(self):
        file, shards, again = self.folder / "half.h5", self.folder / "five", self.folder / "again.h5"
        consolidate("--optimizer", self.half, file)
        consolidate("--ranks", "5", "-j", "3", file, shards)
        consolidate("--optimizer", "--memory", "16MiB", shards, again)
        for source in (file, shards, again):
            self.assertIn(
                " 0 differences", run_tool(COMPARE, "--optimizer", self.half, source)
            )
            self.assertIn("every hash is right", run_tool(zr.ZEA_INSPECT, "--check", source))
        self.assertEqual(file.read_bytes(), again.read_bytes())

    def test_differences_are_found(self):
        file, other = self.folder / "half.h5", self.folder / "other.h5"
        consolidate("--optimizer", self.half, file)
        other.write_bytes(file.read_bytes())
        name = "language_model.model.norm.weight"
        with zr.h5py.File(other, "r+") as opened:
            opened[f"__optimizer__/exp_avg/{name}"][3] += 0.5
        self.assertIn(" 0 differences", run_tool(COMPARE, file, other))
        for command in ([COMPARE, "--optimizer", file, other], [zr.ZEA_INSPECT, "--check", other]):
            said = run_tool(*command, code=4)
            self.assertIn(f'"{name}" (exp_avg), block 0', said)
            self.assertIn("damaged", said)
        run = self.folder / "damaged"
        self.assert_code(zr.run_zea(1, ["-r", other, "-d", run], run), 4)

        consolidate(file, self.folder / "plain.h5")
        with zr.h5py.File(self.folder / "plain.h5", "r+") as opened:
            opened[name][3] += 0.5
            del opened["language_model.lm_head.weight"]
        said = run_tool(COMPARE, file, self.folder / "plain.h5", code=8)
        self.assertIn(f"{name}: 1 elements differ, by at most 0.5", said)
        self.assertIn("language_model.lm_head.weight: not in", said)
        self.assertIn(" 2 differences", said)

    def test_what_has_no_state_is_refused(self):
        plain = self.folder / "plain.h5"
        consolidate(self.half, plain)
        run = self.folder / "run"
        refused = zr.run_zea(1, ["-r", plain, "-d", run], run)
        self.assert_code(refused, 4)
        self.assertIn("zea-consolidate --optimizer", refused.output)
        for arguments, code in (
            (["--optimizer", plain, self.folder / "x.h5"], 4),
            (["--ranks", "2", plain, self.folder / "x"], 4),
            (["--optimizer", self.half, self.folder / "x.safetensors"], 2),
            (["--optimizer", "--dtype", "bfloat16", self.half, self.folder / "x.h5"], 2),
            (["--memory", "3 apples", self.half, self.folder / "x.h5"], 2),
        ):
            run_tool(zr.ZEA_CONSOLIDATE, *arguments, code=code)
        self.assertEqual(list(self.folder.glob("x*")), [])

    def test_options_without_effect_are_refused(self):
        data = zr.make_dataset(self.folder / "data.h5", zr.mixed_samples(3))
        plain, single = self.folder / "plain.h5", self.folder / "x.safetensors"
        consolidate(self.half, plain)
        for command, sentence in (
            ([zr.ZEA_INSPECT, "--check", data], "is a data set, of which --norms, --check and --deck tell nothing"),
            ([zr.ZEA_INSPECT, "--norms", self.half], "--norms is for weights"),
            ([zr.ZEA_INSPECT, "--deck", plain], "weights alone have no hashes to check, and no deck"),
            ([zr.ZEA_CONSOLIDATE, "--companions", plain, self.half, single], "has no place for them"),
            ([zr.ZEA_CONSOLIDATE, "--max-shard-size", "1GB", self.half, single], "is of a directory's files"),
            ([zr.ZEA_IMPORT, "--random", self.folder / "none.json", single], "end its name with .h5"),
        ):
            with self.subTest(sentence):
                done = subprocess.run(command, timeout=60, capture_output=True, text=True)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(sentence, done.stderr)
        self.assertFalse(single.exists())

    def is_whole(self, target):
        """Whether what has the target's name is all of the checkpoint's model."""
        run_tool(COMPARE, self.half, target)
        return True

    def test_a_kill_leaves_nothing_that_looks_complete(self):
        for name, options in (
            ("state.h5", ["--optimizer"]),
            ("shards", ["--ranks", "3"]),
            ("hf/", ["--max-shard-size", "20KB"]),
            ("one.safetensors", []),
        ):
            command = [zr.ZEA_CONSOLIDATE, *options, self.half, f"{self.folder}/{name}"]
            target, killed = self.folder / name, 0
            begin = time.monotonic()
            run_tool(*command)
            seconds = time.monotonic() - begin
            for part in range(1, 11):
                if target.is_dir():
                    shutil.rmtree(target)
                target.unlink(missing_ok=True)
                process = subprocess.Popen(command)
                begin = time.monotonic()
                time.sleep(seconds * part / 10)
                process.kill()
                code = process.wait()
                self.assertIn(code, (0, -signal.SIGKILL))
                killed += code != 0
                if code == 0:  # it is faster than it was
                    seconds = min(seconds, time.monotonic() - begin)
                self.assertTrue(not target.exists() or self.is_whole(target), f"{name} {part}")
            self.assertGreater(killed, 3, f"{name} in {seconds} s")
            if target.is_dir():
                shutil.rmtree(target)
            target.unlink(missing_ok=True)
            run_tool(*command)
            self.assertTrue(self.is_whole(target))
            self.assertEqual([path for path in self.folder.iterdir() if path.suffix == ".tmp"], [])

    def test_a_directory_of_somebody_is_left_alone(self):
        mine = self.folder / "model.tmp"
        mine.mkdir()
        (mine / "notes.txt").write_text("mine")
        said = run_tool(zr.ZEA_CONSOLIDATE, self.half, f"{self.folder}/model/", code=7)
        self.assertIn("model.tmp: is there, and no unfinished output of zea's; move it elsewhere", said)
        self.assertEqual((mine / "notes.txt").read_text(), "mine")

    def test_a_directory_that_is_there_is_replaced_or_refused(self):
        elsewhere, link = self.folder / "elsewhere", self.folder / "link"
        elsewhere.mkdir()
        link.symlink_to(elsewhere)
        consolidate(self.half, f"{link}/")
        self.assertTrue(link.is_symlink())
        self.assertTrue((elsewhere / "config.json").is_file())
        here = self.folder / "here"
        here.mkdir()
        command = [zr.ZEA_CONSOLIDATE, Path(self.half).resolve(), "./"]
        refused = subprocess.run(command, cwd=here, capture_output=True, text=True)
        self.assertEqual(refused.returncode, 7)
        self.assertIn("is the working directory, and is not replaced", refused.stderr)
        self.assertEqual(list(self.folder.glob("*.tmp")), [])
        here.rmdir()
        here.symlink_to(self.folder / "nowhere")
        self.assertIn("is a link to what is not there", run_tool(zr.ZEA_CONSOLIDATE, self.half, f"{here}/", code=7))

    def test_consolidate_says_what_it_took_and_wrote(self):
        state = self.folder / "state.h5"
        said = consolidate("--optimizer", self.half, state)
        run = json.loads((self.half / "manifest.json").read_text())["run_id"]
        self.assertEqual(
            said,
            f"took {self.half}: step 3 of run {run}, written by 2 ranks (dp_replicate 1 x dp_shard 2, "
            f"vision full_shard, llm full_shard), float32\nwrote {state}\n",
        )
        said = consolidate("--dtype", "bfloat16", state, f"{self.folder}/hf/")
        self.assertIn(f"took {state}: step 3 of run {run}, float32\n", said)
        self.assertIn(f"wrote {self.folder}/hf/ in bfloat16\n", said)

    def test_what_is_there_is_replaced_by_force_alone(self):
        for name, options in (
            ("x.h5", []),
            ("x.safetensors", []),
            ("hf/", ["--max-shard-size", "20KB"]),
            ("shards", ["--ranks", "3"]),
        ):
            with self.subTest(name):
                target = f"{self.folder}/{name}"
                consolidate(*options, self.half, target)
                said = run_tool(zr.ZEA_CONSOLIDATE, *options, self.half, target, code=7)
                self.assertRegex(said, "is there already; .*--force|is not empty; .*--force")
                consolidate("--force", *options, self.half, target)
                self.assertTrue(self.is_whole(target))
        self.assertEqual(len(list(self.folder.iterdir())), 4, "nothing is left beside the targets")
        before = sorted(path.name for path in (self.folder / "hf").iterdir())
        (self.folder / "hf/notes.md").write_text("mine")
        said = run_tool(zr.ZEA_CONSOLIDATE, "--force", self.half, f"{self.folder}/hf/", code=7)
        self.assertIn("hf/notes.md; move that elsewhere", said)
        self.assertEqual(sorted(path.name for path in (self.folder / "hf").iterdir()), sorted([*before, "notes.md"]))
        run = self.half.parents[1]
        said = run_tool(zr.ZEA_CONSOLIDATE, "--force", self.half, f"{run}/", code=7)
        self.assertIn("holds checkpoints of a run", said)

    def test_a_checkpoint_that_its_run_removes_meanwhile(self):
        """As with checkpoint.keep = 1: the newest is gone before it is read, and another one is there.

        A tool gives up after 20 of them, so fewer are removed while one tool runs, however slow it is."""
        run = self.folder / "run"
        newest = shutil.copytree(self.half, run / "checkpoints" / "step-00000000")
        begin = time.monotonic()
        consolidate(run, self.folder / "model.h5")
        seconds = (time.monotonic() - begin) / 2
        steps = itertools.count(1)

        @contextlib.contextmanager
        def training():
            stop = threading.Event()

            def train():
                nonlocal newest
                for _ in range(15):
                    if stop.wait(seconds):
                        return
                    made = run / "checkpoints" / f"step-{next(steps):08}"
                    shutil.copytree(self.half, made.with_suffix(".tmp"), copy_function=os.link)
                    made.with_suffix(".tmp").rename(made)
                    newest.rename(newest.with_suffix(".tmp"))
                    shutil.rmtree(newest.with_suffix(".tmp"))
                    newest = made

            thread = threading.Thread(target=train)
            thread.start()
            try:
                yield
            finally:
                stop.set()
                thread.join()

        for _ in range(8):
            with training():
                for _ in range(3):
                    run_tool(zr.ZEA_INSPECT, run)
            with training():
                consolidate("--force", run, self.folder / "model.h5")
        self.assertGreater(next(steps), 3)

    def test_a_full_disk_leaves_nothing(self):
        for name, options in (("state.h5", ["--optimizer"]), ("shards", ["--ranks", "3"])):
            command = [zr.ZEA_CONSOLIDATE, *options, self.half, self.folder / name]
            done = subprocess.run(
                command,
                timeout=60,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000)),
                capture_output=True,
            )
            self.assertIn(done.returncode, (7, -signal.SIGXFSZ), done.stderr)
            left = [path.name for path in self.folder.iterdir()]
            self.assertFalse((self.folder / name).exists(), left)


zr.main()
