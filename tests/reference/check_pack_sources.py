# SPDX-License-Identifier: Apache-2.0
"""jobs/pack.py reads files of any origin: every complete entry, with a message for every other; and its memory and time
are bounded where files claim more than they hold.

usage: check_pack_sources.py JOBS_FOLDER DUMP_DATASET
"""

import gzip
import io
import json
import random
import sys
import tarfile
import unittest
from pathlib import Path
from unittest import mock

from pack_scripts import JOBS  # isort: skip
from pack_formats_case import PNG, FormatsCase, talk

sys.path.insert(0, str(JOBS))
from packing import json_lines, json_list  # noqa: E402
from packing.readers import files_of, read_all  # noqa: E402
from packing.tar_members import Tar  # noqa: E402

MARK = b"\xef\xbb\xbf"


class Limits:
    most_item_bytes, most_json_bytes, most_entry_bytes = 1 << 20, 1 << 21, 1 << 22


class Counted(io.BytesIO):
    """Knows how much was asked for at once."""

    most = 0

    def read(self, size=-1):
        self.most = max(self.most, size)
        return super().read(size)


def header(name, kind=b"0", size=0):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.USTAR_FORMAT)


def member(name, data, kind=b"0", size=None):
    return header(name, kind, len(data) if size is None else size) + data + bytes(-len(data) % 512)


def pax(**fields):
    pairs = ((key.replace("__", "."), value) for key, value in fields.items())
    records = [f"{key}={value}\n" for key, value in pairs]
    text = "".join(f"{len(r) + 1 + digits} {r}" for r in records for digits in [len(str(len(r) + 3))])
    return member("pax", text.encode(), b"x")


END = bytes(1024)
PAIR = member("a.png", PNG) + member("a.txt", b"a b")
OTHER = member("b.png", PNG) + member("b.txt", b"a b")


class Sources(FormatsCase):
    def write(self, name, data):
        path = self.folder / "in" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
        return path

    def read(self, *paths, kind="auto", start=(0, 0)):
        return [entry for _, entry in read_all(list(paths), kind, Limits, start)]

    def values(self, *paths):
        return [entry.value for entry in self.read(*paths) if not entry.fault]

    def faults(self, *paths):
        return [f"{Path(entry.name).name}: {entry.fault}" for entry in self.read(*paths) if entry.fault]

    def expect_faults(self, path, count, *parts):
        """So many entries that are whole, and these faults."""
        faults = self.faults(path)
        self.assertEqual(len(self.values(path)), count, faults)
        self.assertEqual(len(faults), len(parts), faults)
        for fault, part in zip(faults, parts):
            self.assertIn(part, fault)


class Folders(Sources):
    def names_of(self, kind="auto"):
        return [path.name for path in files_of(self.folder / "in", kind)]

    def test_all_files_of_json_are_taken(self):
        for name in ("b.jsonl", "a.json", "c.jsonl.gz", "d.json.gz", "._a.json", "dataset_infos.json"):
            self.write(name, b"")
        self.assertEqual(self.names_of(), ["a.json", "b.jsonl", "c.jsonl.gz", "d.json.gz"])

    def test_of_several_formats_one_is_asked_for(self):
        for name in ("0.tar", "0.parquet", "1.tar"):
            self.write(name, b"")
        with self.assertRaisesRegex(
            SystemExit, r"1 of parquet \(0.parquet\); 2 of webdataset|2 of webdataset.*; 1 of parquet"
        ):
            self.names_of()
        self.assertEqual(self.names_of("webdataset"), ["0.tar", "1.tar"])


class Json(Sources):
    def test_the_ending_does_not_decide(self):
        lines = b'\n{"n": 0}\n\n{"n": 1}\n'
        for name in ("in.json", "in.jsonl"):
            self.assertEqual(self.values(self.write(name, lines)), [{"n": 0}, {"n": 1}])
            self.assertEqual(self.values(self.write(name, b' \n[{"n": 0},\n {"n": 1}]\n')), [{"n": 0}, {"n": 1}])
        path = self.write("in.json", b'{\n"data": [{"n": 0}]\n}')
        self.expect_faults(path, 0, "allowed are a list of entries, or an object in each line")

    def test_lists_are_read_as_a_whole_would_be(self):
        """Wherever the pieces end that the file is read in."""
        draw = random.Random(3)

        def value(depth):
            kind = draw.randrange(3 if depth else 7)
            if kind < 3:
                return [draw.choice(['"', "\\", "]}", "a,b", "[{\n", "\u00e4", ""]), draw.random(), None][kind]
            if kind < 5:
                return [value(depth + 1) for _ in range(draw.randrange(3))]
            return {draw.choice('ab"\\'): value(depth + 1) for _ in range(draw.randrange(4))}

        for number in range(200):
            whole = [value(0) for _ in range(draw.randrange(6))]
            text = json.dumps(whole, indent=draw.choice([None, 1]), ensure_ascii=draw.choice([True, False]))
            path = self.write("in.json", text.encode())
            with mock.patch.object(json_list, "CHUNK", draw.randrange(1, 30)):
                self.assertEqual([entry.value for entry in self.read(path)], whole, text)
                skip = draw.randrange(len(whole) + 1)
                self.assertEqual([entry.value for entry in self.read(path, start=(0, skip))], whole[skip:])

    def test_an_entry_at_fault_costs_no_other(self):
        bad = [b'{"a": }', b'{"a": \xff}', b"[" * 5000 + b"]" * 5000, b"1" * 5000, b"{} {}", b""]
        path = self.write("in.json", b"[{}," + b",{},".join(bad) + b",{}]")
        parts = [
            "Expecting value",
            "can't decode",
            "nested too deeply",
            "Exceeds the limit",
            "Extra data",
            "Expecting value",
        ]
        self.expect_faults(path, len(bad) + 1, *parts)
        self.assertIn("in.json[1]: ", self.faults(path)[0])

    def test_how_lists_end(self):
        for text, count, part in [
            (b'[{"a": 1}, {"a":', 1, "ends within its list, so it was cut"),
            (b'[{"a": 1}', 0, "ends within its list"),
            (b'[{"a": "]', 0, "ends within its list"),
            (b"[{}] [{}]", 1, "more follows its list"),
            (b"[{}}", 1, "more follows its list"),
        ]:
            with self.subTest(text):
                self.expect_faults(self.write("in.json", text), count, part)
        self.assertEqual(self.read(self.write("in.json", b"[]")), [])

    def test_what_is_too_large(self):
        text = b'"' + b"x" * (3 << 20) + b'"'
        self.expect_faults(self.write("in.json", b"[{}, " + text + b", {}]"), 2, "has more than 2097152 bytes")
        longer = b"[{}, " + text[:-1] * 2 + b'"]'
        self.expect_faults(self.write("in.json", longer), 1, "read further: an entry has more than 2097152 bytes")
        self.expect_faults(self.write("in.jsonl", b"{}\n" + text + b"\n{}\n"), 2, "has more than 2097152 bytes")
        with mock.patch.object(json_lines, "MOST_VALUES", 20):
            path = self.write("in.json", [[[]] * 30, []])
            self.expect_faults(path, 1, "has more than 20 values")
        with mock.patch.object(json_list, "MOST_VALUES", 20):
            path = self.write("in.json", b"[{}, " + b"[" * 50)
            self.expect_faults(path, 1, "cannot be read further: an entry has more than 20 values")

    def test_byte_order_marks(self):
        text = b'[{"n": "\xc3\xa4"}]'
        for name, data in [
            ("in.json", text),
            ("in.jsonl", text[1:-1]),
            ("in.jsonl.gz", gzip.compress(MARK + text[1:-1])),
        ]:
            path = self.write(name, data if name.endswith("gz") else MARK + data)
            self.assertEqual(self.values(path), [{"n": "\u00e4"}])
        for name in ("in.json", "in.jsonl", "in.csv"):
            for code in ("utf-16", "utf-16-le", "utf-32"):
                path = self.write(name, text.decode().encode(code))
                self.expect_faults(path, 0, "allowed is UTF-8: iconv -f UTF-16")

    def test_other_files_are_named(self):
        for data, part in [
            (
                b"version https://git-lfs.github.com/spec/v1\noid",
                "is a pointer of git-lfs in place of the file; run git lfs",
            ),
            (b"<!DOCTYPE html><html>", "is a web page"),
            (b"PK\3\4", "is a zip archive"),
            (b"BZh91AY", "bunzip2"),
        ]:
            for name in ("in.json", "in.tar", "in.csv"):
                self.expect_faults(self.write(name, data), 0, part)


class Csv(Sources):
    def test_a_row_at_fault_costs_no_other(self):
        path = self.write("in.csv", MARK + b"file_name,text\na.png,a b\nb.png,\xe4\nc.png,c\n")
        found = [entry.value for entry in self.read(path)]
        self.assertEqual(
            found,
            [{"image": f"{name}.png", "text": text} for name, text in [("a", "a b"), ("b", "\udce4"), ("c", "c")]],
        )
        long = b"file_name,text\n" + b'a.png,"' + b"x\n" * (2 << 20)
        self.expect_faults(self.write("in.csv", long), 0, "a row has more than 2097152 characters")
        with mock.patch("packing.csv_folder.MOST_VALUES", 20):
            self.expect_faults(self.write("in.csv", b"file_name,text\n" + b"," * 30), 0, "a row has more than")


class Tars(Sources):
    def members(self, data):
        tar = Tar(io.BytesIO(data))
        return [(m.name, tar.read()) for m in tar.members() if not m.is_end and not m.fault and m.kind in b"0"]

    def test_members_are_those_of_tarfile(self):
        draw = random.Random(4)
        for number in range(60):
            form = draw.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
            out, expected = io.BytesIO(), []
            with tarfile.open(fileobj=out, mode="w", format=form) as tar:
                for _ in range(draw.randrange(8)):
                    name = "/".join(
                        draw.choice("ab\u00e4") * draw.choice([1, 40, 90]) for _ in range(draw.randrange(1, 3))
                    )
                    name = name[:40] if form == tarfile.USTAR_FORMAT else name
                    info, data = tarfile.TarInfo(name), draw.randbytes(draw.choice([0, 1, 511, 512, 513, 3000]))
                    info.size, info.mtime = len(data), draw.choice([0, 1.5])
                    tar.addfile(info, io.BytesIO(data))
                    expected.append((name, data))
                    if draw.random() < 0.3:
                        link = tarfile.TarInfo("link")
                        link.type, link.linkname = draw.choice([tarfile.SYMTYPE, tarfile.DIRTYPE]), "x" * 90
                        tar.addfile(link)
            self.assertEqual(self.members(out.getvalue()), expected)

    def test_a_truncated_tar_is_reported(self):
        """Wherever, and what stood before is kept."""
        data = PAIR + OTHER + END
        for end in range(0, len(data) - 512, 512):
            kept = (end >= len(PAIR)) + (end >= len(PAIR + OTHER))
            path = self.write("in.tar", data[:end])
            self.assertEqual(len(self.values(path)), kept, end)
            self.assertIn(
                "in.tar: cannot be read further: it lacks the zeros that end a tar, so it was cut",
                self.faults(path),
            )
            packed = gzip.compress(data)
            path = self.write("in.tar.gz", packed[: len(packed) * 2 // 3])
            self.assertIn("in.tar.gz: cannot be read further: Compressed file ended", self.faults(path)[-1])
        self.expect_faults(self.write("in.tar", data), 2)
        self.expect_faults(self.write("in.tar", data + bytes(9216) + data), 4)
        self.expect_faults(self.write("in.tar", data + b"x" * 512), 2, f"no header of tar at byte {len(data)}")

    def test_what_systems_add_is_passed_over(self):
        added = member("._a.png", b"Mac OS X") + member("__MACOSX/._a.txt", b"x") + member(".DS_Store", b"x")
        parts = [
            member("a.png", PNG),
            member("a.txt", MARK + b"a b"),
            member("b.png", PNG),
            member("b.json", MARK + b'{"text": "a b"}'),
        ]
        path = self.write("in.tar", added + added.join(parts) + added + END)
        self.assertEqual([value["text"] for value in self.values(path)], ["a b", "a b"])
        self.expect_faults(path, 2)

    def test_what_describes_a_member_is_bounded(self):
        """A fault of its own, for which no more is read at once than a header may have."""
        long = member("@LongLink", b"x" * (3 << 20), b"L")
        wide = member("pax", b"7000000 path=" + b"x" * 7000000, b"x")
        for wrong, part in [
            (long + member("x.png", PNG), "3145728 bytes and 1 headers describe it; allowed are 1048576 and 16"),
            (wide + member("x.png", PNG), "7000013 bytes and 1 headers"),
            (pax(path="y.png") * 1500 + member("x.png", PNG), "headers describe it"),
            (pax(GNU__sparse__major="1", GNU__sparse__name="x") + member("x.png", PNG), "it is sparse"),
            (
                member("pax", b"x path=a", b"x") + member("x.png", PNG),
                "the fields of pax that describe it are damaged",
            ),
            (
                member("pax", b"0 path=a\n", b"x") + member("x.png", PNG),
                "the fields of pax that describe it are damaged",
            ),
            (member("x.png", b"", b"2"), "is a link or a device"),
            (member("x.png", b"", b"S"), "it is sparse"),
            (member("x.png", bytes(2 << 20)), "x.png has 2097152 bytes, more than 1048576"),
        ]:
            data = PAIR + wrong + OTHER + END
            self.expect_faults(self.write("in.tar", data), 2, part)
            self.expect_faults(self.write("in.tar.gz", gzip.compress(data, 1)), 2, part)
            file = Counted(data)
            list(Tar(file).members())
            self.assertLessEqual(file.most, 1 << 20)

    def test_sizes_that_no_member_has(self):
        for size in ("99999999999999999999", "-512", str(1 << 62), "1e3"):
            path = self.write("in.tar.gz", gzip.compress(PAIR + pax(size=size) + OTHER + END))
            self.assertEqual(len(self.values(path)), 1)
            self.assertIn("cannot be read further: a member of", self.faults(path)[-1])
        path = self.write("in.tar", PAIR + header("b.png", size=1 << 32) + PNG)
        self.assertEqual(len(self.values(path)), 1)

    def test_members_of_one_key_are_bounded_together(self):
        many = b"".join(member(f"x.{n}.png", b"") for n in range(2)) + member("x.png", bytes(1 << 20)) * 5
        self.expect_faults(
            self.write("in.tar", PAIR + many + OTHER + END), 2, "its members have more than 4194304 bytes"
        )


class Parquet(Sources):
    def setUp(self):
        super().setUp()
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            self.skipTest("there is no pyarrow")

    def test_cells_that_take_much_memory(self):
        """Large ones, and many of few bytes: these rows are a fault, and those behind them are not."""
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        huge = {"image": bytes(120 << 20), "text": "a b"}
        for rows in ([huge], [{"image": bytes(30 << 20), "text": "a b"}] * 10):
            path = self.folder / "in/in.parquet"
            good = arrow.Table.from_pylist([{"image": PNG, "text": "a b"}] * 2)
            with parquet.ParquetWriter(path, good.schema, compression="zstd") as writer:
                writer.write_table(good)
                writer.write_table(arrow.Table.from_pylist(rows))
                writer.write_table(good)
            self.assertLess(path.stat().st_size, 1 << 20)
            with mock.patch.object(Limits, "most_entry_bytes", 48 << 20):
                self.expect_faults(
                    path, 4, f"in.parquet[2]: these rows up to {2 + len(rows)} cannot be read: takes more than"
                )

    def test_one_that_is_none(self):
        """Costs no other file."""
        path, good = self.write("in.parquet", b"PAR1 and no more"), self.write("in.json", [{}])
        found = self.read(path, good)
        self.assertEqual([str(entry.fault)[:30] for entry in found], ["cannot be read as Parquet: Par", "None"])


class Places(Sources):
    def test_paths_that_lead_inside(self):
        (self.folder / "in/sub").mkdir()
        (self.folder / "in/a b.png").write_bytes(PNG)
        inside = self.folder / "in"
        names = [
            str(inside / "a.png"),
            f"file://{inside}/a.png",
            f"file:{inside}/a.png",
            f"file://localhost{inside}/a%20b.png",
        ]
        names += ["sub/../a.png", "./a.png"]
        self.expect(self.samples(self.lines(*map(talk, names))), [PNG] * len(names))
        (self.folder / "x.png").write_bytes(PNG)
        for name, part in [
            (f"file://{self.folder}/x.png", "lies outside the folder of images; name one that holds it: --images"),
            ("file://elsewhere/a.png", "is not on this machine"),
            ("s3://a/a.png", "is not on this machine"),
            ("sub/../../x.png", "lies outside the folder of images"),
        ]:
            self.assertIn(part, self.pack(self.lines(talk(name))).stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
