# SPDX-License-Identifier: Apache-2.0
"""LoRA as PEFT has it: its adapters come in, loss, logits and gradients are PEFT's, and what goes out, adapters
and the merged model, computes the same there.

check_adapters.py RUN_MODEL ZEA CONSOLIDATE JOBS [unittest arguments]
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import h5py
    import numpy as np
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        GPT2Config,
        LlavaConfig,
        LlavaForConditionalGeneration,
    )
    from transformers.utils.logging import disable_progress_bar
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from transformers_models import (
    TEXT,
    VOCABULARY,
    check_gradients,
    datasets,
    file_name,
    normalised,
    perturbed,
    reference,
    run,
)

RUN_MODEL, ZEA, CONSOLIDATE, JOBS = sys.argv[1:5]
sys.path.insert(0, JOBS)
from dataset_writer import DatasetWriter  # noqa: E402

IMAGE_TOKEN, IMAGE_SIZE, PATCHES = 5, 24, 9
MEAN, STD = [0.48, 0.45, 0.4], [0.27, 0.26, 0.28]


def make_llava():
    vision = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3}
    config = LlavaConfig(
        vision_config=AutoConfig.for_model("clip_vision_model", image_size=IMAGE_SIZE, patch_size=8, **vision),
        text_config=AutoConfig.for_model("llama", **TEXT),
        image_token_index=IMAGE_TOKEN,
    )
    return LlavaForConditionalGeneration(config)


def make_decoder(family, **more):
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**TEXT, **more}))


def make_gpt2():
    config = GPT2Config(
        n_embd=32, n_layer=2, n_head=4, n_positions=24, vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0
    )
    return AutoModelForCausalLM.from_config(config).eval()  # whose config has dropout


def make_samples(has_images):
    random = np.random.default_rng(3)
    samples = []
    for number in range(6):
        images = number % 3 if has_images else 0
        tokens = random.integers(6, VOCABULARY, size=4).tolist()
        prompt = tokens[:2] + [IMAGE_TOKEN] * PATCHES * images + tokens[2:]
        answer = random.integers(6, VOCABULARY, size=5 + number).tolist()
        pixels = random.integers(0, 256, size=(images, IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
        samples.append((prompt + answer, [0] * len(prompt) + [1] * len(answer), pixels))
    return samples


def reference_of(model, samples, named_parameters=()):
    def logits_of(tokens, mask, pixels):
        images = {"pixel_values": normalised(pixels, MEAN, STD)} if len(pixels) else {}
        return model(input_ids=torch.tensor([tokens]), use_cache=False, **images).logits[0]

    return reference(samples, logits_of, named_parameters)


class Adapters(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)

    def tearDown(self):
        self.temporary.cleanup()

    def save(self, model, peft_config, samples):
        """The base model, PEFT's adapters of it and the data; returns the model with adapters."""
        perturbed(model).save_pretrained(self.folder / "base")
        adapted = get_peft_model(model, peft_config).eval()
        perturbed(adapted)  # of these the adapters alone train
        adapted.save_pretrained(self.folder / "adapter")
        with DatasetWriter(self.folder / "data.h5", IMAGE_TOKEN) as writer:
            for tokens, mask, pixels in samples:
                writer.add(tokens, mask, pixels)
        (self.folder / "deck.toml").write_text(
            f'[model]\nweights = "{self.folder}/base"\n'
            f'[data]\ntrain = "{self.folder}/data.h5"\nrow_tokens = 64\n'
            f"rows_per_microbatch = 2\nimage_mean = {MEAN}\nimage_std = {STD}\n"
        )
        return adapted

    def check_logits(self, expected, found, atol=1e-5):
        self.assertEqual(sorted(expected), sorted(found))
        for row, values in expected.items():
            np.testing.assert_allclose(found[row], values, rtol=1e-5, atol=atol, err_msg=str(row))

    def check(self, model, modules, **lora):
        samples = make_samples("vision" in modules)
        multimodal = isinstance(model, LlavaForConditionalGeneration)
        adapted = self.save(model, LoraConfig(**lora), samples)

        def name_of(name):
            name = name.removeprefix("base_model.model.").replace(".base_layer", "").replace(".default", "")
            return file_name(name, multimodal)

        named = [(name_of(name), parameter) for name, parameter in adapted.named_parameters()]
        loss, logits, gradients = reference_of(adapted, samples, named)

        # zea starts from PEFT's adapters...
        run_directory, deck = self.folder / "run", self.folder / "deck.toml"
        keys = [f"model.{module}.lora.weights={self.folder}/adapter" for module in modules]
        if modules == ["vision"]:
            keys += ["model.llm.train=false", "model.vision.train_projector=false"]
        if modules == ["llm"] and multimodal:
            keys += ["model.vision.train=false", "model.vision.train_projector=false"]
        run(ZEA, "-i", deck, "-d", run_directory, "schedule.steps=0", *keys)
        # ... and computes what PEFT does.
        state = self.folder / "state.h5"
        run(CONSOLIDATE, "--optimizer", run_directory, state)
        frozen = [key for key in keys if "train" in key]
        run(RUN_MODEL, deck, self.folder / "out.h5", f"model.weights={state}", *frozen)
        with h5py.File(self.folder / "out.h5") as out:
            rows = zip(out["sample"][...].tolist(), out["position"][...].tolist())
            self.check_logits(logits, dict(zip(rows, out["logits"][...])))
            self.assertAlmostEqual(out["loss"][0], loss, delta=2e-6 * loss)
            check_gradients(self, gradients, dict(datasets(out["gradients"])))

        # The adapters go out as they came in, and the merged model is a model like any.
        run(CONSOLIDATE, "--adapter", run_directory, f"{self.folder}/exported/")
        kind = type(model)
        again = PeftModel.from_pretrained(kind.from_pretrained(self.folder / "base"), self.folder / "exported").eval()
        self.check_logits(logits, reference_of(again, samples)[1])
        run(CONSOLIDATE, run_directory, f"{self.folder}/merged/")
        merged = reference_of(kind.from_pretrained(self.folder / "merged").eval(), samples)[1]
        self.check_logits(logits, merged, atol=3e-5)  # sums of weights are rounded to fp32
        self.assertNotIn("lora", json.dumps(json.loads((self.folder / "merged/config.json").read_text())))

    def test_decoder(self):
        self.check(make_decoder("qwen2"), ["llm"], r=4, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"])

    def test_every_linear_of_a_decoder_with_rslora(self):
        every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        self.check(make_decoder("llama"), ["llm"], r=3, lora_alpha=1, use_rslora=True, target_modules=every)

    def test_phi3_whose_parts_are_one_tensor(self):
        model = make_decoder("phi3", pad_token_id=0)
        self.check(model, ["llm"], r=4, lora_alpha=8, target_modules=["qkv_proj", "gate_up_proj", "o_proj"])

    def test_gpt2_whose_weights_lie_the_other_way(self):
        names = ["c_attn", "c_fc", "attn.c_proj"]
        self.check(make_gpt2(), ["llm"], r=4, lora_alpha=8, target_modules=names, fan_in_fan_out=True)

    def test_encoder_of_llava(self):
        names = r".*vision_tower.*layers\.[01]\.(self_attn\.[qv]_proj|mlp\.fc1)"
        self.check(make_llava(), ["vision"], r=4, lora_alpha=8, target_modules=names)

    def test_all_modules_of_llava_with_ranks_of_their_own(self):
        names = ["q_proj", "out_proj", "o_proj", "linear_1", "linear_2"]
        of_text = [f"language_model.layers.{layer}.self_attn.{name}_proj" for layer in (0, 1) for name in "qo"]
        own = {"rank_pattern": dict.fromkeys(of_text, 2), "alpha_pattern": dict.fromkeys(of_text, 3)}
        self.check(make_llava(), ["vision", "llm"], r=4, lora_alpha=8, target_modules=names, **own)
        self.assertIn("holds adapters of vision, too", self.refusal("llm"))

    def plan(self, *modules, **changes):
        """zea -n with the adapters, whose config was changed so."""
        path = self.folder / "adapter/adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        keys = [f"model.{module}.lora.weights={self.folder}/adapter" for module in modules]
        return subprocess.run([ZEA, "-n", "-i", self.folder / "deck.toml", *keys], capture_output=True, text=True)

    def refusal(self, *modules, **changes):
        done = self.plan(*modules, **changes)
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def test_dropout_that_is_left_out_is_told(self):
        self.save(make_decoder("llama"), LoraConfig(r=4, target_modules=["q_proj"]), make_samples(False))
        without = "adapters of llm train without the dropout of 0.05"
        self.assertNotIn(without, self.plan("llm").stdout)
        self.assertIn(without, self.plan("llm", lora_dropout=0.05).stdout)

    def test_kinds_that_are_not_built_are_refused(self):
        self.save(make_decoder("llama"), LoraConfig(r=4, target_modules=["q_proj", "k_proj"]), make_samples(False))
        several = self.refusal("llm", alpha_pattern={"k_proj": 3})
        self.assertIn("all adapters of a module must have one rank and one alpha", several)
        self.assertIn("use_dora = true is not built; allowed: false", self.refusal("llm", use_dora=True))
        self.assertIn('peft_type = "IA3" is not built', self.refusal("llm", peft_type="IA3"))


if __name__ == "__main__":
    disable_progress_bar()
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
