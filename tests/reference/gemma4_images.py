# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 with images, and with videos, families as those of family_cases.py and video_cases.py."""

import numpy as np
import torch
from transformers import Gemma4Config, Gemma4ForConditionalGeneration
from transformers.models.gemma4.image_processing_pil_gemma4 import (
    convert_image_to_patches,
    get_aspect_ratio_preserving_size,
)

from gemma4_cases import E4B, EXPERTS, GEMMA4
from transformers_models import TEXT, resized, resized_frames
from video_cases import Clip


class Gemma4:
    """Up to 9 features of 2 x 2 patches, most of which a window of 4 tokens does not hold."""
    is_hybrid = True

    placeholder, video = 5, 4
    frozen = {"vision": ("model.vision_tower.",), "llm": ("model.language_model.", "lm_head.")}
    patch, pool, most = 4, 2, 9
    deck = [f"data.resized_max_pixels={most * (patch * pool) ** 2}"]
    text = GEMMA4
    tower = {
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "patch_size": patch,
        "pooling_kernel_size": pool,
        "position_embedding_size": 18,
        "standardize": True,
        "rope_parameters": {"rope_type": "axial", "rope_theta": 20.0},
    }

    @classmethod
    def model(cls, text=None, vision=None, **changes):
        config = Gemma4Config(
            text_config={**TEXT, **cls.text, "use_bidirectional_attention": "vision", **(text or {})},
            vision_config={**cls.tower, **(vision or {})},
            image_token_id=cls.placeholder,
            video_token_id=cls.video,
            **changes,
        )
        model = Gemma4ForConditionalGeneration(config)
        cls.set_buffers(model.model.vision_tower)
        return model

    @staticmethod
    def set_buffers(tower):
        """Draws buffers of the tower. Bounds clip some inputs and outputs of linears; queries are not clipped."""
        with torch.no_grad():
            for name, buffer in tower.named_buffers():
                if name in ("std_bias", "std_scale"):
                    buffer.normal_(1.0, 0.3)
                elif name.endswith(("_min", "_max")) and ".q_proj." not in name:
                    sign = -1 if name.endswith("_min") else 1
                    buffer.fill_(sign * (0.6 + torch.rand(()).item()))

    @classmethod
    def resized_to(cls, height, width, most):
        return get_aspect_ratio_preserving_size(height, width, cls.patch, most * cls.pool**2, cls.pool)

    @classmethod
    def features(cls, height, width):
        high, wide = cls.resized_to(height, width, cls.most)
        return high * wide // (cls.patch * cls.pool) ** 2

    @classmethod
    def patches(cls, image):
        return cls.padded_patches(np.asarray(resized(image, *cls.resized_to(*image.shape[:2], cls.most))), cls.most)

    @classmethod
    def padded_patches(cls, image, most):
        """The pixels and the positions (column, row) of the patches of a resized image, padded to the most that it may
        have."""
        pixels = (np.asarray(image, dtype=np.float64) * (1 / 255)).astype(np.float32).transpose(2, 0, 1)
        found = torch.from_numpy(convert_image_to_patches(pixels, cls.patch))
        rows, columns = (side // cls.patch for side in image.shape[:2])
        cells = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).flip(1)
        padding = most * cls.pool**2 - len(found)
        return (
            torch.nn.functional.pad(found, (0, 0, 0, padding)),
            torch.nn.functional.pad(cells, (0, 0, 0, padding), value=-1),
        )

    @classmethod
    def inputs(cls, tokens, images):
        if not images:
            return {}
        pixels, cells = zip(*map(cls.patches, images))
        return {
            "pixel_values": torch.stack(pixels),
            "image_position_ids": torch.stack(cells),
            "mm_token_type_ids": (torch.tensor([tokens]) == cls.placeholder).int(),
        }

    @staticmethod
    def file_name(name):
        return name


class Gemma4Moe(Gemma4):
    """Experts beside MLPs, as in the 26B-A4B."""

    text = EXPERTS


class Gemma4Clipped(Gemma4):
    """Clipped linears, means that are not standardized, fewer KV heads, and text whose images are causal."""

    tower = {**Gemma4.tower, "use_clipped_linears": True, "standardize": False, "num_key_value_heads": 2}

    @classmethod
    def model(cls, text=None, vision=None, **changes):
        return super().model({"use_bidirectional_attention": None, **(text or {})}, vision, **changes)


class Gemma4Videos(Gemma4):
    """Frames are images of fewer features, with text between them."""

    least_frames, most_of_frame = 1, 4
    deck = [*Gemma4.deck, f"data.video_max_pixels={most_of_frame * (Gemma4.patch * Gemma4.pool) ** 2}"]

    @classmethod
    def resized_clip(cls, clip):
        return resized_frames(clip.frames, *cls.resized_to(*clip.frames.shape[1:3], cls.most_of_frame)).numpy()

    @classmethod
    def spelled_clip(cls, clip):
        high, wide = cls.resized_clip(clip).shape[1:3]
        frame = [2, *[cls.video] * (high * wide // (cls.patch * cls.pool) ** 2), 3]
        return sum(([7 + number, *frame] for number in range(len(clip.frames))), [])

    @classmethod
    def inputs(cls, tokens, items):
        clips = [item for item in items if isinstance(item, Clip)]
        found = super().inputs(tokens, [item for item in items if not isinstance(item, Clip)])
        if not clips:
            return found
        frames = [cls.padded_patches(frame, cls.most_of_frame) for clip in clips for frame in cls.resized_clip(clip)]
        pixels, cells = zip(*frames)
        ids = torch.tensor([tokens])
        return {
            **found,
            "pixel_values_videos": torch.stack(pixels)[None],  # as frames of one video
            "video_position_ids": torch.stack(cells)[None],
            "mm_token_type_ids": (ids == cls.placeholder).int() + 2 * (ids == cls.video).int(),
        }


class Gemma4E4B(Gemma4Videos):
    """Placeholders read the per-layer input of padding, which they do not train; images are causal. There is an audio
    encoder, too, which no sample uses."""

    text = {**E4B, "use_bidirectional_attention": None, "pad_token_id": 1}
    tower = Gemma4Clipped.tower
    audio_config = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 12,
             "subsampling_conv_channels": [8, 4]}

    @classmethod
    def model(cls, text=None, vision=None, **changes):
        found = super().model({**cls.text, **(text or {})}, vision, audio_config=cls.audio_config, **changes)
        cls.set_buffers(found.model.audio_tower)
        return found
