# SPDX-License-Identifier: Apache-2.0
"""A dense model becomes a mixture of experts that gives the same logits in transformers.

check_upcycled.py IMPORT CONSOLIDATE
"""

import subprocess
import sys
import unittest

try:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from folder_case import FolderCase

PROGRAMS = {}
OPTIONS = {"llama": {}, "mistral": {"sliding_window": 7}, "qwen3": {"tie_word_embeddings": True}, "qwen2": {}}


def run(program, *arguments, code=0):
    done = subprocess.run([PROGRAMS[program], *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, f"{program} {arguments}: {done.returncode}: {done.stderr}"
    return done.stderr


class Upcycled(FolderCase):
    def saved(self, family, **changes):
        torch.manual_seed(4)
        options = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6,
                   "pad_token_id": 0, **OPTIONS[family], **changes}
        config = AutoConfig.for_model(family, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
                                      vocab_size=60, **options)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, 0.2 if parameter.dim() == 1 else 0, 0.1)
        folder = self.folder / family
        model.save_pretrained(folder)
        return model.eval(), folder

    def test_gives_the_logits_of_the_dense_model(self):
        ids = torch.arange(48).view(2, 24) * 7 % 60
        for family, mixture in (("llama", "mixtral"), ("mistral", "mixtral"), ("qwen3", "qwen3_moe")):
            with self.subTest(family):
                model, source = self.saved(family)
                weights, out = self.folder / f"{family}.h5", self.folder / f"{family}-moe"
                run("import", source, weights, "--upcycle", 6, "--experts-per-token", 3)
                run("consolidate", weights, f"{out}/")
                found, info = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
                self.assertFalse(info["missing_keys"] or info["mismatched_keys"] or info["unexpected_keys"])
                self.assertEqual(found.config.model_type, mixture)
                self.assertGreater(found.model.layers[0].mlp.gate.weight.std().item(), 0.01)
                with torch.no_grad():
                    expected, logits = model(ids).logits, found.eval()(ids).logits
                self.assertGreater(expected.std().item(), 0.1)
                torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)

    def test_refusals(self):
        weights = self.folder / "w.h5"
        for family, changes, sentence in (
            ("qwen2", {}, 'a model of type "qwen2" has no mixture of experts with its blocks'),
            ("llama", {"mlp_bias": True}, "mlp_bias = true, and mixtures of experts have no such biases"),
        ):
            self.assertIn(sentence, run("import", self.saved(family, **changes)[1], weights, "--upcycle", 4, code=4))
        source = self.saved("llama")[1]
        for arguments, sentence in ((("--upcycle", 1), "--upcycle"),
                                    (("--upcycle", 4, "--experts-per-token", 5), "at most the experts of --upcycle"),
                                    (("--experts-per-token", 2), "--upcycle")):
            self.assertIn(sentence, run("import", source, weights, *arguments, code=2))


if __name__ == "__main__":
    disable_progress_bar()
    torch.set_num_threads(1)
    PROGRAMS.update(zip(("import", "consolidate"), sys.argv[1:3], strict=True))
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
