# SPDX-License-Identifier: Apache-2.0
"""Qwen2.5-Omni's thinker, as a family of family_cases.py with videos and sound. Such a family also has

    audio, audio_start           the id that a feature of sound takes the place of, and the token before these
    make_item(random, number, size)  the item of that number: an image, a Clip, a Sound or a Talking video
    spelled_item(item)           its tokens
"""

import json
import math
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    WhisperFeatureExtractor,
)

from family_cases import Qwen25VL
from gemma4_audio import Sound
from transformers_models import TEXT
from video_cases import Clip, OfVideos, video_deck

RATE = 16000


class Talking(NamedTuple):
    """A video with its sound, in chunks by turns."""

    clip: Clip
    sound: Sound


def parts_of(item):
    """The items of a data set that an item is: a video and its sound are two."""
    return [item.clip, item.sound] if isinstance(item, Talking) else [item]


def chunks(positions, per_chunk):
    """The ranges of features in chunks, as the processor cuts them: a feature begins one chunk at most."""
    begins = [0]
    for number, position in enumerate(positions):
        if position >= len(begins) * per_chunk:
            begins.append(number)
    return list(zip(begins, [*begins[1:], len(positions)]))


class Qwen25Omni(OfVideos, Qwen25VL):
    """Chunks of 3 positions of sound, whose pairs they cut; a second is 7 positions in time."""

    made_of = (Qwen2_5OmniThinkerConfig, Qwen2_5OmniThinkerForConditionalGeneration)
    audio, audio_start = 1, 0
    per_second, per_chunk_seconds = 7, 2
    mels = 16
    deck = Qwen25VL.deck + video_deck(OfVideos)
    frozen = {
        "vision": ("visual.blocks.", "visual.patch_embed."),
        "audio": ("audio_tower.conv", "audio_tower.layers.", "audio_tower.ln_post."),
        "llm": ("model.", "lm_head."),
    }
    ear = {
        "d_model": 24,
        "encoder_ffn_dim": 40,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "num_mel_bins": mels,
        "max_source_positions": 13,
        "n_window": 3,
        "output_dim": 32,
    }

    @classmethod
    def model(cls, text=None, vision=None, audio=None, **changes):
        make_config, make_model = cls.made_of
        config = make_config(
            text_config={**TEXT, "rope_parameters": cls.rope, **(text or {})},
            vision_config={**cls.tower, **(vision or {})},
            audio_config={**cls.ear, **(audio or {})},
            **{
                "image_token_index": cls.placeholder,
                "video_token_index": cls.video,
                "audio_token_index": cls.audio,
                "vision_start_token_id": cls.vision_start,
                "audio_start_token_id": cls.audio_start,
                "position_id_per_seconds": cls.per_second,
                "seconds_per_chunk": cls.per_chunk_seconds,
                **changes,
            },
        )
        return make_model(config)

    @staticmethod
    def file_name(name):
        return name

    @classmethod
    def make_item(cls, random, number, size):
        """An image, a video, sound, and so on."""
        height, width = size
        if number % 3 == 2:
            return Sound(random.integers(-9000, 9000, 500 + 1733 * (number % 5), np.int16))
        if number % 3 == 1:
            frames = random.integers(0, 256, (1 + number // 3 % 4, height, width, 3), np.uint8)
            return Clip(frames, (0.7, 2, 3.1)[number // 3 % 3])
        return random.integers(0, 256, (height, width, 3), np.uint8)

    @classmethod
    def audio_features(cls, item):
        columns = -(-len(item.samples) // 160)
        return (columns + 1) // 2 // 2

    @classmethod
    def spelled_item(cls, item):
        if isinstance(item, Talking):
            return cls.spelled_talking(item)
        if isinstance(item, Sound):
            return [cls.audio_start, *[cls.audio] * cls.audio_features(item), cls.vision_end]
        tokens = cls.spelled_clip(item) if isinstance(item, Clip) else [cls.placeholder] * cls.features(*item.shape[:2])
        return [cls.vision_start, *tokens, cls.vision_end]

    @classmethod
    def spelled_talking(cls, item):
        moment, moments = cls.moment(item.clip), math.ceil(len(item.clip.frames) / 2)
        seen = np.arange(moments).repeat(moment) * (2 / item.clip.per_second) * cls.per_second
        heard = range(cls.audio_features(item.sound))
        per_chunk = int(cls.per_second * cls.per_chunk_seconds)
        turns = [chunks(positions, per_chunk) for positions in (seen, heard)]
        tokens = [cls.vision_start, cls.audio_start]
        for number in range(max(map(len, turns))):
            for token, parts in zip((cls.video, cls.audio), turns):
                begin, end = parts[number] if number < len(parts) else (0, 0)
                tokens += [token] * (end - begin)
        return [*tokens, cls.vision_end, cls.vision_end]

    @classmethod
    def mel_features(cls, sounds):
        """Computed in double precision, and rounded."""
        seconds = max(len(sound.samples) for sound in sounds) // RATE + 1
        extractor = WhisperFeatureExtractor(feature_size=cls.mels, chunk_length=seconds)
        waves = [np.pad(sound.samples / 2.0**15, (0, seconds * RATE - len(sound.samples))) for sound in sounds]
        features = torch.tensor(extractor._np_extract_fbank_features(np.array(waves), "cpu"), dtype=torch.float32)
        columns = torch.tensor([-(-len(sound.samples) // 160) for sound in sounds])
        return {
            "input_features": features,
            "feature_attention_mask": (torch.arange(features.shape[2]) < columns[:, None]).long(),
        }

    @classmethod
    def inputs(cls, tokens, items):
        parts = [part for item in items for part in parts_of(item)]
        clips = [part for part in parts if isinstance(part, Clip)]
        sounds = [part for part in parts if isinstance(part, Sound)]
        images = [part for part in parts if isinstance(part, np.ndarray)]
        found = Qwen25VL.inputs.__func__(cls, tokens, images)
        found.pop("mm_token_type_ids", None)
        if clips:
            patches, grids = zip(*map(cls.patches, clips))
            found |= {"pixel_values_videos": torch.cat(patches), "video_grid_thw": torch.tensor(grids)}
            found["video_second_per_grid"] = torch.tensor([2 / clip.per_second for clip in clips])
        if sounds:
            found |= cls.mel_features(sounds)
        talks = any(isinstance(item, Talking) for item in items)
        return {**found, "attention_mask": torch.ones(1, len(tokens), dtype=torch.long), "use_audio_in_video": talks}


class Qwen25OmniTalking(Qwen25Omni):
    """Every video has sound, which is shorter or longer; chunks are of a second."""

    per_second, per_chunk_seconds = 5, 1

    @classmethod
    def make_item(cls, random, number, size):
        item = super().make_item(random, number, size)
        if not isinstance(item, Clip):
            return item
        return Talking(item, Sound(random.integers(-9000, 9000, 3000 + 2711 * (number // 3 % 4), np.int16)))


def under_thinker(frozen):
    return {module: tuple(f"thinker.{name}" for name in names) for module, names in frozen.items()}


class Published:
    """A published directory of a family of thinkers, with a talker and a vocoder. A class that has this as its first
    base sets `whole` (keys of the whole config.json) and `carried` (shapes of tensors beside the thinker)."""

    is_published = True

    @staticmethod
    def file_name(name):
        return f"thinker.{name}"

    @classmethod
    def spell_as_published(cls, folder):
        path = folder / "model.safetensors"
        tensors = {f"thinker.{name}": tensor for name, tensor in load_file(path).items()}
        for seed, (name, shape) in enumerate(cls.carried.items()):
            tensors[name] = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).half()
        save_file(tensors, path, {"format": "pt"})
        thinker = json.loads((folder / "config.json").read_text())
        whole = {"enable_audio_output": True, "thinker_config": thinker, **cls.whole}
        (folder / "config.json").write_text(json.dumps(whole))


class Qwen25OmniWhole(Published, Qwen25Omni):
    beside = ("talker.", "token2wav.")
    saved_name = staticmethod(Qwen25Omni.file_name)
    frozen = under_thinker(Qwen25Omni.frozen)
    whole = {
        "model_type": "qwen2_5_omni",
        "talker_config": {"vocab_size": 3},
        "token2wav_config": {"dit_config": {"depth": 1}},
    }
    carried = {
        "talker.model.layers.0.mlp.up_proj.weight": (7, 5),
        "talker.codec_head.weight": (3, 5),
        "token2wav.code2wav_dit_model.rotary_embed.inv_freq": (4,),
        "token2wav.code2wav_bigvgan_model.resblocks.0.scale": (),
    }
