# SPDX-License-Identifier: Apache-2.0
"""Tiny random models give the logits, the loss and the gradients that transformers gives, on one
rank and on grids of several.

test_parity.py RUN_MODEL IMPORT ZEA JOBS MPIRUN_IN_ONE_ARGUMENT [unittest arguments]
"""

import copy
import json
import re
import shlex
import sys
import unittest

try:
    import h5py  # noqa: F401
    import numpy as np
    import torch
    from safetensors import safe_open
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        Gemma4Config,
        Gemma4ForConditionalGeneration,
        GPT2Config,
        GPT2LMHeadModel,
        LlavaConfig,
        LlavaForConditionalGeneration,
    )
    from transformers.models.gemma3.modeling_gemma3 import get_block_sequence_ids_for_mask
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
    from transformers.utils.logging import disable_progress_bar
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from deepseek_cases import DEEPSEEK_CASES
from exact_reference import check_exact, check_rounded, in_double, wide_casts
from gemma4_cases import GEMMA4_CASES
from glm_cases import GLM4_MOE_IN_GROUPS, GLM_CASES
from gpt_oss_cases import GPT_OSS_CASES
from hybrid_cases import HYBRID, HYBRID_CASES, HYBRIDS
from mtp_head import loss_of_head, with_head
from parity_case import ParityCase, trained_of
from parity_cases import CASES, PATCHES, PROMPTED, QWEN3_MOE, VOCABULARY
from tower_cases import EXTRA_TOKENS, TOWER_CASES
from transformers_models import (
    PROMPTS,
    ModelRuns,
    check_gradients,
    check_next_tokens,
    check_outputs,
    divergence,
    file_name,
    normalised,
    perturbed,
    reference,
    run,
    saved_tensors,
    split_experts,
)

RUN_MODEL, IMPORT, ZEA, JOBS, MPIRUN = sys.argv[1:6]
sys.path.insert(0, JOBS)
from dataset_writer import DatasetWriter  # noqa: E402

IMAGE_TOKEN, IMAGE_SIZE = 5, 24
GENERATED = 6
MEAN, STD = [0.48, 0.45, 0.4], [0.27, 0.26, 0.28]
# As in published models: keys that equal transformers' defaults are left out (llava-1.5-7b-hf).
SPARSE_CONFIG = {
    "architectures": ["LlavaForConditionalGeneration"],
    "image_token_index": 32000,
    "model_type": "llava",
    "text_config": {
        "max_position_embeddings": 4096,
        "model_type": "llama",
        "rms_norm_eps": 1e-05,
        "vocab_size": 32064,
    },
    "vision_config": {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14},
}
FROZEN = {
    "vision": ("vision_tower.", "model.vision.train=false"),
    "llm": ("language_model.", "model.llm.train=false"),
}


def needs_fp64(case):
    """Whether the model makes rounding in fp32 so much larger that bounds are those of transformers' own errors."""
    return case.get("decoder") in HYBRIDS or case.get("fp64", False)


def make_text_config(case):
    options = {
        "hidden_size": 32,
        "intermediate_size": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 128,
    }
    family = case.get("decoder", "llama")
    if family in ("deepseek_v3", "glm4_moe", "olmoe", "phi3"):  # whose own end tokens are beyond this vocabulary
        options |= {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return AutoConfig.for_model(family, **{**options, **copy.deepcopy(case.get("text", {}))})


def make_gpt2_config(case):
    options = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24}
    return GPT2Config(
        **{**options, "vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, **case}
    )


def is_multimodal(case):
    return not case.get("only_text") and "gpt2" not in case


def make_model(case):
    torch.manual_seed(1)
    if "gpt2" in case:  # whose config has dropout
        return perturbed(GPT2LMHeadModel(make_gpt2_config(case["gpt2"])).eval())
    if case.get("decoder") == "gemma4":  # without towers
        text = make_text_config({**case, "decoder": "gemma4_text"})
        return perturbed(Gemma4ForConditionalGeneration(Gemma4Config(text_config=text)))
    if case.get("only_text"):
        model = AutoModelForCausalLM.from_config(make_text_config(case))
        return perturbed(with_head(model) if "mtp" in case else model)
    vision = {
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": IMAGE_SIZE,
        "patch_size": 8,
    }
    tower = case.get("tower", "clip_vision_model")
    if tower.startswith("dinov2"):  # which has a ratio
        del vision["intermediate_size"]
    config = LlavaConfig(
        vision_config=AutoConfig.for_model(tower, **{**vision, **case.get("vision", {})}),
        text_config=make_text_config(case),
        image_token_index=IMAGE_TOKEN,
        **case.get("llava", {}),
    )
    return perturbed(LlavaForConditionalGeneration(config))


def make_samples(case, features, count=7):
    """Token ids, loss mask, pictures: text of varied length before, between and after pictures. Of
    another count the last token of each is learnt alone."""
    random = np.random.default_rng(3)
    pattern = [0] if not is_multimodal(case) else case.get("images", [1, 0, 2, 1, 0, 2, 1])

    def text(least, most):
        ids = random.integers(6, VOCABULARY, size=random.integers(least, most + 1))
        return ids.tolist()

    samples = []
    for number in range(count):
        images = pattern[number % len(pattern)]
        tokens = text(1, 4)
        for _ in range(images):
            tokens += [IMAGE_TOKEN] * features + text(0, 2)
        prompt = tokens + text(1, 5)
        if number == 2:
            prompt += text(case.get("longer", 0), case.get("longer", 0))
        answer = text(1, 12)
        mask = [0] * len(prompt) + [1] * len(answer)
        if number == 3:  # loss from the first token on, with a gap
            mask = [int(token != IMAGE_TOKEN) for token in prompt] + [0, 1] * len(answer)
            mask = mask[: len(prompt) + len(answer)]
        if number == 5:
            mask = [0] * len(mask)
        if count != 7:
            answer = answer[:1]
            mask = [0] * len(prompt) + [1]
        pixels = random.integers(0, 256, size=(images, IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
        samples.append((prompt + answer, mask, pixels))
    return samples


def mask_of(tokens):
    """Returns a mask (1, 1, queries, keys): causal, but bidirectional in the blocks that Gemma 3 makes of images."""
    token = torch.arange(len(tokens))
    block = get_block_sequence_ids_for_mask((torch.tensor([tokens]) == IMAGE_TOKEN).int())[0]
    same_block = (block[:, None] == block[None, :]) & (block[:, None] >= 0)
    return ((token[:, None] >= token[None, :]) | same_block)[None, None]


def add_router_loss(model, samples):
    """Adds the gradients of the loss that balances experts, over all samples; returns the loss."""
    config = model.config
    if not getattr(config, "output_router_logits", False) or not torch.is_grad_enabled():
        return 0
    made = [model(input_ids=torch.tensor([sample[0]]), use_cache=False).router_logits for sample in samples]
    experts = getattr(config, "num_experts", None) or config.num_local_experts
    layers = tuple(torch.cat(layer) for layer in zip(*made))
    loss = config.router_aux_loss_coef * load_balancing_loss_func(layers, experts, config.num_experts_per_tok)
    loss.backward()
    return loss.item()


def reference_of(model, samples, attention, both_ways=False, mtp=0):
    model.set_attn_implementation(attention)
    model.get_input_embeddings().padding_idx = None  # zea has no padding: text tokens train their embeddings

    def added(tokens, mask):
        return mtp * loss_of_head(model, tokens, mask)

    multimodal = isinstance(model, LlavaForConditionalGeneration)

    def logits_of(tokens, mask, pixels):
        images = {"pixel_values": normalised(pixels, MEAN, STD)} if len(pixels) else {}
        if both_ways:
            images["attention_mask"] = mask_of(tokens)
        return model(input_ids=torch.tensor([tokens]), use_cache=False, **images).logits[0]

    router_loss = add_router_loss(model, samples)
    named = ((file_name(name, multimodal), parameter) for name, parameter in model.named_parameters())
    loss, logits, gradients = reference(samples, logits_of, named, added if mtp else None)
    return loss + router_loss, logits, split_experts(gradients, model.config.get_text_config().model_type)


def generate(model, prompt, pixels):
    """Greedily, up to the end token or a placeholder."""
    images = {"pixel_values": normalised(pixels, MEAN, STD)} if len(pixels) else {}
    text = model.config.get_text_config()
    tokens = list(prompt)
    with torch.no_grad():
        while len(tokens) < len(prompt) + GENERATED:
            ids = torch.tensor([tokens])
            best = model(input_ids=ids, use_cache=False, **images).logits[0, -1].argmax().item()
            if best == text.eos_token_id or (images and best == IMAGE_TOKEN):
                break
            tokens.append(best)
    return tokens[len(prompt) :]


def spell_rope_as_before(path):
    config = json.loads(path.read_text())
    rope = config["text_config"].pop("rope_parameters")
    config["text_config"]["rope_theta"] = rope.pop("rope_theta")
    config["text_config"]["rope_scaling"] = rope
    path.write_text(json.dumps(config))


class Parity(ParityCase):
    model_runs = ModelRuns(*shlex.split(MPIRUN), "-n", 4, RUN_MODEL)

    def write_inputs(self, folder, model, samples, case):
        """And the deck of what they are."""
        model.save_pretrained(folder / "model")
        if case.get("older"):
            spell_rope_as_before(folder / "model" / "config.json")
        self.check_names(folder, model, is_multimodal(case))
        run(IMPORT, folder / "model", folder / "weights.h5")
        with DatasetWriter(folder / "data.h5", IMAGE_TOKEN) as writer:
            for tokens, mask, pixels in samples:
                writer.add(tokens, mask, pixels)
        (folder / "deck.toml").write_text(
            f'[model]\nweights = "{folder}/weights.h5"\n'
            f'[data]\ntrain = "{folder}/data.h5"\nrow_tokens = 64\n'
            f"rows_per_microbatch = 2\nimage_mean = {MEAN}\nimage_std = {STD}\n"
        )

    def check_names(self, folder, model, multimodal):
        """The mapping of names that this file compares by is that of the files."""
        with safe_open(folder / "model" / "model.safetensors", "pt") as file:
            named = {file_name(name, multimodal): value for name, value in saved_tensors(model).items()}
            names = split_experts(named, model.config.get_text_config().model_type)
            self.assertEqual(set(names), set(file.keys()))

    def prepare(self, case, count=7):
        tokens = PATCHES + EXTRA_TOKENS[case.get("tower", "clip_vision_model")]
        full = case.get("llava", {}).get("vision_feature_select_strategy") == "full"
        return make_model(case), make_samples(case, tokens if full else tokens - 1, count)

    def make(self, folder, case, attention):
        model, samples = self.prepare(case)
        how = case.get("attention", attention), case.get("both_ways", False), case.get("mtp", 0)
        wide = in_double(model) if needs_fp64(case) else None
        expected, exact = reference_of(model, samples, *how), None
        if wide:
            with wide_casts():
                exact = reference_of(wide, samples, *how)
        self.write_inputs(folder, model, samples, case)
        return expected, exact

    def run_case(self, case, attention="sdpa", *keys):
        """Outputs of transformers and of zea."""
        folder, (expected, _) = self.shared(case, lambda folder: self.make(folder, case, attention), attention)
        frozen = [FROZEN[module] for module in case.get("frozen", [])]
        found = self.run_model(case, folder / "deck.toml", *(key for _, key in frozen), *keys)
        return trained_of(expected, [prefix for prefix, _ in frozen]), found

    def check_case(self, case, attention="sdpa"):
        expected, found = self.run_case(case, attention)
        for row, values in expected[1].items():
            self.assertLess(divergence(values, found[1][row]), 3e-7)
        if needs_fp64(case):
            return self.check_hybrid(case, expected, found, attention)
        check_outputs(self, expected, found)
        check_gradients(self, expected[2], found[2])

    def check_hybrid(self, case, expected, found, attention):
        _, (_, exact) = self.shared(case, None, attention)
        check_rounded(self, exact, expected, found)
        check_exact(self, exact, self.run_case(case, attention, "precision.preset=fp64")[1])

    def check_prompts(self, case):
        model, samples = self.prepare(case, PROMPTS)
        with torch.no_grad():
            _, expected, _ = reference_of(model, samples, case.get("attention", "sdpa"))
        self.write_inputs(self.folder, model, samples, case)
        _, found, _ = self.run_model(case, self.folder / "deck.toml")
        check_next_tokens(self, expected, found)

    def test_eager_attention(self):
        self.check_case({}, "eager")

    def errors_in_bfloat16(self, case):
        """The relative error of the loss, that of all gradients as one vector, and the latter's of transformers in
        bf16."""
        model, samples = self.prepare(case)
        model.set_experts_implementation("eager")  # grouped GEMMs need wider rows
        rounded = reference_of(model.bfloat16(), samples, "sdpa")
        (expected_loss, _, expected), (loss, _, found) = self.run_case(case, "sdpa", "precision.preset=bf16")

        def error_of(gradients):
            self.assertEqual(sorted(expected), sorted(gradients))
            squares = sum(np.square(gradients[name] - g).sum() for name, g in expected.items())
            return np.sqrt(squares / sum(np.square(g).sum() for g in expected.values()))

        return abs(loss / expected_loss - 1), error_of(found), error_of(rounded[2])

    def test_bfloat16(self):
        of_loss, of_gradients, _ = self.errors_in_bfloat16({})
        self.assertLess(of_loss, 2e-2)
        self.assertLess(of_gradients, 0.05)

    def test_bfloat16_of_qwen3_5_text(self):
        """Longer keys than elsewhere: behind the L2 norm of short ones, gradients in bf16 are all rounding."""
        case = {**HYBRID_CASES["qwen3_5_text"], "text": {**HYBRID, "linear_key_head_dim": 32}}
        of_loss, of_gradients, of_transformers = self.errors_in_bfloat16(case)
        self.assertLess(of_loss, 2e-2)
        self.assertLess(of_gradients, 1.5 * of_transformers)
        self.assertLess(of_gradients, 0.5)

    def test_bfloat16_of_experts(self):
        """Rounding makes some tokens choose other experts, in transformers as in zea."""
        for case in (
            {"only_text": True, "decoder": "qwen3_moe", "text": QWEN3_MOE},
            {"only_text": True, "decoder": "glm4_moe", "text": GLM4_MOE_IN_GROUPS},
            DEEPSEEK_CASES["deepseek_v3"],
        ):
            with self.subTest(decoder=case["decoder"]):
                of_loss, of_gradients, of_transformers = self.errors_in_bfloat16(case)
                self.assertLess(of_loss, 2e-2)
                self.assertLess(of_gradients, 1.5 * of_transformers)

    def check_generation(self, case):
        """Greedily: transformers' whole forward for each token against zea's evaluation."""
        model, samples = self.prepare(case)
        self.write_inputs(self.folder, model, samples, case)
        named = [f"{token} ".encode() for token in range(VOCABULARY)]
        with DatasetWriter(self.folder / "data.h5", IMAGE_TOKEN, token_bytes=named) as writer:
            for sample in samples:
                writer.add(*sample)
        deck, out = self.folder / "deck.toml", self.folder / "evaluated"
        keys = ["run.mode=evaluate", f"eval.generate_tokens={GENERATED}", *case.get("deck", [])]
        ranks = case.get("ranks", 1)
        launch = [*shlex.split(MPIRUN), "-n", ranks] if ranks > 1 else []
        run(*launch, ZEA, "-i", deck, "-d", out, f"data.eval={self.folder}/data.h5", *keys)
        lines = map(json.loads, (out / "predictions.jsonl").read_text().splitlines())
        found = {line["sample"]: [*map(int, line["generated"].split())] for line in lines}
        expected = {}
        for number, (tokens, mask, pixels) in enumerate(samples):
            images = [n for n, token in enumerate(tokens) if token == IMAGE_TOKEN]
            after_images = images[-1] + 1 if images else 1
            if 1 in mask[after_images:]:
                prompt = tokens[: mask.index(1, after_images)]
                expected[number] = generate(model, prompt, pixels)
        self.assertGreater(len({tuple(tokens) for tokens in expected.values()}), 3)
        self.assertEqual(found, expected)

    def test_generation_of_gpt2(self):
        self.check_generation({"gpt2": {}})

    def test_generation_of_llama(self):
        self.check_generation({"only_text": True})

    def test_generation_of_qwen2(self):
        self.check_generation({"only_text": True, "decoder": "qwen2"})

    def test_generation_of_qwen3(self):
        self.check_generation({"only_text": True, "decoder": "qwen3"})

    def test_generation_of_qwen3_moe(self):
        self.check_generation({"only_text": True, "decoder": "qwen3_moe", "text": QWEN3_MOE})

    def test_generation_of_glm4_moe(self):
        self.check_generation({"only_text": True, "decoder": "glm4_moe", "text": GLM4_MOE_IN_GROUPS})

    def test_generation_of_deepseek_v3(self):
        self.check_generation(DEEPSEEK_CASES["deepseek_v3"])

    def test_generation_of_gpt_oss(self):
        self.check_generation(GPT_OSS_CASES["gpt_oss"])

    def test_generation_of_qwen3_5_text(self):
        self.check_generation({"only_text": True, "decoder": "qwen3_5_text", "text": HYBRID})

    def test_generation_of_gemma4_text(self):
        self.check_generation(GEMMA4_CASES["gemma4_text"])

    def test_generation_of_gemma4_text_e4b(self):
        self.check_generation(GEMMA4_CASES["gemma4_text_e4b"])

    def test_generation_of_gemma4_text_e4b_pp2(self):
        self.check_generation(GEMMA4_CASES["gemma4_text_e4b_pp2"])

    def test_generation_of_gemma4_text_e4b_tp2_cp2(self):
        self.check_generation(GEMMA4_CASES["gemma4_text_e4b_tp2_cp2"])

    def test_generation_of_llava(self):
        self.check_generation({})

    def test_defaults_of_a_sparse_config(self):
        with torch.device("meta"):
            model = LlavaForConditionalGeneration(LlavaConfig.from_dict(SPARSE_CONFIG))
        path, deck = self.folder / "config.json", self.folder / "deck.toml"
        path.write_text(json.dumps(SPARSE_CONFIG))
        deck.write_text(f'[model]\nconfig = "{path}"\n[data]\ntrain = "none.h5"\n')
        plan = run(ZEA, "-n", "-i", deck)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        self.assertEqual(re.search(r"plan: llava, (\d+) parameters", plan)[1], str(parameters))


def add_case(name, case):
    setattr(Parity, f"test_{name}", lambda self: self.check_case(case))


def add_prompts(name, case):
    setattr(Parity, f"test_{name}_prompts", lambda self: self.check_prompts(case))


ALL = {**CASES, **TOWER_CASES, **GLM_CASES, **GPT_OSS_CASES, **DEEPSEEK_CASES, **HYBRID_CASES, **GEMMA4_CASES}
for case_name, one_case in ALL.items():
    add_case(case_name, one_case)
for family in PROMPTED:
    add_prompts(family, ALL[family])

if __name__ == "__main__":
    disable_progress_bar()
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *sys.argv[6:]])
