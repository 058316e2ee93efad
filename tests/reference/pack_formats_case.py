# SPDX-License-Identifier: Apache-2.0
"""A folder of pictures, a tokenizer, and jobs/pack.py on sources that a test writes; for scripts that are
started as check_pack_formats.py is."""

import base64
import gzip
import io
import json
import tarfile

from pack_scripts import dump, run  # isort: skip
from folder_case import FolderCase  # isort: skip
import numpy as np
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

PICTURE = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def encoded(form, picture=PICTURE, **more):
    out = io.BytesIO()
    Image.fromarray(picture).save(out, form, **more)
    return out.getvalue()


PNG, JPEG = encoded("PNG"), encoded("JPEG")
TURNS = [{"from": "human", "value": "<image>what?"}, {"from": "gpt", "value": "a b"}]


def talk(image, text="what?"):
    link = {"type": "image_url", "image_url": {"url": image}}
    parts = [link, {"type": "text", "text": text}]
    return {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "a b"}]}


def uri(data):
    return "data:image/png;base64," + base64.b64encode(data).decode()


class FormatsCase(FolderCase):
    def setUp(self):
        super().setUp()
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        special = ["<s>", "</s>", "<image>"]
        trainer = trainers.BpeTrainer(special_tokens=special, show_progress=False, initial_alphabet=alphabet)
        tokenizer.train_from_iterator([], trainer)
        tokenizer.save(str(self.folder / "tokenizer.json"))
        (self.folder / "in").mkdir()
        (self.folder / "in/a.png").write_bytes(PNG)

    def command(self, source, *more):
        tokens = ["--tokenizer", self.folder / "tokenizer.json", "--image-tokens", 2]
        return ["pack.py", self.folder / "in" / source, *tokens, "--out", self.folder / "out.h5", *more]

    def pack(self, source, *more):
        return run(*self.command(source, *more))

    def samples(self, source, *more):
        result = self.pack(source, *more)
        self.assertEqual(result.returncode, 0, result.stderr)
        return dump(self.folder / "out.h5", 2)["samples"]

    def expect(self, samples, images, text="USER: what? ASSISTANT: a b"):
        self.assertEqual([sample["text"] for sample in samples], [text] * len(images))
        self.assertEqual([sample["answer"] for sample in samples], [" a b"] * len(images))
        found = [[bytes(item["bytes"]) for item in sample["items"]] for sample in samples]
        self.assertEqual(found, [[image] for image in images])

    def lines(self, *values, name="in.jsonl"):
        text = "".join((v if isinstance(v, str) else json.dumps(v)) + "\n" for v in values).encode()
        (self.folder / "in" / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return name

    def tar(self, members, name="in.tar", mode="w"):
        with tarfile.open(self.folder / "in" / name, mode) as tar:
            for path, data in members:
                head = data if isinstance(data, tarfile.TarInfo) else tarfile.TarInfo(path)
                if isinstance(data, bytes):
                    head.size = len(data)
                tar.addfile(head, io.BytesIO(data) if isinstance(data, bytes) else None)
        return name

    def dropped(self):
        return json.loads((self.folder / "out.h5.report.json").read_text())["dropped"]
