# SPDX-License-Identifier: Apache-2.0
"""GLM-4.1V, GLM-4.5V and GLM-4.6V, as the families of family_cases.py."""

import torch
from transformers import (
    Glm4vConfig,
    Glm4vForConditionalGeneration,
    Glm4vMoeConfig,
    Glm4vMoeForConditionalGeneration,
    Glm46VConfig,
    Glm46VForConditionalGeneration,
)
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil, smart_resize

from glm_cases import GLM4_MOE
from transformers_models import TEXT, resized


class Glm4vMoe:
    """A table of 5 x 5 positions, under images of up to 8 x 8 patches. The processor counts the pixels of two equal
    frames."""

    made_of = (Glm4vMoeConfig, Glm4vMoeForConditionalGeneration)
    placeholder = 5
    frozen = {
        "vision": tuple(
            f"model.visual.{part}."
            for part in ("blocks", "embeddings", "patch_embed", "post_conv_layernorm", "post_layernorm")
        ),
        "llm": ("model.language_model.", "lm_head."),
    }
    least, most, patch = 12 * 12, 36 * 36, 4
    deck = [f"data.resized_min_pixels={least}", f"data.resized_max_pixels={most}"]
    processor = Glm4vImageProcessorPil(
        size={"shortest_edge": 2 * least, "longest_edge": 2 * most}, patch_size=patch, merge_size=2
    )
    rope = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [1, 2, 1], "partial_rotary_factor": 0.5}
    text = {**TEXT, **GLM4_MOE, "head_dim": 16, "rope_parameters": rope}
    tower = {
        "depth": 2,
        "hidden_size": 32,
        "image_size": 20,
        "intermediate_size": 40,
        "num_heads": 4,
        "patch_size": patch,
        "out_hidden_size": 32,
    }

    @classmethod
    def model(cls, text=None, vision=None, **changes):
        config = cls.made_of[0](
            text_config={**cls.text, **(text or {})},
            vision_config={**cls.tower, **(vision or {})},
            image_token_id=cls.placeholder,
            video_token_id=4,
            image_start_token_id=2,
            image_end_token_id=3,
            video_start_token_id=0,
            video_end_token_id=1,
            **changes,
        )
        return cls.made_of[1](config)

    @classmethod
    def size_of(cls, height, width):
        limits = {"factor": 2 * cls.patch, "min_pixels": 2 * cls.least, "max_pixels": 2 * cls.most}
        return smart_resize(2, height, width, **limits)

    @classmethod
    def features(cls, height, width):
        high, wide = cls.size_of(height, width)
        return high * wide // (2 * cls.patch) ** 2

    @classmethod
    def inputs(cls, tokens, images):
        if not images:
            return {}
        images = [resized(image, *cls.size_of(*image.shape[:2])) for image in images]
        kinds = (torch.tensor([tokens]) == cls.placeholder).int()
        return {**cls.processor(images, return_tensors="pt"), "mm_token_type_ids": kinds}

    @staticmethod
    def file_name(name):
        return name


class Glm4v(Glm4vMoe):
    """Three quarters of a head of 8 coordinates rotate, neighbors together."""

    made_of = (Glm4vConfig, Glm4vForConditionalGeneration)
    rope = {**Glm4vMoe.rope, "mrope_section": [1, 1, 1], "partial_rotary_factor": 0.75}
    text = {**TEXT, "rope_parameters": rope}


class Glm46V(Glm4v):
    """With GLM-4.1V's text."""

    made_of = (Glm46VConfig, Glm46VForConditionalGeneration)


class Glm46VMoe(Glm4vMoe):
    """With GLM-4.5V's text. Files stack the experts of a layer, as the model does."""

    made_of = (Glm46VConfig, Glm46VForConditionalGeneration)
    text = {**Glm4vMoe.text, "model_type": "glm4v_moe_text"}
    saves_stacks = True
    unusual = {
        "text": {"num_hidden_layers": 3, "first_k_dense_replace": 0, "attention_bias": False, "n_group": 2,
                 "norm_topk_prob": False, "n_shared_experts": 1, "num_experts_per_tok": 2, "rms_norm_eps": 1e-2,
                 "routed_scaling_factor": 0.6},
        "vision": {"attention_bias": True, "image_size": 13, "intermediate_size": 24, "num_heads": 2},
        "tie_word_embeddings": True,
    }

    @staticmethod
    def file_experts(tensors):
        return tensors
