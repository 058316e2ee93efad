# SPDX-License-Identifier: Apache-2.0
"""Images and videos of random sizes become the values, placeholders and ids that transformers' processors make of
them, by random directories of every family that takes images (processor_cases.py), by PIL and by torchvision.

usage: compare_processors.py PREPARE_ITEMS JOBS_FOLDER [FAMILIES]
ZEA_PROCESSORS: directories of each family (default 3). Exit code 77 (skipped) where a package is missing.
"""

import json
import os
import sys
import tempfile
import wave
from collections import Counter
from pathlib import Path

try:
    import h5py
    import numpy as np
    import torch
    import torchvision
    import transformers
    from PIL import Image
    from transformers.video_utils import VideoMetadata

    import forked_script
    from prepared_items import away, prepared
    from omni_directories import Qwen3Omni, Qwen25Omni
    from processor_cases import FAMILIES
    from processor_directories import Draw
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

PREPARE, JOBS = sys.argv[1:3]


def pictures(draw, *shape):
    """Noise on flat areas with edges that overshoot under a cubic kernel."""
    random = np.random.default_rng(draw.randrange(2**32))
    flat = np.kron(random.integers(0, 2, (*shape[:-2], 9, 7, 3)), np.ones((shape[-2] // 9 + 1, shape[-1] // 7 + 1, 1)))
    noise = random.integers(0, 60, (*shape, 3))
    return (flat[..., : shape[-2], : shape[-1], :] * 195 + noise).astype(np.uint8)


class Sample:
    """Items of one kind, what entries of data call them, and their files. `rate`: frames of a video in a second."""

    def __init__(self, kind, items, names, files, rate=None):
        self.kind, self.items, self.names, self.files, self.rate = kind, items, names, files, rate

    def content(self, question):
        kinds = [{"type": self.kind, self.kind: name} for name in self.names]
        return [*kinds, {"type": "text", "text": question}]

    def __str__(self):
        sizes = " and ".join(" x ".join(map(str, item.shape[:-1] or item.shape)) for item in self.items)
        return f"{self.kind} of {sizes}"


def image_sample(draw, case, folder, number):
    items = [pictures(draw, *draw.size(case.step)) for _ in range(case.several())]
    names = [f"{number}_{index}.png" for index in range(len(items))]
    for item, name in zip(items, names):
        Image.fromarray(item).save(folder / name, compress_level=1)
    return Sample("image", items, names, [folder / name for name in names])


def video_sample(draw, case, folder, number):
    clip = pictures(draw, draw.randint(2, 7), *draw.size(case.step, 120))
    (folder / f"{number}").mkdir()
    files = [folder / f"{number}/{index}.png" for index in range(len(clip))]
    for frame, file in zip(clip, files):
        Image.fromarray(frame).save(file, compress_level=1)
    return Sample("video", [clip], [f"{number}"], files, draw.choice([1, 2, 1.5, 3]))


def audio_sample(draw, case, folder, number):
    random = np.random.default_rng(draw.randrange(2**32))
    clip = (random.normal(0, draw.choice([0.001, 0.1, 0.3]), case.length()).clip(-1, 1) * 32767).astype("<i2")
    with wave.open(str(folder / f"{number}.wav"), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes(clip.tobytes())
    return Sample("audio", [clip], [f"{number}.wav"], [folder / f"{number}.wav"])


MAKERS = {"image": image_sample, "video": video_sample, "audio": audio_sample}


def expected_of(case, processor, sample, messages):
    """Returns ids and values by transformers, which has no ids of a composed model."""
    clip = sample.items[0]
    if processor is None and sample.kind == "audio":
        inputs = case.images(clip / 32768, sampling_rate=16000, return_tensors="np")
        return None, inputs["input_features"].reshape(-1)
    if processor is None:
        inputs = case.images(Image.fromarray(sample.items[0]), return_tensors="pt", **case.asked)
        return None, case.pixels(inputs)
    # SmolVLM's processor has a template of its own for videos.
    text = processor.apply_chat_template(messages, tokenize=False, chat_template=case.template)
    begins = text.startswith("<s>")
    options = {"text": [text], "return_tensors": "pt", "add_special_tokens": not begins}
    if sample.kind == "image":
        inputs = processor(images=[[Image.fromarray(item) for item in sample.items]], **case.asked, **options)
        return inputs["input_ids"][0].tolist(), case.pixels(inputs)
    if sample.kind == "audio":
        options |= case.sound_options() if hasattr(case, "sound_options") else {"sampling_rate": 16000}
        inputs = processor(audio=[clip / 32768], **options)
        return inputs["input_ids"][0].tolist(), case.heard(inputs)
    times = {"fps": sample.rate, "duration": len(clip) / sample.rate, "frames_indices": list(range(len(clip)))}
    metadata = VideoMetadata(total_num_frames=len(clip), **times)
    frames = torch.from_numpy(clip).permute(0, 3, 1, 2)
    inputs = processor(videos=[[frames]], video_metadata=[metadata], do_sample_frames=False, **options)
    return inputs["input_ids"][0].tolist(), case.pixels_of_videos(inputs)


def packed(folder, samples, messages):
    """Ids by jobs/pack.py, or what it says."""
    entries = []
    for sample, talk in zip(samples, messages):
        entries.append({"messages": talk} | ({"fps": sample.rate} if sample.kind == "video" else {}))
    (folder / "data.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    command = [folder / "data.jsonl", "--model", folder, "--processes", "1", "--out", folder / "data.h5",
               "--videos", folder, "--sounds", folder]
    run = forked_script.run(f"{JOBS}/pack.py", *command)
    if run.returncode != 0:
        return run.stderr.strip()
    with h5py.File(folder / "data.h5") as data:
        bounds, tokens = data["token_offsets"][...], data["tokens"][...]
        return [tokens[begin:end].tolist() for begin, end in zip(bounds, bounds[1:])]


def differing(ids, expected):
    at = next((n for n, (one, other) in enumerate(zip(ids, expected)) if one != other), min(len(ids), len(expected)))
    return f"{len(ids)} ids in place of {len(expected)}; from {at} on {ids[at : at + 9]}, not {expected[at : at + 9]}"


def questions(draw, samples):
    for sample in samples:
        asked = [{"role": "user", "content": sample.content(draw.choice(["What is it?", "\nWhat?", "Is it noise? "]))}]
        more = [{"role": "user", "content": [{"type": "text", "text": "Why?"}]}]
        answer = {"role": "assistant", "content": [{"type": "text", "text": draw.choice(["It is noise.", "A\n b"])}]}
        yield [*asked, answer] + ([*more, answer] if draw.chance(0.4) else [])


def check(family, number, folder, tally):
    """Yields faults."""
    draw = Draw(f"{family.__name__} {number}")
    draw.number = number
    case = family(draw)
    case.write(folder)
    processor = case.processor() if case.made is not None else None
    kinds = [kind for kind, many in case.samples.items() for _ in range(many)]
    samples = [MAKERS[kind](draw, case, folder, f"{kind}_{number}") for number, kind in enumerate(kinds)]
    found = prepared(PREPARE, folder / "config.json", [(s.kind, s.files) for s in samples])
    if isinstance(found, str):
        yield f"refused: {found}"
        return
    with_ids = []
    for sample, talk, ours in zip(samples, list(questions(draw, samples)), found):
        try:
            ids, values = expected_of(case, processor, sample, talk)
        except (ValueError, ZeroDivisionError) as fault:
            tally[f"refused by transformers: {str(fault)[:60]}"] += 1
            continue
        tally[f"{sample.kind}s"] += 1
        place = case.tokenizer.convert_tokens_to_ids(case.placeholder_of(sample.kind))
        if ids is not None and place not in ids:
            tally["too short for a feature"] += 1
            if not isinstance(ours, str):
                yield f"{sample}: has features, and no placeholder of transformers"
            continue
        fault = ours if isinstance(ours, str) else compared(case, sample.kind, ours, values, ids and ids.count(place))
        if fault:
            yield f"{sample}: {fault}"
        elif ids is not None:
            with_ids.append((sample, talk, ids))
    yield from faults_of_packing(folder, with_ids)


def compared(case, kind, ours, values, placeholders):
    features, pixels = ours
    if placeholders is not None and sum(features) != placeholders:
        return f"{features} features, and {placeholders} placeholders of transformers"
    return away(pixels, values, {"image": 1e-5 if case.by_torchvision else 1e-6, "video": 1e-5, "audio": 1e-4}[kind])


def faults_of_packing(folder, with_ids):
    if not with_ids:
        return
    samples, messages, expected = zip(*with_ids)
    found = packed(folder, samples, messages)
    if isinstance(found, str):
        yield f"packing: {found}"
        return
    for sample, ids, others in zip(samples, found, expected, strict=True):
        if ids != others:
            yield f"{sample}: {differing(ids, others)}"


def main():
    # Without AVX2 it would resize some images as floats, which round otherwise.
    torchvision.transforms.v2.functional._geometry._do_native_uint8_resize_on_cpu = lambda _: True
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    count, faults = int(os.environ.get("ZEA_PROCESSORS", 3)), 0
    for family in [*FAMILIES, Qwen25Omni, Qwen3Omni]:
        if len(sys.argv) > 3 and family.__name__ not in sys.argv[3:]:
            continue
        tally = Counter()
        for number in range(count):
            with tempfile.TemporaryDirectory() as folder:
                for fault in check(family, number, Path(folder), tally):
                    print(f"{family.__name__} {number}: {fault}", flush=True)
                    tally["faults"] += 1
        print(f"{family.__name__}: {dict(tally)}", flush=True)
        faults += tally["faults"] + (tally["images"] + tally["audios"] < 3 * count)  # or most were refused
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
