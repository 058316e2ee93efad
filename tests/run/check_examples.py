# SPDX-License-Identifier: Apache-2.0
"""The example decks of large models train, with the same families at a small size."""

import json
import math
from pathlib import Path

import zea_run as zr

INPUTS = Path(__file__).parents[2] / "inputs"
IMAGE_TOKEN = 3
# Sizes that are smaller than in the model's own config.json.
SMALL_LLAVA = {
    "image_token_index": IMAGE_TOKEN,
    "vision_config": {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 8,
        "patch_size": 4,
    },
    "text_config": {
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "vocab_size": zr.VOCABULARY,
        "eos_token_id": 2,
    },
}
SMALL_GPT2 = {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 16, "vocab_size": 40}


def shrunk(config, small):
    for key, value in small.items():
        assert key in config, key
        if isinstance(value, dict):
            shrunk(config[key], value)
        else:
            config[key] = value
    return config


def with_class_token(seed):
    """The example keeps CLIP's class token: one more feature than patches."""
    tokens, mask, items = zr.image_sample(seed)
    return [tokens[0], IMAGE_TOKEN, *tokens[1:]], [0, *mask], items


class Examples(zr.ZeaTest):
    def prepare(self, name, small, samples):
        config = json.loads((INPUTS / f"{name}.json").read_text())
        (self.folder / "config.json").write_text(json.dumps(shrunk(config, small)))
        self.weights = self.folder / "weights.h5"
        zr.subprocess.run(
            [zr.ZEA_IMPORT, "--random", self.folder / "config.json", self.weights],
            check=True,
            timeout=60,
            capture_output=True,
        )
        self.data = zr.make_dataset(self.folder / "train.h5", samples)

    def train(self, deck, *overrides):
        directory = self.folder / deck
        keys = [
            f"model.weights={self.weights}",
            'model.config=""',
            f"data.train={self.data}",
            "schedule.steps=3",
            "schedule.global_batch=8",
            *overrides,
        ]
        arguments = ["-i", INPUTS / f"{deck}.toml", "-d", directory, *keys]
        result = zr.run_zea(2, arguments, directory)
        return result

    def check_trains(self, deck, *overrides):
        result = self.train(deck, *overrides)
        self.assert_code(result, 0)
        losses = list(result.losses().values())
        self.assertEqual(len(losses), 3)
        self.assertLess(abs(losses[0] - math.log(zr.VOCABULARY)), 0.5)
        self.assertNotEqual(losses[0], losses[2])
        return result

    def test_clip_and_llama(self):
        samples = [with_class_token(seed) for seed in range(12)]
        self.prepare("clip_b32_llama_1b", SMALL_LLAVA, samples)
        self.check_trains("clip_b32_llama_1b_ddp")
        self.check_trains("clip_b32_llama_1b_fsdp")

    def test_gpt2(self):
        self.prepare("gpt2_124m", SMALL_GPT2, [zr.text_sample(seed, 12) for seed in range(12)])
        result = self.check_trains("gpt2_124m_fsdp", "mesh.dp_shard=2")
        self.assertIn("dropout", result.output)

    def test_a_sample_beyond_the_learned_positions(self):
        self.prepare("gpt2_124m", SMALL_GPT2, [zr.text_sample(seed, 15) for seed in range(12)])
        result = self.train("gpt2_124m_fsdp", "mesh.dp_shard=2")
        self.assert_code(result, 3)
        self.assertIn("17 tokens, more than the model's 16 learned positions", result.output)

    def test_a_sample_beyond_the_positions_of_dynamic_scaling(self):
        dynamic = {"max_position_embeddings": 16, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}
        small = {**SMALL_LLAVA, "text_config": {**SMALL_LLAVA["text_config"], **dynamic}}
        self.prepare("clip_b32_llama_1b", small, [zr.text_sample(seed, 14) for seed in range(12)])
        self.assert_code(self.train("clip_b32_llama_1b_ddp"), 0)

        self.data = zr.make_dataset(self.folder / "long.h5", [zr.text_sample(seed, 15) for seed in range(12)])
        result = self.train("clip_b32_llama_1b_fsdp")
        self.assert_code(result, 3)
        self.assertIn(
            "17 tokens, more than the model's 16 positions (max_position_embeddings), beyond which dynamic rotary",
            result.output,
        )

    def test_generating_beyond_the_learned_positions(self):
        """The last token that is generated needs no position; prompts alone count, of what is used."""
        short, long = zr.text_sample(1, 12), zr.text_sample(2, 12)
        prompt_only = zr.text_sample(4, 13, learnt=0)
        self.prepare("gpt2_124m", SMALL_GPT2, [(short[0], [0] * 4 + [1] * 10, [])] * 4)
        held_out = [
            (short[0], [0] * 9 + [1] * 5, []),
            prompt_only,
            (long[0], [0] * 11 + [1] * 3, []),
        ]
        evaluated = zr.make_dataset(self.folder / "eval.h5", held_out)
        keys = ["mesh.dp_shard=2", f"data.eval={evaluated}", "run.mode=evaluate"]

        refused = self.train("gpt2_124m_fsdp", *keys, "eval.generate_tokens=7")
        self.assert_code(refused, 3)
        self.assertIn(
            "eval.h5: sample 2 has a prompt of 11 tokens, to which eval.generate_tokens = 7 are more "
            "than the model's 16 learned positions (n_positions) hold; generate 6 at most",
            refused.output,
        )
        self.assert_code(self.train("gpt2_124m_fsdp", *keys, "eval.generate_tokens=6"), 0)
        keys += ["eval.generate_tokens=8", "eval.samples=2"]
        self.assert_code(self.train("gpt2_124m_fsdp", *keys), 0)
        predictions = zr.predictions(self.folder / "gpt2_124m_fsdp")
        self.assertEqual([line["sample"] for line in predictions], [0])


zr.main()
