# SPDX-License-Identifier: Apache-2.0
"""Random directories of Qwen2.5-Omni, as those of processor_cases.py."""

import json

import transformers
from transformers import WhisperFeatureExtractor

from audio_directories import Qwen2Audio
from processor_cases import Qwen2VL
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
    special = [*SPECIAL, *NAMED.values()]
    family, kind_of, video_placeholder = "qwen2_5_omni_thinker", "Qwen2_5Omni", "<|VIDEO|>"
    length = Qwen2Audio.length

    def __init__(self, draw):
        seconds, bins = draw.randint(1, 3), draw.choice([16, 80, 128])
        self.most_samples = 16000 * seconds
        self.sounds = WhisperFeatureExtractor(feature_size=bins, chunk_length=seconds, return_attention_mask=True)
        super().__init__(draw)
        ids = {f"{item}_token_index": self.tokenizer.convert_tokens_to_ids(f"<|{item.upper()}|>")
               for item in ("image", "video", "audio")}
        for item in ("image", "video"):
            self.config.pop(f"{item}_token_id", None)
        self.config |= ids
        self.config["audio_config"] = {
            "model_type": "qwen2_5_omni_audio_encoder", "num_mel_bins": bins, "d_model": 32, "encoder_ffn_dim": 48,
            "encoder_layers": 1, "encoder_attention_heads": 4, "n_window": draw.randint(3, 30), "output_dim": 32,
        }
        self.config["vision_config"]["model_type"] = "qwen2_5_omni_vision_encoder"
        self.config["text_config"]["model_type"] = "qwen2_5_omni_text"
        self.placeholder = "<|IMAGE|>"
        if draw.chance(0.5):
            self.config = {"model_type": "qwen2_5_omni", "thinker_config": self.config}

    def set_tokenizer(self, draw, named=None):
        self.mark = "<|vision_bos|><|IMAGE|><|vision_eos|>"
        super().set_tokenizer(draw, NAMED)
        sound = "<|audio_bos|><|AUDIO|><|audio_eos|>"
        begin, _, end = self.template.partition("{% elif part['type'] == 'audio' %}" + self.mark)
        self.template = begin + "{% elif part['type'] == 'audio' %}" + sound + end

    def mark_of_videos(self):
        return "<|vision_bos|><|VIDEO|><|vision_eos|>"

    def tower(self):
        return {"hidden_size": 32, "num_heads": 4, "intermediate_size": 48, "out_hidden_size": 32}

    def placeholder_of(self, kind):
        return f"<|{kind.upper()}|>"

    def processor(self):
        return transformers.Qwen2_5OmniProcessor(self.images, self.processor_of_videos, self.sounds, self.tokenizer,
                                                 chat_template=self.template)

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
