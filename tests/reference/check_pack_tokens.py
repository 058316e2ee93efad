# SPDX-License-Identifier: Apache-2.0
"""jobs/pack.py makes the ids that transformers' AutoTokenizer and processors make, and learns the assistant's turns:
for every form of data, kind of tokenizer directory and chat template, with random conversations.

usage: check_pack_tokens.py JOBS_FOLDER DUMP_DATASET
"""

import contextlib
import io
import json
import os
import sys
import tarfile
import unittest
from unittest import mock

os.environ["TRANSFORMERS_VERBOSITY"] = "error"

from pack_scripts import JOBS  # isort: skip
from folder_case import FolderCase  # isort: skip
import h5py
import numpy as np

try:
    import pyarrow
    import pyarrow.parquet
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
            while first is None:  # a space that the token behind it took
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
            cases = list(self.entries(name.startswith("LLaVA") or name == "Gemma 3"))
            sources = [write_lines(folder / "in.jsonl", [entry for entry, _ in cases]), "--images", self.folder]
            samples, report = packed(folder / "out.h5", *sources, "--model", folder)
            for (entry, messages), (ids, mask) in zip(cases, samples, strict=True):
                with self.subTest(model=name, entry=entry):
                    self.assertEqual(ids, self.ids(processor, messages))
                    learned = processor.tokenizer.decode([token for token, m in zip(ids, mask) if m])
                    self.assertEqual(learned, "A cup.<|im_end|>" * (len(messages) // 2))
            asked = [{**entry, "conversations": entry["conversations"][:-1]} for entry, _ in cases[:3]]
            sources[0] = write_lines(folder / "in.jsonl", asked)
            samples, report = packed(folder / "out.h5", *sources, "--model", folder, "--prompts")
            for (_, messages), (ids, mask) in zip(cases, samples):
                with self.subTest(model=name, asked=messages):
                    self.assertEqual(ids[:-1], self.ids(processor, messages[:-1], add_generation_prompt=True))
                    self.assertEqual(mask, [0] * (len(ids) - 1) + [1])

    def test_videos(self):
        random = np.random.default_rng(6)
        frames = random.integers(0, 255, (5, 3, 32, 48), dtype=np.uint8)
        (self.folder / "video").mkdir()
        for number, frame in enumerate(frames):
            Image.fromarray(frame.transpose(1, 2, 0)).save(self.folder / f"video/{number}.png")
        content = [{"type": "video"}, {"type": "text", "text": "What?"}]
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "A cup."}]
        for name in ("Qwen2-VL", "Qwen3-VL"):
            folder = self.folder / name
            processor = write_model(folder, name)
            source = write_lines(folder / "in.jsonl", [{"video": "video", "fps": 4, "messages": messages}])
            samples, _ = packed(folder / "out.h5", source, "--videos", self.folder, "--model", folder)
            text = processor.apply_chat_template(messages, tokenize=False)
            seen = VideoMetadata(total_num_frames=5, fps=4.0, frames_indices=list(range(5)))
            whole = processor(text=[text], videos=[frames], video_metadata=[seen], do_sample_frames=False)
            self.assertEqual(samples[0][0], list(whole["input_ids"][0]))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
