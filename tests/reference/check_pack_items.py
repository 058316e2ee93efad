# SPDX-License-Identifier: Apache-2.0
"""jobs/pack.py decodes what it packs, by zea's own readers: what training could not read is a fault with its own
sentence and what to do. And whatever an entry or a file is, packing ends with a sentence that a terminal can show.

usage: check_pack_items.py JOBS_FOLDER DUMP_DATASET
"""

import io
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import unittest
import zlib
from types import SimpleNamespace
from unittest import mock

from pack_scripts import JOBS, run  # isort: skip
import numpy as np
from PIL import Image
from pack_formats_case import JPEG, PICTURE, PNG, TURNS, FormatsCase, encoded, talk, uri

sys.path.insert(0, str(JOBS))
from packing import decoding  # noqa: E402
from packing.media import Media  # noqa: E402
from packing.processes import Sampler, batches, outcomes  # noqa: E402
from packing.record import Entry, EntryFault  # noqa: E402
from packing.record_maker import RecordMaker  # noqa: E402

LARGE = encoded(
    "JPEG", np.kron(np.arange(60).reshape(6, 10, 1), np.ones((16, 16, 3))).astype(np.uint8), quality=90
)


def chunk(name, data, size=None):
    return name + struct.pack("<I", len(data) if size is None else size) + data


def wav(data=bytes(3200), tag=1, channels=1, rate=16000, bits=16, size=None, riff=b"RIFF"):
    frame = channels * bits // 8
    form = struct.pack("<HHIIHH", tag, channels, rate, rate * frame, frame, bits)
    body = b"WAVE" + chunk(b"fmt ", form) + chunk(b"data", data, size)
    return riff + struct.pack("<I", len(body)) + body


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


class ItemsCase(FormatsCase):
    def setUp(self):
        super().setUp()
        self.media = self.media_of()

    def media_of(self, **more):
        options = dict(
            images=self.folder / "in",
            sounds=self.folder / "in",
            videos=self.folder / "in",
            max_item_mib=1,
            no_decode=False,
        )
        options |= dict(max_image_pixels=100000, max_clip_seconds=60, fps=2, max_frames=8, max_seconds=0,
                        family=None)
        return Media(SimpleNamespace(**options | more))

    def items(self, modality, *sources, media=None):
        value = {"text": "a b", modality: list(sources)}
        record = RecordMaker("what?").record(Entry("it", value, {modality: list(sources)}))
        return (media or self.media).items(record)[modality]

    def fault(self, modality, source, media=None):
        if isinstance(source, str):
            (self.folder / "in" / source).parent.mkdir(exist_ok=True)
        try:
            self.items(modality, source, media=media)
        except EntryFault as fault:
            return str(fault)
        return None

    def expect_faults(self, modality, cases, name):
        """Expects faults for items in the entry, and for files, which messages name."""
        for data, part in cases:
            path = self.folder / "in" / name
            path.write_bytes(data)
            for source, label in ((data, modality), (name, f"{modality} {name}")):
                found = self.fault(modality, source) or ""
                self.assertTrue(found.startswith(label), found)
                self.assertIn(part, found)


class Pictures(ItemsCase):
    def test_good_ones_are_taken(self):
        for data in (PNG, JPEG, LARGE, encoded("JPEG", progressive=True), LARGE + bytes(100)):
            self.assertEqual(self.items("image", data), [data])
        grey = PICTURE[..., :1].repeat(3, 2)
        for form, picture in (("TIFF", PICTURE), ("AVIF", grey)):
            (found,) = self.items("image", encoded(form, picture, **({"quality": 100} if form == "AVIF" else {})))
            pixels = np.asarray(Image.open(io.BytesIO(found))).astype(int)
            self.assertLessEqual(np.abs(pixels - picture).max(), 0 if form == "TIFF" else 4)
            self.assertIn(f"{form} converted to PNG", self.media.notes)

    def test_damaged_ones(self):
        half, data = LARGE[: len(LARGE) // 2], zlib.compress(bytes(4 * 19))
        bad = [
            half,
            half + bytes(len(LARGE) - len(half)),
            half + bytes(1 << 16),
            half + b"\xff" * 4096,
            LARGE[:30],
            LARGE[:-2],
        ]
        bad += [PNG[: len(PNG) // 2], PNG[:30], flipped(PNG, len(PNG) - 20), flipped(PNG, 30)]
        bad += [
            PNG[:8]
            + PNG[8:33]
            + struct.pack(">I", len(data))
            + b"IDAT"
            + data
            + struct.pack(">I", zlib.crc32(b"IDAT" + data))
        ]
        self.expect_faults("image", [(data, "cannot be decoded: ") for data in bad], "a.jpg")
        self.assertIn("fetch it again", self.fault("image", half))
        self.assertIsNone(self.fault("image", half, self.media_of(no_decode=True)))
        exif = Image.Exif()
        exif[0x0112] = 6
        turned = encoded("JPEG", np.asarray(Image.open(io.BytesIO(LARGE))), exif=exif.tobytes())
        self.assertIsNone(self.fault("image", turned))
        self.assertIn("cannot be decoded", self.fault("image", turned[: len(turned) // 2] + bytes(1 << 16)))

    def test_without_a_build_pillow_decodes(self):
        media = self.media_of()
        media.decoder.check = None
        self.assertIn("cannot be decoded: ", self.fault("image", LARGE[: len(LARGE) // 2], media))
        self.assertIn("cannot be decoded: ", self.fault("image", PNG[: len(PNG) // 2], media))
        self.assertEqual(self.items("image", LARGE, PNG, media=media), [LARGE, PNG])

    def test_a_library_that_cannot_be_loaded_is_passed_over(self):
        damaged = self.folder / decoding.LIBRARY
        damaged.write_bytes(b"no library")
        found = decoding.libraries()
        with mock.patch.object(decoding, "libraries", lambda: [damaged, *found]):
            self.assertIsNotNone(decoding.Decoder().check)

    def test_other_kinds(self):
        box = b"\0\0\0\x1cftyp"
        self.expect_faults(
            "image",
            [
                (b"", "is empty: it has no bytes"),
                (box + b"heic" + bytes(16), "is HEIC; convert it: ffmpeg -i "),
                (box + b"avif" + bytes(16), "is AVIF; convert it"),
                (b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(16), "is JPEG 2000; convert"),
                (b"\n <svg xmlns=", "is SVG; convert it"),
                (b"%PDF-1.7", "is PDF"),
                (b"<!doctype html><p>404", "is a web page in place of the file; fetch the file itself"),
                (
                    b"version https://git-lfs.github.com/spec/v1\noid sha256:0",
                    "is a pointer of git-lfs in place of the file; run git lfs",
                ),
                (b"GIF89a", "is neither JPEG nor PNG, nor WEBP, GIF, BMP, TIFF, AVIF that can be read"),
            ],
            "a.png",
        )
        (self.folder / "in/a b;ls.png").write_bytes(b"%PDF")
        self.assertIn("ffmpeg -i 'a b;ls.png' 'a b;ls.png'", self.fault("image", "a b;ls.png"))

    def test_an_entry_names_no_more_than_it_may_have(self):
        (self.folder / "in/a.png").write_bytes(PNG + bytes(900000))
        self.assertEqual(len(self.items("image", *["a.png"] * 4)), 4)
        with self.assertRaisesRegex(EntryFault, "its items have more than 4194304 bytes together"):
            self.items("image", *["a.png"] * 100000)

    def test_frames_of_a_video(self):
        folder = self.folder / "in/film"
        folder.mkdir()
        for name, data in [("1.png", PNG), ("2.PNG", PNG), ("._1.png", b"Mac OS X"), (".DS_Store", b"x")]:
            (folder / name).write_bytes(data)
        self.assertEqual(self.items("video", "film")[0].frames, [PNG, PNG])
        (folder / "3.png").write_bytes(PNG[:40])
        self.assertIn("video film/3.png cannot be decoded", self.fault("video", "film"))


class Sound(ItemsCase):
    def test_good_ones_are_taken(self):
        floats = np.zeros(800, "<f4").tobytes()
        for data in (
            wav(),
            wav(bits=8),
            wav(bytes(2400), bits=24),
            wav(floats, 3, bits=32),
            wav(channels=2),
            wav(size=0xFFFFFFFF),
        ):
            self.assertEqual(self.items("audio", data)[0].bytes, data)

    def test_each_fault_has_its_sentence(self):
        again = "; convert it: ffmpeg -i "
        self.expect_faults(
            "audio",
            [
                (b"", "is empty: it has no bytes"),
                (wav(tag=7, bits=8), f"WAV: format 7 (mu-law); allowed are 1 (PCM) and 3 (float){again}"),
                (wav(tag=6, bits=8), "WAV: format 6 (A-law)"),
                (wav(tag=2, bits=4), "WAV: format 2 (ADPCM)"),
                (wav(tag=17, bits=4), "WAV: format 17 (IMA ADPCM)"),
                (wav()[:-100], "WAV: bytes end before the sound does: 3100 of 3200"),
                (wav(b""), "WAV: no samples"),
                (wav(size=0), "WAV: its data chunk says 0 bytes, and 3200 follow"),
                (wav(bytes(3201)), "WAV: 3201 bytes of data in frames of 2"),
                (wav(bytes(10), bits=16, channels=2), "WAV: 10 bytes of data in frames of 4"),
                (wav(bits=12), "WAV: 12 bits of PCM"),
                (wav(np.array([np.nan], "<f4").tobytes(), 3, bits=32), "WAV: a sample of "),
                (wav(rate=1), "WAV: sample rate of 1 Hz"),
                (wav(bytes(2 * 61 * 1000), rate=1000), "lasts longer than the 60 s"),
                (wav()[:40], "WAV: no data chunk"),
                (wav(riff=b"RF64"), "is RF64, a WAV of more than 4 GiB; convert it: ffmpeg -i "),
                (wav(riff=b"RIFX"), "is RIFX"),
                (b"ID3\4" + bytes(100), "is MP3; convert it: ffmpeg -i "),
                (b"\xff\xfb\x90\x64" + bytes(100), "is MP3"),
                (b"OggS" + bytes(100), "is Ogg"),
                (b"\0\0\0\x1cftypM4A " + bytes(16), "is MP4 or M4A"),
                (b"FORM\0\0\0\0AIFF", "is AIFF"),
                (b"fLaC" + bytes(100), "FLAC: "),
                (b"hello", "is neither WAV nor FLAC"),
            ],
            "a.wav",
        )
        (self.folder / "in/a.wav").write_bytes(b"ID3\4")
        self.assertIn("ffmpeg -i a.wav a.wav", self.fault("audio", "a.wav").replace("a.pcm.wav", "a.wav"))


class Entries(ItemsCase):
    def sampler(self, sample):
        tokens = SimpleNamespace(sample=sample)
        return Sampler(RecordMaker("what?"), self.media, tokens, 100)

    def test_nothing_in_an_entry_ends_packing(self):
        def sample(record, items):
            raise {"a": TypeError, "b": MemoryError, "c": RecursionError}.get(record.value["text"], KeyError)(
                "of \x1b a template"
            )

        sampler = self.sampler(sample)
        deep = []
        for _ in range(3000):
            deep = [deep]
        values = [{"text": text, "image": "a.png"} for text in "abcd"] + [
            {"text": "x" * 200, "image": "a.png"},
            {"text": deep},
            None,
        ]
        entries = [((0, n), Entry(str(n), value)) for n, value in enumerate(values)]
        found = list(outcomes(iter(entries), sampler, 1))
        self.assertEqual(len(found), len(values))
        said = [outcome[2] for _, _, outcome in found]
        for text, part in zip(said, ["TypeError of", "MemoryError of", "RecursionError of", "KeyError 'of"]):
            self.assertIn(f"cannot be packed: {part}", text)
        self.assertIn("its text has 205 characters, more than 100", said[4])
        handed_over = [pickle.loads(entry) for _, batch, _ in batches(iter(entries)) for entry in batch]
        self.assertEqual(str(handed_over[5].fault), "is nested too deeply")

    def test_few_bytes_wait(self):
        entries = (((0, n), Entry("", {"text": "x" * (5 << 20)})) for n in range(5))
        self.assertEqual([len(batch) for _, batch, _ in batches(entries)], [2, 2, 1])

    def test_a_terminal_gets_no_orders(self):
        evil = "\x1b]0;gone\x07\x9b31m\u202e\nOK"
        values = [
            {"id": evil, "image": evil, "conversations": TURNS},
            {"id": "good", "image": "a.png", "conversations": TURNS},
        ]
        (self.folder / "in/in.json").write_text(json.dumps(values))
        self.tar(
            [(f"{evil}/x.{evil}", b"x"), (f"{evil}/x.png", PNG), (f"{evil}/y.png", b"x"), (f"{evil}/y.txt", b"a")]
        )
        (self.folder / "in/in.csv").write_text(f"\x1b]0;gone\x07,b\n")
        for name in ("in.json", "in.tar", "in.csv"):
            for more in ([], ["--on-fault", "skip"]):
                result = self.pack(name, *more)
                for line in result.stderr.splitlines():
                    self.assertTrue(line.isprintable(), repr(line))
                self.assertIn("\\x1b]0;gone\\x07", result.stderr)
                report = (self.folder / "out.h5.report.json").read_text()
                self.assertTrue(report.isascii() and "\x1b" not in report)

    def test_no_room_and_no_rights_are_sentences(self):
        name = self.lines(talk("a.png"))
        (self.folder / "file").touch()
        for out in (self.folder / "file/out.h5", "/proc/out.h5"):
            result = self.pack(name, "--out", out)
            self.assertEqual(result.returncode, 1)
            self.assertNotIn("Traceback", result.stderr)
            self.assertIn("see to room and rights there", result.stderr)
        many = self.lines(*[talk(uri(encoded("BMP", np.zeros((60, 60, 3), np.uint8)) + os.urandom(10000)))] * 40)
        words = [sys.executable, JOBS / "pack.py", *map(str, self.command(many)[1:])]
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))  # noqa: E731
        result = subprocess.run(words, capture_output=True, text=True, preexec_fn=limit)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        self.assertIn("see to room and rights there", result.stderr)

    def test_text_is_packed_of_what_editors_write(self):
        utf16 = self.folder / "a.txt"
        utf16.write_bytes("some text".encode("utf-16"))
        self.assertIn(
            "iconv -f UTF-16", run("pack_text.py", utf16, "--bytes", "--out", self.folder / "out").stderr
        )
        folder = self.folder / "texts"
        folder.mkdir()
        for name, data in (("a.txt", b"\xef\xbb\xbfabc"), ("._a.txt", b"\0\5\x16\7\xff")):
            (folder / name).write_bytes(data)
        result = run("pack_text.py", folder, "--bytes", "--out", self.folder / "out", "--hold-out", 0)
        self.assertIn("1 samples, 4 tokens", result.stdout, result.stderr)


class Readers(unittest.TestCase):
    def test_the_readers_of_this_build_are_found(self):
        """Without them only Pillow would decode in the other tests."""
        self.assertTrue(decoding.libraries())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
