# SPDX-License-Identifier: Apache-2.0
"""The comparison of adapters with PEFT. Programs that run it begin their arguments with

RUN_MODEL ZEA CONSOLIDATE EXTRACT_LOG_MEL JOBS
"""

import contextlib
import json
import subprocess
import sys

try:
    import h5py  # noqa: F401
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
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from exact_reference import check_exact, in_double, wide_casts
from folder_case import FolderCase
from gemma4_audio import Sound
from transformers_models import (
    TEXT,
    VOCABULARY,
    ModelRuns,
    check_gradients,
    file_name,
    normalised,
    perturbed,
    read_outputs,
    reference,
    run,
)

RUN_MODEL, ZEA, CONSOLIDATE, EXTRACT, JOBS = sys.argv[1:6]
MODEL_RUNS = ModelRuns(RUN_MODEL)
sys.path.insert(0, JOBS)
from dataset_writer import Clip, DatasetWriter  # noqa: E402

IMAGE_TOKEN, IMAGE_SIZE, PATCHES = 5, 24, 9
AUDIO_TOKEN, POSITIONS, MELS = 4, 6, 8
MEAN, STD = [0.48, 0.45, 0.4], [0.27, 0.26, 0.28]


def tower_config(family):
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3}
    return AutoConfig.for_model(family, image_size=IMAGE_SIZE, patch_size=8, **sizes)


def make_llava(tower="clip_vision_model"):
    config = LlavaConfig(
        vision_config=tower_config(tower),
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


class Llava:
    """Or a language model alone; what else has images is a family of family_cases.py."""

    placeholder = IMAGE_TOKEN
    deck = [f"data.image_mean={MEAN}", f"data.image_std={STD}"]

    @staticmethod
    def inputs(tokens, pixels):
        return {"pixel_values": normalised(pixels, MEAN, STD)} if len(pixels) else {}


class ExactText(Llava):
    """Text of a model whose rounding errors in fp32 are large."""

    is_hybrid = True


def make_family_samples(family):
    """Images of all shapes, and clips of audio if the family has audio; text follows each item."""
    random = np.random.default_rng(3)
    text = lambda count: random.integers(6, VOCABULARY, size=count).tolist()  # noqa: E731
    samples, sizes = [], iter([(17, 40), (31, 23), (9, 14), (60, 51), (24, 24)])
    for number in (1, 0, 2, 1, 1):
        tokens, images = text(3), []
        for height, width in [next(sizes) for _ in range(number if getattr(family, "has_images", True) else 0)]:
            images.append(random.integers(0, 256, size=(height, width, 3), dtype=np.uint8))
            tokens += [family.placeholder] * family.features(height, width) + text(2)
        if hasattr(family, "spelled_sound") and number == 1:
            images.append(family.make_item(random, 0, ()))
            tokens += family.spelled_sound(images[-1]) + text(2)
        answer = text(6)
        samples.append((tokens + answer, [0] * len(tokens) + [1] * len(answer), images))
    return samples


def is_exact(family):
    """Whether only fp64 is compared: in fp32 rounding errors are large."""
    return hasattr(family, "is_hybrid")


def reference_of(model, samples, names=None, family=Llava):
    """`names`: maps names of parameters to those of gradients, which are otherwise left out."""
    if is_exact(family):
        model = in_double(model)

    def logits_of(tokens, mask, items):
        inputs = family.inputs(tokens, items)
        with wide_casts() if is_exact(family) else contextlib.nullcontext():
            return model(input_ids=torch.tensor([tokens]), use_cache=False, **inputs).logits[0]

    named = [(names(name), parameter) for name, parameter in model.named_parameters()] if names else ()
    return reference(samples, logits_of, named)


def project(states, weights):
    linear = lambda x, name: x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]  # noqa: E731
    return linear(torch.nn.functional.gelu(linear(states, "linear_1")), "linear_2")


def by_expert(gradients, config):
    """Returns gradients, for adapters of stacked experts in zea's order: (experts, rank, in) and (experts, out, rank).
    PEFT has (experts * rank, in) and (out, rank * experts)."""
    found, text = {}, config.get_text_config()
    for name, gradient in gradients.items():
        experts = getattr(text, "num_local_experts", None) or getattr(text, "num_experts", None)
        if ".experts.gate_up_proj.lora_" in name or ".experts.down_proj.lora_" in name:
            is_down = ".lora_A." in name
            shape = (experts, -1, gradient.shape[1]) if is_down else (gradient.shape[0], -1, experts)
            gradient = gradient.reshape(shape)
            gradient = gradient if is_down else gradient.transpose(2, 0, 1)
        found[name.replace(".mlp.", ".block_sparse_moe.") if text.model_type == "mixtral" else name] = gradient
    return found


class AdapterCase(FolderCase):
    def setUp(self):
        super().setUp()
        torch.manual_seed(1)

    def save(self, model, peft_config, samples, family=Llava):
        """The base model, PEFT's adapters of it and the data; returns the model with adapters."""
        perturbed(model).save_pretrained(self.folder / "base")
        if hasattr(family, "said_of_images"):
            (self.folder / "base/preprocessor_config.json").write_text(json.dumps(family.said_of_images))
        adapted = get_peft_model(model, peft_config).eval()
        perturbed(adapted, buffers=False)  # of these the adapters alone train
        adapted.save_pretrained(self.folder / "adapter")
        audio = getattr(family, "audio", -1)
        with DatasetWriter(self.folder / "data.h5", family.placeholder, audio_token=audio) as writer:
            for tokens, mask, items in samples:
                items = [Clip(item.samples, 16000) if isinstance(item, Sound) else item for item in items]
                writer.add(tokens, mask, items)
        data = {"row_tokens": 96, "rows_per_microbatch": 2}
        data |= dict(key.removeprefix("data.").split("=") for key in family.deck)
        (self.folder / "deck.toml").write_text(
            f'[model]\nweights = "{self.folder}/base"\n'
            f'[data]\ntrain = "{self.folder}/data.h5"\n' + "".join(f"{key} = {data[key]}\n" for key in data)
        )
        return adapted

    def check_logits(self, expected, found, atol=1e-5):
        self.assertEqual(sorted(expected), sorted(found))
        for row, values in expected.items():
            # The bound follows the largest value: small ones are differences of larger ones.
            least = atol * max(1, np.abs(values).max())
            np.testing.assert_allclose(found[row], values, rtol=1e-5, atol=least, err_msg=str(row))

    def check(self, model, modules, family=Llava, frozen=(), **lora):
        is_plain = issubclass(family, Llava)
        samples = make_samples("vision" in modules) if is_plain else make_family_samples(family)
        multimodal = isinstance(model, LlavaForConditionalGeneration)
        adapted = self.save(model, LoraConfig(**lora), samples, family)

        def name_of(name):
            name = name.removeprefix("base_model.model.").replace(".default", "")
            # PEFT wraps the module of stacked experts once for each tensor.
            name = name.replace(".experts.base_layer.lora_", ".experts.gate_up_proj.lora_")
            outer = "gate_up_proj" if lora.get("target_parameters") == ["gate_up_proj"] else "down_proj"
            name = name.replace(".experts.lora_", f".experts.{outer}.lora_").replace(".base_layer", "")
            return file_name(name, multimodal) if is_plain else family.file_name(name)

        self.check_saved(adapted, modules, samples, name_of, family, frozen)

    def check_saved(self, adapted, modules, samples, names, family=Llava, frozen=(), in_files=by_expert):
        model = adapted.get_base_model()
        multimodal = isinstance(model, LlavaForConditionalGeneration)
        loss, logits, gradients = reference_of(adapted, samples, names, family)
        gradients = in_files(gradients, model.config)

        # zea starts from PEFT's adapters...
        run_directory, deck = self.folder / "run", self.folder / "deck.toml"
        keys = [f"model.{module}.lora.weights={self.folder}/adapter" for module in modules]
        if modules == ["vision"]:
            keys += ["model.llm.train=false", "model.vision.train_projector=false"]
        if modules == ["llm"] and multimodal:
            keys += ["model.vision.train=false", "model.vision.train_projector=false"]
        keys += frozen
        run(ZEA, "-i", deck, "-d", run_directory, "schedule.steps=0", *keys)
        # ... and computes as PEFT does.
        state = self.folder / "state.h5"
        run(CONSOLIDATE, "--optimizer", run_directory, state)
        keys = [key for key in keys if "train" in key] + ["precision.preset=fp64"] * is_exact(family)
        MODEL_RUNS.run(1, deck, self.folder / "out.h5", f"model.weights={state}", *keys)
        found = read_outputs(self.folder / "out.h5")
        if is_exact(family):
            check_exact(self, (loss, logits, gradients), found)
        else:
            self.check_logits(logits, found[1])
            self.assertAlmostEqual(found[0], loss, delta=2e-6 * loss)
            check_gradients(self, gradients, found[2])

        # The adapters go out as they came in, and the merged model is a model like any.
        run(CONSOLIDATE, "--adapter", run_directory, f"{self.folder}/exported/")
        kind = type(model)
        again = PeftModel.from_pretrained(kind.from_pretrained(self.folder / "base"), self.folder / "exported").eval()
        self.check_logits(logits, reference_of(again, samples, family=family)[1])
        run(CONSOLIDATE, run_directory, f"{self.folder}/merged/")
        merged = reference_of(kind.from_pretrained(self.folder / "merged").eval(), samples, family=family)[1]
        self.check_logits(logits, merged, atol=3e-5)  # sums of weights are rounded to fp32
        self.assertNotIn('"lora', json.dumps(json.loads((self.folder / "merged/config.json").read_text())))

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
