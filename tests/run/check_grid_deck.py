# SPDX-License-Identifier: Apache-2.0
"""The example deck of grids, with the quickstart's model: four ranks learn what one rank learns, and
generate what it generates."""

import subprocess
from pathlib import Path

import numpy as np
import zea_run as zr

INPUTS = Path(__file__).parents[2] / "inputs"
FEATURES, IMAGE_SIZE, VOCABULARY, IMAGE_TOKEN = 16, 28, 384, 3
BATCH, STEPS = 12, 6
# Overrides that reduce the deck's grids to one rank.
ONE_RANK = [
    "mesh.vision.tp=1",
    "mesh.llm.tp=1",
    'mesh.llm.sequence_parallel="auto"',
    "mesh.llm.cp=1",
    'mesh.llm.cp_mode="allgather_kv"',
    "mesh.llm.cp_block=128",
]


def samples():
    """Pictures of ten kinds with a question and the kind's text, every fourth without a picture."""
    draw = np.random.default_rng(7)
    kinds = draw.integers(0, 256, (10, IMAGE_SIZE, IMAGE_SIZE, 1))
    answers = draw.integers(4, VOCABULARY, (10, 6)).tolist()
    for number in range(BATCH * STEPS):
        kind = int(draw.integers(10))
        noise = draw.integers(-20, 21, kinds[kind].shape)
        pixels = np.clip(kinds[kind] + noise, 0, 255).astype(np.uint8)
        images = [] if number % 4 == 3 else [pixels] * (1 + number % 2)
        prompt = [1, *[IMAGE_TOKEN] * FEATURES * len(images)]
        prompt += draw.integers(4, VOCABULARY, 3 + number % 5).tolist()
        answer = [*answers[kind], 2]
        yield prompt + answer, [0] * len(prompt) + [1] * len(answer), images


class GridDeck(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        self.weights = self.folder / "weights.h5"
        config = INPUTS / "fashion_captions_2m.json"
        import_command = [zr.ZEA_IMPORT, "--random", config, "--seed", "1", self.weights]
        subprocess.run(import_command, check=True, timeout=60)
        names = [b""] * 4 + [f"{token} ".encode() for token in range(4, VOCABULARY)]
        self.data = zr.make_dataset(self.folder / "data.h5", samples(), token_bytes=names)

    def train(self, name, ranks, *keys):
        directory = self.folder / name
        overrides = [
            f"model.weights={self.weights}",
            f"data.train={self.data}",
            f"data.eval={self.data}",
            f"schedule.steps={STEPS}",
            f"schedule.global_batch={BATCH}",
            "optim.warmup_steps=2",
            f"eval.every={STEPS}",
            "eval.samples=6",
            "eval.generate_tokens=5",
            "log.every=1",
        ]
        deck = INPUTS / "fashion_captions_2m_grid.toml"
        result = zr.run_zea(ranks, ["-i", deck, "-d", directory, *overrides, *keys], directory)
        self.assert_code(result, 0)
        return result, zr.predictions(directory)

    def test_four_ranks_learn_what_one_learns(self):
        one, expected = self.train("one", 1, *ONE_RANK)
        four, found = self.train("four", 4)

        losses = one.losses()
        self.assertEqual(list(losses), list(range(1, STEPS + 1)))
        self.assertLess(losses[STEPS], losses[1] - 0.5)
        for step, loss in four.losses().items():
            self.assertAlmostEqual(loss, losses[step], delta=2e-5 * losses[step], msg=f"step {step}")
        self.assertEqual(four.losses().keys(), losses.keys())
        self.assertEqual(len(expected), 6)
        self.assertEqual(found, expected)


zr.main()
