# SPDX-License-Identifier: Apache-2.0
"""Families with Pixtral's encoder, as those of family_cases.py: text stands between the rows of an image."""

import numpy as np
from transformers import LlavaConfig, LlavaForConditionalGeneration, Mistral3Config, Mistral3ForConditionalGeneration
from transformers.models.pixtral.image_processing_pil_pixtral import (
    PixtralImageProcessorPil,
    get_resize_output_image_size,
)

from transformers_models import TEXT, file_name, resized


class Mistral3:
    placeholder, row_end, image_end = 5, 2, 3
    frozen = {"vision": ("vision_tower.",), "llm": ("language_model.",)}
    deck = []
    # The longest side is not of whole squares of patches.
    longest, patch, merge = 28, 4, 2
    processor = PixtralImageProcessorPil(size={"longest_edge": longest}, patch_size={"height": 8, "width": 8})

    @classmethod
    def configs(cls, text, vision):
        rope = {"rope_type": "default", "rope_theta": 500.0}
        turned = {"rope_type": "axial", "rope_theta": 50.0}
        tower = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4}
        sizes = {"patch_size": cls.patch, "image_size": cls.longest, "hidden_act": "silu"}
        return {
            "text_config": {"model_type": "mistral", **TEXT, "sliding_window": None, "rope_parameters": rope, **text},
            "vision_config": {"model_type": "pixtral", **tower, **sizes, "rope_parameters": turned, **vision},
        }

    @classmethod
    def model(cls, text=None, vision=None, **changes):
        keys = {"image_token_index": cls.placeholder, "tie_word_embeddings": False, **changes}
        return Mistral3ForConditionalGeneration(Mistral3Config(**cls.configs(text or {}, vision or {}), **keys))

    @classmethod
    def resized_to(cls, image):
        step = cls.patch * cls.merge
        return get_resize_output_image_size(image, cls.longest, step, "channels_last")

    @classmethod
    def spelled(cls, height, width):
        high, wide = (side // (cls.patch * cls.merge) for side in cls.resized_to(np.zeros((height, width, 3))))
        row = [cls.placeholder] * wide
        return (row + [cls.row_end]) * (high - 1) + row + [cls.image_end]

    @classmethod
    def inputs(cls, tokens, images):
        if not images:
            return {}
        images = [resized(image, *cls.resized_to(image)) for image in images]
        return cls.processor(images, return_tensors="pt", do_resize=False)

    @staticmethod
    def file_name(name):
        return file_name(name)


class PixtralLlava(Mistral3):
    patch, merge = 8, 1

    @classmethod
    def model(cls, text=None, vision=None, **changes):
        keys = {"image_token_index": cls.placeholder, "vision_feature_select_strategy": "full", **changes}
        keys.setdefault("vision_feature_layer", -1)
        return LlavaForConditionalGeneration(LlavaConfig(**cls.configs(text or {}, vision or {}), **keys))
