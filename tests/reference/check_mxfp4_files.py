# SPDX-License-Identifier: Apache-2.0
"""Experts in MXFP4, as gpt-oss is published, are read as the bf16 that transformers makes of them, and written so.

check_mxfp4_files.py IMPORT CONSOLIDATE
"""

import json
import subprocess
import sys
import unittest

try:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    from transformers.utils.logging import disable_progress_bar
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from folder_case import FolderCase

IMPORT, CONSOLIDATE = sys.argv[1:3]
BLOCKS, SCALES = "_blocks", "_scales"


def run(*command, code=0):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode == code, f"{command}: {done.returncode}: {done.stderr}"
    return done.stdout if code == 0 else done.stderr


class Mxfp4Files(FolderCase):
    def setUp(self):
        super().setUp()
        torch.manual_seed(2)
        config = AutoConfig.for_model(
            "gpt_oss", hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=12, vocab_size=160, num_local_experts=4, num_experts_per_tok=2,
            pad_token_id=0, dtype=torch.bfloat16)
        model = AutoModelForCausalLM.from_config(config).bfloat16()
        self.source, self.weights = self.folder / "model", self.folder / "w.h5"
        model.save_pretrained(self.source)
        self.tensors, self.expected = load_file(self.source / "model.safetensors"), {}
        for name in [name for name in self.tensors if name.endswith("_proj")]:
            experts, inputs, outputs = self.tensors.pop(name).shape
            blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(110, 130, blocks.shape[:3], dtype=torch.uint8)
            self.expected[name] = convert_moe_packed_tensors(blocks, scales).contiguous()
            self.tensors |= {name + BLOCKS: blocks, name + SCALES: scales}
        self.assertEqual(len(self.expected), 4)
        self.expected |= {n: tensor for n, tensor in self.tensors.items() if not n.endswith((BLOCKS, SCALES))}
        path = self.source / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": {"quant_method": "mxfp4"}}))
        self.save()

    def save(self):
        save_file(self.tensors, self.source / "model.safetensors")

    def test_experts_become_bf16(self):
        for dtype in ("bf16", "fp32"):  # the directory has the type of the config
            with self.subTest(dtype):
                run(IMPORT, self.source, self.weights, "--dtype", dtype)
                run(CONSOLIDATE, self.weights, f"{self.folder}/{dtype}/")
                found = load_file(self.folder / dtype / "model.safetensors")
                self.assertEqual(sorted(found), sorted(self.expected))
                for name, tensor in self.expected.items():
                    self.assertTrue(torch.equal(tensor, found[name]), name)
                self.assertNotIn("quantization_config", (self.folder / dtype / "config.json").read_text())
                _, info = AutoModelForCausalLM.from_pretrained(self.folder / dtype, output_loading_info=True)
                self.assertFalse(info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"])

    def test_scales_that_are_no_numbers_are_refused(self):
        name = next(name for name in self.tensors if name.endswith(SCALES))
        self.tensors[name][0, 0, 0] = 255
        self.save()
        self.assertIn(name.removesuffix(SCALES), run(IMPORT, self.source, self.weights, code=4))

    def test_blocks_without_scales_are_refused(self):
        name = next(name for name in self.tensors if name.endswith(SCALES))
        del self.tensors[name]
        self.save()
        said = run(IMPORT, self.source, self.weights, code=4)
        self.assertIn(f"unexpected: {name.removesuffix(SCALES)}{BLOCKS}", said)


if __name__ == "__main__":
    disable_progress_bar()
    unittest.main(argv=sys.argv[:1])
