# SPDX-License-Identifier: Apache-2.0
"""Qwen3-Omni's thinker, as a family of omni_cases.py. A sample has one audio clip, or clips that all have a whole
chunk, because transformers pads chunks with zeros to the longest chunk of a batch."""

import numpy as np
import torch
from transformers import (
    Qwen3OmniMoeThinkerConfig,
    Qwen3OmniMoeThinkerForConditionalGeneration,
    WhisperFeatureExtractor,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import load_balancing_loss_func

from family_cases import Qwen3VLMoe
from gemma4_audio import Sound
from omni_cases import Published, Qwen25Omni, Talking, under_thinker
from video_cases import Clip, OfVideos, video_deck

CHUNK, OF_CHUNK = 100, 13  # columns of a chunk, and its features


def halved(count, times=3):
    for _ in range(times):
        count = (count + 1) // 2
    return count


class Qwen3Omni(Qwen25Omni):
    """Audio features come from chunks of one second, and attend to two chunks."""

    made_of = (Qwen3OmniMoeThinkerConfig, Qwen3OmniMoeThinkerForConditionalGeneration)
    rope = {**Qwen3VLMoe.rope, "interleaved": True}  # published configs have this key; transformers ignores it
    processor, experts = Qwen3VLMoe.processor, Qwen3VLMoe.experts
    tower = Qwen3VLMoe.tower
    deck = Qwen3VLMoe.deck + video_deck(OfVideos) + ["data.row_tokens=160"]
    frozen = {
        "vision": ("visual.blocks.", "visual.patch_embed.", "visual.pos_embed."),
        "audio": ("audio_tower.conv", "audio_tower.layers.", "audio_tower.ln_post."),
        "llm": ("model.", "lm_head."),
    }
    ear = {
        "d_model": 24,
        "encoder_ffn_dim": 40,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "num_mel_bins": Qwen25Omni.mels,
        "n_window": CHUNK // 2,
        "n_window_infer": 2 * CHUNK,
        "downsample_hidden_size": 6,
        "output_dim": 32,
    }

    @classmethod
    def model(cls, text=None, vision=None, audio=None, **changes):
        ids = {f"{item}_token_id": getattr(cls, name) for item, name in
               (("image", "placeholder"), ("video", "video"), ("audio", "audio"))}
        return super().model({"head_dim": 8, **cls.experts, **(text or {})}, vision, audio, **{**ids, **changes})

    @classmethod
    def make_item(cls, random, number, size):
        """Makes clips that are shorter than a chunk, or have one or three chunks and a partial one."""
        if number % 3 == 2:
            return Sound(random.integers(-9000, 9000, (3000, 21111, 52000)[number // 3 % 3], np.int16))
        return super().make_item(random, number, size)

    @classmethod
    def audio_features(cls, item):
        columns = len(item.samples) // 160
        return columns // CHUNK * OF_CHUNK + halved(columns % CHUNK)

    @classmethod
    def spelled_talking(cls, item):
        clip = item.clip
        moments = -(-len(clip.frames) // 2)
        seen = np.arange(moments).repeat(cls.moment(clip)) * (2 / clip.per_second) * cls.per_second
        times = [(time, 0, cls.video) for time in seen]
        times += [(time, 1, cls.audio) for time in range(cls.audio_features(item.sound))]
        return [cls.vision_start, cls.audio_start, *(token for *_, token in sorted(times)), cls.vision_end,
                cls.vision_end]

    @classmethod
    def mel_features(cls, sounds):
        """Returns features that are computed for each clip separately in double precision, and rounded."""
        extractor = WhisperFeatureExtractor(feature_size=cls.mels)
        features = [torch.tensor(extractor._np_extract_fbank_features([sound.samples / 2.0**15], "cpu")[0]).float()
                    for sound in sounds]
        columns = torch.tensor([feature.shape[1] for feature in features])
        padded = [torch.nn.functional.pad(feature, (0, columns.max() - feature.shape[1])) for feature in features]
        return {
            "input_features": torch.stack(padded),
            "feature_attention_mask": (torch.arange(columns.max()) < columns[:, None]).long(),
        }

    @staticmethod
    def router_loss(model, run_all):
        """Returns the load-balancing loss of experts over all rows of `run_all`()."""
        text, logits = model.config.text_config, {}
        hooks = [
            module.register_forward_hook(lambda _, __, out, name=name: logits.setdefault(name, []).append(out[0]))
            for name, module in model.model.named_modules()
            if name.endswith(".mlp.gate")
        ]
        run_all()
        for hook in hooks:
            hook.remove()
        layers = tuple(torch.cat(rows) for rows in logits.values())
        loss = load_balancing_loss_func(layers, text.num_experts, text.num_experts_per_tok)
        return text.router_aux_loss_coef * loss


class Qwen3OmniTalking(Qwen3Omni):
    """Every video has an audio track, which is shorter or longer than the video."""

    @classmethod
    def make_item(cls, random, number, size):
        item = super().make_item(random, number, size)
        if isinstance(item, Sound):
            return Sound(random.integers(-9000, 9000, 16000 + 1711 * (number // 3 % 3), np.int16))
        if not isinstance(item, Clip):
            return item
        item = Clip(np.concatenate([item.frames] * 3), item.per_second)
        return Talking(item, Sound(random.integers(-9000, 9000, 16000 + 2711 * (number // 3 % 4), np.int16)))


class Qwen3OmniWhole(Published, Qwen3Omni):
    beside = ("talker.", "code2wav.")
    saved_name = staticmethod(Qwen3Omni.file_name)
    frozen = under_thinker(Qwen3Omni.frozen)
    whole = {
        "model_type": "qwen3_omni_moe",
        "talker_config": {"num_code_groups": 3},
        "code2wav_config": {"num_quantizers": 4},
    }
    carried = {
        "talker.model.layers.0.mlp.experts.0.up_proj.weight": (7, 5),
        "talker.code_predictor.lm_head.0.weight": (3, 5),
        "code2wav.upsample.0.1.gamma": (4,),
        "code2wav.decoder.1.block.0.alpha": (3,),
    }
