# SPDX-License-Identifier: Apache-2.0
"""Random directories of Qwen2.5-Omni and Qwen3-Omni, like those of processor_cases.py."""

import json

import transformers
from transformers import WhisperFeatureExtractor

from audio_directories import Qwen2Audio
from processor_cases import Qwen2VL, Qwen3VL
from processor_directories import SPECIAL

NAMED = {
    "image_token": "<|IMAGE|>",
    "video_token": "<|VIDEO|>",
    "audio_token": "<|AUDIO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}


class Qwen25Omni(Qwen2VL):
    """Images, videos whose limits no file says, and sound; the thinker alone, or in a whole directory."""

    samples = {"image": 4, "video": 2, "audio": 4}
    named, special = NAMED, [*SPECIAL, *NAMED.values()]
    family, kind_of, video_placeholder = "qwen2_5_omni_thinker", "Qwen2_5Omni", "<|VIDEO|>"
    whole, token_key = "qwen2_5_omni", "token_index"
    length = Qwen2Audio.length

    def __init__(self, draw):
        seconds, bins = draw.randint(1, 3), draw.choice([16, 80, 128])
        self.most_samples = 16000 * seconds
        self.sounds = WhisperFeatureExtractor(feature_size=bins, chunk_length=seconds, return_attention_mask=True)
        super().__init__(draw)
        ids = {f"{item}_{self.token_key}": self.tokenizer.convert_tokens_to_ids(self.placeholder_of(item))
               for item in ("image", "video", "audio")}
        for item in ("image", "video"):
            self.config.pop(f"{item}_token_id", None)
        self.config |= ids
        self.config["audio_config"] = {
            "model_type": f"{self.whole}_audio_encoder", "num_mel_bins": bins, "d_model": 32, "encoder_ffn_dim": 48,
            "encoder_layers": 1, "encoder_attention_heads": 4, "output_dim": 32, **self.chunks(draw),
        }
        self.config["vision_config"]["model_type"] = f"{self.whole}_vision_encoder"
        self.config["text_config"]["model_type"] = f"{self.whole}_text"
        self.placeholder = self.placeholder_of("image")
        if draw.chance(0.5):
            self.config = {"model_type": self.whole, "thinker_config": self.config}

    def chunks(self, draw):
        return {"n_window": draw.randint(3, 30)}

    def around(self, item):
        mark = "audio" if item == "audio" else "vision"
        return self.named[f"{mark}_bos_token"] + self.placeholder_of(item) + self.named[f"{mark}_eos_token"]

    def set_tokenizer(self, draw, named=None):
        self.mark = self.around("image")
        super().set_tokenizer(draw, self.named)
        sound = self.around("audio")
        begin, _, end = self.template.partition("{% elif part['type'] == 'audio' %}" + self.mark)
        self.template = begin + "{% elif part['type'] == 'audio' %}" + sound + end

    def mark_of_videos(self):
        return self.around("video")

    def tower(self):
        return {"hidden_size": 32, "num_heads": 4, "intermediate_size": 48, "out_hidden_size": 32}

    def placeholder_of(self, kind):
        return self.named[f"{kind}_token"]

    def processor(self):
        make = getattr(transformers, f"{self.kind_of}Processor")
        return make(self.images, self.processor_of_videos, self.sounds, self.tokenizer, chat_template=self.template)

    def files(self, said):
        """One file for images and sound, as published, or that of the whole processor."""
        sounds = json.loads(self.sounds.to_json_string())
        if self.draw.chance(0.5):
            both = {**sounds, **said}
            return {"preprocessor_config.json": both, "video_preprocessor_config.json": self.video_said}
        whole = {"image_processor": said, "video_processor": self.video_said, "feature_extractor": sounds}
        return {"processor_config.json": whole}

    def heard(self, inputs):
        """The columns of a clip, which transformers pads."""
        columns = int(inputs["feature_attention_mask"][0].sum())
        return inputs["input_features"][0, :, :columns].numpy().reshape(-1)


class Qwen3Omni(Qwen25Omni):
    """Clips longer than the extractor's chunk_length, which transformers does not cut, are refused."""

    named = {
        **{f"{item}_token": f"<|{item}_pad|>" for item in ("image", "video", "audio")},
        **{f"{mark}_{side}_token": f"<|{mark}_{name}|>" for mark in ("vision", "audio")
           for side, name in (("bos", "start"), ("eos", "end"))},
    }
    special = [*SPECIAL, *(name for name in named.values() if name not in SPECIAL)]
    family, kind_of, video_placeholder = "qwen3_omni_moe_thinker", "Qwen3OmniMoe", "<|video_pad|>"
    whole, token_key = "qwen3_omni_moe", "token_id"
    rope, tower = Qwen3VL.rope, Qwen3VL.tower

    def add_videos(self, draw, patch, merge, square, name):
        super().add_videos(draw, patch, merge, square, "Qwen2VL")

    def chunks(self, draw):
        self.window = draw.randint(49, 52)
        return {"n_window": self.window, "n_window_infer": draw.randint(104, 900)}

    def length(self):
        return min(self.most_samples, max(201, super().length()))

    def sound_options(self):
        return {"audio_kwargs": {"n_window": self.window, "sampling_rate": 16000}}
