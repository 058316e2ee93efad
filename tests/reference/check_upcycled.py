# SPDX-License-Identifier: Apache-2.0
"""A dense model becomes a mixture of experts that gives the same logits in transformers.

check_upcycled.py IMPORT CONSOLIDATE
"""

import json
import subprocess
import sys
import unittest

try:
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        CLIPVisionConfig,
        LlavaConfig,
    )
    from transformers.utils.logging import disable_progress_bar
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from folder_case import FolderCase

PROGRAMS = {}
OPTIONS = {
    "llama": {},
    "mistral": {"sliding_window": 7},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": True, "attention_bias": True},
}


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
        return self.drawn(AutoModelForCausalLM.from_config(config), self.folder / family)

    def drawn(self, model, folder):
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, 0.2 if parameter.dim() == 1 else 0, 0.1)
        model.save_pretrained(folder)
        return model.eval(), folder

    def saved_llava(self, family):
        text = self.saved(family)[0].config
        tower = CLIPVisionConfig(hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
                                 image_size=16, patch_size=8)
        config = LlavaConfig(vision_config=tower, text_config=text, image_token_index=5)
        return self.drawn(AutoModelForImageTextToText.from_config(config), self.folder / f"{family}-llava")

    def check(self, kind, model, source, mixture):
        weights, out = self.folder / "moe.h5", self.folder / "moe"
        weights.unlink(missing_ok=True)
        run("import", source, weights, "--upcycle", 6, "--experts-per-token", 3)
        run("consolidate", "--force", weights, f"{out}/")
        found, info = kind.from_pretrained(out, output_loading_info=True)
        self.assertFalse(info["missing_keys"] or info["mismatched_keys"] or info["unexpected_keys"])
        self.assertEqual(found.config.get_text_config().model_type, mixture)
        routers = [value for name, value in found.named_parameters() if name.endswith(".mlp.gate.weight")]
        self.assertEqual(len(routers), 2)
        self.assertGreater(routers[0].std().item(), 0.01)
        ids = torch.arange(48).view(2, 24) * 7 % 60
        ids[ids == 5] = 6  # a placeholder of the LLaVA
        with torch.no_grad():
            expected, logits = model(ids).logits, found.eval()(ids).logits
        self.assertGreater(expected.std().item(), 0.1)
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
        return found

    def test_gives_the_logits_of_the_dense_model(self):
        for family, mixture in (("llama", "mixtral"), ("qwen3", "qwen3_moe")):
            with self.subTest(family):
                self.check(AutoModelForCausalLM, *self.saved(family), mixture)

    def test_gives_the_logits_of_a_llava(self):
        for family, mixture in (("mistral", "mixtral"), ("qwen3", "qwen3_moe")):
            with self.subTest(family):
                model, source = self.saved_llava(family)
                found = self.check(AutoModelForImageTextToText, model, source, mixture).state_dict()
                for name, tensor in model.state_dict().items():
                    if ".mlp." not in name or "vision" in name:
                        self.assertTrue(torch.equal(tensor, found[name]), name)

    def test_writes_what_a_config_leaves_to_the_defaults_of_its_family(self):
        """Published configs do; those of the mixtures are others."""
        model, source = self.saved("llama", num_key_value_heads=None, max_position_embeddings=2048)
        config = json.loads((source / "config.json").read_text())
        for key in ("rope_parameters", "rms_norm_eps", "num_key_value_heads", "max_position_embeddings"):
            del config[key]
        (source / "config.json").write_text(json.dumps(config))
        self.check(AutoModelForCausalLM, model, source, "mixtral")

    def test_refusals(self):
        weights = self.folder / "w.h5"
        for family, changes, sentence in (
            ("qwen2", {}, 'a model of type "qwen2" has no mixture of experts with its blocks'),
            ("llama", {"mlp_bias": True}, "mlp_bias = true, and mixtures of experts have no such biases"),
            ("llama", {"attention_bias": True}, "attention_bias = true, and mixtures of experts have no such biases"),
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
