# SPDX-License-Identifier: Apache-2.0
"""Packs Fashion-MNIST with questions that are spoken, by many voices, or typed.

Its files and the voices come with Debian: apt-get install dataset-fashion-mnist espeak-ng.

Writes train.h5 (every picture twice), test.h5 (held-out pictures, asked about by voices that training
never hears) and tokenizer.json. A sample, in which picture or sound may be absent:

    <bos> <image> x N  <audio> x M  typed question  answer <eos>

with the loss on the answer and <eos>. The questions are "what is this?", "is this a shoe?" and "is
it dark or light?"; where there is no picture the answer says so. Every answer names its class in
whole words, and no other.
"""

import argparse
import subprocess
import sys
import tempfile
import wave
from pathlib import Path

import numpy as np
from dataset_writer import Clip, DatasetWriter
from pack_fashion_mnist import CLASSES, SPLITS, read_split, with_article
from token_bytes import special_texts, token_bytes
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

NAME, SHOE, LIGHT = "what is this?", "is this a shoe?", "is it dark or light?"
SHARES = {NAME: 0.76, SHOE: 0.12, LIGHT: 0.12}
SHOES = {"sandal", "sneaker", "ankle boot"}
ANSWERS = {
    **{name: f" this is {with_article(name)}." for name in CLASSES},
    "yes": " yes, it is.",
    "no": " no, it is not.",
    "dark": " it is dark.",
    "light": " it is light.",
    "nothing": " there is nothing to see.",
}
SPECIAL = ["<pad>", "<bos>", "<eos>", "<image>", "<audio>"]
# A language and a variant of its voice; held-out ones share neither variant nor speed with others.
VOICES = {
    "train": [
        f"{language}+{variant}"
        for language in ("en-us", "en-gb", "en-gb-x-rp", "en-gb-scotland")
        for variant in ("m1", "m2", "m3", "m4", "m5", "f1", "f2", "f3")
    ],
    "test": [f"{language}+{variant}" for language in ("en-us", "en-gb") for variant in ("m7", "f4")],
}
SPEEDS = {"train": (130, 165, 200), "test": (145, 180)}  # words per minute
BRIGHTNESS, MARGIN = 128, 12  # of the pixels that are not background; closer ones are not asked about


def speak(text, voice, speed, folder):
    """int16 samples at half the program's rate, pairs of them averaged, and that rate."""
    path = folder / "speech.wav"
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "-w", str(path), text]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        sys.exit("espeak-ng is missing; apt-get install espeak-ng")
    if done.returncode or done.stderr:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    with wave.open(str(path)) as file:
        rate, samples = file.getframerate(), file.readframes(file.getnframes())
    samples = np.frombuffer(samples, "<i2")
    samples = samples[: len(samples) // 2 * 2].astype(np.int32).reshape(-1, 2).mean(axis=1)
    return samples.astype(np.int16), rate // 2


def speak_all(split):
    """For each question what every voice makes of it."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            question: [
                speak(question, voice, speed, Path(folder))
                for voice in VOICES[split]
                for speed in SPEEDS[split]
            ]
            for question in SHARES
        }


def placed(samples, rate, seconds, rng):
    """The speech after a pause, at some loudness, in a little noise."""
    room = max(0, int(seconds * rate) - len(samples))
    pause = int(rng.integers(0, min(room, rate // 3) + 1))
    sound = np.concatenate([np.zeros(pause), samples * rng.uniform(0.3, 1.0)])
    sound += rng.normal(0, 20, len(sound))
    return Clip(sound.clip(-32768, 32767).astype(np.int16), rate)


def brightness(picture):
    shown = picture[picture > 0]
    return shown.mean() if len(shown) else 0


def answer_class(question, picture, name):
    if picture is None:
        return "nothing"
    if question == NAME:
        return name
    if question == SHOE:
        return "yes" if name in SHOES else "no"
    return "light" if brightness(picture) > BRIGHTNESS else "dark"


def train_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator([*SHARES, *ANSWERS.values()] * 10, trainer)
    return tokenizer


class Packer:
    def __init__(self, tokenizer, arguments, speech, rng):
        self.tokenizer, self.arguments, self.speech, self.rng = tokenizer, arguments, speech, rng
        self.bos, self.eos, self.image, self.audio = map(tokenizer.token_to_id, SPECIAL[1:])
        self.labels = list(ANSWERS)

    def question_for(self, picture):
        questions = list(SHARES)
        question = questions[self.rng.choice(len(questions), p=list(SHARES.values()))]
        unclear = picture is not None and abs(brightness(picture) - BRIGHTNESS) < MARGIN
        return NAME if question == LIGHT and unclear else question

    def sample(self, picture, name):
        """Tokens, loss mask, items and label."""
        if self.rng.random() < self.arguments.without_picture:
            picture = None
        question = self.question_for(picture)
        label = answer_class(question, picture, name)
        prompt, items = [self.bos], []
        if picture is not None:
            prompt += [self.image] * self.arguments.image_tokens
            items.append(picture)
        if self.rng.random() < self.arguments.spoken:
            spoken = self.speech[question]
            samples, rate = spoken[self.rng.integers(len(spoken))]
            prompt += [self.audio] * self.arguments.audio_tokens
            items.append(placed(samples, rate, self.arguments.audio_tokens / 50, self.rng))
        else:
            prompt += self.tokenizer.encode(question).ids
        answer = [*self.tokenizer.encode(ANSWERS[label]).ids, self.eos]
        mask = [0] * len(prompt) + [1] * len(answer)
        return prompt + answer, mask, items, self.labels.index(label)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--source", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--image-tokens", type=int, default=16, help="features of a picture")
    parser.add_argument(
        "--audio-tokens",
        type=int,
        default=150,
        help="features of a clip, the encoder's max_source_positions: 50 a second",
    )
    parser.add_argument("--spoken", type=float, default=0.2, help="share of spoken questions")
    parser.add_argument("--without-picture", type=float, default=0.05)
    parser.add_argument(
        "--passes", type=int, default=2, help="times that a training picture is asked about"
    )
    parser.add_argument("--limit", type=int, help="pictures of each split to pack (default: all)")
    parser.add_argument("--test-limit", type=int, default=4000, help="held-out pictures at most")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    tokenizer = train_tokenizer()
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(arguments.out / "tokenizer.json"))
    texts, special = token_bytes(tokenizer), special_texts(tokenizer)
    for number, (split, prefix, samples) in enumerate(SPLITS):
        images, labels = read_split(arguments.source, prefix, samples)
        limits = [arguments.limit, arguments.test_limit if split == "test" else None]
        count = min([samples, *(limit for limit in limits if limit)])
        rng = np.random.default_rng([arguments.seed, number])
        packer = Packer(tokenizer, arguments, speak_all(split), rng)
        path = arguments.out / f"{split}.h5"
        with DatasetWriter(path, packer.image, packer.labels, texts, packer.audio, special_texts=special) as writer:
            for _ in range(arguments.passes if split == "train" else 1):
                for picture, label in zip(images[:count], labels[:count]):
                    writer.add(*packer.sample(picture, CLASSES[label]))
            print(f"{path}: {len(writer.labels)} samples")


if __name__ == "__main__":
    main()
