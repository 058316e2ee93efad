# SPDX-License-Identifier: Apache-2.0
"""Bad input is told once, in a sentence that says what was found, what is allowed, where and what
to do; it ends the run with the documented exit code, and leaves no checkpoint behind."""

import copy
import io
import json
import os
import re
import shlex
import shutil
import unittest
import wave
from unittest import mock

import h5py
import numpy as np
import zea_run as zr
from dataset_writer import Clip

A_TENSOR = "language_model.model.layers.0.mlp.down_proj.weight"
AUDIO_TOKEN = 0
AUDIO_CONFIG = {
    "model_type": "whisper",
    "d_model": 16,
    "encoder_ffn_dim": 24,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "num_mel_bins": 8,
    "max_source_positions": 4,
}
HEAD = "language_model.lm_head.weight"
OF_A_RANK = re.compile(r"zea: rank \d: ")


def change(path, tensor, edit):
    """Replaces the values of a tensor by edit(values); None removes it."""
    with h5py.File(path, "a") as file:
        values = edit(file[tensor][()])
        del file[tensor]
        if values is not None:
            file.create_dataset(tensor, data=values)


def cut_in_half(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip_a_bit_of_a_tensor(shard):
    found = []
    with h5py.File(shard, "r") as file:
        file.visititems(
            lambda name, entry: found.append(entry) if isinstance(entry, h5py.Dataset) else None
        )
        position = found[0].id.get_offset()
    content = bytearray(shard.read_bytes())
    content[position] ^= 1
    shard.write_bytes(content)


def samples_of(seconds):
    return np.zeros(16000 * seconds, np.int16)


def wav_of(seconds):
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 16000, 0, "NONE", ""))
        sound.writeframes(samples_of(seconds).tobytes())
    return file.getvalue()


def sample_with(clip):
    """A sample with one clip."""
    return [1, *[AUDIO_TOKEN] * 4, 5, 2], [0] * 5 + [1, 1], [clip]


def with_one(values, number):
    values[-1, -1] = number
    return values


class BadInput(zr.ZeaTest):
    @classmethod
    def setUpClass(cls):
        folder = zr.make_folder(cls.addClassCleanup)
        cls.weights = zr.make_weights(folder / "weights.h5")
        cls.train = zr.make_dataset(folder / "train.h5", zr.mixed_samples(8))

    def copy_of(self, path):
        return zr.Path(shutil.copy(path, self.folder))

    def refuse(self, code, words, overrides=(), weights=None, train=None, **how):
        deck = zr.write_deck(self.folder, weights or self.weights, train or self.train)
        self.assert_refused(code, words, ["-i", deck, "schedule.steps=4", *overrides], **how)

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "there is a GPU")
    def test_a_gpu_where_there_is_none(self):
        self.refuse(2, ['run.device = "cuda"', "run.device to"], ["run.device=cuda"])

    def assert_refused(self, code, words, arguments, alone=False, ranks=1):
        """A run must end with `code` and one message of all `words`. Where one of two ranks fails `alone`, the message
        names it; a sample of the others has two ranks, too, which agree on one message."""
        directory = self.folder / "run"
        ranks = 2 if alone else ranks
        was_there = directory.exists()
        for tries_left in (2, 1, 0):
            result = zr.run_zea(ranks, [*arguments, "-d", directory], directory)
            messages = [line for line in result.output.splitlines() if line.startswith("zea: ")]
            # Ranks that find a fault more than 2 s apart, as can happen on a busy machine, each report it.
            if alone or not tries_left or not any(OF_A_RANK.match(line) for line in messages):
                break
            if not was_there:
                shutil.rmtree(directory, ignore_errors=True)
        self.assert_code(result, code)
        self.assertEqual(len(messages), 1, result.output)
        self.assertEqual(bool(OF_A_RANK.match(messages[0])), alone, result.output)
        for word in words:
            self.assertEqual(result.output.count(word), 1, f"{word}\n{result.output}")
        self.assertNotIn("\x1b", result.output)
        self.assertEqual(list(directory.glob("checkpoints/*")), [])

    def refuse_samples(self, words, samples, **more):
        bad = [*zr.mixed_samples(3), *samples]
        train = zr.make_dataset(self.folder / "bad.h5", bad, token_bytes=None)  # which bounds ids, too
        self.refuse(3, words, train=train, **more)

    def refuse_weights(self, words, edit, tensor=A_TENSOR, code=4, **how):
        weights = self.copy_of(self.weights)
        change(weights, tensor, edit)
        self.refuse(code, words, weights=weights, **how)

    def test_weights_that_are_not_there(self):
        missing = self.folder / "none.h5"
        self.refuse(4, [str(missing)], weights=missing, ranks=2)

    def test_truncated_weights(self):
        weights = self.copy_of(self.weights)
        cut_in_half(weights)
        self.refuse(4, [str(weights)], weights=weights)

    def test_wrong_shape(self):
        self.refuse_weights(
            [f"wrong shape: {A_TENSOR} is (40, 24)", "the model wants (24, 40)"], np.transpose
        )

    def test_missing_tensor(self):
        self.refuse_weights([f"missing: {A_TENSOR}"], lambda values: None)

    def test_names_that_a_terminal_would_obey(self):
        weights = self.copy_of(self.weights)
        with h5py.File(weights, "a") as file:
            file["a\x1b]0;b\x07\r\xffc"] = np.zeros(3, np.float32)
        self.refuse(4, ["unexpected: a\\x1b]0;b\\x07\\x0d\xffc (3)"], weights=weights)
        result = zr.answer("-n", "-i", self.folder / "b\x1b[2J.toml")
        self.assert_code(result, 2)
        self.assertIn("b\\x1b[2J.toml", result.output)
        self.assertNotIn("\x1b", result.output)

    def test_nan_in_weights(self):
        self.refuse_weights(
            [f'"{A_TENSOR}" is nan at index (23, 39)'], lambda values: with_one(values, np.nan)
        )

    def test_loss_that_overflows(self):
        def huge(values):
            return np.full_like(values, 3e38)

        self.refuse_weights(["step 1: loss is ", "nothing was updated"], huge, tensor=HEAD, code=5, ranks=2)

    def test_losses_that_overflow_again_and_again(self):
        weights = self.copy_of(self.weights)
        change(weights, HEAD, lambda values: np.full_like(values, 3e38))
        self.refuse(
            5,
            ["step 3: loss is ", "2 steps in a row were skipped before it", "samples of step 3: "],
            ["optim.on_nonfinite=skip", "optim.max_skips=2"],
            weights=weights,
        )
        skips = [line for line in zr.metrics(self.folder / "run") if line["kind"] == "skip"]
        self.assertEqual([(line["step"], line["in_a_row"]) for line in skips], [(1, 1), (2, 2), (3, 3)])
        self.assertEqual([line["grad_norm"] for line in skips], [None] * 3)
        self.assertEqual(len(skips[-1]["samples"]), len(skips[0]["samples"]))

    def test_damaged_checkpoint(self):
        deck = zr.write_deck(self.folder, self.weights, self.train)
        written = self.folder / "written"
        result = zr.run_zea(2, ["-i", deck, "-d", written, "schedule.steps=2"], written)
        self.assert_code(result, 0)
        shard = zr.checkpoints(written)[0] / "rank-00001.h5"
        flip_a_bit_of_a_tensor(shard)
        self.assert_refused(4, [str(shard)], ["-r", written])

    def test_checkpoint_that_is_not_there(self):
        nothing = self.folder / "nothing"
        self.assert_refused(4, [f"{nothing}: holds no complete checkpoint"], ["-r", nothing])

    def test_other_weights_for_a_run_that_goes_on(self):
        deck = zr.write_deck(self.folder, self.weights, self.train)
        written = self.folder / "written"
        restart = ["-i", deck, "-d", written, "schedule.steps=2", f"model.weights={self.weights}"]
        self.assert_code(zr.run_zea(2, restart, written), 0)
        checkpoint = str(zr.checkpoints(written)[0])
        for override in (
            f"model.weights={self.weights.parent}/other.h5",
            "model.config=other.json",
            'model.load_modules=["llm"]',
            "model.strict=false",
        ):
            with self.subTest(override):
                words = [override.partition("=")[0] + " on a command line with -r", checkpoint]
                self.assert_refused(2, [*words, "start a new run"], ["-r", written, override])
        # The overrides that a script repeats at every start are those that the run began with.
        restart[restart.index("schedule.steps=2")] = "schedule.steps=3"
        self.assert_code(zr.run_zea(2, ["-r", written, *restart], written), 0)
        # The deck of a later start does not count as such.
        (self.folder / "other").mkdir()
        other = zr.write_deck(self.folder / "other", self.folder / "other.h5", self.train)
        more = ["-r", written, "-i", other, "-d", written, "schedule.steps=4"]
        self.assert_code(zr.run_zea(2, more, written), 0)
        restart[restart.index("schedule.steps=3")] = "schedule.steps=5"
        self.assert_code(zr.run_zea(2, ["-r", written, *restart], written), 0)

    def test_token_outside_the_vocabulary(self):
        tokens, mask, items = zr.text_sample(1)
        tokens[3] = zr.VOCABULARY
        self.refuse_samples(["token id 40", "vocabulary of 40"], [(tokens, mask, items)])

    def test_broken_image(self):
        tokens, mask, _ = zr.image_sample(1)
        broken = (tokens, mask, [b"\xff\xd8\xff\xe0 this is no JPEG"])
        self.refuse_samples(["sample 3: image 0: ", "data.bad_items"], [broken], alone=True)

    def test_placeholders_that_do_not_match(self):
        tokens, mask, items = zr.image_sample(1)
        tokens[1] = 5
        words = ["sample 3, modality image: 3 placeholder tokens", "1 images x 4 features"]
        self.refuse_samples(words, [(tokens, mask, items)], ranks=2)  # found while the first steps are planned

    def test_long_sample(self):
        words = ["sample 3 has 42 tokens, more than data.row_tokens = 32"]
        self.refuse_samples(words, [zr.text_sample(1, 40)])

    def test_truncated_data(self):
        train = self.copy_of(self.train)
        cut_in_half(train)
        self.refuse(3, [str(train)], train=train)

    def test_run_directory_in_the_way(self):
        (self.folder / "run").touch()
        self.refuse(7, ["cannot make the run directory", "choose another with -d"])

    def test_log_in_the_way(self):
        (self.folder / "run" / "log.txt").mkdir(parents=True)
        self.refuse(7, ["log.txt: ", "choose another directory"], alone=True)

    def test_wrong_override(self):
        self.refuse(
            2, ["optim.learning_rate is not a key; here it is optim.lr "], ["optim.learning_rate=1"]
        )

    def test_long_clip(self):
        """Raw samples as well as files of sound."""
        config = copy.deepcopy(zr.CONFIG)
        del config["vision_config"]
        config.update(audio_config=AUDIO_CONFIG, audio_token_index=AUDIO_TOKEN)
        with mock.patch.object(zr, "CONFIG", config):
            weights = zr.make_weights(self.folder / "with_audio.h5")
        limit = "data.max_clip_seconds=2"
        for name, sound in (("raw", Clip(samples_of(3), 16000)), ("wav", Clip(wav_of(3)))):
            train = zr.make_dataset(
                self.folder / f"{name}.h5",
                [sample_with(Clip(samples_of(2), 16000)), sample_with(sound), *zr.mixed_samples(9)[2::3]],
                audio_token=AUDIO_TOKEN,
            )
            with self.subTest(name):
                words = ["sample 1: clip 0: ", "lasts longer than the 2 s", "data.bad_items"]
                self.refuse(3, words, [limit], weights=weights, train=train, alone=True)
        deck = zr.write_deck(self.folder, weights, train)
        masked = self.folder / "masked"
        keys = [limit, "data.bad_items=mask", "schedule.steps=2"]
        self.assert_code(zr.run_zea(1, ["-i", deck, "-d", masked, *keys], masked), 0)
        self.assertEqual([line["bad_items"] for line in zr.train_lines(masked)], [1, 1])

    def test_more_memory_than_there_is(self):
        """The limit is one of addresses, 256 GiB: some systems promise more memory than they have. Each rank has a copy
        of its own, which is not in /dev/shm."""
        huge = {**zr.CONFIG["text_config"], "vocab_size": 1 << 30, "hidden_size": 768}
        config = self.folder / "huge.json"
        config.write_text(json.dumps(huge))
        limited = self.folder / "zea"
        limited.write_text(f'#!/bin/sh\nulimit -v {1 << 28} && exec {shlex.quote(str(zr.ZEA))} "$@"\n')
        limited.chmod(0o755)
        train = zr.make_dataset(self.folder / "text.h5", [zr.text_sample(i) for i in range(8)])
        keys = ['model.weights=""', f"model.config={config}", "mesh.llm.strategy=no_shard"]
        words = ["zea: out of memory: ", " bytes for a tensor are not to be had on this host; take fewer tokens"]
        with mock.patch.object(zr, "ZEA", limited):
            self.refuse(7, words, keys, train=train)

    def test_tokens_of_another_model(self):
        """Found out by their texts, as the model's directory has them."""
        vocabulary = {f"{token} ".replace(" ", "\u0120"): token for token in range(zr.VOCABULARY)}
        tokenizer = {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}, "added_tokens": []}
        model = self.folder / "model"
        exported = [zr.ZEA_CONSOLIDATE, self.weights, f"{model}/"]
        done = zr.subprocess.run(exported, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        keys = [f"model.weights={model}", "schedule.steps=2"]

        def run_of(name, code):
            (model / "tokenizer.json").write_text(json.dumps(tokenizer))
            directory, deck = self.folder / name, zr.write_deck(self.folder, model, self.train)
            result = zr.run_zea(2, ["-i", deck, "-d", directory, *keys], directory)
            self.assert_code(result, code)
            return result.output

        self.assertNotIn("tokenizer", run_of("same", 0))
        del vocabulary["2\u0120"]
        vocabulary["</s>"] = 2
        other = run_of("other", 3)
        self.assertIn('packed with another tokenizer than the model\'s', other)
        self.assertIn('the first is 2, "2 " in the data set and "</s>" in the model; sample 0 holds token 2', other)

    def test_names_of_entries(self):
        """Messages about a sample name the entry that it was packed from, and the file of its item."""
        tokens, mask, _ = zr.image_sample(1)
        named = {"name": "talks.json[17]", "item_names": ["pictures/a.jpg"]}
        with zr.DatasetWriter(self.folder / "named.h5", zr.IMAGE_TOKEN) as writer:
            writer.add(tokens, mask[:2] + [1] * (len(mask) - 2), [b"\xff\xd8\xff\xe0 this is no JPEG"], **named)
            writer.add(*zr.text_sample(1))
        joined = self.folder / "joined.h5"
        with h5py.File(self.folder / "named.h5") as file, zr.DatasetWriter(joined, zr.IMAGE_TOKEN) as writer:
            writer.add(*zr.text_sample(2))
            writer.append(file)
        words = ["joined.h5: sample 1 (talks.json[17]): image 0 (pictures/a.jpg): ", "repair the data set"]
        told = "the loss mask covers placeholders of items, first in sample 1 (talks.json[17]) at token 2"
        self.refuse(3, [*words, told], train=joined, alone=True)

    def test_masked_image(self):
        tokens, mask, _ = zr.image_sample(1)
        broken = (tokens, mask, [b"\xff\xd8\xff\xe0 this is no JPEG"])
        # Last and first among equals: so that either rank has it once.
        for place, samples in ((3, [*zr.mixed_samples(3), broken]), (0, [broken, *zr.mixed_samples(3)])):
            train = zr.make_dataset(self.folder / f"bad{place}.h5", samples)
            deck = zr.write_deck(self.folder, self.weights, train)
            directory = self.folder / f"run{place}"

            result = zr.run_zea(
                2,
                ["-i", deck, "-d", directory, "schedule.steps=4", "log.every=2", 'data.bad_items="mask"'],
                directory,
            )

            self.assert_code(result, 0)
            self.assertIn(f"sample {place}, item 0 is masked: ", result.output)
            # Counted over all steps since the line before, of any rank.
            self.assertEqual([line["bad_items"] for line in zr.train_lines(directory)], [2, 2])


zr.main()
