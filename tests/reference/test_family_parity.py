# SPDX-License-Identifier: Apache-2.0
"""Tiny random composites, whose images have sizes of their own, give the logits, the loss and the
gradients that transformers gives, from an import of their files, on one rank and on grids.

test_family_parity.py RUN_MODEL IMPORT CONSOLIDATE JOBS MPIRUN_IN_ONE_ARGUMENT [unittest arguments]
"""

import contextlib
import json
import os
import shlex
import sys
import unittest

try:
    import h5py  # noqa: F401
    import numpy as np
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    from deepseek_cases import DEEPSEEK_V3
    from family_cases import Gemma3, Qwen3VLMoe, Qwen25VL
    from family_table import OF_ONE, cases
    from gemma4_audio import Sound
    from glm4v_cases import Glm4vMoe
    from glm_cases import GLM4_MOE
    from hybrid_cases import HYBRID_MOE
    from kimi_k25_cases import KimiK25Published
    from omni_cases import parts_of
    from parity_cases import MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE
    from qwen3_omni_cases import Qwen3Omni
    from tiled_families import InternVLOfExperts, InternVLOfMixtral
    from video_cases import Clip
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from exact_reference import check_exact, check_rounded, in_double, wide_casts
from mtp_head import loss_of_head
from parity_case import ParityCase, trained_of
from transformers_models import (
    PROMPTS,
    TEXT,
    VOCABULARY,
    ModelRuns,
    check_gradients,
    check_logits_of_experts,
    check_next_tokens,
    check_outputs,
    divergence,
    perturbed,
    reference,
    run,
    saved_tensors,
    split_experts,
)

RUN_MODEL, IMPORT, CONSOLIDATE, JOBS, MPIRUN = sys.argv[1:6]
sys.path.insert(0, JOBS)
from dataset_writer import Clip as Recording  # noqa: E402
from dataset_writer import DatasetWriter, Video  # noqa: E402

TEXTS_OF_EXPERTS = {
    "mixtral": MIXTRAL,
    "qwen2_moe": QWEN2_MOE,
    "qwen3_moe": QWEN3_MOE,
    "olmoe": OLMOE,
    "qwen3_next": HYBRID_MOE,
    "glm4_moe": GLM4_MOE,
    "deepseek_v3": DEEPSEEK_V3,
}


class TextAlone:
    """A language model as a family that check_return() takes."""

    def __init__(self, decoder):
        self.__name__ = decoder

    def model(self):
        config = AutoConfig.for_model(self.__name__, **{**TEXT, **TEXTS_OF_EXPERTS[self.__name__]})
        return AutoModelForCausalLM.from_config(config)


FIRST_WORD = 6  # smaller ids are the families' own
# Sizes of images: wide, high, smaller and larger than the limits that the families set.
SIZES = [(17, 40), (31, 23), (9, 14), (60, 51), (24, 24), (33, 75), (8, 30)]


def spelled(family, item, number):
    """Returns the tokens of an item of a sample that has `number` images."""
    if hasattr(family, "spelled_item"):
        return family.spelled_item(item)
    if isinstance(item, Clip):
        return family.spelled_clip(item)
    if isinstance(item, Sound):
        return family.spelled_sound(item)
    height, width = item.shape[:2]
    if hasattr(family, "spelled"):
        return family.spelled(height, width)
    if hasattr(family, "several"):
        return [family.placeholder] * family.features(height, width, number)
    return [family.placeholder] * family.features(height, width)


def is_clip(family, number):
    """Every second item of a family of videos is one, or those of the family's numbers."""
    if not hasattr(family, "spelled_clip"):
        return False
    return number in family.clips if hasattr(family, "clips") else number % 2 == 1


def make_item(family, random, number):
    """A picture, or a video of 1 to 5 frames; families with audio make their own items."""
    height, width = SIZES[number % len(SIZES)]
    if hasattr(family, "make_item"):
        return family.make_item(random, number, (height, width))
    if not is_clip(family, number):
        return random.integers(0, 256, (height, width, 3), np.uint8)
    frames = random.integers(0, 256, (family.least_frames + number // 2 % 4, height, width, 3), np.uint8)
    return Clip(frames, (0.7, 2, 3.1)[number % 3])


def make_samples(family, case, count=7, longest_answer=12):
    """Token ids, loss mask, items: text of varied length before, between and after these."""
    random = np.random.default_rng(3)
    pattern, number_of_items = case.get("images", [1, 0, 2, 1, 0, 3, 1]), 0

    def text(least, most):
        return random.integers(FIRST_WORD, VOCABULARY, size=random.integers(least, most + 1)).tolist()

    samples = []
    for number in range(count):
        tokens, items = text(1, 4), []
        several = pattern[number % len(pattern)]
        images = sum(not is_clip(family, number_of_items + n) for n in range(several))
        for _ in range(several):
            items.append(make_item(family, random, number_of_items))
            number_of_items += 1
            tokens += spelled(family, items[-1], images) + ([] if case.get("adjacent") else text(1, 2))
        prompt, answer = tokens + text(1, 5), text(1, longest_answer)
        if number == 2:
            prompt += text(case.get("longer", 0), case.get("longer", 0))
        mask = [0] * len(prompt) + [1] * len(answer)
        if number == 3 and longest_answer > 1:  # loss from the first token on
            placeholders = {family.placeholder, getattr(family, "video", None), getattr(family, "audio", None)}
            mask = [int(token not in placeholders) for token in prompt] + [1] * len(answer)
        samples.append((prompt + answer, mask, items))
    return samples


def packed(family, items):
    """Items as DatasetWriter takes them."""
    parts = [part for item in items for part in getattr(family, "parts_of", parts_of)(item)]
    kinds = {Clip: lambda clip: Video(*clip), Sound: lambda sound: Recording(sound.samples, 16000)}
    return [kinds.get(type(part), lambda image: image)(part) for part in parts]


def reference_of(family, model, samples, mtp=0, casts=contextlib.nullcontext):
    """`casts`: the context of the model, but not of what it is given."""

    def added(tokens, mask):
        with casts():
            return mtp * loss_of_head(model, tokens, mask)

    def logits_of(tokens, mask, items):
        ids, inputs = torch.tensor([tokens]), family.inputs(tokens, items)
        with casts():
            return model(input_ids=ids, use_cache=False, **inputs).logits[0]

    balance = 0
    if hasattr(family, "router_loss") and model.config.get_text_config().output_router_logits:
        balance = family.router_loss(model, lambda: [logits_of(*sample) for sample in samples])
        balance.backward()
        balance = balance.item()
    named = ((family.file_name(name), parameter) for name, parameter in model.named_parameters())
    loss, logits, gradients = reference(samples, logits_of, named, added if mtp else None)
    return loss + balance, logits, file_experts(family, model, gradients)


def file_experts(family, model, tensors):
    if hasattr(family, "file_experts"):
        return family.file_experts(tensors)
    return split_experts(tensors, model.config.get_text_config().model_type)


def flatten_config(path):
    config = json.loads(path.read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    text["rope_theta"] = rope.pop("rope_theta")
    text["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    del text["model_type"]
    path.write_text(json.dumps({**text, **config}))


class FamilyParity(ParityCase):
    model_runs = ModelRuns(*shlex.split(MPIRUN), "-n", 4, RUN_MODEL)

    def write_inputs(self, folder, family, case, model, samples):
        """The deck of what they are."""
        model.save_pretrained(folder / "model")
        with safe_open(folder / "model" / "model.safetensors", "pt") as file:
            saved_name = getattr(family, "saved_name", family.file_name)
            named = {saved_name(name): value for name, value in saved_tensors(model).items()}
            is_split = not hasattr(family, "saves_stacks")
            names = split_experts(named, model.config.get_text_config().model_type) if is_split else named
            if hasattr(family, "names_of_files"):
                names = family.names_of_files(named)
            self.assertEqual(set(names), set(file.keys()))
        if case.get("flat"):
            flatten_config(folder / "model" / "config.json")
        if case.get("published") or hasattr(family, "is_published"):
            family.spell_as_published(folder / "model")
        if hasattr(family, "said_of_images"):
            said = json.dumps(family.said_of_images)
            (folder / "model" / "preprocessor_config.json").write_text(said)
        run(IMPORT, folder / "model", folder / "weights.h5")
        video = family.video if hasattr(family, "spelled_clip") else -1
        ids = {"video_token": video, "audio_token": getattr(family, "audio", -1)}
        with DatasetWriter(folder / "data.h5", family.placeholder, **ids) as writer:
            for tokens, mask, items in samples:
                writer.add(tokens, mask, packed(family, items))
        (folder / "deck.toml").write_text(
            f'[model]\nweights = "{folder}/weights.h5"\n[data]\ntrain = "{folder}/data.h5"\n'
            "row_tokens = 96\nrows_per_microbatch = 2\n"
        )

    def make(self, folder, family, case):
        torch.manual_seed(1)
        model = perturbed(family.model(**case.get("model", {}))).eval()
        samples = make_samples(family, case)
        wide = in_double(model) if hasattr(family, "is_hybrid") else None
        expected, exact = reference_of(family, model, samples, case.get("mtp", 0)), None
        if wide:
            exact = reference_of(family, wide, samples, case.get("mtp", 0), wide_casts)
        self.write_inputs(folder, family, case, model, samples)
        return expected, exact

    def check_case(self, family, case):
        frozen = case.get("frozen", [])
        folder, (expected, exact) = self.shared(case, lambda folder: self.make(folder, family, case), family.__name__)
        frozen_names = [prefix for module in frozen for prefix in family.frozen[module]]
        expected = trained_of(expected, frozen_names)
        keys = [*family.deck, *(f"model.{module}.train=false" for module in frozen)]
        found = self.run_model(case, folder / "deck.toml", *keys)
        if exact:
            exact = trained_of(exact, frozen_names)
            check_rounded(self, exact, expected, found)
            for row, values in expected[1].items():
                self.assertLess(divergence(values, found[1][row]), 3e-7, row)
            if hasattr(family, "rounds_inputs"):
                return None
            found = self.run_model(case, folder / "deck.toml", *keys, "precision.preset=fp64")
            return check_exact(self, exact, found)
        check_outputs(self, expected, found)
        check_gradients(self, expected[2], found[2])

    def check_prompts(self, family):
        """With pictures."""
        torch.manual_seed(4)
        model = perturbed(family.model()).eval()
        samples = make_samples(family, {"images": [1, 2, 1]}, PROMPTS, 1)
        with torch.no_grad():
            _, expected, _ = reference_of(family, model, samples)
        self.write_inputs(self.folder, family, {}, model, samples)
        _, found, _ = self.run_model({}, self.folder / "deck.toml", *family.deck)
        check_next_tokens(self, expected, found)

    def check_return(self, family, dtype=torch.float32, files=1, **saving):
        """Imported, untrained weights are exported unchanged, and transformers loads all of them."""
        folder = self.folder / family.__name__
        folder.mkdir()
        torch.manual_seed(2)
        model = perturbed(family.model()).to(dtype)
        model.save_pretrained(folder / "model", **saving)
        if hasattr(family, "is_published"):
            family.spell_as_published(folder / "model")
        run(IMPORT, folder / "model", folder / "weights.h5")
        limit = ["--max-shard-size", "20KB"] if files > 1 else []
        run(CONSOLIDATE, *limit, folder / "weights.h5", f"{folder}/returned/")
        given = load_file(folder / "model" / "model.safetensors")
        if saving and hasattr(family, "stacked_name"):
            given = {family.stacked_name(name): tensor for name, tensor in given.items()}
        parts = [load_file(part) for part in (folder / "returned").glob("*.safetensors")]
        self.assertGreaterEqual(len(parts), files)
        returned = {name: tensor for part in parts for name, tensor in part.items()}
        self.assertEqual(given.keys(), returned.keys())
        for name, tensor in given.items():
            self.assertEqual(tensor.dtype, returned[name].dtype, name)
            self.assertTrue(torch.equal(tensor, returned[name]), name)
        loaded, loading = type(model).from_pretrained(
            folder / "returned", output_loading_info=True, dtype=dtype
        )
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(tensor, loaded.state_dict()[name]), name)
        for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            beside = getattr(family, "beside", ())  # parts of the directory that are not the model's
            self.assertFalse([name for name in loading[fault] if not name.startswith(beside)], fault)
        check_logits_of_experts(self, model, loaded)

    def test_qwen25_vl_in_bf16_comes_back_in_several_files(self):
        self.check_return(Qwen25VL, torch.bfloat16, 3)

    def test_published_kimi_k25_comes_back(self):
        self.check_return(KimiK25Published)

    def test_stacked_experts_come_back(self):
        """As transformers 5 saves them with save_original_format=False: (experts, out, in) in every family."""
        for family in (Glm4vMoe, Qwen3Omni, InternVLOfExperts, InternVLOfMixtral, *map(TextAlone, TEXTS_OF_EXPERTS)):
            with self.subTest(family=family.__name__):
                self.check_return(family, save_original_format=False)
                names = load_file(self.folder / family.__name__ / "model" / "model.safetensors")
                self.assertTrue(any(name.endswith(".experts.gate_up_proj") for name in names))

    def test_square_stacks_come_back(self):
        """Where one of the matrices is square, the other tells the order, and transformers reads both."""

        class OfSquares(Qwen3VLMoe):
            experts = {**Qwen3VLMoe.experts, "moe_intermediate_size": TEXT["hidden_size"] // 2}

        self.check_return(OfSquares)

    def test_gemma3_in_bf16_comes_back_in_several_files(self):
        self.check_return(Gemma3, torch.bfloat16, 3)


def add_case(family, name, case):
    test = f"test_{family.__name__}_{name}"
    setattr(FamilyParity, test, lambda self: self.check_case(family, case))


def add_family(family, has_own):
    if has_own:
        test = f"test_{family.__name__}_prompts"
        setattr(FamilyParity, test, lambda self: self.check_prompts(family))
    test = f"test_{family.__name__}_comes_back"
    setattr(FamilyParity, test, lambda self: self.check_return(family))


TAKES_ALL = bool(os.environ.get("ZEA_ALL_CASES"))
for one_family, own in OF_ONE.items():
    add_family(one_family, own or TAKES_ALL)
for one_family, table in cases(TAKES_ALL).items():
    for case_name, one_case in table.items():
        add_case(one_family, case_name, one_case)

if __name__ == "__main__":
    disable_progress_bar()
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *sys.argv[6:]])
