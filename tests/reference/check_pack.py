# SPDX-License-Identifier: Apache-2.0
"""pack.py writes the conversations, images and sounds that it was given, and names what is at
fault; so does DatasetWriter with raw sound.

usage: check_pack.py JOBS_FOLDER DUMP_DATASET
"""

import json
import os
import struct
import subprocess
import sys
import unittest

from pack_scripts import JOBS, dump, run  # isort: skip
from folder_case import FolderCase  # isort: skip
import h5py
import numpy as np
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

JPEG = b"\xff\xd8\xff\xe0 the packer looks no further"
PNG = b"\x89PNG\r\n\x1a\n nor here"
PNG_HEAD = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"  # what follows are width and height
AS_IT_IS = {"tokenizer_class": "PreTrainedTokenizerFast"}  # tokenizer.json, where a family's class would build another
WAV, FLAC = b"RIFF\x10\0\0\0WAVE the rest", b"fLaC the rest"


def entry(turns, image=None):
    speakers = ("human", "gpt")
    result = {
        "id": "x",
        "conversations": [{"from": speakers[n % 2], "value": t} for n, t in enumerate(turns)],
    }
    return result if image is None else {**result, "image": image}


def frames(folder, count, size=(4, 6)):
    """PNG files as far as the packer reads them without decoding."""
    folder.mkdir(parents=True)
    head = PNG[:8] + struct.pack(">I4sII", 13, b"IHDR", *reversed(size))
    for number in range(count):
        (folder / f"{number:03}.png").write_bytes(head + bytes([number]))


class Llava(FolderCase):
    def setUp(self):
        super().setUp()
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.train_from_iterator(
            ["USER: ASSISTANT: a b c"],
            trainers.BpeTrainer(
                special_tokens=["<s>", "</s>", "<image>", "<audio>"],
                show_progress=False,
                initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            ),
        )
        tokenizer.enable_truncation(4)  # which packing must not do
        tokenizer.save(str(self.folder / "tokenizer.json"))
        tokenizer.no_truncation()
        self.tokenizer = tokenizer
        (self.folder / "images/sub").mkdir(parents=True)
        (self.folder / "images/a.jpg").write_bytes(JPEG)
        (self.folder / "images/sub/b.png").write_bytes(PNG)
        (self.folder / "images/c.gif").write_bytes(b"GIF89a")
        (self.folder / "secret.jpg").write_bytes(JPEG)
        (self.folder / "sounds").mkdir()
        (self.folder / "sounds/a.wav").write_bytes(WAV)
        (self.folder / "sounds/b.flac").write_bytes(FLAC)
        (self.folder / "sounds/c.mp3").write_bytes(b"ID3")
        self.sound = ["--sounds", self.folder / "sounds", "--audio-tokens", 5]

    def pack(self, entries, *more):
        text = entries if isinstance(entries, str) else json.dumps(entries)
        (self.folder / "in.json").write_text(text)
        return run(
            "pack.py",
            "--no-decode",
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

    def gemma3(self, *special):
        special = [*special, "<start_of_image>", "<end_of_image>", "<image_soft_token>"]
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.train_from_iterator(
            ["\n\n\n"] * 9,
            trainers.BpeTrainer(
                special_tokens=special,
                show_progress=False,
                initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            ),
        )
        model = self.folder / "model"
        model.mkdir()
        tokenizer.save(str(model / "tokenizer.json"))
        config = {"model_type": "gemma3", "image_token_index": len(special) - 1, "mm_tokens_per_image": 4}
        (model / "config.json").write_text(json.dumps({**config, "vision_config": {}}))
        (model / "tokenizer_config.json").write_text(json.dumps(AS_IT_IS))
        return model, tokenizer

    def test_turns_of_gemma3(self):
        """The ids that its processor makes of the whole text: nothing is cut where marks stood."""
        model, tokenizer = self.gemma3("<bos>", "<start_of_turn>", "<end_of_turn>")
        talk = entry(["<image>what?", "a b", "and <image>", "c"], ["a.jpg", "sub/b.png"])
        (self.folder / "in.json").write_text(json.dumps([talk]))
        command = ["pack.py", "--no-decode", self.folder / "in.json", "--images", self.folder / "images"]
        command += ["--model", model, "--out", self.folder / "out.h5"]
        result = run(*command)
        self.assertEqual(result.returncode, 0, result.stderr)
        image = "\n\n<start_of_image>" + "<image_soft_token>" * 4 + "<end_of_image>\n\n"
        text = (
            f"<bos><start_of_turn>user\n{image}what?<end_of_turn>\n<start_of_turn>model\na b<end_of_turn>\n"
            f"<start_of_turn>user\nand {image}<end_of_turn>\n<start_of_turn>model\nc<end_of_turn>\n"
        )
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        self.assertIn(tokenizer.token_to_id("\u010a\u010a\u010a"), ids)
        self.assertEqual(dump(self.folder / "out.h5", 4)["samples"][0]["tokens"], ids)
        limits = {"pan_and_scan_min_crop_size": 8, "pan_and_scan_max_num_crops": 3}
        (model / "preprocessor_config.json").write_text(json.dumps({"do_pan_and_scan": True, **limits}))
        (self.folder / "images/a.jpg").write_bytes(PNG_HEAD + struct.pack(">II", 50, 20))
        (self.folder / "images/sub/b.png").write_bytes(PNG_HEAD + struct.pack(">II", 10, 10))
        result = run(*command)
        self.assertEqual(result.returncode, 0, result.stderr)
        crops = f"Here is the original image {image} and here are some crops to help you see better "
        text = text.replace(f"user\n{image}what", f"user\n{crops}{image} {image} {image}what")
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        with h5py.File(self.folder / "out.h5") as file:
            self.assertEqual(file["tokens"][...].tolist(), ids)

    def test_turns_of_gemma4(self):
        """Turns begin and end with other tokens than those of Gemma 3."""
        model, tokenizer = self.gemma3("<bos>", "<|turn>", "<turn|>")
        (self.folder / "in.json").write_text(json.dumps([entry(["what?", "a b"], [])]))
        command = ["pack.py", "--no-decode", self.folder / "in.json", "--images", self.folder / "images"]
        result = run(*command, "--model", model, "--out", self.folder / "out.h5")
        self.assertEqual(result.returncode, 0, result.stderr)
        text = "<bos><|turn>user\nwhat?<turn|>\n<|turn>model\na b<turn|>\n"
        with h5py.File(self.folder / "out.h5") as file:
            self.assertEqual(file["tokens"][...].tolist(), tokenizer.encode(text, add_special_tokens=False).ids)

    def test_images_of_gemma3_in_turns_of_others(self):
        model, tokenizer = self.gemma3("<|im_start|>", "<|im_end|>")
        (self.folder / "in.json").write_text(json.dumps([entry(["<image>what?", "a b"], "a.jpg")]))
        command = ["pack.py", "--no-decode", self.folder / "in.json", "--images", self.folder / "images"]
        result = run(*command, "--model", model, "--out", self.folder / "out.h5")
        self.assertEqual(result.returncode, 0, result.stderr)
        image = "\n\n<start_of_image>" + "<image_soft_token>" * 4 + "<end_of_image>\n\n"
        text = f"<|im_start|>user\n{image}what?<|im_end|>\n<|im_start|>assistant\na b<|im_end|>\n"
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        self.assertEqual(dump(self.folder / "out.h5", 4)["samples"][0]["tokens"], ids)

    def qwen2_vl(self):
        special = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"]
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(special_tokens=special, show_progress=False, initial_alphabet=alphabet)
        tokenizer.train_from_iterator([], trainer)
        model = self.folder / "model"
        model.mkdir()
        tokenizer.save(str(model / "tokenizer.json"))
        config = {"model_type": "qwen2_vl", "video_token_id": 4, "vision_config": {"patch_size": 2}}
        (model / "config.json").write_text(json.dumps(config))
        (model / "tokenizer_config.json").write_text(json.dumps(AS_IT_IS))
        return model

    def pack_videos(self, model, one, *more):
        (self.folder / "in.json").write_text(json.dumps([one]))
        command = ["pack.py", "--no-decode", self.folder / "in.json", "--videos", self.folder / "videos"]
        return run(*command, "--model", model, "--video-max-pixels", 100352, "--out", self.folder / "out.h5", *more)

    def test_videos(self):
        """The packer takes the first 2 s of 9 frames at 4 per second; --max-frames 5 gives two pairs of frames."""
        model = self.qwen2_vl()
        frames(self.folder / "videos/a", 9)
        talk = {**entry(["<video> what?", "b"]), "video": "a", "fps": 4}
        result = self.pack_videos(model, talk, "--max-seconds", 2, "--max-frames", 5)
        self.assertEqual(result.returncode, 0, result.stderr)
        with h5py.File(self.folder / "out.h5") as file:
            ends = file["item_offsets"][1:]
            self.assertEqual(file["item_bytes"][ends - 1].tolist(), [0, 2, 4, 6])
            self.assertEqual(file["item_frames"][...].tolist(), [4, -1, -1, -1])
            self.assertEqual(file["item_shape"][...].tolist(), [[4, 6, 0]] * 4)
            self.assertEqual(file["item_rate"][...].tolist(), [2000] * 4)
            tokens = file["tokens"][...].tolist()
        # Two temporal patches of whole 4 x 4 pixel squares, with at least 100352 pixels in total.
        count = tokens.count(4)
        begin = tokens.index(4)
        self.assertEqual((tokens[begin - 1], tokens[begin + count]), (2, 3))

    def test_finetune_looks_in_a_folder_for_what_its_files_name(self):
        """Whose programs end with the plan, behind the packing."""
        model, data = self.qwen2_vl(), self.folder / "data"
        frames(data / "a", 2)
        for frame in (data / "a").iterdir():
            Image.new("RGB", (6, 4)).save(frame)
        (data / "in.json").write_text(json.dumps([{**entry(["<video> what?", "b"]), "video": "a"}]))
        program = self.folder / "build/src/zea"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\nexit 9\n")
        program.chmod(0o755)
        environment = {**os.environ, "BIN": str(self.folder / "build"), "OUT": str(self.folder / "out")}
        environment["ROW_TOKENS"] = "8192"  # the frames become 6305
        for source in (data, data / "in.json"):
            command = ["bash", JOBS / "finetune.sh", model, source]
            result = subprocess.run(command, capture_output=True, text=True, env=environment)
            self.assertEqual(result.returncode, 9, result.stderr)
            self.assertIn("1 samples, 0 entries skipped", result.stdout)
            longer = [*command, "data.row_tokens=9_000"]
            result = subprocess.run(longer, capture_output=True, text=True, env=environment)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn("packed for rows of 8192 tokens, without longer samples", result.stderr)
            (self.folder / "out/train.h5").unlink()
        result = subprocess.run(command, capture_output=True, text=True, env={**environment, "ROW_TOKENS": "64"})
        self.assertEqual(result.returncode, 1)  # the deck that nobody changed follows, and no sample is so short
        self.assertIn("nothing written: all 1 entries at fault", result.stderr)
        self.assertIn("\nrow_tokens = 64\n", (self.folder / "out/deck.toml").read_text())

    def test_frames_are_as_many_as_the_directory_allows(self):
        model = self.qwen2_vl()
        (model / "video_preprocessor_config.json").write_text(json.dumps({"max_frames": 4}))
        frames(self.folder / "videos/a", 9)
        talk = {**entry(["<video> what?", "b"]), "video": "a", "fps": 4}
        for options, count in (((), 4), (("--max-frames", 3), 2)):
            result = self.pack_videos(model, talk, *options)
            self.assertEqual(result.returncode, 0, result.stderr)
            with h5py.File(self.folder / "out.h5") as file:
                self.assertEqual(file["item_frames"][...].tolist(), [count, *[-1] * (count - 1)])
            (self.folder / "out.h5").unlink()

    def test_faults_of_videos_are_named(self):
        model = self.qwen2_vl()
        frames(self.folder / "videos/a", 3)
        frames(self.folder / "videos/mixed", 2)
        frames(self.folder / "videos/mixed/other", 1, (5, 5))
        (self.folder / "videos/mixed/other/000.png").rename(self.folder / "videos/mixed/002.png")
        (self.folder / "videos/empty").mkdir()
        (self.folder / "videos/a.mp4").write_bytes(b"mp4")
        talk = entry(["<video>", "x"])
        for fault, part in [
            ({**talk, "video": "a.mp4"}, "video a.mp4 is no folder of frames; make one: ffmpeg -i a.mp4 -vf fps=2"),
            ({**talk, "video": "empty"}, "video empty has no frame"),
            ({**talk, "video": "mixed"}, "frames must be alike in size, not [(4, 6), (5, 5)]"),
            ({**talk, "video": "../a"}, "video ../a lies outside the folder of videos"),
            ({**talk, "video": "a", "fps": 0}, "fps is 0; allowed are numbers from 0.001"),
            (talk, "has 0 videos but 1 <video>"),
        ]:
            with self.subTest(part):
                result = self.pack_videos(model, fault)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn(part, result.stderr)
        shown = {**talk, "video": "a"}
        unable = self.pack([shown], "--videos", self.folder / "videos")
        self.assertIn("a model of videos (--model) is not given", unable.stderr)
        self.assertIn("--videos names no folder", self.pack([shown]).stderr)

    def test_pack_audio(self):
        both = {**entry(["<audio> of <image><audio>", "a b"], "a.jpg"), "audio": ["a.wav", "b.flac"]}
        alone = {**entry(["<audio>", "c"]), "audio": "b.flac"}
        result = self.pack([both, alone, entry(["hello", "a"])], *self.sound)
        self.assertEqual(result.returncode, 0, result.stderr)
        data = dump(self.folder / "out.h5", 3, 5)
        first, second, third = data["samples"]
        self.assertEqual(data["audio_token"], 3)
        self.assertEqual([bytes(item["bytes"]) for item in first["items"]], [WAV, JPEG, FLAC])
        self.assertEqual(
            [item["shape"] for item in first["items"]], ["sound at 0", [0, 0, 0], "sound at 0"]
        )
        marks = [token for token in first["tokens"] if token in (2, 3)]
        self.assertEqual(marks, [3] * 5 + [2] * 3 + [3] * 5)
        self.assertEqual(first["answer"], " a b")
        self.assertEqual([bytes(item["bytes"]) for item in second["items"]], [FLAC])
        self.assertEqual(third["items"], [])

    def test_faults_of_audio_are_named(self):
        for fault, part in [
            ({**entry(["<audio>", "x"]), "audio": "gone.wav"}, "audio gone.wav cannot be read"),
            ({**entry(["<audio>", "x"]), "audio": "c.mp3"}, "audio c.mp3 is MP3; convert it: ffmpeg -i c.mp3 c.wav"),
            ({**entry(["<audio>", "x"]), "audio": "../a.wav"}, "outside the folder of sounds"),
            (entry(["<audio>", "x"]), "has 0 clips of sound but 1 <audio>"),
            (entry(["x", "<audio>"]), "is <audio> in a gpt turn?"),
        ]:
            with self.subTest(part):
                result = self.pack([fault], *self.sound)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn(part, result.stderr)
        spoken = {**entry(["<audio>", "x"]), "audio": "a.wav"}
        self.assertIn("--sounds names no folder", self.pack([spoken]).stderr)
        unable = self.pack([spoken], "--sounds", self.folder / "sounds")
        self.assertIn("--audio-tokens is not given", unable.stderr)

    def test_marks_of_items_that_a_model_does_not_take_are_text(self):
        """In an entry that has no such items."""
        result = self.pack([entry(["say <audio> or <video>", "x"])])
        self.assertEqual(result.returncode, 0, result.stderr)
        (sample,) = dump(self.folder / "out.h5", 3)["samples"]
        text = "<s>USER: say <audio> or <video> ASSISTANT: x</s>"
        self.assertEqual(sample["tokens"], self.tokenizer.encode(text, add_special_tokens=False).ids)
        notes = json.loads((self.folder / "out.h5.report.json").read_text())["notes"]
        self.assertIn("<video> is text, since the model takes no such items", notes)

    def test_raw_audio(self):
        sys.path.insert(0, str(JOBS))
        from dataset_writer import Clip, DatasetWriter

        with DatasetWriter(self.folder / "raw.h5", -1, audio_token=4) as writer:
            writer.add([4, 4, 1], [0, 0, 1], [Clip(np.array([1, -2, 300], np.int16), 8000)])
        sample = dump(self.folder / "raw.h5", 0, 2)["samples"][0]
        self.assertEqual(
            sample["items"], [{"bytes": [1, 0, 254, 255, 44, 1], "shape": "sound at 8000"}]
        )
        for sound, rate in [(np.zeros(3), 8000), (np.zeros((3, 2), np.int16), 8000), (b"RIFF", 5)]:
            with self.assertRaises(ValueError):
                Clip(sound, rate)

    def test_faults_are_named(self):
        good = entry(["hello", "you"])
        for fault, part in [
            (entry(["<image>", "x"], "gone.jpg"), "image gone.jpg cannot be read"),
            (entry(["<image>", "x"], ""), "image has an empty path"),
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
                "the assistant's message 0 is not where it should be",
            ),
            ({"id": 7, "conversations": [{"from": "judge", "value": "x"}]}, 'turn 0 must be {"from": speaker'),
            ({"id": 7, "chosen": "a", "rejected": "b"}, "its keys are id, chosen, rejected; allowed are conversations"),
            (entry(["hello", "x" * 200]), "more than --max-tokens 100"),
            ("text", "has no conversations"),
        ]:
            with self.subTest(part):
                result = self.pack([good, fault], "--max-tokens", 100)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn("in.json[1]" if fault == "text" else "in.json[1] (id ", result.stderr)
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
        self.assertIn("in.json[0]: is not JSON", result.stderr)

    def test_a_folder_of_somebody_is_left_alone(self):
        mine = self.folder / "out.h5.parts/notes.txt"
        mine.parent.mkdir()
        mine.write_text("mine")
        result = self.pack([entry(["hello", "a"])])
        self.assertEqual(result.returncode, 1)
        self.assertIn("is not empty, and holds no parts of a packer", result.stderr)
        self.assertEqual(mine.read_text(), "mine")

    def test_files_that_cannot_be_read_are_named(self):
        broken = self.folder / "broken"
        broken.mkdir()
        talk = [entry(["hello", "a"])]
        for name, text, sentence in (
            ("config.json", "{", "config.json cannot be read"),
            ("config.json", "[]", "config.json holds no JSON object"),
            ("config.json", '{"model_type": "llama"}', "broken has no tokenizer.json"),
            ("tokenizer.model", "x", "broken has no tokenizer.json, only a tokenizer.model: transformers makes one"),
            ("tokenizer.json", "version https://git-lfs.github.com/spec/v1\n", "is a pointer of git-lfs"),
            ("tokenizer.json", "{}", "tokenizer.json is not a tokenizer.json"),
        ):
            (broken / name).write_text(text)
            (self.folder / "in.json").write_text(json.dumps(talk))
            result = run("pack.py", self.folder / "in.json", "--model", broken, "--out", self.folder / "out.h5")
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn(sentence, result.stderr)
            self.assertNotIn("Traceback", result.stderr)
            self.assertFalse((self.folder / "out.h5.parts").exists())
        self.assertIn("no entries", self.pack([]).stderr)

    def test_missing_token_is_named(self):
        result = self.pack([entry(["hello", "you"])], "--bos", "<begin>")
        self.assertEqual(result.returncode, 1)
        self.assertIn("the tokenizer has no token <begin>", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
