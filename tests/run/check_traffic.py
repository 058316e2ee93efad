# SPDX-License-Identifier: Apache-2.0
"""A plan of the data at hand agrees with the run: what `zea -n` says of bytes that ranks send, of FLOPs and of tensors
is what metrics and log count, for models with encoders and every kind of layout. It opens that data, and compares
layouts by it."""

import copy
import json
import re
from unittest import mock

import zea_run as zr
from dataset_writer import Clip

np = zr.np
STEPS, BATCH = 2, 8
PREDICTED = re.compile(r"bytes that rank 0 sends in a step of .* by group of ranks\n  (.*)\n")
COUNTED = re.compile(r"rank 0 sent per step, by group of ranks: (.*)\n")
FLOPS = re.compile(r"model FLOPs of a step \(.*?\): (\S+) TFLOP")
MEMORY = re.compile(r"(bytes in step 1 on the rank that needs most: .*)\n")

AUDIO_TOKEN = 0  # which no text has
AUDIO = {
    "model_type": "whisper",
    "d_model": 16,
    "encoder_ffn_dim": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "num_mel_bins": 8,
    "max_source_positions": 4,
}
QWEN = {
    "model_type": "qwen2_5_vl",
    "image_token_id": zr.IMAGE_TOKEN,
    "video_token_id": 60,
    "vision_start_token_id": 1,
    "vision_end_token_id": 2,
    "vision_config": {
        "depth": 2,
        "hidden_size": 16,
        "num_heads": 2,
        "intermediate_size": 40,
        "patch_size": 4,
        "out_hidden_size": 24,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    },
    "text_config": {
        "hidden_size": 24,
        "intermediate_size": 44,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 61,
        "use_sliding_window": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 3, 1]},
    },
}


def image_of_any_size(seed):
    """A sample with an image of 2 x 2 to 3 x 5 features, which takes as many tokens."""
    draw = np.random.default_rng(seed)
    high, wide = 2 + seed % 2, 2 + seed % 4
    pixels = draw.integers(0, 256, (8 * high, 8 * wide, 3), dtype=np.uint8)
    tokens = [1, *[zr.IMAGE_TOKEN] * (high * wide), *draw.integers(4, zr.VOCABULARY, 5 + seed % 3).tolist(), 2]
    return tokens, [0] * (1 + high * wide) + [1] * (len(tokens) - 1 - high * wide), [pixels]


def clip_sample(seed):
    text = np.random.default_rng(seed).integers(4, zr.VOCABULARY, 5 + seed % 4).tolist()
    clip = Clip(np.zeros(800 + 100 * seed, np.int16), 16000)
    return [1, *[AUDIO_TOKEN] * 4, *text, 2], [0] * 5 + [1] * (len(text) + 1), [clip]


def mixed(image, count=20):
    """Every third sample is of text alone, and long."""
    return [zr.text_sample(i, 20) if i % 3 == 2 else image(i) for i in range(count)]


class Traffic(zr.ZeaTest):
    def deck_of(self, config, samples, **tokens):
        with mock.patch.object(zr, "CONFIG", config):
            weights = zr.make_weights(self.folder / "weights.h5")
        return zr.write_deck(self.folder, weights, zr.make_dataset(self.folder / "train.h5", samples, **tokens))

    def plan(self, deck, ranks, *keys):
        result = zr.answer("-n", "--ranks", ranks, "-i", deck, *keys)
        self.assert_code(result, 0)
        return result.output

    def assert_agrees(self, deck, ranks, *overrides):
        """The plan beforehand, in the log of the run, and counted."""
        keys = [f"schedule.steps={STEPS}", f"schedule.global_batch={BATCH}", "data.shuffle=true", "log.every=1"]
        keys += ["checkpoint.at_end=false", *overrides]
        plan = self.plan(deck, ranks, *keys)
        result = self.run_in(self.folder / "-".join([str(ranks), *overrides]), ranks, "-i", deck, *keys)

        predicted, counted = PREDICTED.search(plan).group(1), COUNTED.search(result.output).group(1)
        self.assertEqual(counted, predicted)
        self.assertEqual(PREDICTED.search(result.output).group(1), predicted)
        lines = zr.train_lines(result.directory)
        flops = [line["model_tflops"] * ranks * BATCH / line["samples_per_second"] for line in lines]
        self.assertAlmostEqual(sum(flops) / STEPS / float(FLOPS.search(plan).group(1)), 1, delta=1e-3)
        first = MEMORY.search(self.plan(deck, ranks, *keys, "schedule.steps=1", "optim.warmup_steps=0"))
        self.assertIn(first.group(1), result.output)
        return plan, lines

    def test_images_and_text(self):
        deck = self.deck_of(zr.CONFIG, mixed(zr.image_sample))
        shard = "mesh.vision.strategy=full_shard"
        plan, lines = self.assert_agrees(deck, 4, shard)
        self.assertIn("vision.dp_shard", PREDICTED.search(plan).group(1))
        sent = sum(sum(line["sent_bytes"].values()) for line in lines) / STEPS
        self.assertIn(f"together {sent / 2**20:.2f} MiB", plan)
        self.assert_agrees(deck, 2, "mesh.vision.tp=2", "mesh.llm.tp=2")
        # Two replicas whose encoder has ranks of its own.
        keys = ["mesh.placement=disjoint", "mesh.vision.encoder_dp=1", shard]
        plan, _ = self.assert_agrees(deck, 4, *keys)
        self.assertNotIn(" 0.00 MiB sent", plan)
        self.assertIn("vision.pp0>llm.pp0 outputs", PREDICTED.search(plan).group(1))

    def test_images_of_any_size(self):
        deck = self.deck_of(QWEN, mixed(image_of_any_size))
        size = "data.resized_min_pixels=64"
        plan, _ = self.assert_agrees(deck, 4, size)
        self.assertIn("vision.dp_shard", PREDICTED.search(plan).group(1))
        self.assert_agrees(deck, 2, size, "mesh.llm.pp=2")

    def test_audio(self):
        config = copy.deepcopy(zr.CONFIG)
        config.update(audio_config=AUDIO, audio_token_index=AUDIO_TOKEN)
        samples = [clip_sample(i) if i % 2 else zr.image_sample(i) for i in range(16)]
        deck = self.deck_of(config, samples, audio_token=AUDIO_TOKEN)
        cp = [f"mesh.{module}.{key}" for module in ("vision", "audio", "llm") for key in ("cp=2", "cp_block=8")]
        plan, _ = self.assert_agrees(deck, 2, *cp)
        self.assertIn("audio.cp_outer", PREDICTED.search(plan).group(1))

    def test_one_rank_sends_nothing_and_says_nothing(self):
        deck = zr.write_inputs(self.folder, [zr.text_sample(i) for i in range(12)])
        result = self.run_in(self.folder / "run", 1, "-i", deck, "schedule.steps=2")

        self.assertNotRegex(result.output, PREDICTED)
        self.assertNotRegex(result.output, COUNTED)
        self.assertNotIn("sent_bytes", zr.train_lines(result.directory)[0])


class PlannedData(zr.ZeaTest):
    """zea -n opens the data that is there, and refuses what a run would refuse."""

    def setUp(self):
        super().setUp()
        self.deck = zr.write_inputs(self.folder, zr.mixed_samples(8))

    def plan(self, code, *arguments, ranks=2):
        result = zr.answer("-n", "--ranks", ranks, "-i", self.deck, *arguments)
        self.assert_code(result, code)
        return result.output

    def test_says_what_a_step_has(self):
        text = self.plan(0, "data.row_tokens=16", "schedule.steps=3")
        first = r"(?m)^steps 1 to 3 of data\.train \(.*train\.h5, 8 samples\)\n  a step has on average 4 samples, "
        self.assertRegex(text, first)
        self.assertRegex(text, r"2 microbatches on each of 2 replicas, rows filled to \d+ %")
        self.assertLess(text.index("bytes that rank 0 sends"), text.index("[schedule]"))  # the deck comes last

    def test_refuses_what_a_run_would_refuse(self):
        readme = self.folder / "README.md"
        readme.write_text("# No data\n")
        self.assertIn("README.md", self.plan(3, f"data.train={readme}"))
        self.assertIn("more than data.row_tokens = 8", self.plan(3, "data.row_tokens=8"))
        self.assertIn("README.md", self.plan(3, f"data.eval={readme}"))
        wrong = zr.make_dataset(self.folder / "wrong.h5", [([1, zr.IMAGE_TOKEN, 5, 2], [0, 0, 1, 1], [])])
        self.assertIn("placeholder", self.plan(3, f"data.train={wrong}"))

    def test_names_data_that_is_missing(self):
        for key in ("data.train", "data.eval"):
            with self.subTest(key):
                self.assertIn(f'note: {key} = "none.h5" is not there yet', self.plan(0, f"{key}=none.h5"))
        text = self.plan(0, "data.train=none.h5")
        self.assertIn("made-up samples, 4 a step of 32 tokens each, with an image (vision, 4 tokens) and text", text)

    def test_goes_on_where_the_run_is(self):
        run = self.folder / "run"
        self.run_in(run, 1, "-i", self.deck, "schedule.steps=2")
        result = zr.answer("-n", "-r", run, "schedule.steps=3")
        self.assert_code(result, 0)
        self.assertRegex(result.output, r"(?m)^step 3 of data\.train")

    def test_evaluations_read_their_own_data(self):
        text = self.plan(0, "run.mode=evaluate", f"data.eval={self.folder / 'train.h5'}", "data.train=none.h5")
        self.assertRegex(text, r"(?m)^batches 1 to 2 of data\.eval")
        self.assertNotIn("not there yet", text)

    def test_names_idle_ranks(self):
        warning = "warning: 2 of 6 ranks have nothing to compute: 4 samples of a batch for 6 replicas"
        self.assertIn(warning, self.plan(0, ranks=6))

    def test_a_deck_without_its_option(self):
        result = zr.answer("-n", self.deck)
        self.assert_code(result, 2)
        self.assertIn(f"a deck is given by -i: -i {self.deck}", result.output)

    def test_compares_layouts(self):
        other = self.folder / "other.toml"
        other.write_text(self.deck.read_text() + "[mesh.llm]\nstrategy = \"no_shard\"\n")
        layouts = ["mesh.llm.tp=2", "mesh.llm.tp=3", "mesh.llm.tp=2 mesh.vision.tp=2", other, "schedule.global_batch=8"]
        text = self.plan(0, "schedule.steps=2", "--compare", *layouts)
        self.assertIn(f"layouts, compared by steps 1 to 2 of data.train ({self.folder / 'train.h5'}, 8 samples)", text)
        self.assertRegex(text, r"\[3\] mesh\.llm\.tp=3: refused: .*tp = 3")
        other_batch = r"\[6\] schedule\.global_batch=8: refused: schedule\.global_batch is 8, and 4 in the first"
        self.assertRegex(text, other_batch)
        cells = [re.split(" {2,}", row.strip()) for row in text.splitlines()]
        rows = {name: values for name, *values in cells}
        self.assertEqual(rows["replicas"], ["2", "1", "1", "2"])
        self.assertEqual(len(set(rows["MiB that rank 0 sends"])), 4)
        sent = re.search(r"together (\S+) MiB", self.plan(0, "schedule.steps=2", "mesh.llm.tp=2")).group(1)
        self.assertAlmostEqual(float(rows["MiB that rank 0 sends"][1]), float(sent), delta=0.006)
        self.assertNotIn("[run]", text)


if __name__ == "__main__":
    zr.main()
