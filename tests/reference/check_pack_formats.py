# SPDX-License-Identifier: Apache-2.0
"""jobs/pack.py reads every format alike, names what is at fault in each, leaves nothing outside its
folders be read.

usage: check_pack_formats.py JOBS_FOLDER DUMP_DATASET
"""

import contextlib
import csv
import gzip
import io
import json
import os
import pty
import subprocess
import sys
import tarfile
import unittest

from pack_scripts import JOBS, dump, run  # isort: skip
import h5py
import numpy as np
from PIL import Image
from pack_formats_case import FormatsCase, JPEG, PICTURE, PNG, TURNS, encoded, talk, uri

sys.path.insert(0, str(JOBS))
from packing.readers import read_all  # noqa: E402

INSPECT = sys.argv[3]


class Limits:
    most_item_bytes, most_json_bytes, most_entry_bytes = 1 << 20, 1 << 21, 1 << 22


class Formats(FormatsCase):
    def test_json_lines(self):
        marked = {"messages": [{"role": "user", "content": "<image>what?"}, {"role": "assistant", "content": "a b"}]}
        llava = {"image": "a.png", "conversations": TURNS}
        lines = [talk("a.png"), talk(uri(JPEG)), {**marked, "images": ["a.png"]}, llava]
        for name in ("in.jsonl", "in.jsonl.gz"):
            self.expect(self.samples(self.lines(*lines, name=name)), [PNG, JPEG, PNG, PNG])

    def test_webdataset(self):
        text = json.dumps({"conversations": TURNS}).encode()
        members = [("x/1.png", PNG), ("x/1.json", text), ("x/2.jpg", JPEG), ("x/2.txt", b"a b\n"), ("x/2.cls", b"7")]
        for name, mode in (("in.tar", "w"), ("in.tar.gz", "w:gz")):
            samples = self.samples(self.tar(members, name, mode), "--prompt", "what?")
            self.expect(samples, [PNG, JPEG])

    def test_faults_of_tars(self):
        link, folder = tarfile.TarInfo("link.png"), tarfile.TarInfo("folder")
        link.type, link.linkname, folder.type = tarfile.SYMTYPE, "/etc/passwd", tarfile.DIRTYPE
        members = [("good.png", PNG), ("good.txt", b"a b"), ("folder", folder)]
        members += [("../up.png", PNG), ("../up.txt", b"a"), ("link.png", link), ("link.txt", b"a"), ("no.png", PNG)]
        members += [("bad.png", PNG), ("bad.json", b"["), ("deep.png", PNG), ("deep.json", b"[" * 100000)]
        members += [("latin.png", PNG), ("latin.txt", b"\xe4"), ("big.png", b"0" * (1 << 20 | 1)), ("big.txt", b"a")]
        result = self.pack(self.tar(members), "--on-fault", "skip", "--max-item-mib", 1)
        self.assertEqual(result.returncode, 0, result.stderr)
        dropped = self.dropped()
        counts = {kind: found["count"] for kind, found in dropped.items()}
        self.assertEqual(counts, {"outside": 2, "turns": 1, "not JSON": 2, "text": 1, "too large": 1})
        self.assertIn("in.tar[../up]: ../up.png lies outside the tar", dropped["outside"]["examples"][0])
        self.assertIn("is a link or a device", dropped["outside"]["examples"][1])
        self.assertIn("nested too deeply", dropped["not JSON"]["examples"][1])
        path = self.folder / "in/in.tar"
        path.write_bytes(path.read_bytes()[:700])
        self.assertIn("cannot be read further", self.pack("in.tar").stderr)

    def test_members_of_tars_that_are_left_out(self):
        """Beside what is taken they are noted; a caption that is left with nothing is a fault."""
        said = json.dumps({"messages": [{"role": "user", "content": "what?"}, {"role": "assistant", "content": "a b"}]})
        members = [("sound.mp3", b"ID3"), ("sound.txt", b"a b"), ("two.image.jpg", JPEG), ("two.txt", b"a b")]
        members += [("lone.txt", b"a b"), ("both.png", PNG), ("both.mp3", b"ID3"), ("both.txt", b"a b")]
        members += [("talk.json", said.encode()), ("path.json", b'{"image": "a.png", "text": "a b"}')]
        self.assertEqual(len(self.samples(self.tar(members), "--on-fault", "skip")), 3)
        examples = self.dropped()["items"]["examples"]
        for text, key, ignored in zip(examples, ("sound", "two", "lone"), (".mp3", ".image.jpg", "no members")):
            alone = f"{key}]: its text has no image or sound beside it; left out are {ignored}; allowed are .jpg"
            self.assertIn(alone, text)
        notes = json.loads((self.folder / "out.h5.report.json").read_text())["notes"]
        self.assertEqual(list(notes), ["members left out: .mp3"])
        self.assertIn("[both]", notes["members left out: .mp3"]["examples"][0])

    def test_parquet(self):
        try:
            import pyarrow as arrow
            import pyarrow.parquet
        except ImportError:
            self.skipTest("there is no pyarrow")
        messages = talk("x")["messages"][1:]
        messages = [{"role": "user", "content": "<image>what?"}, *messages]
        one = {"messages": messages, "images": [{"bytes": PNG, "path": None}]}

        def write(rows):
            pyarrow.parquet.write_table(arrow.Table.from_pylist(rows), self.folder / "in/in.parquet")

        write([one, {"messages": messages, "images": [{"bytes": None, "path": "a.png"}]}, one])
        self.expect(self.samples("in.parquet", "--part-entries", 1), [PNG] * 3)
        write([{"image": JPEG, "caption": "a b", "id": 1}, {"image": PNG, "caption": "a b", "id": 2}])
        self.expect(self.samples("in.parquet", "--prompt", "what?"), [JPEG, PNG])
        write([{"conversations": json.dumps(TURNS), "image": {"bytes": PNG, "path": "gone"}}])
        self.expect(self.samples("in.parquet"), [PNG])
        write([{"conversations": "[", "image": PNG}])
        self.assertIn("its text of conversations is not JSON", self.pack("in.parquet").stderr)
        empty = {"bytes": b"", "path": None}
        for cells, part in [
            ([empty], "image inside is {'bytes': b'', 'path': None}; allowed are the bytes"),
            ([None], "image inside is None;"),
        ]:
            write([one, {"messages": messages, "images": cells}])
            self.samples("in.parquet", "--on-fault", "skip")
            self.assertIn(part, self.dropped()["unreadable"]["examples"][0])
        write([{"image": [[1, 2], [3, 4]], "caption": "a b"}])
        self.assertIn("image inside is [1, 2];", self.pack("in.parquet").stderr)
        write([{"conversations": "1" * 5000, "image": PNG}])
        self.assertIn("its text of conversations is not JSON: Exceeds the limit", self.pack("in.parquet").stderr)
        (self.folder / "in/in.parquet").write_bytes(b"PAR1 and no more")
        self.assertIn("cannot be read as Parquet", self.pack("in.parquet").stderr)

    def test_parquet_without_its_package(self):
        (self.folder / "pyarrow").mkdir()
        (self.folder / "pyarrow/__init__.py").write_text("raise ImportError")
        (self.folder / "in/in.parquet").touch()
        command = [sys.executable, JOBS / "pack.py", *map(str, self.command("in.parquet")[1:])]
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        self.assertEqual(result.returncode, 1)
        self.assertIn("Parquet takes the package pyarrow", result.stderr)

    def test_a_folder_with_a_csv(self):
        def write(*rows):
            with open(self.folder / "in/meta.csv", "w", newline="") as file:
                csv.writer(file).writerows(rows)

        write(["file_name", "text", "question"], ["a.png", "a b", "what?"])
        self.expect(self.samples(""), [PNG])
        write(["file_name", "text"], ["a.png", "a b"], ["../x.png", "a b"], ["a.png"])
        result = self.pack("", "--on-fault", "skip")
        self.assertIn("1 samples, 2 entries skipped", result.stdout)
        write(["name", "text"], ["a.png", "a b"])
        self.assertIn("names no column file_name or", self.pack("").stderr)

    def test_pictures_that_zea_does_not_read_are_converted(self):
        grey = PICTURE[..., :1].repeat(3, 2)
        moving = encoded("GIF", grey, save_all=True, append_images=[Image.fromarray(255 - grey)])
        inks = Image.fromarray(PICTURE).convert("CMYK")
        out = io.BytesIO()
        inks.save(out, "JPEG")
        pictures = [encoded("WEBP", lossless=True), moving, encoded("BMP"), out.getvalue()]
        result = self.samples(self.lines(*[talk(uri(picture)) for picture in pictures]))
        found = [bytes(sample["items"][0]["bytes"]) for sample in result]
        for data, expected in zip(found, [PICTURE, grey, PICTURE]):
            self.assertTrue(data.startswith(b"\x89PNG"))
            self.assertEqual(np.asarray(Image.open(io.BytesIO(data))).tolist(), expected.tolist())
        self.assertEqual(found[3], pictures[3])
        notes = json.loads((self.folder / "out.h5.report.json").read_text())["notes"]
        self.assertEqual(sorted(notes), [f"{form} converted to PNG" for form in ("BMP", "GIF", "WEBP")])

    def test_pictures_are_turned_as_exif_says(self):
        smooth = np.add.outer(8 * np.arange(16), 5 * np.arange(24))[..., None].repeat(3, 2).astype(np.uint8)
        left, right = np.rot90(smooth), np.rot90(smooth, -1)
        turns = {1: smooth, 3: smooth[::-1, ::-1], 6: right, 8: left, 5: smooth.swapaxes(0, 1)}

        def picture(form, turn):
            exif = Image.Exif()
            exif[0x0112] = turn
            more = {"JPEG": {"quality": 98}, "WEBP": {"lossless": True}}.get(form, {})
            return encoded(form, smooth, exif=exif.tobytes(), **more)

        for form, tolerance in (("PNG", 0), ("JPEG", 4), ("WEBP", 0)):
            pictures = [picture(form, turn) for turn in turns]
            samples = self.samples(self.lines(*[talk(uri(data)) for data in pictures]))
            found = [bytes(sample["items"][0]["bytes"]) for sample in samples]
            self.assertEqual(found[0] == pictures[0], form != "WEBP")
            for data, (turn, expected) in zip(found, turns.items()):
                with Image.open(io.BytesIO(data)) as image:
                    self.assertEqual(image.getexif().get(0x0112, 1), 1)
                    pixels = np.asarray(image).astype(int)
                self.assertEqual(pixels.shape, expected.shape, (form, turn))
                self.assertLessEqual(np.abs(pixels - expected).max(), tolerance, (form, turn))
            notes = json.loads((self.folder / "out.h5.report.json").read_text())["notes"]
            self.assertEqual(notes["turned as EXIF says"]["count"], 4)

    def test_faults_are_named(self):
        (self.folder / "secret.png").write_bytes(PNG)
        (self.folder / "in/link.png").symlink_to(self.folder / "secret.png")
        (self.folder / "in/inside.png").symlink_to("a.png")
        os.mkfifo(self.folder / "in/pipe.png")
        huge = PNG[:16] + (1 << 20).to_bytes(4, "big") * 2 + PNG[24:]
        webp = encoded("WEBP", np.zeros((400, 500, 3), np.uint8))
        deep = '{"messages": ' + "[" * 100000 + "]" * 100000 + "}"
        lines = [
            (talk("inside.png"), None, None),
            (talk("link.png"), "outside", "a link leads there"),
            (talk("../secret.png"), "outside", "lies outside the folder of images"),
            (talk("/etc/hostname"), "outside", "lies outside the folder of images"),
            (talk("https://example.org/a.png"), "unreadable", "is not on this machine; fetch it"),
            (talk("data:image/png,abc"), "unreadable", "it must be data:TYPE;base64"),
            (talk("data:image/png;base64,a b!"), "unreadable", "inside cannot be read"),
            (talk(uri(b"hello")), "unreadable", "is neither JPEG nor PNG, nor WEBP, GIF, BMP"),
            (talk(uri(huge)), "too large", "1048576 x 1048576 pixels, more than --max-image-pixels 100000"),
            (talk(uri(webp)), "too large", "400 x 500 pixels, more than"),
            (talk(uri(PNG + b"\0" * (1 << 20))), "too large", "more than --max-item-mib 1"),
            (talk("pipe.png"), "unreadable", "it is no regular file"),
            ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "turns", "a part of type smell"),
            ({"messages": [{"role": "judge", "content": "x"}]}, "turns", "ends with a human turn"),
            ({"messages": [{"role": "assistant", "content": "x"}]}, "turns", "is not where it should be"),
            ({"messages": [{"role": "system", "content": "x"}]}, "turns", "ends with a human turn"),
            ({"messages": []}, "turns", "has no messages"),
            ([1], "turns", "has no conversations"),
            ('{"messages": }', "not JSON", "is not JSON"),
            (deep, "not JSON", "is nested too deeply"),
            ('{"id": ' + "1" * 5000 + "}", "not JSON", "is not JSON: Exceeds the limit"),
            ({**talk("a.png"), "answers": ["\ud83d"]}, "text", "text is not valid Unicode"),
            ('"' + "x" * (5 << 20) + '"', "too large", "has more than 2097152 bytes"),
            ({"messages": [{"role": r, "content": "x"} for r in ("tool", "assistant")]}, "turns", "is not where"),
        ]
        more = ["--on-fault", "skip", "--max-image-pixels", 100000, "--max-item-mib", 1]
        (sample,) = self.samples(self.lines(*[line for line, _, _ in lines]), *more)
        dropped = self.dropped()
        for number, (_, kind, part) in enumerate(lines, 1):
            examples = dropped[kind]["examples"] if kind else []
            found = next((text for text in examples if f"in.jsonl:{number}: " in text), "")
            self.assertIn(part or "", found, (number, kind))
            self.assertNotIn(" at 0x", found)  # so that a second report is the same
        self.assertEqual(sum(found["count"] for found in dropped.values()), len(lines) - 1)

    def test_faults_of_sources_are_named(self):
        (self.folder / "in/a.xyz").touch()
        (self.folder / "in/none").mkdir()
        (self.folder / "in/damaged.jsonl.gz").write_bytes(gzip.compress(b"")[:10] + b"\xff" * 20)
        self.assertIn("cannot be read further: Error -3", self.pack("damaged.jsonl.gz").stderr)
        (self.folder / "in/long.json").write_text("[" + "1" * 5000 + "]")
        self.assertIn("long.json[0]: is not JSON: Exceeds the limit", self.pack("long.json").stderr.splitlines()[0])
        self.assertIn("there is no such file", self.pack("gone.jsonl").stderr)
        self.assertIn("its ending tells no format", self.pack("a.xyz").stderr)
        self.assertIn("holds no file that ends with", self.pack("none").stderr)
        self.assertIn("--processes is 1 or more", self.pack("a.xyz", "--processes", 0).stderr)

    def pack_folder(self, count=7):
        lines = [talk(uri(JPEG if n % 2 else PNG), f"what {n}?") for n in range(count)]
        more = ["--part-entries", 3, "--out", self.folder / "set"]
        result = self.pack(self.lines(*lines), *more)
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.folder / "set"

    def test_a_folder_of_parts(self):
        """Its index gives what its files do, and names no file that has changed."""
        folder = self.pack_folder()
        files = ["000000.h5", "000001.h5", "000002.h5", "index.h5"]
        self.assertEqual(sorted(path.name for path in folder.iterdir()), files)
        found = dump(folder, 2)
        self.assertEqual([sample["text"] for sample in found["samples"]][4], "USER: what 4? ASSISTANT: a b")
        self.assertIn("set is there", self.pack("in.jsonl", "--out", folder).stderr)
        (folder / "index.h5").rename(self.folder / "index.h5")
        self.assertEqual(dump(folder, 2), found)
        (self.folder / "index.h5").rename(folder / "index.h5")
        with h5py.File(folder / "000001.h5", "r+") as file:
            file["loss_mask"][...] = np.zeros_like(file["loss_mask"][...])
        with self.assertRaisesRegex(AssertionError, "sample 0 of 000001.h5 is not what it says"):
            dump(folder, 2)
        with open(folder / "000001.h5", "ab") as file:
            file.write(b"more")
        with self.assertRaisesRegex(AssertionError, "000001.h5 has [0-9]+ bytes, and had [0-9]+ when"):
            dump(folder, 2)
        (folder / "000001.h5").unlink()
        with self.assertRaisesRegex(AssertionError, "names 000001.h5, which is not there"):
            dump(folder, 2)

    def test_a_folder_may_have_parts_without_items(self):
        plain = {"messages": [{"role": "user", "content": "and?"}, {"role": "assistant", "content": "a b"}]}
        lines = self.lines(talk(uri(PNG)), plain, plain, talk(uri(PNG)))
        result = self.pack(lines, "--part-entries", 1, "--out", self.folder / "set")
        self.assertEqual(result.returncode, 0, result.stderr)
        opened = self.inspect(self.folder / "set")
        self.assertEqual(opened.returncode, 0, opened.stderr)
        self.assertIn("4 samples", opened.stdout)
        self.assertIn("2 images", opened.stdout)

    def test_a_folder_opens_without_its_files(self):
        """The files after the first are no longer data sets, but have the same size: opening one would fail."""
        lines = self.lines(*[talk(uri(PNG), f"what {n}?") for n in range(40)])
        folder = self.folder / "set"
        result = self.pack(lines, "--part-entries", 1, "--out", folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        files = sorted(folder.glob("0*.h5"))
        self.assertEqual(len(files), 40)
        # More than are kept open at once.
        texts = [sample["text"] for sample in dump(folder, 2)["samples"]]
        self.assertEqual(texts, [f"USER: what {n}? ASSISTANT: a b" for n in range(40)])
        for path in files[1:]:
            path.write_bytes(bytes(path.stat().st_size))
        opened = self.inspect(folder)
        self.assertEqual(opened.returncode, 0, opened.stderr)
        self.assertIn("what 0?", opened.stdout)
        self.assertIn("000039.h5", self.inspect(folder, "--sample", 39).stderr)
        (folder / "index.h5").unlink()
        self.assertIn("cannot open as HDF5", self.inspect(folder).stderr)

    def drawn_on_a_terminal(self, name):
        try:
            terminal, end = pty.openpty()
        except OSError as error:
            raise unittest.SkipTest(f"this machine has no terminals ({error})") from error
        command = [sys.executable, JOBS / "pack.py", *map(str, self.command(name)[1:])]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=end)
        os.close(end)
        said = b""
        with contextlib.suppress(OSError):  # all is read
            while part := os.read(terminal, 4096):
                said += part
        os.close(terminal)
        self.assertEqual(done.returncode, 0, said)
        (self.folder / "out.h5").unlink()
        return said.decode()

    def test_a_bar_is_drawn_on_a_terminal(self):
        """Over itself, and nowhere else."""
        name = "in.json"
        (self.folder / "in" / name).write_text(json.dumps([{"conversations": TURNS, "image": "a.png"}] * 30))
        said = self.drawn_on_a_terminal(name)
        self.assertRegex(said, r"\r\[#{30}\] 30 entries, 100 % of 0.0 MiB read, [0-9,]+/s, 0 dropped\x1b\[K\r\n")
        self.assertNotIn("[#", self.pack(name).stderr)

    def many_of_unknown_number(self):
        """Files whose readers tell no number of entries; each has 30."""
        lines = self.lines(*[talk(uri(PNG), f"what {n}?") for n in range(30)])
        zipped = "in.jsonl.gz"
        (self.folder / "in" / zipped).write_bytes(gzip.compress((self.folder / "in" / lines).read_bytes()))
        members = [(f"{n:02}.{ending}", data) for n in range(30) for ending, data in (("png", PNG), ("txt", b"a b"))]
        with open(self.folder / "in/meta.csv", "w", newline="") as file:
            csv.writer(file).writerows([["file_name", "text", "question"], *[["a.png", "a b", "what?"]] * 30])
        return [lines, zipped, self.tar(members), "meta.csv"]

    def test_a_bar_is_of_bytes_where_entries_are_not_counted(self):
        for name in self.many_of_unknown_number():
            said = self.drawn_on_a_terminal(name)
            end = r"\r\[#{30}\] 30 entries, 100 % of [0-9.]+ MiB read, [0-9,]+/s, 0 dropped\x1b\[K\r\n"
            self.assertRegex(said, end, name)

    def test_bytes_read_are_reported_for_every_entry(self):
        """They rise, by what an entry takes in files of many blocks, and are never more than there are."""
        files = [self.folder / "in" / name for name in self.many_of_unknown_number()]
        whole = files[0].read_bytes()
        files[0].write_bytes(whole * 40)
        most = sum(path.stat().st_size for path in files)
        read = [read for (_, read), _ in read_all(files, "auto", Limits)]
        self.assertEqual(len(read), 30 * 43)
        self.assertEqual(read, sorted(read))
        self.assertLessEqual(read[-1], most)
        first = files[0].stat().st_size
        self.assertEqual(read[30 * 40 - 1], first)
        self.assertAlmostEqual(read[30 * 20], first / 2, delta=first / 100)
        second = [read for (_, read), _ in read_all(files, "auto", Limits, (1, 7))]
        self.assertEqual(len(second), 30 * 3 - 7)
        self.assertGreaterEqual(second[0], first)

    def inspect(self, *arguments):
        return subprocess.run([INSPECT, *map(str, arguments)], capture_output=True, text=True)

    def test_what_inspect_shows(self):
        folder = self.pack_folder()
        for path in (folder, folder / "000000.h5"):
            said = self.inspect(path).stdout
            self.assertIn(f"sample 0 ({self.folder / 'in/in.jsonl'}:1): ", said)
            self.assertIn("  image of 4 x 6, ", said)
            self.assertTrue(said.endswith("<s>USER: <image x 2>what 0? ASSISTANT:[[ a b</s>]]\n"), said)
        self.assertIn("what 5?", self.inspect(folder, "--sample", 5).stdout)
        beyond = self.inspect(folder, "--sample", 7)
        self.assertEqual(beyond.returncode, 3)
        self.assertIn("there is no sample 7; it holds 7", beyond.stderr)
        result = self.inspect(folder, "--picture", self.folder / "sheet.png")
        self.assertEqual(result.returncode, 0, result.stderr)
        with Image.open(self.folder / "sheet.png") as sheet:
            self.assertEqual((sheet.width, sheet.height), (7 * 168 + 8, 160 + 10 + 16 + 8))
            # The image has 4 x 6 pixels: its shape is kept, with white below it.
            pixels = np.asarray(sheet)
        self.assertEqual(pixels[8, 8].tolist(), PICTURE[0, 0].tolist())
        self.assertEqual(pixels[8 + 105, 8 + 159].tolist(), PICTURE[3, 5].tolist())
        self.assertEqual(pixels[8 + 107, 8 + 159].tolist(), [255] * 3)
        self.assertEqual(self.inspect(folder, "--picture", self.folder / "no/sheet.png").returncode, 7)
        self.assertIn("is no data set", self.inspect(self.folder / "in", "--sample", 1).stderr)

    def test_names_of_entries_and_files(self):
        """Parts that are joined keep them, and bytes inside have no file."""
        lines = [talk("a.png"), talk(uri(PNG)), talk("a.png")]
        lines[2]["messages"][0]["content"] += [line["messages"][0]["content"][0] for line in (lines[1], lines[0])]
        for more in (["--part-entries", 1], ["--processes", 1]):
            self.samples(self.lines(*lines), *more)
            said = [self.inspect(self.folder / "out.h5", "--sample", n).stdout.splitlines() for n in range(3)]
            self.assertEqual([s[0].split(":")[1] for s in said], ["1)", "2)", "3)"])
            files = [[line.rpartition(" bytes")[2] for line in s if " bytes" in line] for s in said]
            self.assertEqual(files, [[" (a.png)"], [""], [" (a.png)", "", " (a.png)"]])
            (self.folder / "out.h5").unlink()

    def test_several_answers_that_are_right(self):
        """Also of parts that have none, joined to a file; they are shown, and lists of what is no text are faults."""
        lines = [talk(uri(PNG), f"what {n}?") for n in range(5)]
        lines[2]["answers"], lines[4]["answers"] = ["a b", "b \u00e4"], ["c"]
        name = self.lines(*lines)
        for more in (["--part-entries", 2], ["--part-entries", 100]):
            self.samples(name, *more)
            said = [self.inspect(self.folder / "out.h5", "--sample", number).stdout for number in range(5)]
            right = [[line for line in text.splitlines() if "right answer" in line] for text in said]
            of_two = ["  right answer: a b", "  right answer: b \u00e4"]
            self.assertEqual(right, [[], [], of_two, [], ["  right answer: c"]])
            (self.folder / "out.h5").unlink()
        self.assertIn("answers must be a list of texts", self.pack(self.lines({**lines[0], "answers": "a"})).stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
