# SPDX-License-Identifier: Apache-2.0
"""Idefics 3 and SmolVLM, as the families of family_cases.py: text stands around each tile of an image."""

import numpy as np
import torch
from PIL import Image
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import (
    Idefics3ImageProcessorPil,
    get_resize_output_image_size,
)

from family_cases import BOTH_GRIDS
from parity_cases import grid
from transformers_models import TEXT, normalised, resized


def stretched_size(processor, height, width):
    """Before it becomes whole tiles, and in these."""

    class Sized:
        def resize(self, image, size, resample=None):
            return size.height, size.width

    first = get_resize_output_image_size(np.zeros((3, height, width), np.uint8), processor.size["longest_edge"])
    tile = processor.max_image_size["longest_edge"]
    return first, Idefics3ImageProcessorPil.resize_for_vision_encoder(Sized(), np.zeros((3, *first), np.uint8), tile)


class SmolVLM:
    placeholder, around, whole = 5, 2, 3
    frozen = {"vision": ("model.vision_model.",), "llm": ("model.text_model.", "lm_head.")}
    tile, patch, square = 16, 4, 2
    deck = ["data.max_tiles=4"]
    kind, config = SmolVLMForConditionalGeneration, SmolVLMConfig
    processor = Idefics3ImageProcessorPil(size={"longest_edge": 32}, max_image_size={"longest_edge": 16})

    @classmethod
    def model(cls, text=None, vision=None, **changes):
        tower = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 2}
        config = cls.config(
            text_config={"model_type": "llama", **TEXT, "pad_token_id": 0, **(text or {})},
            vision_config={**tower, "image_size": cls.tile, "patch_size": cls.patch, **(vision or {})},
            image_token_id=cls.placeholder,
            scale_factor=cls.square,
            **{"pad_token_id": 0, "tie_word_embeddings": False, **changes},
        )
        return cls.kind(config)

    @classmethod
    def spelled(cls, height, width):
        _, whole = stretched_size(cls.processor, height, width)
        tiles = whole[0] * whole[1] // cls.tile**2
        each = [cls.placeholder] * (cls.tile // cls.patch // cls.square) ** 2
        return ([cls.around] + each) * (tiles if tiles > 1 else 0) + [cls.around, cls.whole] + each + [cls.around]

    @classmethod
    def tiles(cls, image):
        side, lanczos = cls.tile, Image.Resampling.LANCZOS
        first, to = stretched_size(cls.processor, *image.shape[:2])
        whole = np.array(resized(np.array(resized(image, *first, lanczos)), *to, lanczos))
        if to != (side, side):
            for row in range(0, to[0], side):
                for column in range(0, to[1], side):
                    yield whole[row : row + side, column : column + side]
        yield np.array(resized(whole, side, side, lanczos))

    @classmethod
    def inputs(cls, tokens, images):
        if not images:
            return {}
        half = [0.5, 0.5, 0.5]
        tiles = np.stack([tile for image in images for tile in cls.tiles(image)])
        return {"pixel_values": torch.as_tensor(normalised(tiles, half, half))[None]}

    @staticmethod
    def file_name(name):
        return name


class SmolVLMOfOneTile(SmolVLM):
    """Images are resized twice, though they become no tiles."""

    deck = ["data.max_tiles=1"]
    processor = Idefics3ImageProcessorPil(size={"longest_edge": 16}, max_image_size={"longest_edge": 16})


class Idefics3(SmolVLM):
    kind, config, square = Idefics3ForConditionalGeneration, Idefics3Config, 4


class SmolVLMOfUnevenPatches(SmolVLM):
    """As SmolVLM-Instruct: behind the last whole patch of a tile are pixels that nothing sees."""

    patch, square = 5, 3


FOUR_HEADS = {"vision": {"num_attention_heads": 4}}
MICROBATCHES_OF_IMAGES = ["data.rows_per_microbatch=1"]
IDEFICS3_FAMILIES = {
    SmolVLM: {
        "plain": {},
        "text_only": {"images": [0]},
        "images_in_every_sample": {"images": [2, 1, 1]},
        "tied": {"model": {"tie_word_embeddings": True}},
        "options": {
            "model": {
                "text": {"rms_norm_eps": 1e-2, "head_dim": 12, "attention_bias": True},
                "vision": {"hidden_act": "relu", "layer_norm_eps": 1e-2, "num_attention_heads": 4},
            }
        },
        "published": {
            "deck": ["data.max_tiles=0"],
            "model": {
                "text": {"neftune_noise_alpha": 0.0, "qk_layer_norms": False, "use_resampler": False},
                "vision": {
                    "size": {"longest_edge": 32},
                    "max_image_size": {"longest_edge": 16},
                    "use_base_siglip": False,
                },
            },
        },
        "frozen_vision": {"frozen": ["vision"]},
        "frozen_llm": {"frozen": ["llm"]},
        "recomputed": {"deck": ["model.activation_checkpointing=1"]},
        "tp2_cp2": {"ranks": 4, "model": FOUR_HEADS, "deck": BOTH_GRIDS},
        "cp4_ring": {"ranks": 4, "deck": [*grid("llm", cp=4, cp_mode="ring"), *grid("vision", cp=2, cp_mode="ring")]},
        "pp2_tp2": {"ranks": 4, "deck": [*MICROBATCHES_OF_IMAGES, *grid("llm", pp=2, tp=2)]},
        "pp2_beside_vision": {
            "ranks": 4,
            "deck": [
                'mesh.placement="disjoint"',
                *MICROBATCHES_OF_IMAGES,
                *grid("llm", pp=2),
                *grid("vision", encoder_dp=2),
            ],
        },
    },
    SmolVLMOfUnevenPatches: {"plain": {}},
    SmolVLMOfOneTile: {
        "plain": {},
        "published": {"deck": ["data.max_tiles=0"], "model": {"vision": {"size": {"longest_edge": 16}}}},
    },
    Idefics3: {
        "plain": {},
        "text_only": {"images": [0]},
        "frozen_vision": {"frozen": ["vision"]},
        "tp2_cp2": {"ranks": 4, "model": FOUR_HEADS, "deck": BOTH_GRIDS},
        "pp2": {"ranks": 2, "deck": [*MICROBATCHES_OF_IMAGES, *grid("llm", pp=2)]},
    },
}
