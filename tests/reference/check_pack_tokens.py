# SPDX-License-Identifier: Apache-2.0
"""jobs/pack.py makes the ids that transformers' AutoTokenizer and processors make, and learns the assistant's turns:
for every form of data, kind of tokenizer directory and chat template, with random conversations.

usage: check_pack_tokens.py JOBS_FOLDER DUMP_DATASET
"""

import contextlib
import io
import json
import os
import pathlib
import shutil
import sys
import tarfile
import tempfile
import unittest
import wave
from unittest import mock

os.environ["TRANSFORMERS_VERBOSITY"] = "error"

from pack_scripts import JOBS  # isort: skip
from folder_case import FolderCase  # isort: skip
import h5py
import numpy as np

try:
    import pyarrow
    import pyarrow.parquet
    import transformers
    from PIL import Image
    from transformers import AutoTokenizer
    from transformers.video_utils import VideoMetadata
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

from pack_processors_case import MODELS, write_model
from pack_tokens_case import TEMPLATES, TOKENIZERS, Talker, forms, spans_of, write_directory

sys.path.insert(0, str(JOBS))
import pack  # noqa: E402
from packing.frame_sampling import frames_taken  # noqa: E402


def packed(out, *arguments):
    """Ids and mask of each sample, and the report, of pack.py in this process."""
    command = ["pack.py", *map(str, arguments), "--processes", "1", "--out", str(out)]
    with mock.patch.object(sys, "argv", command), contextlib.redirect_stdout(io.StringIO()):
        pack.main()
    with h5py.File(out) as data:
        places = data["token_offsets"][...]
        tokens, mask = data["tokens"][...], data["loss_mask"][...]
    samples = [(tokens[b:e].tolist(), mask[b:e].tolist()) for b, e in zip(places, places[1:])]
    report = json.loads(out.with_name(out.name + ".report.json").read_text())
    out.unlink()
    return samples, report


def write_wave(path, samples):
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes(samples.tobytes())


def write_lines(path, values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def write_tar(path, values):
    with tarfile.open(path, "w") as tar:
        for number, value in enumerate(values):
            data = json.dumps(value).encode()
            member = tarfile.TarInfo(f"{number:04}.json")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def write_parquet(path, values):
    keys = list(dict.fromkeys(key for value in values for key in value))
    pyarrow.parquet.write_table(pyarrow.table({key: [value.get(key) for value in values] for key in keys}), path)
    return path


class PackTokens(FolderCase):
    def reference(self, tokenizer, template, messages, learned, tools):
        """Ids and mask as transformers makes them; turns are found by a regular expression of the template's."""
        source, pattern = TEMPLATES[template]
        whole = tokenizer.apply_chat_template(messages, tools=tools, return_dict=True, tokenize=True)
        text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
        mask, spans = [0] * len(whole["input_ids"]), spans_of(pattern, text)
        self.assertEqual(len(spans), sum(m["role"] == "assistant" for m in messages), text)
        for (begin, end), is_learned in zip(spans, learned or [True] * len(spans)):
            first, last = whole.char_to_token(begin), whole.char_to_token(end - 1)
            while first is None:  # a space that the next token took
                begin += 1
                first = whole.char_to_token(begin)
            mask[first : last + 1] = [int(is_learned)] * (last + 1 - first)
        if "{% generation %}" in source and not learned:
            marked = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
            self.assertEqual(mask, marked["assistant_masks"])
        return whole["input_ids"], mask

    def check(self, kind, template, seed):
        folder = write_directory(self.folder / f"{seed}", kind, TEMPLATES[template][0])
        tokenizer = AutoTokenizer.from_pretrained(folder)
        cases = list(forms(Talker(seed), template == "thinking", template == "chatml"))
        of_tables = ("messages", "weight of messages", "calls of tools", "reasoning beside")
        tables = [case for case in cases if case[0] in of_tables]
        captions = [case for case in cases if case[0].startswith("prompt and response")]
        sources = [
            write_lines(folder / "in.jsonl", [value for _, value, *_ in cases]),
            write_tar(folder / "in.tar", [value for _, value, *_ in cases]),
            write_parquet(folder / "in.parquet", [value for _, value, *_ in tables]),
        ]
        for number, case in enumerate(captions):
            caption = {"text": case[1]["response"], "prompt": case[1]["prompt"]}
            sources.append(write_lines(folder / f"{number}.jsonl", [caption]))
        (folder / "in.json").write_text(json.dumps([value for _, value, *_ in cases[:8]]))
        sources.append(folder / "in.json")
        samples, report = packed(folder / "out.h5", *sources, "--model", folder)
        expected = [*cases, *cases, *tables, *captions, *cases[:8]]
        self.assertEqual(len(samples), len(expected))
        for (name, _, messages, learned, tools), sample in zip(expected, samples):
            with self.subTest(kind=kind, template=template, form=name, messages=messages):
                self.assertEqual(sample, self.reference(tokenizer, template, messages, learned, tools))
        self.assertEqual(report["dropped"], {})

    def test_every_form_with_every_tokenizer(self):
        """Several hundred conversations."""
        for number, kind in enumerate(TOKENIZERS):
            names = list(TEMPLATES)
            for template in {names[number % len(names)], names[(number + 2) % len(names)]}:
                self.check(kind, template, 1000 * number + names.index(template))

    def test_every_tokenizer_without_a_template(self):
        """In the family's form: the text between special tokens is encoded as a whole."""
        for number, kind in enumerate(TOKENIZERS):
            folder = write_directory(self.folder / f"plain {number}", kind, None)
            tokenizer = AutoTokenizer.from_pretrained(folder)
            tokenizer.chat_template = TEMPLATES["chatml"][0]
            plain = [case for case in forms(Talker(number), False, False) if case[2][0]["role"] != "system"]
            source = write_lines(folder / "in.jsonl", [value for _, value, *_ in plain])
            samples, _ = packed(folder / "out.h5", source, "--model", folder)
            for (name, _, messages, learned, tools), sample in zip(plain, samples, strict=True):
                with self.subTest(kind=kind, form=name, messages=messages):
                    self.assertEqual(sample, self.reference(tokenizer, "chatml", messages, learned, tools))

    def test_vicunas_form_with_a_normalizer_that_puts_something_in_front(self):
        for kind in ("prepend", "Llama's, legacy"):
            folder = write_directory(self.folder / kind, kind, None)
            text = (folder / "tokenizer.json").read_text()
            (folder / "tokenizer.json").write_text(text.replace("<|im_start|>", "<|other|>"))
            turns = zip(("human", "gpt") * 2, ("What?", "A.", "Hm?", "B."))
            talk = [{"from": name, "value": value} for name, value in turns]
            source = write_lines(folder / "in.jsonl", [{"conversations": talk}])
            ((ids, mask),), _ = packed(folder / "out.h5", source, "--model", folder)
            text = "<s>USER: What? ASSISTANT: A.</s>USER: Hm? ASSISTANT: B.</s>"
            whole = AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False)
            self.assertEqual(ids, whole["input_ids"])
            learned = [token for token in map(whole.char_to_token, range(len(text))) if token and mask[token]]
            self.assertEqual(len(set(learned)), sum(mask))
            self.assertEqual(text[whole.token_to_chars(min(learned)).start :][:3].strip(), "A.")

    def noted(self, *values, template="chatml"):
        folder = write_directory(self.folder / "noted", "byte-level", TEMPLATES[template][0])
        source = write_lines(folder / "in.jsonl", values)
        with contextlib.redirect_stderr(io.StringIO()):
            samples, report = packed(folder / "out.h5", source, "--model", folder, "--on-fault", "skip")
        return samples, report

    def test_what_is_not_used_is_in_the_report(self):
        talk = Talker(1).talk(1)
        named = [{**talk[0], "name": "Ann", "weight": 1}, {**talk[1], "reasoning_content": "so", "weight": 1}]
        value = {"id": 1, "source": "web", "system": "Be brief."}
        value["messages"] = [{"role": "system", "content": "No."}, *named]
        tools = [{"type": "function", "function": {"name": "look"}}]
        _, report = self.noted(value, {"messages": talk, "tools": tools}, template="generation")
        self.assertEqual({note: found["count"] for note, found in report["notes"].items()}, {
            "the key source is not used": 1,
            "the key system is not used": 1,
            "the key name of the user's messages is not used": 1,
            "the key weight of the user's messages is not used": 1,
            "turns of the user are marked as to be learned, which only the assistant's are": 1,
            "the key reasoning_content of the assistant's messages is not used": 1,
            "tools left out, which the chat template does not write": 1,
        })

    def test_special_tokens_in_a_text_are_those_of_transformers_and_noted(self):
        talk = [{"role": "user", "content": "say </s> or <image>"}, {"role": "assistant", "content": "</s>"}]
        ((ids, _),), report = self.noted({"messages": talk})
        tokenizer = AutoTokenizer.from_pretrained(self.folder / "noted")
        self.assertEqual(ids, tokenizer.apply_chat_template(talk, return_dict=True)["input_ids"])
        notes = ["the text of the user holds the special token </s>",
                 "<image> is text, since the model takes no such items",
                 "the text of the assistant holds the special token </s>"]
        self.assertEqual(sorted(report["notes"]), sorted(notes))

    def test_entries_that_cannot_be_packed_are_reported(self):
        answer = {"role": "assistant", "content": "no"}
        call = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}
        said = {"from": "human", "value": "hi"}
        for value, part in [
            ({"messages": [{**answer, "weight": 0.5}]}, 'message 0 has "weight": 0.5; allowed are 0 and 1'),
            ({"messages": [{**answer, "train": False}]}, "has no turn that is learned"),
            ({"messages": [call]}, "message 0 calls a tool (tool_calls), which the chat template does not write"),
            ({"conversations": [said, {"from": "function_call", "value": "f()"}]}, "calls a function, but is not"),
            ({"messages": [answer], "tools": "f"}, "its tools are not JSON"),
            ({"messages": [answer], "system": 1}, "its system is no text"),
            ({"conversations": "[1"}, "its conversations are not JSON"),
            ({"chosen": "a", "rejected": "b"}, "allowed are conversations, messages, conversation, text, or"),
            ({"instruction": "a", "output": 1}, "its instruction and output must be texts"),
            ({"prompt": "a", "completion": "b", "history": [["c"]]}, "its history must be pairs"),
            ({"messages": [{"role": "assistant", "content": "a\ufdd3"}]}, "text holds U+FDD3, which is no character"),
        ]:
            with self.subTest(part), self.assertRaises(SystemExit):
                self.noted(value, template="generation")
            report = json.loads((self.folder / "noted/out.h5.report.json").read_text())
            (found,) = report["dropped"].values()
            self.assertIn(part, found["examples"][0])
            shutil.rmtree(self.folder / "noted")


class PackItems(FolderCase):
    """As the family's processor writes images and videos."""

    def setUp(self):
        super().setUp()
        random = np.random.default_rng(5)
        self.pictures = {}
        for number, size in enumerate([(40, 56), (64, 30), (33, 33), (120, 90)]):
            self.pictures[f"{number}.png"] = Image.fromarray(random.integers(0, 255, (*size, 3), dtype=np.uint8))
            self.pictures[f"{number}.png"].save(self.folder / f"{number}.png")

    def ids(self, processor, messages, **more):
        shown = [
            {**m, "content": [{**c, "image": self.pictures[c["image"]]} if "image" in c else c for c in m["content"]]}
            for m in messages
        ]
        return list(processor.apply_chat_template(shown, tokenize=True, return_dict=True, **more)["input_ids"][0])

    def entries(self, is_spaced):
        """Entries and the messages that processors take for them."""
        text = lambda words: {"type": "text", "text": words}  # noqa: E731
        image = lambda number: {"type": "image", "image": f"{number}.png"}  # noqa: E731
        link = lambda number: {"type": "image_url", "image_url": {"url": f"{number}.png"}}  # noqa: E731
        said = lambda role, *parts: {"role": role, "content": list(parts)}  # noqa: E731
        answer, gap = said("assistant", text("A cup.")), "" if is_spaced else "\n"
        llava = lambda *turns: [{"from": n, "value": v} for n, v in zip(("human", "gpt") * 3, turns)]  # noqa: E731
        yield ({"image": "0.png", "conversations": llava("<image>\nWhat?", "A cup.")},
               [said("user", image(0), text(f"{gap}What?")), answer])
        two = llava("<image>\n<image>\nWhat?", "A cup.", "Hm?", "A cup.")
        yield ({"image": ["1.png", "2.png"], "conversations": two},
               [said("user", image(1), *[text(gap)] * bool(gap), image(2), text(f"{gap}What?")), answer,
                said("user", text("Hm?")), answer])
        yield ({"image": "3.png", "conversations": llava("What?\n<image>", "A cup.")},
               [said("user", text(f"What?{gap}"), image(3)), answer])
        yield ({"messages": [said("user", link(1), text("\nWhat?")), {"role": "assistant", "content": "A cup."}]},
               [said("user", image(1), text("\nWhat?")), answer])
        yield ({"messages": [said("user", text("What? "), link(2)), answer]},
               [said("user", text("What? "), image(2)), answer])
        yield ({"image": "0.png", "text": "A cup.", "prompt": "What?"}, [said("user", image(0), text("What?")), answer])
        yield ({"image": "0.png", "instruction": "What?", "output": "A cup."},
               [said("user", image(0), text("What?")), answer])
        yield ({"messages": [{"role": "user", "content": "Hi"}, answer]}, [said("user", text("Hi")), answer])

    def test_images(self):
        for name in MODELS:
            folder = self.folder / name
            processor = write_model(folder, name)
            cases = list(self.entries(name.startswith("LLaVA") or name in ("Gemma 3", "InternVL")))
            sources = [write_lines(folder / "in.jsonl", [entry for entry, _ in cases]), "--images", self.folder]
            samples, report = packed(folder / "out.h5", *sources, "--model", folder)
            for (entry, messages), (ids, mask) in zip(cases, samples, strict=True):
                with self.subTest(model=name, entry=entry):
                    self.assertEqual(ids, self.ids(processor, messages))
                    learned = processor.tokenizer.decode([token for token, m in zip(ids, mask) if m])
                    self.assertEqual(learned.replace(" A", "A"), "A cup.<|im_end|>" * (len(messages) // 2))
            asked = [{**entry, "conversations": entry["conversations"][:-1]} for entry, _ in cases[:3]]
            sources[0] = write_lines(folder / "in.jsonl", asked)
            samples, report = packed(folder / "out.h5", *sources, "--model", folder, "--prompts")
            for (_, messages), (ids, mask) in zip(cases, samples):
                with self.subTest(model=name, asked=messages):
                    self.assertEqual(ids[:-1], self.ids(processor, messages[:-1], add_generation_prompt=True))
                    self.assertEqual(mask, [0] * (len(ids) - 1) + [1])

    def test_audio(self):
        """LLaVA's new line behind a mark gives way to Qwen2-Audio's own, which is not next to the placeholder."""
        folder = self.folder / "model"
        processor = write_model(folder, "Qwen2-Audio")
        samples = np.random.default_rng(7).integers(-9999, 9999, 9000).astype("<i2")
        write_wave(self.folder / "a.wav", samples)
        talk = [{"from": "human", "value": "<audio>\nWhat?"}, {"from": "gpt", "value": "A cup."}]
        source = write_lines(folder / "in.jsonl", [{"audio": "a.wav", "conversations": talk}])
        ((ids, _),), _ = packed(folder / "out.h5", source, "--sounds", self.folder, "--model", folder)
        content = [{"type": "audio"}, {"type": "text", "text": "What?"}]
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "A cup."}]
        text = processor.apply_chat_template(messages, tokenize=False)
        whole = processor(text=[text], audio=[samples / 2.0**15], sampling_rate=16000)
        self.assertEqual(ids, list(whole["input_ids"][0]))

    def test_long_audio(self):
        """Qwen3-Omni's processor does not cut clips, and its published directories have no chunk_length."""
        folder = self.folder / "model"
        processor = write_model(folder, "Qwen3-Omni")
        path = folder / "processor_config.json"
        said = json.loads(path.read_text())
        del said["feature_extractor"]["chunk_length"]
        said["feature_extractor"]["n_samples"] = 4800000
        path.write_text(json.dumps(said))
        samples = np.random.default_rng(9).integers(-9999, 9999, 31 * 16000 + 700).astype("<i2")
        write_wave(self.folder / "a.wav", samples)
        asked = [{"type": "audio", "audio": "a.wav"}, {"type": "text", "text": "What?"}]
        said = {"role": "assistant", "content": [{"type": "text", "text": "A cup."}]}
        messages = [{"role": "user", "content": asked}, said]
        source = write_lines(folder / "in.jsonl", [{"messages": messages}])
        ((ids, _),), _ = packed(folder / "out.h5", source, "--sounds", self.folder, "--model", folder)
        text = processor.apply_chat_template(messages, tokenize=False)
        whole = processor(text=[text], audio=[samples / 2.0**15], sampling_rate=16000)
        self.assertEqual(ids, list(whole["input_ids"][0]))

    def test_videos_with_their_sound(self):
        for name in ("Qwen2.5-Omni", "Qwen3-Omni"):
            self.check_videos_with_their_sound(self.folder / name, name)

    def check_videos_with_their_sound(self, folder, name):
        """Features of a video and of its sound take turns, whichever lasts longer, beside an image and other sound."""
        random = np.random.default_rng(8)
        processor = write_model(folder, name)
        Image.fromarray(random.integers(0, 255, (40, 32, 3), dtype=np.uint8)).save(self.folder / "0.png")
        part = lambda kind, name: {"type": kind, kind: name}  # noqa: E731
        lengths = [(9, 4.7, 2), (12, 1.3, 1.5), (3, 6.1, 4), (6, 3.0, 0.25), (10, 13.0, 2 / 3)]
        for number, (frames, seconds, fps) in enumerate(lengths):
            clip = random.integers(0, 255, (frames, 3, 32, 48), dtype=np.uint8)
            (self.folder / f"{number}").mkdir(exist_ok=True)
            for index, frame in enumerate(clip):
                Image.fromarray(frame.transpose(1, 2, 0)).save(self.folder / f"{number}/{index:02}.png")
            sounds = [random.integers(-9999, 9999, int(16000 * s)).astype("<i2") for s in (seconds, 0.4)]
            for letter, samples in zip("ab", sounds):
                write_wave(self.folder / f"{letter}{number}.wav", samples)
            items = [part("image", "0.png"), part("video", f"{number}"), part("audio", f"a{number}.wav")]
            asked = [*items, {"type": "text", "text": "What?"}, part("audio", f"b{number}.wav")]
            answer = {"role": "assistant", "content": "A cup."}
            lines = [{"fps": fps, "messages": [{"role": "user", "content": asked}, answer]}]
            source = write_lines(folder / "in.jsonl", lines)
            where = [option for key in ("--images", "--videos", "--sounds") for option in (key, self.folder)]
            ((ids, _),), _ = packed(folder / "out.h5", source, *where, "--model", folder, "--audio-in-video")
            joint = [*asked[:2], *asked[3:]]
            said = [{"type": "text", "text": "A cup."}]
            messages = [{"role": "user", "content": joint}, {"role": "assistant", "content": said}]
            text = processor.apply_chat_template(messages, tokenize=False)
            whole = processor(text=[text], images=[Image.open(self.folder / "0.png")], videos=[clip], fps=fps,
                              audio=[samples / 2.0**15 for samples in sounds], sampling_rate=16000,
                              use_audio_in_video=True, do_sample_frames=False)
            with self.subTest(video=number, model=name):
                self.assertEqual(ids, list(whole["input_ids"][0]))

    def test_sound_of_videos_is_refused(self):
        write_model(self.folder / "model", "Qwen2.5-VL")
        with self.assertRaises(SystemExit) as left:
            packed(self.folder / "out.h5", write_lines(self.folder / "in.jsonl", []), "--model", self.folder / "model",
                   "--audio-in-video")
        self.assertIn("cannot interleave a video with its audio track", str(left.exception))

    def test_tokens_of_images_that_are_not_the_models_are_refused(self):
        folder = self.folder / "model"
        write_model(folder, "LLaVA")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "image_token_index": 4}))
        with self.assertRaises(SystemExit) as left:
            packed(folder / "out.h5", write_lines(folder / "in.jsonl", []), "--model", folder)
        refused = "image_token_id of config.json is 4 (<|endoftext|>), but the processor writes <image>"
        self.assertIn(refused, str(left.exception))

    def test_videos(self):
        random = np.random.default_rng(6)
        frames = random.integers(0, 255, (5, 3, 32, 48), dtype=np.uint8)
        (self.folder / "video").mkdir()
        for number, frame in enumerate(frames):
            Image.fromarray(frame.transpose(1, 2, 0)).save(self.folder / f"video/{number}.png")
        content = [{"type": "video"}, {"type": "text", "text": "What?"}]
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "A cup."}]
        for name in ("Qwen2-VL", "Qwen3-VL", "Gemma 4", "Qwen2.5-Omni", "Qwen3-Omni"):
            folder = self.folder / name
            processor = write_model(folder, name)
            source = write_lines(folder / "in.jsonl", [{"video": "video", "fps": 4, "messages": messages}])
            samples, _ = packed(folder / "out.h5", source, "--videos", self.folder, "--model", folder)
            text = processor.apply_chat_template(messages, tokenize=False)
            seen = VideoMetadata(total_num_frames=5, fps=4.0, frames_indices=list(range(5)))
            whole = processor(text=[text], videos=[frames], video_metadata=[seen], do_sample_frames=False)
            self.assertEqual(samples[0][0], list(whole["input_ids"][0]))
        write_model(self.folder / "Gemma 3", "Gemma 3")
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as said:
            packed(folder / "out.h5", source, "--videos", self.folder, "--model", self.folder / "Gemma 3")
        self.assertIn("has <video>, but a model of videos (--model) is not given, or the model takes none",
                      said.getvalue())


class FramesOfVideos(unittest.TestCase):
    """The packer samples the same frames of a long video as the processor."""

    def test_frames_are_those_that_processors_sample(self):
        by_count = {"gemma4": "Gemma4", "internvl": "InternVL", "kimi_k25": "Kimi_K25"}
        by_count |= {"llava_onevision": "LlavaOnevision"}
        by_rate = {"qwen2_5_vl": "Qwen2VL", "qwen3_vl": "Qwen3VL", "smolvlm": "SmolVLM"}
        by_rate |= {"qwen3_omni_moe_thinker": "Qwen2VL"}
        for family, name in (by_count | by_rate).items():
            processor = getattr(transformers, f"{name}VideoProcessor")
            processor = processor(video_sampling={"max_frames": 1, "fps": 1, "video_size": {"longest_edge": 64}})
            for per_second in (2, 1.5, 0.5):
                for most in (2, 7, 8, 32, 96, 255):
                    for frames in (most + 1, most + 2, 2 * most, 3 * most + 1, 1003):
                        said = {"num_frames": most}
                        if family in by_rate:
                            limit = "num_frames" if family == "smolvlm" else "max_frames"
                            setattr(processor, limit, most)
                            processor.min_frames = 2
                            said = {"fps": per_second}
                        with self.subTest(family=family, per_second=per_second, most=most, frames=frames):
                            self.check(processor, family, frames, most, per_second, **said)

    def test_frames_of_glm_are_those_that_processors_sample(self):
        """GLM's processors sample by time, so their longest duration limits the number of frames. That of GLM-4.6V
        samples short videos, too, at rates that depend on their duration."""
        for per_second, most in ((2, 600), (1, 300)):
            for frames in (most + 1, most + 90, 4 * most):
                self.check(transformers.Glm4vVideoProcessor(), "glm4v", frames, most, per_second, fps=per_second)
        for per_second in (2, 3, 6, 24, 29.97):
            for seconds in (0.4, 0.9, 5, 29, 30, 31, 299, 301, 640, 2500):
                frames = max(1, round(seconds * per_second))
                with self.subTest(per_second=per_second, seconds=seconds):
                    self.check(transformers.Glm46VVideoProcessor(), "glm46v", frames, 640, per_second)

    def test_frames_exist(self):
        """Where the number of multiples is rounded up, processors take one frame too many."""
        for family in ("gemma4", "internvl", "qwen2_vl"):
            for frames, most in ((113, 100), (54, 49), (201, 200), (1001, 1000)):
                taken = frames_taken(family, frames, most, 1)
                self.assertEqual(len(taken), most // 2 * 2 if family == "qwen2_vl" else most)
                self.assertLess(taken[-1], frames)

    def check(self, processor, family, frames, most, per_second, **said):
        seen = VideoMetadata(total_num_frames=frames, fps=per_second, duration=frames / per_second)
        expected = list(map(int, processor.sample_frames(seen, **said)))
        if family.startswith("glm") and len(expected) > 1 and expected[-1] == expected[-2]:
            expected.pop()  # the processor repeats a frame to fill the last temporal patch
        self.assertEqual(frames_taken(family, frames, most, per_second), expected)

    def test_directories_say_the_most_frames(self):
        for family, said, most in [
            ("gemma4", {}, 32), ("gemma4", {"num_frames": 8}, 8), ("glm4v", {"fps": 1}, 300), ("glm46v", {}, 640),
            ("smolvlm", {"video_sampling": {"max_frames": 64, "fps": 1}}, 64), ("qwen2_vl", {"max_frames": 9}, 9),
        ]:
            for file in ("video_preprocessor_config.json", "preprocessor_config.json"):
                with tempfile.TemporaryDirectory() as folder:
                    pathlib.Path(folder, "config.json").write_text(json.dumps({"model_type": family}))
                    pathlib.Path(folder, file).write_text(json.dumps(said))
                    self.assertEqual(pack.ModelDirectory(pathlib.Path(folder)).most_frames, most, (family, file))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
