# SPDX-License-Identifier: Apache-2.0
"""Whole runs of zea in fp64 are those of a plain PyTorch loop over transformers' model: losses, gradient norms, rates
of every step, and the weights after the last one. Each optimizer and each schedule, with clipping that acts, rates,
decay and freezing by pattern, and accumulation over microbatches of unequal numbers of targets.

check_trajectories.py ZEA JOBS [unittest arguments]
"""

import fnmatch
import json
import sys
import unittest
from pathlib import Path
from unittest import mock

try:
    import h5py  # noqa: F401
    import numpy as np
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, LlavaConfig, LlavaForConditionalGeneration, get_scheduler
    from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding
    from transformers.utils.logging import disable_progress_bar
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from folder_case import FolderCase
from transformers_models import TEXT, VOCABULARY, file_name, normalised, perturbed, run

ZEA, JOBS = sys.argv[1:3]
sys.path[:0] = [JOBS, str(Path(__file__).parents[2] / "postprocess")]
from dataset_writer import DatasetWriter  # noqa: E402
from read_checkpoint import Checkpoint  # noqa: E402

STEPS, BATCH = 5, 4
IMAGE_TOKEN, IMAGE_SIZE, FEATURES = 5, 16, 4
MEAN, STD = [0.5, 0.25, 0.5], [0.5, 0.25, 0.5]
# Every key of [optim] that a case has is zea's; the reference reads the same ones.
CASES = {
    "adamw, cosine": {"kind": "adamw", "weight_decay": 0.1, "warmup_steps": 2, "min_lr": 1e-3, "clip_norm": 2.0},
    "adam, linear": {"kind": "adam", "weight_decay": 0.01, "decay": "linear", "betas": [0.8, 0.9], "eps": 1e-5},
    "sgd, wsd": {"kind": "sgd", "lr": 0.1, "decay": "wsd", "decay_steps": 3, "warmup_steps": 1, "min_lr": 0.01},
    "sgd, no clipping": {"kind": "sgd", "lr": 0.02, "momentum": 0.0, "weight_decay": 0.3, "clip_norm": 0.0},
    "muon, inverse root": {"kind": "muon", "momentum": 0.95, "decay": "inverse_sqrt", "warmup_steps": 2},
    "muon, constant": {"kind": "muon", "muon_rate": "original", "decay": "constant", "weight_decay": 0.1},
    "patterns": {
        "kind": "adamw",
        "weight_decay": 0.1,
        "lr_factors": ["*.mlp.* = 0.25", "*.layers.1.* = 2.0"],
        "weight_decays": ["*norm.weight = 0.3", "*.q_proj.weight = 0.0"],
        "frozen": ["*.embed_tokens.weight"],
        "warmup_steps": 0.5,
    },
}
LLAVA_CASES = {
    "encoder's rate, adamw": {"kind": "adamw", "lr_factors": ["vision = 0.1"], "weight_decay": 0.1, "clip_norm": 0.5},
    "encoder's rate, sgd": {"kind": "sgd", "lr": 0.05, "lr_factors": ["vision = 0.5"], "decay": "linear"},
}
DEFAULTS = {
    **{"lr": 0.01, "min_lr": 0.0, "warmup_steps": 0, "decay": "cosine", "betas": [0.9, 0.95], "eps": 1e-8},
    **{"momentum": 0.9, "weight_decay": 0.0, "clip_norm": 1.0, "muon_rate": "match_rms_adamw"},
    **{"lr_factors": [], "weight_decays": [], "frozen": []},
}


class Rotary(torch.nn.Module):
    """Positions of Llama's in fp64, where transformers' own compute in fp32 whatever the model's type is."""

    def __init__(self, head_size, base):
        super().__init__()
        self.frequencies = base ** -(torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)

    def forward(self, x, position_ids):
        turns = (position_ids[..., None].double() * self.frequencies).repeat(1, 1, 2)
        return turns.cos().to(x.dtype), turns.sin().to(x.dtype)


def norm_in_fp64(self, x):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)


def in_fp64(model):
    """All of it, also the norms and positions that transformers computes in fp32."""
    for module in model.modules():
        if isinstance(getattr(module, "rotary_emb", None), LlamaRotaryEmbedding):
            text = model.config.get_text_config()
            module.rotary_emb = Rotary(text.hidden_size // text.num_attention_heads, text.rope_parameters["rope_theta"])
    return model.double()


def make_llama():
    torch.manual_seed(1)
    return perturbed(AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **TEXT)))


def make_llava():
    torch.manual_seed(2)
    vision = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = LlavaConfig(
        vision_config=AutoConfig.for_model("clip_vision_model", **vision, image_size=IMAGE_SIZE, patch_size=8),
        text_config=AutoConfig.for_model("llama", **TEXT),
        image_token_index=IMAGE_TOKEN,
    )
    return perturbed(LlavaForConditionalGeneration(config))


def make_samples(with_images):
    """Makes samples of 5 to 20 tokens, 1 to 10 of them targets, so that microbatches weigh unequally."""
    random = np.random.default_rng(4)
    samples = []
    for number in range(STEPS * BATCH):
        images = int(with_images and number % 3 != 0)
        prompt = [IMAGE_TOKEN] * FEATURES * images + random.integers(6, VOCABULARY, random.integers(4, 10)).tolist()
        answer = random.integers(6, VOCABULARY, random.integers(1, 11)).tolist()
        pixels = 255 * random.integers(0, 2, (images, IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)  # exact in fp32
        samples.append((prompt + answer, [0] * len(prompt) + [1] * len(answer), pixels))
    return samples


def ruled(rules, name, otherwise):
    """The value of the last rule whose pattern is the parameter's, or its module's."""
    for rule in rules:
        pattern, value = rule.split(" = ")
        is_vision = name.startswith(("vision_tower.", "multi_modal_projector."))
        if fnmatch.fnmatchcase(name, pattern) or (pattern == "vision" and is_vision):
            otherwise = float(value)
    return otherwise


def is_muon_matrix(name, parameter):
    return parameter.dim() == 2 and (".layers." in name or "multi_modal_projector" in name)


def make_optimizers(parameters, optim):
    """One or, with Muon, two; a group per parameter, with its own rate and decay."""
    rest, matrices = [], []
    for name, parameter in parameters.items():
        decay = ruled(optim["weight_decays"], name, optim["weight_decay"] if parameter.dim() >= 2 else 0.0)
        lr = optim["lr"] * ruled(optim["lr_factors"], name, 1.0)
        is_matrix = optim["kind"] == "muon" and is_muon_matrix(name, parameter)
        (matrices if is_matrix else rest).append({"params": [parameter], "lr": lr, "weight_decay": decay})
    adam = {"betas": tuple(optim["betas"]), "eps": optim["eps"]}
    if optim["kind"] == "sgd":
        return [torch.optim.SGD(rest, momentum=optim["momentum"])]
    if optim["kind"] == "adam":
        return [torch.optim.Adam(rest, **adam)]
    optimizers = [torch.optim.AdamW(rest, **adam)]
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, momentum=optim["momentum"], adjust_lr_fn=optim["muon_rate"]))
    return optimizers


def make_scheduler(optimizer, optim, warmup):
    """transformers' own, whose steps count from 0."""
    share = optim["min_lr"] / optim["lr"]
    name, more = {
        "cosine": ("cosine_with_min_lr", {"min_lr_rate": share}),
        "linear": ("linear", {}),
        "constant": ("constant_with_warmup", {}),
        "inverse_sqrt": ("inverse_sqrt", {"timescale": max(warmup, 1)}),
        "wsd": (
            "warmup_stable_decay",
            {"num_decay_steps": optim.get("decay_steps"), "decay_type": "linear", "min_lr_ratio": share},
        ),
    }[optim["decay"]]
    return get_scheduler(name, optimizer, warmup, STEPS, scheduler_specific_kwargs=more)


def loss_of(model, sample):
    """Sum over its targets."""
    tokens, mask, pixels = sample
    images = {"pixel_values": normalised(pixels, MEAN, STD).double()} if len(pixels) else {}
    logits = model(input_ids=torch.tensor([tokens]), use_cache=False, **images).logits[0, :-1]
    wanted = torch.tensor(tokens[1:])
    learnt = torch.tensor(mask[1:], dtype=torch.bool)
    return torch.nn.functional.cross_entropy(logits[learnt], wanted[learnt], reduction="sum")


def train_with_torch(model, samples, optim):
    """Loss, norm and rate of each step, and the parameters in the end, by their names in files."""
    multimodal = isinstance(model, LlavaForConditionalGeneration)
    named = {file_name(name, multimodal): parameter for name, parameter in model.named_parameters()}
    for name, parameter in named.items():
        parameter.requires_grad_(not any(fnmatch.fnmatchcase(name, pattern) for pattern in optim["frozen"]))
    trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    optimizers = make_optimizers(trained, optim)
    warmup = optim["warmup_steps"]
    warmup = int(np.ceil(warmup * STEPS)) if warmup < 1 else warmup
    schedulers = [make_scheduler(optimizer, optim, warmup) for optimizer in optimizers]
    factors = [[group["initial_lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    lines = []
    for step in range(1, STEPS + 1):
        batch = samples[(step - 1) * BATCH : step * BATCH]
        targets = sum(sum(mask[1:]) for _, mask, _ in batch)
        losses = [loss_of(model, sample) / targets for sample in batch]
        sum(losses).backward()
        limit = optim["clip_norm"] or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(trained.values(), limit).item()
        rates = [scheduler.get_last_lr() for scheduler in schedulers]
        if step <= warmup:  # transformers' warm-up begins with a step at rate 0, which zea leaves out
            rates = [[lr * step / warmup for lr in of_groups] for of_groups in factors]
        for optimizer, of_groups in zip(optimizers, rates):
            for group, rate in zip(optimizer.param_groups, of_groups):
                group["lr"] = rate
            with mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):  # Muon's iteration in fp64
                optimizer.step()
            optimizer.zero_grad()
        for scheduler in schedulers:
            scheduler.step()
        lines.append((sum(losses).item(), norm, rates[0][0] / factors[0][0] * optim["lr"]))
    return lines, {name: parameter.detach().numpy() for name, parameter in named.items()}


class Trajectories(FolderCase):
    def train_with_zea(self, name, optim):
        keys = [f"optim.{key}={json.dumps(value)}" for key, value in optim.items()]
        directory = self.folder / name
        run(ZEA, "-i", self.folder / "deck.toml", "-d", directory, *keys)
        lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
        numbers = [(line["loss"], line["grad_norm"], line["lr"]) for line in lines if line["kind"] == "train"]
        checkpoint = Checkpoint(directory)
        return numbers, {tensor: checkpoint.read(tensor) for tensor in checkpoint.names()}

    @mock.patch.object(LlamaRMSNorm, "forward", norm_in_fp64)
    def check(self, make_model, cases, tolerance=1e-8):
        samples = make_samples(with_images=make_model is make_llava)
        make_model().save_pretrained(self.folder / "model")
        with DatasetWriter(self.folder / "train.h5", IMAGE_TOKEN) as writer:
            for sample in samples:
                writer.add(*sample)
        (self.folder / "deck.toml").write_text(
            f'[model]\nweights = "{self.folder}/model"\n'
            f'[data]\ntrain = "{self.folder}/train.h5"\nrow_tokens = 24\nshuffle = false\n'
            f"image_mean = {MEAN}\nimage_std = {STD}\n"
            f"[schedule]\nsteps = {STEPS}\nglobal_batch = {BATCH}\n"
            '[precision]\npreset = "fp64"\n[log]\ntensorboard = false\n'
        )
        for name, keys in cases.items():
            with self.subTest(name):
                lines, expected = train_with_torch(in_fp64(make_model()), samples, {**DEFAULTS, **keys})
                found_lines, found = self.train_with_zea(name, {"lr": DEFAULTS["lr"], **keys})
                np.testing.assert_allclose(found_lines, lines, rtol=tolerance, err_msg="loss, norm, rate of each step")
                self.assertEqual(found.keys(), expected.keys())
                begin = {file_name(n, make_model is make_llava): p for n, p in make_model().named_parameters()}
                for tensor, values in expected.items():
                    moved = np.abs(values - begin[tensor].detach().numpy()).max()
                    difference = np.abs(found[tensor] - values).max()
                    self.assertLessEqual(difference, tolerance * max(moved, 1e-3), f"{tensor}, which moved by {moved}")
                if clip_norm := {**DEFAULTS, **keys}["clip_norm"]:
                    norms = [norm for _, norm, _ in lines]
                    self.assertGreater(max(norms), 1.2 * clip_norm, "clipping acts")

    def test_llama(self):
        self.check(make_llama, CASES)

    def test_llava(self):
        self.check(make_llava, LLAVA_CASES)


if __name__ == "__main__":
    disable_progress_bar()
    torch.set_num_threads(1)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
