# SPDX-License-Identifier: Apache-2.0
"""The composite families that are compared with transformers (family_table.py has their cases).

A family is a class with
    placeholder                  the id that a feature takes the place of
    frozen                       of each module: how the names of its parameters in files begin
    deck                         keys that every case has
    model(**changes)             a tiny random model of transformers
    features(height, width)      of an image; or spelled(height, width): its tokens
    inputs(tokens, images)       what the model is given of a sample, beside its tokens
    file_name(name)              of a parameter that a running model calls `name`
    spell_as_published(folder)   a directory that transformers 5 wrote, as the family was published
    is_published                 its directories are always spelled so
    is_hybrid                    layers enlarge rounding (the gated delta rule, scores with a scale of 1): outputs are
                                 compared with those in fp64
    rounds_inputs                its processor rounds pixels in another order: outputs in fp64 are not equal
    file_experts(tensors)        those of experts as such files hold them
    names_of_files(named)        where files do not have these names: theirs
    router_loss(model, run_all)  the loss that balances experts over the rows of `run_all`(), if its config has one
"""

import json

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
    smart_resize,
)

from hybrid_cases import HYBRID
from mtp_head import with_head
from parity_cases import GEMMA3, QWEN2_MOE
from transformers_models import TEXT, resized
from transformers_models import file_name as llava_file_name

class Qwen2VL:
    placeholder, vision_start, vision_end, video = 5, 2, 3, 4
    frozen = {"vision": ("visual.blocks.", "visual.patch_embed."), "llm": ("model.", "lm_head.")}
    least, most, patch = 12 * 12, 36 * 36, 4
    deck = [f"data.resized_min_pixels={least}", f"data.resized_max_pixels={most}"]
    processor = Qwen2VLImageProcessorPil(
        size={"shortest_edge": least, "longest_edge": most}, patch_size=patch, merge_size=2
    )

    rope = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [1, 2, 1]}
    made_of = (Qwen2VLConfig, Qwen2VLForConditionalGeneration)
    tower = {"depth": 2, "embed_dim": 32, "num_heads": 4, "patch_size": patch, "mlp_ratio": 2, "hidden_size": 32}

    @classmethod
    def model(cls, text=None, vision=None, **changes):
        make_config, make_model = cls.made_of
        config = make_config(
            text_config={**TEXT, "rope_parameters": cls.rope, **(text or {})},
            vision_config={**cls.tower, **(vision or {})},
            image_token_id=cls.placeholder,
            video_token_id=cls.video,
            vision_start_token_id=cls.vision_start,
            vision_end_token_id=cls.vision_end,
            **changes,
        )
        return make_model(config)

    @classmethod
    def features(cls, height, width):
        return cls.processor.get_number_of_image_patches(height, width) // 4

    @classmethod
    def inputs(cls, tokens, images):
        if not images:
            return {}
        limits = {"factor": 2 * cls.patch, "min_pixels": cls.least, "max_pixels": cls.most}
        images = [resized(image, *smart_resize(*image.shape[:2], **limits)) for image in images]
        kinds = (torch.tensor([tokens]) == cls.placeholder).int()
        return {**cls.processor(images, return_tensors="pt"), "mm_token_type_ids": kinds}

    @staticmethod
    def file_name(name):
        for running, saved in (("model.visual.", "visual."), ("model.language_model.", "model.")):
            if name.startswith(running):
                return saved + name[len(running) :]
        return name


class Qwen25VL(Qwen2VL):
    """Windows of 2 x 2 features; images have up to 4 x 4 of them, and most not of whole windows."""

    made_of = (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration)
    tower = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_heads": 4,
        "patch_size": Qwen2VL.patch,
        "window_size": 16,
        "fullatt_block_indexes": [1],
        "out_hidden_size": 32,
    }


class Qwen3VL(Qwen2VL):
    """A table of 5 x 5 positions, under images of up to 8 x 8 patches."""

    made_of = (Qwen3VLConfig, Qwen3VLForConditionalGeneration)
    rope = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    frozen = {"vision": ("model.visual.blocks.", "model.visual.patch_embed.", "model.visual.pos_embed."),
              "llm": ("model.language_model.", "lm_head.")}
    tower = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_heads": 4,
        "patch_size": Qwen2VL.patch,
        "out_hidden_size": 32,
        "num_position_embeddings": 25,
        "deepstack_visual_indexes": [0, 1],
    }
    processor = Qwen2VLImageProcessorPil(
        size={"shortest_edge": Qwen2VL.least, "longest_edge": Qwen2VL.most},
        patch_size=Qwen2VL.patch,
        merge_size=2,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )

    @classmethod
    def model(cls, text=None, vision=None, **changes):
        return super().model({"head_dim": 8, **(text or {})}, vision, **changes)

    @staticmethod
    def file_name(name):
        return name


class Qwen3VLMoe(Qwen3VL):
    made_of = (Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration)
    experts = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20}

    @classmethod
    def model(cls, text=None, vision=None, **changes):
        return super().model({**cls.experts, **(text or {})}, vision, **changes)


class Qwen35(Qwen3VL):
    """No features of several depths; the gated delta rule around a layer with gated attention. Files have a head of
    multi-token prediction, which transformers leaves out."""

    made_of = (Qwen3_5Config, Qwen3_5ForConditionalGeneration)
    rope = {**Qwen3VL.rope, "partial_rotary_factor": 0.5}
    tower = {name: value for name, value in Qwen3VL.tower.items() if name != "deepstack_visual_indexes"}
    text = {name: value for name, value in HYBRID.items() if name != "rope_parameters"}
    is_published = True
    is_hybrid = True

    @classmethod
    def model(cls, text=None, vision=None, has_head=False, **changes):
        model = super().model({**cls.text, **(text or {})}, vision, **changes)
        return with_head(model) if has_head else model

    @classmethod
    def spell_as_published(cls, folder):
        path = folder / "model.safetensors"
        tensors = load_file(path)
        if "mtp.fc.weight" in tensors:
            return
        dtype = tensors["model.language_model.norm.weight"].dtype
        head = {"mtp.fc.weight": (32, 64), "mtp.norm.weight": (32,), "mtp.layers.0.mlp.experts.down_proj": (3, 32, 5)}
        for seed, (name, shape) in enumerate(head.items()):
            tensors[name] = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
        save_file(cls.published_experts(tensors), path, {"format": "pt"})

    @staticmethod
    def published_experts(tensors):
        return tensors


class Qwen35Moe(Qwen35):
    """Files as transformers writes them, with the linears of each expert."""

    made_of = (Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration)
    text = {**Qwen35.text, **QWEN2_MOE}


class Qwen35MoeStacked(Qwen35Moe):
    """Files as published: a tensor holds the linears of all experts of a layer, (experts, out, in)."""

    @staticmethod
    def file_experts(tensors):
        return tensors

    @staticmethod
    def published_experts(named):
        tensors, linears = {}, {}
        for name, tensor in named.items():
            block, is_of_experts, part = name.partition(".experts.")
            if is_of_experts and not name.startswith("mtp."):
                expert, linear, _ = part.split(".")
                linears.setdefault(block, {}).setdefault(linear, {})[int(expert)] = tensor
            else:
                tensors[name] = tensor
        for block, parts in linears.items():
            gate, up, down = (
                torch.stack([parts[name][e] for e in sorted(parts[name])])
                for name in ("gate_proj", "up_proj", "down_proj")
            )
            tensors[f"{block}.experts.gate_up_proj"] = torch.cat([gate, up], 1)
            tensors[f"{block}.experts.down_proj"] = down
        return tensors


class Gemma3:
    placeholder = 5
    frozen = {"vision": ("vision_tower.",), "llm": ("language_model.",)}
    deck = []
    size, side = 24, 3
    processor = Gemma3ImageProcessorPil(do_resize=False)
    file_name = staticmethod(llava_file_name)

    @classmethod
    def model(cls, text=None, vision=None, **changes):
        tower = {
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": cls.size,
            "patch_size": 4,
            "vision_use_head": False,
        }
        config = Gemma3Config(
            text_config={**TEXT, **GEMMA3, **(text or {})},
            vision_config={**tower, **(vision or {})},
            image_token_index=cls.placeholder,
            mm_tokens_per_image=cls.side**2,
            **changes,
        )
        return Gemma3ForConditionalGeneration(config)

    @classmethod
    def features(cls, height, width):
        return cls.side**2

    @classmethod
    def inputs(cls, tokens, images):
        if not images:
            return {}
        images = [resized(image, cls.size, cls.size, Image.Resampling.BILINEAR) for image in images]
        pixels = cls.processor(images, return_tensors="pt")["pixel_values"]
        kinds = (torch.tensor([tokens]) == cls.placeholder).int()
        return {"pixel_values": pixels, "token_type_ids": kinds}

    @staticmethod
    def spell_as_published(folder):
        config = json.loads((folder / "config.json").read_text())
        text = config["text_config"]
        rope = text.pop("rope_parameters")
        text["rope_theta"] = rope["full_attention"].pop("rope_theta")
        text["rope_scaling"] = rope["full_attention"]
        text["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        del text["layer_types"]
        (folder / "config.json").write_text(json.dumps(config))
        tensors = load_file(folder / "model.safetensors")
        names = {name: name.replace("vision_tower.", "vision_tower.vision_model.") for name in tensors}
        tensors = {names[name]: tensor for name, tensor in tensors.items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
