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
        tower = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4}
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
