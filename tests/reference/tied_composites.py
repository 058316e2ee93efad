# SPDX-License-Identifier: Apache-2.0
"""Tiny composites of transformers by name: COMPOSITES[name](text={...}, **keys of the whole)."""

from cropped_cases import LlavaOneVision
from family_cases import Gemma3, Qwen2VL, Qwen3VL, Qwen25VL
from glm4v_cases import Glm4v, Glm4vMoe, Glm46V
from idefics3_cases import SmolVLM
from kimi_k25_cases import KimiK25
from omni_cases import Qwen25Omni
from qwen3_omni_cases import Qwen3Omni
from pixtral_cases import Mistral3
from tiled_families import InternVL, LlavaNext
from transformers import (
    LlavaConfig,
    LlavaForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    VoxtralConfig,
    VoxtralForConditionalGeneration,
)
from transformers_models import TEXT

TOWER = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3}
SOUND = {"num_mel_bins": 8, "max_source_positions": 8}


def llava(text=None, **keys):
    vision = {"model_type": "clip_vision_model", **TOWER, "image_size": 16, "patch_size": 8}
    text = {"model_type": "llama", **TEXT, **(text or {})}
    return LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=text, image_token_index=5, **keys)
    )


def mistral3(text=None, **keys):
    config = Mistral3Config(**Mistral3.configs(text or {}, {}), image_token_index=5, **keys)
    return Mistral3ForConditionalGeneration(config)


def smolvlm(text=None, **keys):
    return SmolVLM.model(text, **{"tie_word_embeddings": False, **keys})


def qwen2_audio(text=None, **keys):
    audio = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 24, **SOUND}
    text = {"model_type": "qwen2", **TEXT, **(text or {})}
    config = Qwen2AudioConfig(audio_config=audio, text_config=text, audio_token_index=5, **keys)
    return Qwen2AudioForConditionalGeneration(config)


def voxtral(text=None, **keys):
    audio = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, **SOUND}
    text = {"model_type": "llama", **TEXT, "head_dim": 8, **(text or {})}
    config = VoxtralConfig(audio_config=audio, text_config=text, audio_token_id=5, **keys)
    return VoxtralForConditionalGeneration(config)


COMPOSITES = {
    "Gemma3": Gemma3.model,
    "Glm4v": Glm4v.model,
    "Glm4vMoe": Glm4vMoe.model,
    "Glm46V": Glm46V.model,
    "InternVL": InternVL.model,
    "KimiK25": KimiK25.model,
    "Llava": llava,
    "LlavaNext": LlavaNext.model,
    "LlavaOneVision": LlavaOneVision.model,
    "Mistral3": mistral3,
    "Qwen2Audio": qwen2_audio,
    "Qwen25Omni": Qwen25Omni.model,
    "Qwen3Omni": Qwen3Omni.model,
    "Qwen2VL": Qwen2VL.model,
    "Qwen25VL": Qwen25VL.model,
    "Qwen3VL": Qwen3VL.model,
    "SmolVLM": smolvlm,
    "Voxtral": voxtral,
}
