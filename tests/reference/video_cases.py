# SPDX-License-Identifier: Apache-2.0
"""Families that take videos, as those of family_cases.py: every second item is one. Such a family has

    video, least_frames          the id that a feature of a video takes the place of, and its fewest frames
    spelled_clip(clip)           its tokens
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from transformers.models.glm4v import image_processing_pil_glm4v
from transformers.models.smolvlm.video_processing_smolvlm import get_resize_output_image_size
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from cropped_cases import LlavaOneVision
from family_cases import Qwen2VL, Qwen3VL, Qwen25VL, Qwen35
from idefics3_cases import SmolVLM
from glm4v_cases import Glm4v, Glm4vMoe, Glm46VMoe
from tiled_families import InternVL
from transformers_models import normalised, resized_frames


class Clip(NamedTuple):
    frames: np.ndarray  # (frames, height, width, 3)
    per_second: float


class OfVideos:
    """The common part of Qwen2-VL's descendants, in pairs of frames."""

    least_frames = 1
    least_pixels, most_pixels = 9 * 9, 28 * 28

    @classmethod
    def resized_to(cls, clip):
        limits = {"factor": 2 * cls.patch, "min_pixels": cls.least_pixels, "max_pixels": cls.most_pixels}
        return smart_resize(*clip.frames.shape[1:3], **limits)

    @classmethod
    def moment(cls, clip):
        return math.prod(cls.resized_to(clip)) // (2 * cls.patch) ** 2

    @classmethod
    def spelled_clip(cls, clip):
        return [cls.video] * (cls.moment(clip) * math.ceil(len(clip.frames) / 2))

    @classmethod
    def patches(cls, clip):
        """Returns patches of pairs of frames, with those of a square of 2 x 2 side by side."""
        height, width = cls.resized_to(clip)
        colours = cls.processor.image_mean, cls.processor.image_std
        frames = normalised(resized_frames(clip.frames, height, width), *colours)
        frames = torch.cat([frames, frames[-1:]]) if len(frames) % 2 else frames
        side = cls.patch
        squares = frames.unfold(2, side, side).unfold(3, side, side)  # frame, color, row, column, y, x
        high, wide = squares.shape[2:4]
        shape = (len(frames) // 2, 2, 3, high // 2, 2, wide // 2, 2, side, side)
        ordered = squares.reshape(shape).permute(0, 3, 5, 4, 6, 2, 1, 7, 8)
        return ordered.reshape(-1, 6 * side * side), [len(frames) // 2, high, wide]

    @classmethod
    def inputs(cls, tokens, items):
        clips = [item for item in items if isinstance(item, Clip)]
        found = super().inputs(tokens, [item for item in items if not isinstance(item, Clip)])
        if not clips:
            return found
        patches, grids = zip(*map(cls.patches, clips))
        ids = torch.tensor([tokens])
        return {
            **found,
            "pixel_values_videos": torch.cat(patches),
            "video_grid_thw": torch.tensor(grids),
            "mm_token_type_ids": (ids == cls.placeholder).int() + 2 * (ids == cls.video).int(),
            **cls.times(clips),
        }

    @classmethod
    def times(cls, clips):
        return {}


def video_deck(family):
    least, most = family.least_pixels, family.most_pixels
    return [f"data.video_min_pixels={least}", f"data.video_max_pixels={most}"]


class Qwen2VLVideos(OfVideos, Qwen2VL):
    deck = Qwen2VL.deck + video_deck(OfVideos)


class Qwen25VLVideos(OfVideos, Qwen25VL):
    """A second is 3 positions, which is not the usual number."""

    deck = Qwen2VLVideos.deck
    tower = {**Qwen25VL.tower, "tokens_per_second": 3}

    @classmethod
    def times(cls, clips):
        return {"second_per_grid_ts": [2 / clip.per_second for clip in clips]}


class Qwen3VLVideos(OfVideos, Qwen3VL):
    """Text stands between the moments of a video, and limits are of all its frames together."""

    least_frames = 2
    least_pixels, most_pixels = 9 * 9 * 3, 28 * 28 * 3
    deck = Qwen3VL.deck + [f"data.video_min_pixels={least_pixels}", f"data.video_max_pixels={most_pixels}"]

    @classmethod
    def resized_to(cls, clip):
        """As Qwen3VLVideoProcessor does it."""
        step, (frames, *sides) = 2 * cls.patch, clip.frames.shape[:3]
        stretch = max(1, step / min(sides))
        sides = [int(side * stretch) for side in sides]
        nearest = [round(side / step) * step for side in sides]
        all_pixels = round(frames / 2) * 2 * math.prod(nearest)
        if all_pixels > cls.most_pixels:
            shrink = math.sqrt(frames * math.prod(sides) / cls.most_pixels)
            return [max(step, math.floor(side / shrink / step) * step) for side in sides]
        if all_pixels < cls.least_pixels:
            grow = math.sqrt(cls.least_pixels / (frames * math.prod(sides)))
            return [math.ceil(side * grow / step) * step for side in sides]
        return nearest

    @classmethod
    def spelled_clip(cls, clip):
        moment = [cls.vision_start] + [cls.video] * cls.moment(clip) + [cls.vision_end]
        return sum(([7 + number, *moment] for number in range(math.ceil(len(clip.frames) / 2))), [])


class Qwen35Videos(Qwen3VLVideos, Qwen35):
    deck = Qwen3VLVideos.deck
    rounds_inputs = True


class OfFrames(OfVideos):
    """GLM's videos: their frames have the placeholder of images, with text around them. A sample of transformers has
    images or videos: the third has two videos, the sixth three images."""

    video, clips, least_frames = Glm4vMoe.placeholder, (1, 2, 7), 2
    least_pixels, most_pixels = 9 * 9 * 3, 28 * 28 * 3
    deck = Glm4vMoe.deck + [f"data.video_min_pixels={least_pixels}", f"data.video_max_pixels={most_pixels}"]

    @classmethod
    def resized_to(cls, clip):
        limits = {"factor": 2 * cls.patch, "min_pixels": cls.least_pixels, "max_pixels": cls.most_pixels}
        return image_processing_pil_glm4v.smart_resize(*clip.frames.shape[:3], **limits)

    @classmethod
    def spelled_clip(cls, clip):
        moments = range(math.ceil(len(clip.frames) / 2))
        return sum(([7, *[cls.video] * cls.moment(clip), 8, 9 + number] for number in moments), [])

    @classmethod
    def inputs(cls, tokens, items):
        found = super().inputs(tokens, items)
        if "video_grid_thw" in found:
            found["mm_token_type_ids"] = 2 * (torch.tensor([tokens]) == cls.video).int()
        return found


class Glm4vVideos(OfFrames, Glm4v):
    deck = OfFrames.deck


class Glm4vMoeVideos(OfFrames, Glm4vMoe):
    deck = OfFrames.deck


class Glm46VMoeVideos(OfFrames, Glm46VMoe):
    deck = OfFrames.deck


class InternVLVideos(InternVL):
    """Frames are tiles, with the placeholder of images and text between them."""

    video, least_frames = InternVL.placeholder, 1

    @classmethod
    def spelled_clip(cls, clip):
        return sum(([9 + number, 7, *[cls.video] * cls.of_tile, 8] for number in range(len(clip.frames))), [])

    @classmethod
    def tiles_of(cls, item):
        if not isinstance(item, Clip):
            return super().inputs([], [item])["pixel_values"]
        frames = resized_frames(item.frames, cls.tile, cls.tile)
        return normalised(frames, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])

    @classmethod
    def inputs(cls, tokens, items):
        return {"pixel_values": torch.cat([cls.tiles_of(item) for item in items])} if items else {}


class InternVLVideosOfPatches(InternVLVideos):
    """Images are not cut, so that they alone would not differ in their features."""

    most, of_tile, ratio = 1, 16, 1.0
    deck = ["data.max_tiles=1", "data.row_tokens=192"]


class LlavaOneVisionVideos(LlavaOneVision):
    """Samples have one video at most, since transformers takes videos of one length alone."""

    video, clips, least_frames = LlavaOneVision.placeholder - 1, (1, 3, 6), 2

    @classmethod
    def spelled_clip(cls, clip):
        return [cls.video] * (len(clip.frames) * math.ceil(cls.tile // cls.patch / 2) ** 2 + 1)

    @classmethod
    def inputs(cls, tokens, items):
        clips = [item for item in items if isinstance(item, Clip)]
        found = super().inputs(tokens, [item for item in items if not isinstance(item, Clip)])
        for clip in clips:
            frames = resized_frames(clip.frames, cls.tile, cls.tile)
            colours = cls.colours()
            found["pixel_values_videos"] = normalised(frames, colours["image_mean"], colours["image_std"])[None]
        return found


class LlavaOneVisionVideosOfUnevenPatches(LlavaOneVisionVideos):
    """Three patches a side become two features a side."""

    patch = 5


class SmolVLMVideos(SmolVLM):
    """Frames are resized twice, to tiles with text between them and the placeholder of images."""

    video, least_frames = SmolVLM.placeholder, 1

    @classmethod
    def spelled_clip(cls, clip):
        frame = [cls.around, cls.whole, *[cls.video] * (cls.tile // cls.patch // cls.square) ** 2, cls.around]
        return sum(([9 + number, *frame] for number in range(len(clip.frames))), [])

    @classmethod
    def tiles(cls, item):
        if not isinstance(item, Clip):
            return super().tiles(item)
        first = get_resize_output_image_size(torch.from_numpy(item.frames).permute(0, 3, 1, 2), 4 * cls.tile)
        frames = resized_frames(item.frames, *first)
        return resized_frames(frames.numpy(), cls.tile, cls.tile).numpy()
