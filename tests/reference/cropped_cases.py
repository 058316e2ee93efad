# SPDX-License-Identifier: Apache-2.0
"""Families whose large images are resampled behind the projector, or stand beside crops of themselves, as those
of family_cases.py."""

import numpy as np
import torch
from PIL import Image
from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration
from transformers.image_processing_utils import select_best_resolution
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor

from family_cases import Gemma3
from tiled_families import LlavaNext
from transformers_models import TEXT, resized

TOWER = {"model_type": "siglip_vision_model", "vision_use_head": False}


class LlavaOneVision(LlavaNext):
    """Most pictures alone in their sample have too many features and are resampled; where a sample has
    several, each is one square tile."""

    pinpoints = [[16, 16], [16, 32], [32, 16], [32, 32], [48, 32], [32, 48], [48, 48]]
    most = 2
    tower = TOWER
    vision_aspect_ratio = f"anyres_max_{most}"
    several = True
    deck = ["data.row_tokens=128", "data.image_mean=[0.48145466, 0.4578275, 0.40821073]",
            "data.image_std=[0.26862954, 0.26130258, 0.27577711]"]

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
        config = LlavaOnevisionConfig(
            text_config={"model_type": "qwen2", **TEXT, **(text or {})},
            vision_config={**sizes, **(vision or cls.tower)},
            image_token_index=cls.placeholder,
            video_token_index=cls.placeholder - 1,
            image_grid_pinpoints=cls.pinpoints,
            vision_aspect_ratio=cls.vision_aspect_ratio,
            **changes,
        )
        return LlavaOnevisionForConditionalGeneration(config)

    @classmethod
    def features(cls, height, width, number=1):
        side = cls.tile // cls.patch
        if number > 1:
            return side * side + 1
        high, wide = select_best_resolution((height, width), cls.pinpoints)
        grid = (high // cls.tile, wide // cls.tile)
        shown = LlavaOnevisionProcessor._get_unpadded_features(cls, height, width, side, side, *grid)
        return side * side + sum(shown)

    @classmethod
    def inputs(cls, tokens, images):
        if not images:
            return {}
        if len(images) == 1:
            return {**super().inputs(tokens, images), "batch_num_images": torch.tensor([1])}
        processor = LlavaOnevisionImageProcessorPil(size={"height": cls.tile, "width": cls.tile})
        padded = [cls.padded(image) for image in images]
        as_it_is = GotOcr2ImageProcessorPil(do_resize=False, image_mean=processor.image_mean,
                                            image_std=processor.image_std)
        pixels = as_it_is([Image.fromarray(image) for image in padded], return_tensors="pt")["pixel_values"]
        return {"pixel_values": pixels[:, None], "batch_num_images": torch.tensor([len(images)]),
                "image_sizes": torch.tensor([image.shape[:2] for image in images])}

    @classmethod
    def padded(cls, image):
        colours = tuple(int(mean * 255) for mean in cls.colours()["image_mean"])
        square = LlavaOnevisionImageProcessorPil().pad_to_square(image.transpose(2, 0, 1), colours)
        return np.asarray(resized(np.ascontiguousarray(square.transpose(1, 2, 0)), cls.tile, cls.tile))


class LlavaOneVisionOfUnevenPatches(LlavaOneVision):
    """As published ones: behind the last whole patch of a tile are pixels that nothing sees."""

    patch = 7


class LlavaNextOfSiglip(LlavaNext):
    deck = ["data.row_tokens=128", "data.image_mean=[0.48145466, 0.4578275, 0.40821073]",
            "data.image_std=[0.26862954, 0.26130258, 0.27577711]"]

    @classmethod
    def model(cls, text=None, vision=None, **changes):
        tower = {"model_type": "siglip_vision_model", "vision_use_head": False, **(vision or {})}
        return super().model(text, tower, vision_feature_select_strategy="full", **changes)


class Gemma3WithCrops(Gemma3):
    """Beside images that are longer one way stand crops of them, after some text."""

    said_of_images = {
        "do_pan_and_scan": True,
        "pan_and_scan_min_crop_size": 8,
        "pan_and_scan_max_num_crops": 3,
        "pan_and_scan_min_ratio_to_activate": 1.3,
    }
    deck = ["data.row_tokens=192"]
    whole = Gemma3ImageProcessorPil()

    @classmethod
    def parts(cls, image):
        names = {key: value for key, value in cls.said_of_images.items() if key != "do_pan_and_scan"}
        crops = cls.whole.pan_and_scan(image=image.transpose(2, 0, 1), **names)
        return [image, *(np.ascontiguousarray(crop.transpose(1, 2, 0)) for crop in crops)]

    @classmethod
    def spelled(cls, height, width):
        image = [cls.placeholder] * cls.side**2
        crops = len(cls.parts(np.zeros((height, width, 3), np.uint8))) - 1
        return [7, *image, *([8, 9] if crops else []), *([10, *image] * crops)]

    @classmethod
    def inputs(cls, tokens, images):
        return super().inputs(tokens, [part for image in images for part in cls.parts(image)])
