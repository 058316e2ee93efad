# SPDX-License-Identifier: Apache-2.0
"""The files that the pack scripts write must contain their input, read by h5py and by zea's own reader.

usage: check_pack_scripts.py JOBS_FOLDER DUMP_DATASET
Fashion-MNIST's own files are not needed: the script is given small ones of the same kind.
"""

import gzip
import json
import sys
import unittest

from pack_scripts import dump, run  # isort: skip
from folder_case import FolderCase  # isort: skip
import h5py
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers


class FashionMnist(FolderCase):
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
                dict(file.attrs),
                {
                    "format": b"zea.dataset",
                    "version": b"2",
                    "image_token": b"3",
                    "audio_token": b"-1",
                },
            )
            self.assertEqual(file["item_modality"][:].tolist(), [0] * 64)
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


END = "<|endoftext|>"


def documents_of(path, end=0):
    """The documents whose samples a data set holds, each as token ids with its end token."""
    documents = []
    for sample in dump(path, 0)["samples"]:
        tokens = sample["tokens"]
        if documents and documents[-1][-1] != end:
            assert tokens[0] == documents[-1][-1], "a sample starts with the last token before it"
            documents[-1] += tokens[1:]
        else:
            documents.append(tokens)
    return documents


class Text(FolderCase):
    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = text if isinstance(text, bytes) else text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    def run_pack(self, *arguments, code=0):
        result = run("pack_text.py", *arguments, "--out", self.folder / "out")
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        return result.stderr if code else result.stdout

    def texts(self, name="train"):
        """The documents that were packed, decoded with the tokenizer that was written."""
        tokenizer = Tokenizer.from_file(str(self.folder / "out" / "tokenizer.json"))
        documents = documents_of(self.folder / "out" / f"{name}.h5")
        for document in documents:
            self.assertEqual(document[-1], tokenizer.token_to_id(END))
        return [tokenizer.decode(document[:-1]) for document in documents]

    def pack(self, *sources, more=("--bytes", "--hold-out", 0)):
        self.run_pack(*sources, *more)
        return self.texts()

    def test_bytes(self):
        text = "Gr\u00fc\u00dfe,\r\n\ttab \u4e16\u754c \U0001f600 \x00 end\n"
        self.pack(self.write("a.txt", text))
        (sample,) = dump(self.folder / "out" / "train.h5", 0)["samples"]
        data = text.encode()
        self.assertEqual(sample["text"], text)
        self.assertEqual(sample["answer"], text)
        self.assertEqual(sample["targets"], len(data))
        self.assertEqual(sample["tokens"][-1], 0)
        pairs = set(zip(data, sample["tokens"]))
        self.assertEqual(len(sample["tokens"]), len(data) + 1)
        self.assertEqual(len(pairs), len(set(data)))
        self.assertEqual(len({token for _, token in pairs}), len(pairs))
        written = sorted(path.name for path in (self.folder / "out").iterdir())
        self.assertEqual(written, ["tokenizer.json", "tokenizer_config.json", "train.h5"])
        config = json.loads((self.folder / "out" / "tokenizer_config.json").read_text())
        self.assertEqual(config["eos_token"], END)

    def test_cuts(self):
        """Ids per document, sizes of its samples: of four, starting with the last one before."""
        for characters, sizes in [(1, [2]), (2, [3]), (3, [4]), (4, [4, 2]), (9, [4, 4, 4])]:
            with self.subTest(characters):
                text = "abcdefghi"[:characters]
                lines = self.write("a.jsonl", 2 * (json.dumps({"text": text}) + "\n"))
                found = self.pack(lines, more=["--bytes", "--hold-out", 0, "--max-tokens", 4])
                self.assertEqual(found, [text, text])
                data = dump(self.folder / "out" / "train.h5", 0)
                self.assertEqual([len(s["tokens"]) for s in data["samples"]], 2 * sizes)
                targets = [s["targets"] for s in data["samples"]]
                self.assertEqual(sum(targets), 2 * characters)
                self.assertEqual(targets, [size - 1 for size in 2 * sizes])
                self.assertEqual(data["image_token"], -1)

    def test_train_bpe(self):
        lines = [json.dumps({"text": text}) for text in ("ab cd " * 9, "ab cd " * 8, "zy " * 30)]
        self.run_pack(
            self.write("a.jsonl", "\n".join(lines)), "--train-bpe", 260, "--hold-out", 3
        )
        tokenizer = Tokenizer.from_file(str(self.folder / "out" / "tokenizer.json"))
        self.assertEqual(tokenizer.get_vocab_size(), 260)
        train, test = (documents_of(self.folder / "out" / f"{n}.h5") for n in ("train", "test"))
        self.assertEqual(self.texts(), ["ab cd " * 9, "ab cd " * 8])
        self.assertEqual(train[0], [*tokenizer.encode("ab cd " * 9).ids, 0])
        self.assertLess(len(train[0]), 40)
        # Merges are learned from the training text, not from the held-out document.
        self.assertEqual(self.texts("test"), ["zy " * 30])
        self.assertEqual(len(test[0]), 90 + 1)

    def tokenizer(self, **limits):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            special_tokens=["<s>", END],
            show_progress=False,
            vocab_size=265,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        )
        tokenizer.train_from_iterator(["hello world " * 20], trainer)
        plain = Tokenizer.from_str(tokenizer.to_str())
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
        if limits:
            tokenizer.enable_truncation(limits["most"])
            tokenizer.enable_padding(length=limits["least"])
        tokenizer.save(str(self.folder / "tokenizer.json"))
        return plain

    def test_tokenizer(self):
        """Neither its template nor what it says of truncation and padding touches the documents."""
        plain = self.tokenizer(most=7, least=6)
        texts = ["hello world, hello all of you", "w"]
        lines = [json.dumps({"body": text}) for text in texts]
        source = self.write("a.jsonl", "\n\n".join(lines))
        more = ["--tokenizer", self.folder / "tokenizer.json", "--field", "body", "--hold-out", 0]
        self.run_pack(source, *more)
        found = documents_of(self.folder / "out" / "train.h5", end=1)
        self.assertEqual(found, [[*plain.encode(text).ids, 1] for text in texts])
        self.assertLess(len(found[0]), len(texts[0]))

    def test_end_token(self):
        self.tokenizer()
        source = self.write("a.txt", "hello")
        more = ["--tokenizer", self.folder / "tokenizer.json", "--hold-out", 0]
        self.run_pack(source, *more, "--eos", "<s>")
        (document,) = documents_of(self.folder / "out" / "train.h5", end=0)
        self.assertEqual(document[-1], 0)
        message = self.run_pack(source, *more, "--eos", "</s>", code=1)
        self.assertIn("the tokenizer has no token </s>; see --eos", message)

    def test_sources(self):
        """Files of a folder by name, however deep and however compressed; others are not read."""
        self.write("in/b.txt", "second\n")
        self.write("in/a/z.txt.gz", "\ufefffirst")
        self.write("in/c.jsonl", '{"text": "third\u2028line"}\n\n{"text": " \\n"}\n{"text": "4th"}\n')
        self.write("in/d.jsonl.gz", '{"text": "fifth"}')
        self.write("in/e.txt", " \n\t")
        self.write("in/notes.md", "not this")
        last = self.write("last.md", "a file that is named is read")
        found = self.pack(self.folder / "in", last)
        expected = ["first", "second\n", "third\u2028line", "4th", "fifth", last.read_text()]
        self.assertEqual(found, expected)

    def test_separator(self):
        source = self.write("a.txt", "head\n== one ==\nfirst\n=== two ===\nsecond == not here\n")
        more = ["--bytes", "--hold-out", 0]
        found = self.pack(source, more=[*more, "--separator", r"^(==|===) \w+ (==|===)$"])
        self.assertEqual(found, ["head\n", "\nfirst\n", "\nsecond == not here\n"])
        self.assertEqual(len(self.pack(source, more=more)), 1)
        windows = self.folder / "windows.txt"
        windows.write_bytes(b"one\r\n---\r\ntwo\r\n")
        self.assertEqual(self.pack(windows, more=[*more, "--separator", "^---$"]), ["one\n", "\ntwo\n"])

    def test_held_out_documents(self):
        lines = self.write("a.jsonl", "".join(f'{{"text": "document {n}"}}\n' for n in range(1, 8)))
        found = self.pack(lines, more=["--bytes", "--hold-out", 3])
        self.assertEqual(found, [f"document {n}" for n in (1, 2, 4, 5, 7)])
        self.assertEqual(self.texts("test"), ["document 3", "document 6"])
        self.pack(lines)
        self.assertFalse((self.folder / "out" / "test.h5").exists(), "it is of another run")

    def test_held_out_samples_of_few_documents(self):
        source = self.write("a.txt", "abcdefghijklmnopqrst")
        said = self.run_pack(source, "--bytes", "--hold-out", 3, "--max-tokens", 4)
        train, test = (
            [s["text"] for s in dump(self.folder / "out" / f"{name}.h5", 0)["samples"]]
            for name in ("train", "test")
        )
        self.assertEqual(train, ["abcd", "defg", "jklm", "mnop", "st"])
        self.assertEqual(test, ["ghij", "pqrs"])
        self.assertRegex(said, r"train.h5: 5 samples, 19 tokens\n.*test.h5: 2 samples, 8 tokens\n")

    def test_faults_of_sources_are_named(self):
        good = self.write("good.txt", "good")
        (self.folder / "empty").mkdir()
        packed = gzip.compress(b"text that is cut short" * 9)
        damaged = packed[:12] + b"\xff\xff\xff" + packed[15:]
        for source, part in [
            (self.folder / "none.txt", "none.txt cannot be read: "),
            (self.folder / "empty", "empty holds no file that ends with .txt, .jsonl, .txt.gz"),
            (self.write("latin.txt", b"ab\xe4cd"), "latin.txt is not UTF-8: "),
            (self.write("latin.txt", b"ab\xe4cd"), " at byte 2"),
            (self.raw("cut.txt.gz", packed[:-9]), "cut.txt.gz cannot be read: "),
            (self.raw("damaged.txt.gz", damaged), "damaged.txt.gz cannot be read: "),
            (self.raw("plain.txt.gz", b"text"), "plain.txt.gz cannot be read: "),
            (self.write("a.jsonl", '{"text": "x"}\n\n{"text": }'), "a.jsonl:3 is not JSON: "),
            (self.write("b.jsonl", '{"body": "x"}'), 'b.jsonl:1 has no text under "text"; see --f'),
            (self.write("c.jsonl", '{"text": 7}'), 'c.jsonl:1 has no text under "text"'),
            (self.write("d.jsonl", '["text"]'), 'd.jsonl:1 has no text under "text"'),
            (self.write("e.jsonl", '{"text": "\\ud800"}'), "e.jsonl holds text that is not valid U"),
        ]:
            with self.subTest(part):
                self.assertIn(part, self.run_pack(good, source, "--bytes", code=1))
                self.assertFalse((self.folder / "out").exists())

    def raw(self, name, data):
        path = self.folder / name
        path.write_bytes(data)
        return path

    def test_faults_of_arguments_are_named(self):
        source, blank = self.write("good.txt", "good"), self.write("blank.txt", " \n")
        not_json = self.write("tokenizer.json", "{")
        for arguments, code, part in [
            ([blank, "--bytes"], 1, "the sources hold no text"),
            ([source, "--bytes"], 1, "the text makes 1 samples, and --hold-out 20 holds none of"),
            ([source, "--tokenizer", not_json], 1, "tokenizer.json is not a tokenizer.json: "),
            ([source, "--train-bpe", 256], 1, "--train-bpe 256: 257 tokens or more, one per byte"),
            ([source, "--bytes", "--separator", "("], 1, "--separator ( is not a regular expression"),
            ([source, "--bytes", "--max-tokens", 1], 2, "--max-tokens: 2 or more"),
            ([source, "--bytes", "--hold-out", 1], 2, "--hold-out: 2 or more, or 0"),
            ([source, "--bytes", "--hold-out", -1], 2, "--hold-out: 2 or more, or 0"),
            ([source], 2, "one of the arguments --tokenizer --bytes --train-bpe is required"),
            ([source, "--bytes", "--train-bpe", 300], 2, "not allowed with argument"),
        ]:
            with self.subTest(part):
                self.assertIn(part, self.run_pack(*arguments, code=code))
                self.assertEqual(list(self.folder.glob("out/*.h5")), [])

    def test_a_tokenizer_that_makes_no_tokens(self):
        self.tokenizer()
        path = self.folder / "tokenizer.json"
        description = json.loads(path.read_text())
        description["normalizer"] = {"type": "Replace", "pattern": {"Regex": "."}, "content": ""}
        path.write_text(json.dumps(description))
        source = self.write("good.txt", "good")
        message = self.run_pack(source, "--tokenizer", path, "--hold-out", 0, code=1)
        self.assertIn("train.h5 would be empty: the tokenizer makes no tokens of the text", message)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
