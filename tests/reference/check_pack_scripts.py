# SPDX-License-Identifier: Apache-2.0
"""What the pack scripts write must be what they were given, read by h5py and by zea's own reader.

usage: check_pack_scripts.py JOBS_FOLDER DUMP_DATASET
Exit code 77 (skipped) where a Python package is missing.
Fashion-MNIST's own files are not needed: the script is given small ones of the same kind.
"""

import gzip
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import h5py
    import numpy as np
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

JOBS, DUMP = Path(sys.argv[1]), sys.argv[2]
JPEG = b"\xff\xd8\xff\xe0 the packer looks no further"
PNG = b"\x89PNG\r\n\x1a\n nor here"


def run(script, *arguments):
    return subprocess.run(
        [sys.executable, JOBS / script, *map(str, arguments)], capture_output=True, text=True
    )


def dump(path, tokens_per_item):
    result = subprocess.run([DUMP, str(path), str(tokens_per_item)], capture_output=True, text=True)
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return json.loads(result.stdout)


class InFolder(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)

    def tearDown(self):
        self.temporary.cleanup()


class FashionMnist(InFolder):
    """The full sizes are demanded by the script, so the small files claim the rest as zeros."""

    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(1)
        self.images, self.labels = {}, {}
        for prefix, samples in [("train", 60000), ("t10k", 10000)]:
            images, labels = np.zeros((samples, 28, 28), np.uint8), np.zeros(samples, np.uint8)
            images[:64] = rng.integers(0, 256, (64, 28, 28))
            labels[:64] = np.arange(64) % 10
            self.images[prefix], self.labels[prefix] = images, labels
            self.write(f"{prefix}-images-idx3-ubyte.gz", 2051, images)
            self.write(f"{prefix}-labels-idx1-ubyte.gz", 2049, labels)

    def write(self, name, magic, values):
        header = np.array([magic, *values.shape], ">i4").tobytes()
        (self.folder / name).write_bytes(gzip.compress(header + values.tobytes(), 1))

    def pack(self, out, *more):
        result = run(
            "pack_fashion_mnist.py", "--source", self.folder, "--out", self.folder / out, *more
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.folder / out

    def test_pack(self):
        out = self.pack("a", "--limit", 64, "--image-tokens", 16)
        tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
        for name, prefix in [("train", "train"), ("test", "t10k")]:
            with self.subTest(name):
                self.compare(
                    out / f"{name}.h5", tokenizer, self.images[prefix], self.labels[prefix]
                )
        self.check_h5py(out / "test.h5")
        self.check_seeds(out)
        self.assertEqual(len(list(out.iterdir())), 3)

    def compare(self, path, tokenizer, images, labels):
        data = dump(path, 16)
        self.assertEqual(len(data["samples"]), 64)
        self.assertEqual(data["classes"][9], "ankle boot")
        self.assertLess(data["max_token"], tokenizer.get_vocab_size())
        self.assertEqual(data["image_token"], tokenizer.token_to_id("<image>"))
        for sample, image, label in zip(data["samples"], images, labels):
            self.assertEqual(
                sample["items"], [{"bytes": image.ravel().tolist(), "shape": [28, 28, 1]}]
            )
            self.assertEqual(sample["label"], label)
            self.assertEqual(sample["named"], label)
            self.assertEqual(sample["text"], tokenizer.decode(sample["tokens"]))
            self.assertEqual(sample["targets"], len(tokenizer.encode(sample["answer"]).ids) + 1)
            self.assertEqual(sample["tokens"][:18], [1] + [3] * 16 + sample["tokens"][17:18])
            self.assertEqual(sample["tokens"][-1], 2)
        self.assertGreater(len({sample["text"] for sample in data["samples"]}), 40)

    def check_h5py(self, path):
        with h5py.File(path) as file:
            self.assertEqual(
                dict(file.attrs), {"format": b"zea.dataset", "version": b"1", "image_token": b"3"}
            )
            self.assertEqual(file["tokens"].shape, file["loss_mask"].shape)
            self.assertEqual(file["item_shape"].shape, (64, 3))
            self.assertEqual(file["classes"][0], b"t-shirt")

    def check_seeds(self, out):
        def tokens(folder):
            with h5py.File(folder / "train.h5") as file:
                return file["tokens"][:].tolist()

        self.assertEqual(tokens(out), tokens(self.pack("same", "--limit", 64)))
        self.assertNotEqual(tokens(out), tokens(self.pack("other", "--limit", 64, "--seed", 2)))

    def test_wrong_file_is_refused(self):
        self.write("train-labels-idx1-ubyte.gz", 2051, self.labels["train"])
        result = run("pack_fashion_mnist.py", "--source", self.folder, "--out", self.folder / "x")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("train-labels-idx1-ubyte.gz: header", result.stderr)


class Llava(InFolder):
    def setUp(self):
        super().setUp()
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.train_from_iterator(
            ["USER: ASSISTANT: a b c"],
            trainers.BpeTrainer(
                special_tokens=["<s>", "</s>", "<image>"],
                show_progress=False,
                initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            ),
        )
        tokenizer.save(str(self.folder / "tokenizer.json"))
        self.tokenizer = tokenizer
        (self.folder / "images/sub").mkdir(parents=True)
        (self.folder / "images/a.jpg").write_bytes(JPEG)
        (self.folder / "images/sub/b.png").write_bytes(PNG)
        (self.folder / "images/c.gif").write_bytes(b"GIF89a")
        (self.folder / "secret.jpg").write_bytes(JPEG)

    def pack(self, entries, *more):
        text = entries if isinstance(entries, str) else json.dumps(entries)
        (self.folder / "in.json").write_text(text)
        return run(
            "pack_llava.py",
            "--json",
            self.folder / "in.json",
            "--images",
            self.folder / "images",
            "--tokenizer",
            self.folder / "tokenizer.json",
            "--image-tokens",
            3,
            "--out",
            self.folder / "out.h5",
            *more,
        )

    def test_pack(self):
        result = self.pack(
            [
                entry(["<image>\nwhat?", "a b", "and?", "c"], "a.jpg"),
                entry(["hello", "gr\u00fc\u00df dich \u4e16"]),
                entry(["first <image> second <image>", "two"], ["sub/b.png", "a.jpg"]),
            ]
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        first, second, third = dump(self.folder / "out.h5", 3)["samples"]
        self.assertEqual(first["text"], "USER: \nwhat? ASSISTANT: a bUSER: and? ASSISTANT: c")
        self.assertEqual(first["answer"], " a b c")
        self.assertEqual(first["tokens"].count(2), 3)
        self.assertEqual(first["items"], [{"bytes": list(JPEG), "shape": [0, 0, 0]}])
        self.assertEqual(second["text"], "USER: hello ASSISTANT: gr\u00fc\u00df dich \u4e16")
        self.assertEqual(second["items"], [])
        self.assertEqual([bytes(item["bytes"]) for item in third["items"]], [PNG, JPEG])
        self.assertEqual(third["targets"], len(self.tokenizer.encode(" two").ids) + 1)

    def test_faults_are_named(self):
        good = entry(["hello", "you"])
        for fault, part in [
            (entry(["<image>", "x"], "gone.jpg"), "image gone.jpg cannot be read"),
            (entry(["<image>", "x"], "../secret.jpg"), "image ../secret.jpg lies outside"),
            (entry(["<image>", "x"], str(self.folder / "secret.jpg")), "lies outside"),
            (entry(["<image>", "x"], "c.gif"), "is neither JPEG nor PNG"),
            (entry(["<image>", "x"], "a\0.jpg"), "cannot be read"),
            (entry(["no mark", "x"], "a.jpg"), "has 1 images but 0 <image>"),
            (entry(["<image><image>", "x"], "a.jpg"), "has 1 images but 2 <image>"),
            (entry(["hello", "<image>"]), "is <image> in a gpt turn?"),
            (entry([]), "has no conversations"),
            (entry(["hello"]), "ends with a human turn"),
            (entry(["hello", "\ud800"]), "not valid Unicode"),
            (
                {"id": 7, "conversations": [{"from": "gpt", "value": "x"}]},
                'turn 0 must be {"from": "human"',
            ),
            (entry(["hello", "x" * 200]), "more than --max-tokens 100"),
            ("text", "has no conversations"),
        ]:
            with self.subTest(part):
                result = self.pack([good, fault], "--max-tokens", 100)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn("in.json[1] (id ", result.stderr)
                self.assertIn(part, result.stderr)
                self.assertFalse((self.folder / "out.h5").exists())

    def test_faults_can_be_skipped(self):
        result = self.pack([entry(["hello", "you"]), entry([])], "--on-fault", "skip")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("1 samples, 1 entries skipped", result.stdout)
        self.assertEqual(len(dump(self.folder / "out.h5", 3)["samples"]), 1)

    def test_broken_json_is_named_by_line(self):
        result = self.pack('[\n{"id": 1,}\n]')
        self.assertEqual(result.returncode, 1)
        self.assertIn("line 2", result.stderr)

    def test_missing_token_is_named(self):
        result = self.pack([entry(["hello", "you"])], "--bos", "<begin>")
        self.assertEqual(result.returncode, 1)
        self.assertIn("the tokenizer has no token <begin>", result.stderr)


def entry(turns, image=None):
    speakers = ("human", "gpt")
    result = {
        "id": "x",
        "conversations": [{"from": speakers[n % 2], "value": t} for n, t in enumerate(turns)],
    }
    return result if image is None else {**result, "image": image}


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
