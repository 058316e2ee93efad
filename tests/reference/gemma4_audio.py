# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 with images and audio, a family as those of family_cases.py, which also has

    audio                            the id that a feature of a clip takes the place of
    make_item(random, number, size)  the item of that number: an image, or a clip of a random length
    spelled_sound(sound)             the tokens of a clip
"""

from typing import NamedTuple

import numpy as np
import torch
from transformers import Gemma4AudioFeatureExtractor

from gemma4_cases import E4B
from gemma4_images import Gemma4, Gemma4Clipped


class Sound(NamedTuple):
    samples: np.ndarray  # int16, at 16 kHz


class ExactFeatures(Gemma4AudioFeatureExtractor):
    """Computes in double, as zea does, before it rounds features."""

    def _extract_spectrogram(self, waveform, attention_mask):
        return super()._extract_spectrogram(waveform.astype(np.float64), attention_mask)


class Gemma4Audio(Gemma4):
    """Clips of 1 to 14 features, of which a window holds 3; linears are clipped."""

    audio = 4
    frozen = {**Gemma4.frozen, "audio": ("model.audio_tower.",)}
    deck = [*Gemma4.deck, "data.row_tokens=120"]
    text = {**E4B, "use_bidirectional_attention": None, "pad_token_id": 1}
    tower = Gemma4Clipped.tower
    sound = {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "subsampling_conv_channels": [8, 5],
        "conv_kernel_size": 4,
        "attention_chunk_size": 3,
        "attention_context_left": 4,
        "attention_logit_cap": 5.0,
        "output_proj_dims": 20,
    }

    @classmethod
    def model(cls, text=None, vision=None, audio=None, **changes):
        sound = {**cls.sound, **(audio or {})}
        ids = {"audio_token_id": cls.audio}
        model = super().model({**cls.text, **(text or {})}, vision, audio_config=sound, **{**ids, **changes})
        cls.set_buffers(model.model.audio_tower)
        return model

    video = 3  # no clip of frames is in the data
    has_images = True

    @classmethod
    def make_item(cls, random, number, size):
        if cls.has_images and number % 3 == 1:
            return random.integers(0, 256, (*size, 3), np.uint8)
        length, loudness = random.integers(500, 9000), random.uniform(500, 30000)
        samples = (random.standard_normal(length) * loudness).clip(-32768, 32767)
        return Sound(samples.astype(np.int16))

    @classmethod
    def features_of(cls, sounds):
        """Log-mel features of clips and their mask, as the processor pads them."""
        bins = 4 * (cls.sound["subsampling_conv_channels"][0] // 4)
        extractor = ExactFeatures(feature_size=bins)
        made = extractor([sound.samples.astype(np.float32) / 32768 for sound in sounds], return_tensors="pt")
        return made["input_features"], made["input_features_mask"]

    @classmethod
    def spelled_sound(cls, sound):
        frames = int(cls.features_of([sound])[1].sum())
        return [cls.audio] * -(-frames // 4)

    @classmethod
    def inputs(cls, tokens, items):
        sounds = [item for item in items if isinstance(item, Sound)]
        found = super().inputs(tokens, [item for item in items if not isinstance(item, Sound)])
        if sounds:
            found["input_features"], found["input_features_mask"] = cls.features_of(sounds)
        return found


class Gemma4AudioAlone(Gemma4Audio):
    """Without images, with linears that are not clipped, and every option away from its default."""

    sound = {
        **Gemma4Audio.sound,
        "num_attention_heads": 2,
        "subsampling_conv_channels": [10, 3],
        "hidden_act": "relu",
        "conv_kernel_size": 3,
        "residual_weight": 0.7,
        "attention_chunk_size": 4,
        "attention_context_left": 6,
        "attention_context_right": 3,
        "attention_logit_cap": 2.0,
        "use_clipped_linears": False,
        "rms_norm_eps": 1e-2,
        "gradient_clipping": 1.5,
    }
    frozen = {"llm": Gemma4.frozen["llm"], "audio": Gemma4Audio.frozen["audio"]}
    deck = ["data.row_tokens=120"]

    @classmethod
    def model(cls, text=None, audio=None, **changes):
        found = super().model(text, None, audio, **changes)
        config = found.config
        config.vision_config = None
        return type(found)(config)

    has_images = False
