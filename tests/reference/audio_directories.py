# SPDX-License-Identifier: Apache-2.0
"""Random directories of models with an audio encoder alone, as those of processor_cases.py."""

import json

import transformers
from transformers import WhisperFeatureExtractor

from processor_directories import TEXT, TOWER, Case


class Qwen2Audio(Case):
    """Clips of sound, of which each has the features of its own length."""

    samples = {"audio": 9}
    by_torchvision = video_said = None
    kind, mark, placeholder = "Qwen2Audio", "<audio>", "<audio>"

    def __init__(self, draw):
        self.draw, seconds, bins = draw, draw.randint(1, 3), draw.choice([16, 80, 128])
        self.most_samples = 16000 * seconds
        self.images = WhisperFeatureExtractor(feature_size=bins, chunk_length=seconds)
        tower = {"num_mel_bins": bins, "max_source_positions": 50 * seconds, **self.tower()}
        self.config = {"model_type": self.family(), "audio_config": tower,
                       "text_config": {**self.text(), "vocab_size": 500}}
        self.set_tokenizer(draw)
        self.config["audio_token_index"] = self.tokenizer.convert_tokens_to_ids("<audio>")
        self.made = {"audio_token": "<audio>"} if self.kind else None

    def family(self):
        return "qwen2_audio"

    def text(self):
        return {"model_type": "qwen2", **TEXT}

    def tower(self):
        kind = {"d_model": 32, "encoder_ffn_dim": 48, "encoder_layers": 1, "encoder_attention_heads": 4}
        return {"model_type": f"{self.family()}_encoder", **kind}

    def said_in_file(self):
        return json.loads(self.images.to_json_string())

    def files(self, said):
        return {"preprocessor_config.json": said}

    def processor(self):
        return transformers.Qwen2AudioProcessor(self.images, self.tokenizer, chat_template=self.template, **self.made)

    def length(self):
        draw = self.draw
        if draw.chance(0.3):
            return draw.randint(1, 900)
        whole = draw.choice([160, 320, 640, self.most_samples])
        if draw.chance(0.5):
            return max(1, whole * draw.randint(1, self.most_samples // whole) + draw.choice([-1, 0, 1]))
        return draw.randint(1, self.most_samples * 5 // 4)


class Voxtral(Qwen2Audio):
    """Its texts are those of another tokenizer, which is not compared."""

    kind = None

    def family(self):
        return "voxtral"

    def text(self):
        rope = {"rope_type": "default", "rope_theta": 1e4}
        more = {"head_dim": 8, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_parameters": rope}
        return {"model_type": "llama", **TEXT, **more}

    def tower(self):
        return {**TOWER, "model_type": "voxtral_encoder", "intermediate_size": 64}


class Whisper(Qwen2Audio):
    """Llava with Whisper's encoder, which transformers has not."""

    kind = None

    def family(self):
        return "llava"

    def text(self):
        return {"model_type": "llama", **TEXT}

    def tower(self):
        return {**super().tower(), "model_type": "whisper"}
