# SPDX-License-Identifier: Apache-2.0
"""Weights in the formats of gpt-oss (MXFP4), DeepSeek-V3 (FP8) and Kimi-K2.5 (int4) are read as bf16 and exported in
bf16. Scales are in other files than their codes.

check_quantized_files.py IMPORT CONSOLIDATE ZEA JOBS MPIRUN_IN_ONE_ARGUMENT [unittest arguments]
"""

import json
import shlex
import shutil
import sys
import unittest

try:
    import h5py  # noqa: F401
    import numpy as np
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    from transformers.utils.logging import disable_progress_bar
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from folder_case import FolderCase
from kimi_k25_cases import KimiK25Published
from parity_cases import grid
from transformers_models import run

IMPORT, CONSOLIDATE, ZEA, JOBS, MPIRUN = sys.argv[1:6]
sys.path.insert(0, JOBS)
from dataset_writer import DatasetWriter  # noqa: E402

PLACEHOLDER = KimiK25Published.placeholder
LAYOUT = grid("llm", tp=2, ep=2, strategy="full_shard")
NARROW = {"vocab_size": 96, "pad_token_id": 0, "num_hidden_layers": 2, "num_attention_heads": 4}


def bits(tensor):
    """Returns the bits of a bf16 tensor, which distinguish 0 from -0."""
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


class QuantizedFiles:
    """A subclass, one for each format, defines:
    make_model()              returns a tiny model
    save(model, folder)       writes the directory of a model
    quantized(name, tensor)   returns the decoded bf16 tensor and the stored tensors by name; None: not quantized
    said                      quantization_config; `part` names the section of the config that has it
    """

    part = None

    def setUp(self):
        super().setUp()
        torch.manual_seed(2)
        self.model = self.make_model().bfloat16()
        self.twin, self.source = self.folder / "twin", self.folder / "model"
        self.save(self.model, self.twin)
        self.expected, parts = {}, ({}, {})
        for name, tensor in load_file(self.twin / "model.safetensors").items():
            decoded, stored = self.quantized(name, tensor) or (tensor, {name: tensor})
            self.expected[name] = decoded
            for each, value in stored.items():
                parts["_scale" in each][each] = value
        self.assertGreater(len(parts[1]), 3)
        shutil.copytree(self.twin, self.source)
        (self.source / "model.safetensors").unlink()
        for number, part in enumerate(parts):
            save_file(part, self.source / f"{number}.safetensors")
        files = {name: f"{number}.safetensors" for number, part in enumerate(parts) for name in part}
        (self.source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
        save_file(self.expected, self.twin / "model.safetensors")
        config = json.loads((self.source / "config.json").read_text())
        (config[self.part] if self.part else config)["quantization_config"] = self.said
        (self.source / "config.json").write_text(json.dumps(config))

    @staticmethod
    def save(model, folder):
        model.save_pretrained(folder)

    def test_are_read_and_written_in_bf16(self):
        for dtype in ("bf16", "fp32"):  # the exported directory has the dtype of the config
            with self.subTest(dtype):
                run(IMPORT, self.source, self.folder / "w.h5", "--dtype", dtype)
                run(CONSOLIDATE, "--force", self.folder / "w.h5", f"{self.folder}/{dtype}/")
                found = load_file(self.folder / dtype / "model.safetensors")
                self.assertEqual(sorted(found), sorted(self.expected))
                for name, tensor in self.expected.items():
                    self.assertTrue(torch.equal(bits(tensor), bits(found[name])), name)
                self.assertNotIn("quantization_config", (self.folder / dtype / "config.json").read_text())
                _, info = type(self.model).from_pretrained(self.folder / dtype, output_loading_info=True)
                self.assertFalse(info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"])

    def train(self, weights, name):
        """Trains two steps on four ranks, each of which reads its shards. Returns the losses and the weights."""
        keys = [f'model.weights="{weights}"', *LAYOUT]
        run(*shlex.split(MPIRUN), "-n", 4, ZEA, "-i", self.folder / "deck.toml", "-d", self.folder / name, *keys)
        run(CONSOLIDATE, self.folder / name, self.folder / f"{name}.safetensors")
        lines = map(json.loads, (self.folder / name / "metrics.jsonl").read_text().splitlines())
        return [line["loss"] for line in lines if "loss" in line], load_file(self.folder / f"{name}.safetensors")

    def plan(self, weights):
        """Returns the plan without the note that a config.json has no weights."""
        text = run(ZEA, "-n", "--ranks", 4, "-i", self.folder / "deck.toml", f'model.weights="{weights}"', *LAYOUT)
        lines = text.replace(str(weights), "WEIGHTS").splitlines()
        return "\n".join(line for line in lines if not line.startswith("note: "))

    def test_train_as_their_twin_in_bf16(self):
        random = np.random.default_rng(3)
        with DatasetWriter(self.folder / "data.h5", PLACEHOLDER) as writer:
            for length in (9, 17, 5, 12):
                writer.add(random.integers(6, 96, length).tolist(), [1] * length)
        (self.folder / "deck.toml").write_text(
            f'[data]\ntrain = "{self.folder}/data.h5"\nrow_tokens = 32\n[optim]\nlr = 0.01\n'
            "[schedule]\nsteps = 2\nglobal_batch = 4\n[checkpoint]\nevery = 2\n"
        )
        (losses, weights), (expected_losses, expected) = (
            self.train(folder, f"{folder.name}-run") for folder in (self.source, self.twin)
        )
        self.assertEqual(len(losses), 2)
        self.assertEqual(losses, expected_losses)
        self.assertEqual(sorted(weights), sorted(expected))
        for name, tensor in expected.items():
            self.assertTrue(torch.equal(tensor, weights[name]), name)
        config = self.folder / "config"  # a plan needs no weights
        config.mkdir()
        for file in self.source.glob("*config.json"):
            shutil.copy(file, config)
        plans = [self.plan(folder) for folder in (self.source, self.twin, config)]
        self.assertIn("rank 3", plans[0])
        self.assertEqual(plans[0], plans[1])
        self.assertEqual(plans[0], plans[2])


class Mxfp4Files(QuantizedFiles, FolderCase):
    said = {"quant_method": "mxfp4"}

    @staticmethod
    def make_model():
        config = AutoConfig.for_model(
            "gpt_oss", hidden_size=64, intermediate_size=32, num_key_value_heads=2, head_dim=12, num_local_experts=4,
            num_experts_per_tok=2, **NARROW)
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)

    @staticmethod
    def quantized(name, tensor):
        if not name.endswith("_proj"):
            return None
        experts, inputs, outputs = tensor.shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
        scales = torch.randint(110, 125, blocks.shape[:3], dtype=torch.uint8)
        decoded = convert_moe_packed_tensors(blocks, scales).contiguous()
        return decoded, {f"{name}_blocks": blocks, f"{name}_scales": scales}


class Fp8Files(QuantizedFiles, FolderCase):
    """The last blocks of rows and columns are partial, which transformers does not read; whole blocks are compared with
    its decoding."""

    rows, columns = 16, 24
    said = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [rows, columns]}
    compared = 0

    @staticmethod
    def make_model():
        config = AutoConfig.for_model(
            "deepseek_v3", hidden_size=72, intermediate_size=48, num_key_value_heads=4, q_lora_rank=20, kv_lora_rank=14,
            qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=12, n_routed_experts=4, num_experts_per_tok=2,
            n_group=2, topk_group=1, moe_intermediate_size=40, n_shared_experts=1, first_k_dense_replace=1, **NARROW)
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)

    def quantized(self, name, tensor):
        if ".layers." not in name or tensor.dim() < 2 or name.endswith("mlp.gate.weight"):
            return None
        codes = torch.randint(0, 254, tensor.shape, dtype=torch.uint8)
        codes = (codes + (codes >= 127)).view(torch.float8_e4m3fn)  # all codes except NaN
        blocks = [-(-size // block) for size, block in zip(tensor.shape, (self.rows, self.columns))]
        scales = (0.5 + torch.rand(blocks)) / 1000
        scales = scales.bfloat16() if "o_proj" in name else scales
        whole = scales.float().repeat_interleave(self.rows, 0).repeat_interleave(self.columns, 1)
        decoded = (codes.float() * whole[: tensor.shape[0], : tensor.shape[1]]).bfloat16()
        if tensor.shape[0] % self.rows == 0 and tensor.shape[1] % self.columns == 0:
            theirs = Fp8Dequantize(None)._dequantize_one(codes, scales, torch.bfloat16)
            self.assertTrue(torch.equal(bits(theirs), bits(decoded)), name)
            self.compared += 1
        return decoded, {name: codes, f"{name}_scale_inv": scales}

    def test_are_read_and_written_in_bf16(self):
        self.assertGreater(self.compared, 1)
        super().test_are_read_and_written_in_bf16()


class Int4Files(QuantizedFiles, FolderCase):
    """Experts as in published files of Kimi-K2.5, whose text_config has the quantization_config."""

    part, group = "text_config", 32
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": group}
    said = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}, "ignore": ["lm_head"],
    }

    @staticmethod
    def make_model():
        return KimiK25Published.model(text={"hidden_size": 64, "moe_intermediate_size": 64, "n_routed_experts": 4,
                                            "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2})

    @staticmethod
    def save(model, folder):
        model.save_pretrained(folder)
        KimiK25Published.spell_as_published(folder)
        (folder / "preprocessor_config.json").write_text(json.dumps(KimiK25Published.said_of_images))

    def quantized(self, name, tensor):
        if ".experts." not in name:
            return None
        self.assertRegex(name, r"^language_model\.model\.layers\.\d+\.mlp\.experts\.\d+\.\w+_proj\.weight$")
        codes = torch.randint(-8, 8, tensor.shape)
        packed = ((codes + 8).unflatten(1, (-1, 8)) << torch.arange(0, 32, 4)).sum(-1)
        packed = torch.from_numpy(packed.numpy().astype(np.uint32).view(np.int32))
        scales = (torch.rand(tensor.shape[0], tensor.shape[1] // self.group) / 40).bfloat16()
        decoded = codes.bfloat16() * scales.repeat_interleave(self.group, 1)
        shape = torch.tensor(tensor.shape)
        return decoded, {f"{name}_packed": packed, f"{name}_scale": scales, f"{name}_shape": shape}


if __name__ == "__main__":
    disable_progress_bar()
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *sys.argv[6:]])
