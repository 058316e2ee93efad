# SPDX-License-Identifier: Apache-2.0
"""A test's folder with conversations, jobs/finetune.sh on them, and questions to what comes out; for
scripts that are started with SOURCE_FOLDER BUILD_FOLDER MPIRUN_IN_ONE_ARGUMENT."""

import json
import os
import subprocess
import sys
import unittest
import wave

try:
    import h5py
    import numpy as np
    import torch
    from PIL import Image
    from safetensors.torch import load_file
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import AutoConfig, LlavaConfig, LlavaForConditionalGeneration
    from transformers.utils.logging import disable_progress_bar
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from folder_case import FolderCase

SOURCE, BUILD, MPIRUN = sys.argv[1:4]
sys.path.insert(0, f"{SOURCE}/jobs")
from packing.report import printable  # noqa: E402

SPECIAL = ["<s>", "</s>", "<image>"]
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 512,
}
# Overrides of the deck.
KEYS = ["schedule.steps=2", "schedule.global_batch=5", "precision.preset=fp32", "optim.warmup_steps=0"]


def tiny_llava():
    vision = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3}
    config = LlavaConfig(
        vision_config=AutoConfig.for_model("clip_vision_model", image_size=24, patch_size=8, **vision),
        text_config=AutoConfig.for_model("llama", **TEXT),
        image_token_index=2,
    )
    return LlavaForConditionalGeneration(config)


def write_wav(path, samples):
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes(samples.astype("<i2").tobytes())


class FinetuneCase(FolderCase):
    def setUp(self):
        super().setUp()
        random = np.random.default_rng(1)
        (self.folder / "pictures").mkdir()
        entries = []
        for number, size in enumerate([(40, 60), (90, 30), (64, 64), None, (33, 200)]):
            turns = ["<image>\nWhat is it?", "It is noise.", "Is it?", "Yes."] if size else ["Hi!", "Hi."]
            speakers = [{"from": ("human", "gpt")[n % 2], "value": text} for n, text in enumerate(turns)]
            entry = {"id": number, "conversations": speakers}
            if size:
                entry["image"] = f"pictures/{number}.png"
                pixels = random.integers(0, 256, (*size, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(self.folder / entry["image"])
            entries.append(entry)
        self.data = self.folder / "data.json"
        self.data.write_text(json.dumps(entries))

    def add_video(self):
        """In place of the entry of text alone."""
        random = np.random.default_rng(2)
        (self.folder / "pictures/moving").mkdir()
        for number in range(3):
            pixels = random.integers(0, 256, (60, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(self.folder / f"pictures/moving/{number}.jpg")
        entries = json.loads(self.data.read_text())
        entries[3]["video"], entries[3]["fps"] = "pictures/moving", 1.5
        entries[3]["conversations"][0]["value"] = "<video>\nWhat moves?"
        self.data.write_text(json.dumps(entries))

    def hear(self, number_of_images=0):
        """Keeps that number of images, and replaces the others by clips of several lengths."""
        random = np.random.default_rng(4)
        entries = json.loads(self.data.read_text())
        (self.folder / "sounds").mkdir()
        for number, entry in enumerate(entries[number_of_images:]):
            if entry.pop("image", None):
                entry["audio"] = f"sounds/{number}.wav"
                entry["conversations"][0]["value"] = "<audio>\nWhat is it?"
                write_wav(self.folder / entry["audio"], random.integers(-9999, 9999, 2000 + 1500 * number))
        self.data.write_text(json.dumps(entries))

    def save(self, model, special, name="model"):
        directory = self.folder / name
        model.save_pretrained(directory)
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train_from_iterator(
            [], trainers.BpeTrainer(special_tokens=special, show_progress=False, initial_alphabet=alphabet)
        )
        tokenizer.save(str(directory / "tokenizer.json"))
        as_it_is = {"tokenizer_class": "PreTrainedTokenizerFast"}  # where the family's class would build another
        (directory / "tokenizer_config.json").write_text(json.dumps(as_it_is))
        return directory

    def finetune(self, directory, *keys, fails=0, **more):
        """Returns the output, or stderr if it should fail and does."""
        environment = {
            **os.environ,
            "BIN": BUILD,
            "MPIRUN": MPIRUN,
            "OUT": str(self.folder / "out"),
            "RANKS": "2",
            "ROW_TOKENS": "512",
            **{name: str(value) for name, value in more.items()},
        }
        command = [f"{SOURCE}/jobs/finetune.sh", directory, self.data, *(keys or KEYS)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        self.assertEqual(done.returncode, fails, done.stdout + done.stderr)
        return done.stderr if fails else done.stdout

    def check(self, kind, model, special, processor=None, file="preprocessor_config.json", skipped=0, published=None):
        """Settings of `processor` for images apply to packing and training, and are exported unchanged, and so are the
        tensors that a `published` directory (a class) has in addition to the model's."""
        directory = self.save(model, special)
        if published:
            published.spell_as_published(directory)
        if processor:
            (directory / file).write_text(json.dumps(processor))
        said = self.finetune(directory)
        self.assertIn(f"5 samples, {skipped} entries skipped", said)
        self.assertIn("bytes per rank", said)
        loaded, info = kind.from_pretrained(self.folder / "out/model", output_loading_info=True)
        for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            beside = published.beside if published else ()
            self.assertFalse([name for name in info[fault] if not name.startswith(beside)], fault)
        before, after = model.state_dict(), loaded.state_dict()
        self.assertTrue(any(not torch.equal(before[name], after[name]) for name in before))
        self.assertTrue((self.folder / "out/model/tokenizer.json").exists())
        if processor:
            self.assertEqual(json.loads((self.folder / "out/model" / file).read_text()), processor)
            config = json.loads((self.folder / "out/model/config.json").read_text())
            self.assertTrue(config.keys().isdisjoint(["image_processor", "video_processor"]))
        if published:
            self.assertLessEqual(published.whole.items(), config.items())
            given, returned = (load_file(self.folder / name / "model.safetensors") for name in ("model", "out/model"))
            self.assertEqual(given.keys(), returned.keys())
            for name in published.carried:
                self.assertEqual(given[name].dtype, returned[name].dtype, name)
                self.assertTrue(torch.equal(given[name], returned[name]), name)
        if hasattr(model.config, "vision_config"):
            self.ask("What is it?", "--image", self.folder / "pictures/0.png")

    def packed(self, sample):
        with h5py.File(self.folder / "out/train.h5") as data:
            begin, end = data["token_offsets"][sample : sample + 2]
            frames = data["item_frames"][...].tolist() if "item_frames" in data else []
            return data["tokens"][begin:end].tolist(), dict(data.attrs), frames

    def ask(self, *question):
        """Returns the trained model's answer by zea-generate."""
        done = self.generate(self.folder / "out/model", *question, "--max-tokens", "6", "--out", self.folder / "asked")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def assert_answers(self, model, *question, **inputs):
        """Compares the answer, and the prompt if `inputs` have one, with transformers', without bytes that are no
        UTF-8."""
        said = self.ask(*question)
        with h5py.File(self.folder / "asked/question.h5") as data:
            tokens, mask = data["tokens"][...].tolist(), data["loss_mask"][...].tolist()
            offsets, values = data["token_byte_offsets"][...], data["token_byte_values"][...].tobytes()
        config, prompt = model.config, torch.tensor([tokens[: mask.index(1)]])
        self.assertEqual(inputs.get("input_ids", prompt).tolist(), prompt.tolist())
        placeholders = [getattr(config, f"{item}_token_id", None) for item in ("image", "video", "audio")]
        ends = {tokens[-1], config.get_text_config().eos_token_id, *placeholders} - {None}
        inputs = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt), **inputs}
        made = model.generate(**inputs, max_new_tokens=6, do_sample=False, eos_token_id=sorted(ends))
        answer = b""
        for token in made[0, prompt.shape[1] :].tolist():
            if token not in ends and token + 1 < len(offsets):  # the model has more than its tokenizer
                answer += values[offsets[token] : offsets[token + 1]]
        expected = printable(answer.decode("utf-8", errors="ignore").strip())
        self.assertEqual(said.replace("\ufffd", "").strip(), expected)

    def generate(self, *words):
        environment = {**os.environ, "ZEA_PYTHON": sys.executable}
        command = [f"{BUILD}/postprocess/zea-generate", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    def refused(self, *words):
        done = self.generate(*words)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        return done.stderr


def main():
    disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
