# SPDX-License-Identifier: Apache-2.0
"""The families of family_cases.py whose images are cut into tiles."""

import numpy as np
import torch
from PIL import Image
from transformers import (
    InternVLConfig,
    InternVLForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
)
from transformers.image_processing_utils import get_patch_output_size, select_best_resolution
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import (
    GotOcr2ImageProcessorPil,
    get_optimal_tiled_canvas,
)
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor

from parity_cases import MIXTRAL, QWEN3_MOE
from transformers_models import TEXT, resized
from transformers_models import file_name as llava_file_name


class InternVL:
    placeholder = 5
    frozen = {"vision": ("vision_tower.",), "llm": ("language_model.",)}
    tile, most, of_tile = 16, 3, 4
    ratio = 0.5
    decoder = {"model_type": "qwen2"}
    deck = ["data.max_tiles=3"]

    @classmethod
    def model(cls, text=None, vision=None, **changes):
        tower = {
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": [cls.tile, cls.tile],
            "patch_size": [4, 4],
            "layer_scale_init_value": 0.4,
        }
        config = InternVLConfig(
            text_config={**cls.decoder, **TEXT, **(text or {})},
            vision_config={**tower, **(vision or {})},
            image_token_id=cls.placeholder,
            downsample_ratio=cls.ratio,
            **changes,
        )
        return InternVLForConditionalGeneration(config)

    @classmethod
    def grid(cls, height, width):
        """Columns and rows of tiles."""
        return get_optimal_tiled_canvas((height, width), (cls.tile, cls.tile), 1, cls.most)

    @classmethod
    def features(cls, height, width):
        columns, rows = cls.grid(height, width)
        tiles = columns * rows
        return cls.of_tile * (tiles + (tiles > 1))

    @classmethod
    def tiles(cls, image):
        columns, rows = cls.grid(*image.shape[:2])
        side = cls.tile
        canvas = np.asarray(resized(image, side * rows, side * columns))
        for row in range(rows):
            for column in range(columns):
                yield canvas[row * side : (row + 1) * side, column * side : (column + 1) * side]
        if rows * columns > 1:
            yield np.asarray(resized(image, side, side))

    @classmethod
    def inputs(cls, tokens, images):
        if not images:
            return {}
        processor = GotOcr2ImageProcessorPil(
            image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225], do_resize=False
        )
        tiles = [Image.fromarray(tile) for image in images for tile in cls.tiles(image)]
        return {"pixel_values": processor(tiles, return_tensors="pt")["pixel_values"]}

    file_name = staticmethod(llava_file_name)


class InternVLOfPatches(InternVL):
    """Images that are not cut, each of whose patches becomes a feature."""

    most, of_tile, ratio = 1, 16, 1.0
    deck = ["data.max_tiles=1"]


class InternVLOfLargeSquares(InternVL):
    of_tile, ratio = 1, 0.25


class InternVLOfQwen3(InternVL):
    decoder = {"model_type": "qwen3", "head_dim": 12}


class InternVLOfExperts(InternVL):
    """The shape of InternVL3.5-30B-A3B."""

    decoder = {"model_type": "qwen3_moe", "head_dim": 12, **QWEN3_MOE}
    stacked_name = staticmethod(llava_file_name)  # of a tensor that save_original_format=False writes
    unusual = {
        "text": {"num_hidden_layers": 4, "attention_bias": True, "decoder_sparse_step": 2, "mlp_only_layers": [3],
                 "norm_topk_prob": False, "num_experts_per_tok": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-2},
        "vision": {"attention_bias": True, "norm_type": "rms_norm", "use_qk_norm": True},
        "projector_hidden_act": "silu",
    }


class InternVLOfMixtral(InternVL):
    """Names of experts in files are those of the running model in Qwen3-MoE, but not in Mixtral."""

    decoder = {"model_type": "mixtral", **MIXTRAL}

    @staticmethod
    def stacked_name(name):
        return InternVLOfExperts.stacked_name(name).replace(".mlp.experts", ".block_sparse_moe.experts").replace(
            ".mlp.gate.", ".block_sparse_moe.gate."
        )


class InternVLOfLlama(InternVL):
    decoder = {"model_type": "llama"}


class LlavaNext:
    placeholder = 5
    frozen = {"vision": ("vision_tower.",), "llm": ("language_model.",)}
    tile, patch = 16, 8
    pinpoints = [[16, 32], [32, 16], [32, 32], [48, 16]]
    deck = ["data.row_tokens=128"]

    @classmethod
    def model(cls, text=None, vision=None, **changes):
        sizes = {
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "image_size": cls.tile,
            "patch_size": cls.patch,
        }
        config = LlavaNextConfig(
            text_config={"model_type": "llama", **TEXT, **(text or {})},
            vision_config={"model_type": "clip_vision_model", **sizes, **(vision or {})},
            image_token_index=cls.placeholder,
            image_grid_pinpoints=cls.pinpoints,
            **changes,
        )
        return LlavaNextForConditionalGeneration(config)

    @classmethod
    def features(cls, height, width):
        side = cls.tile // cls.patch
        high, wide = select_best_resolution((height, width), cls.pinpoints)
        grid = (high // cls.tile, wide // cls.tile)
        shown = LlavaNextProcessor._get_unpadded_features(cls, height, width, side, side, *grid)
        return side * side + sum(shown)

    @classmethod
    def tiles(cls, image):
        side = cls.tile
        yield np.asarray(resized(image, side, side))
        to = select_best_resolution(image.shape[:2], cls.pinpoints)
        high, wide = get_patch_output_size(image.transpose(2, 0, 1), to, "channels_first")
        canvas = np.zeros((*to, 3), np.uint8)
        top, left = (to[0] - high) // 2, (to[1] - wide) // 2
        canvas[top : top + high, left : left + wide] = resized(image, high, wide)
        for row in range(0, to[0], side):
            for column in range(0, to[1], side):
                yield canvas[row : row + side, column : column + side]

    @classmethod
    def inputs(cls, tokens, images):
        if not images:
            return {}
        processor = GotOcr2ImageProcessorPil(do_resize=False, **cls.colours())
        each = [
            processor([Image.fromarray(tile) for tile in cls.tiles(image)], return_tensors="pt")
            for image in images
        ]
        most = max(len(tiles["pixel_values"]) for tiles in each)
        pixels = torch.zeros(len(images), most, 3, cls.tile, cls.tile)
        for number, tiles in enumerate(each):
            pixels[number, : len(tiles["pixel_values"])] = tiles["pixel_values"]
        return {"pixel_values": pixels, "image_sizes": torch.tensor([image.shape[:2] for image in images])}

    @staticmethod
    def colours():
        processor = LlavaNextImageProcessorPil()
        return {"image_mean": processor.image_mean, "image_std": processor.image_std}

    @staticmethod
    def file_name(name):
        return "image_newline" if name == "model.image_newline" else llava_file_name(name)
