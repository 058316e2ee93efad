# SPDX-License-Identifier: Apache-2.0
"""Kimi-K2.5, as the families of family_cases.py: as transformers saves it, as it is published, and with the names and
tensors of the running model."""

import json
import types

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Kimi_K25Config,
    Kimi_K25ForConditionalGeneration,
    Kimi_K25ImageProcessor,
    Kimi_K25VideoProcessor,
)
from transformers.models.kimi_k25.image_processing_kimi_k25 import navit_resize

from deepseek_cases import DEEPSEEK_V3
from transformers_models import TEXT, split_experts
from video_cases import Clip

# How names begin, or parts of names in the tower: published, in the running model.
ROOTS = (
    ("language_model.model.", "model.language_model."),
    ("language_model.lm_head.", "lm_head."),
    ("vision_tower.encoder.blocks.", "model.vision_tower.layers."),
    ("vision_tower.patch_embed.pos_emb.weight", "model.vision_tower.patch_embed.pos_emb.position_embeddings"),
    ("vision_tower.patch_embed.", "model.vision_tower.patch_embed."),
    ("vision_tower.encoder.", "model.vision_tower."),
    ("mm_projector.proj.0.", "model.mm_projector.in_proj."),
    ("mm_projector.proj.2.", "model.mm_projector.out_proj."),
    ("mm_projector.", "model.mm_projector."),
)
PARTS = (
    (".norm0.", ".norm1."),
    (".norm1.", ".norm2."),
    (".mlp.fc0.", ".mlp.fc1."),
    (".mlp.fc1.", ".mlp.fc2."),
    (".wo.", ".attn.proj."),
)
# Published, and as transformers 5 saves them.
SAVED = (
    ("language_model.model.layers.", "language_model.model.blocks."),
    ("vision_tower.patch_embed.proj.", "vision_tower.encoder.patch_embed.proj."),
    ("mm_projector.pre_norm.", "model.mm_projector.pre_norm."),
)
# The keys of the tower in published configs that differ from those of transformers.
KEYS = (
    ("vt_hidden_size", "hidden_size"),
    ("vt_intermediate_size", "intermediate_size"),
    ("vt_num_attention_heads", "num_attention_heads"),
    ("vt_num_hidden_layers", "num_hidden_layers"),
    ("init_pos_emb_height", "pos_emb_height"),
    ("init_pos_emb_width", "pos_emb_width"),
)


def replaced(name, pairs):
    """The name with the first beginning of `pairs` that it has replaced."""
    return next((new + name[len(old) :] for old, new in pairs if name.startswith(old)), name)


class KimiK25:
    """A table of 5 x 5 positions, under images of about 7 x 7 patches."""

    placeholder, patch, most = 5, 4, 49
    frozen = {"vision": ("vision_tower.",), "llm": ("language_model.",)}
    said_of_images = {"image_processor_type": "Kimi_K25ImageProcessor", "max_patches": most, "patch_size": patch,
                      "size": {"max_height": 12, "max_width": 12}}
    deck = []
    text = {**TEXT, **DEEPSEEK_V3, "model_type": "deepseek_v3"}
    tower = {
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "patch_size": patch,
        "pos_emb_height": 5,
        "pos_emb_width": 5,
    }

    @classmethod
    def model(cls, text=None, vision=None, **changes):
        tower = {**cls.tower, **(vision or {})}
        changes = {"tie_word_embeddings": False, **changes}
        config = Kimi_K25Config(
            text_config={**cls.text, **(text or {})},
            vision_config=tower,
            image_token_id=cls.placeholder,
            video_token_id=4,
            vision_start_token_id=2,
            vision_end_token_id=3,
            projection_hidden_size=tower["hidden_size"],
            **changes,
        )
        return Kimi_K25ForConditionalGeneration(config)

    @classmethod
    def features(cls, height, width):
        _, (high, wide) = navit_resize(height, width, cls.patch, 2, cls.most, 12)
        return high * wide // (2 * cls.patch) ** 2

    @classmethod
    def inputs(cls, tokens, images):
        if not images:
            return {}
        return {**Kimi_K25ImageProcessor(**cls.said_of_images)([*images], return_tensors="pt")}

    @staticmethod
    def file_name(name):
        """The published name, but for what is fused in published files."""
        found = replaced(name, [(running, published) for published, running in ROOTS])
        if not found.startswith(ROOTS[2][0]):
            return found
        part = next(((old, new) for new, old in PARTS if old in found), ("", ""))
        return found.replace(*part) if part[0] else found

    @classmethod
    def file_experts(cls, tensors):
        """Fuses queries, keys and values, whose rows of a head are neighbors in published files."""
        found, heads = {}, cls.tower["num_attention_heads"]
        for name, tensor in split_experts(tensors, "deepseek_v3").items():
            block, is_of_attention, part = name.partition(".attn.")
            if not is_of_attention:
                found[name] = tensor
                continue
            value = tensor.detach().numpy() if hasattr(tensor, "detach") else tensor
            if part[0] in "qk":
                value = value.reshape(heads, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
            found.setdefault(f"{block}.wqkv.{part.rpartition('.')[2]}", {})["qkv".index(part[0])] = value
        fused = lambda parts: np.concatenate([parts[n] for n in range(3)])  # noqa: E731
        return {name: fused(value) if isinstance(value, dict) else value for name, value in found.items()}

    @classmethod
    def names_of_files(cls, named):
        return {replaced(name, SAVED) for name in cls.file_experts(named)}

    @staticmethod
    def name_as_published(folder):
        tensors = load_file(folder / "model.safetensors")
        back = [(saved, published) for published, saved in SAVED]
        tensors = {replaced(name, back): tensor for name, tensor in tensors.items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    @classmethod
    def spell_as_published(cls, folder):
        cls.name_as_published(folder)
        config = json.loads((folder / "config.json").read_text())
        tower, text = config["vision_config"], config["text_config"]
        for published, key in KEYS:
            tower[published] = tower.pop(key)
        tower |= {"mm_hidden_size": config.pop("projection_hidden_size"), "projector_hidden_act": "gelu"}
        tower |= {"projector_ln_eps": config.pop("projection_layer_norm_eps"), "merge_type": "sd2_tpool"}
        config["media_placeholder_token_id"] = config.pop("image_token_id")
        text["model_type"] = "kimi_k2"
        (folder / "config.json").write_text(json.dumps(config))


class KimiK25Published(KimiK25):
    """With published names. Transformers does not read the keys of published configs that differ from its own."""

    is_published = True
    spell_as_published = KimiK25.name_as_published


class KimiK25Running(KimiK25):
    """Files with the names of the running model, which splits queries, keys and values and stacks experts."""

    is_published = True
    unusual = {
        "text": {"attention_bias": True, "first_k_dense_replace": 2, "n_group": 2, "topk_group": 1,
                 "n_shared_experts": 1, "norm_topk_prob": False, "num_experts_per_tok": 2, "rms_norm_eps": 1e-2,
                 "rope_interleave": False, "routed_scaling_factor": 0.6},
        "vision": {"hidden_act": "relu", "num_attention_heads": 2, "pos_emb_height": 9, "pos_emb_width": 9},
        "projection_layer_norm_eps": 1e-2,
        "tie_word_embeddings": True,
    }

    @staticmethod
    def file_experts(tensors):
        return tensors

    @classmethod
    def names_of_files(cls, named):
        return {replaced(name, SAVED) for name in KimiK25.file_experts(named)}

    @staticmethod
    def spell_as_published(folder):
        model = Kimi_K25ForConditionalGeneration.from_pretrained(folder, dtype="auto")
        model.save_pretrained(folder, save_original_format=False)


class KimiK25Videos(KimiK25):
    """Videos in chunks of three frames, fewer in the last one, with text between chunks."""

    video, least_frames, frames_per_item = 4, 2, 3
    tower = {**KimiK25.tower, "pos_emb_time": frames_per_item}

    @classmethod
    def model(cls, **changes):
        """Transformers 5.17 raises an error if a chunk has several frames, because it splits features by the number of
        patches of all frames, or if chunks have different numbers of frames. Here the tower and the projector process
        one chunk at a time."""
        model = super().model(**changes)

        def video_features(self, pixels, grids):
            features = []
            for part, grid in zip(pixels.split(grids.prod(-1).tolist()), grids):
                found = self.vision_tower(part, grid_thw=grid[None])
                features.append(self.mm_projector(found.pooler_output).squeeze(1))
            found.pooler_output = features
            return found

        model.model.get_video_features = types.MethodType(video_features, model.model)
        return model

    @classmethod
    def parts_of(cls, item):
        if not isinstance(item, Clip):
            return [item]
        begins = range(0, len(item.frames), cls.frames_per_item)
        return [Clip(item.frames[begin : begin + cls.frames_per_item], item.per_second) for begin in begins]

    @classmethod
    def spelled_clip(cls, clip):
        count = cls.features(*clip.frames.shape[1:3])
        return sum(([9 + number, *[cls.video] * count] for number in range(len(cls.parts_of(clip)))), [])

    @classmethod
    def inputs(cls, tokens, items):
        found = super().inputs(tokens, [item for item in items if not isinstance(item, Clip)])
        clips = [torch.from_numpy(item.frames).permute(0, 3, 1, 2) for item in items if isinstance(item, Clip)]
        if clips:
            said = {key: value for key, value in cls.said_of_images.items() if not key.endswith("type")}
            processor = Kimi_K25VideoProcessor(**said, temporal_patch_size=cls.frames_per_item)
            made = processor(clips, do_sample_frames=False, return_tensors="pt")
            found |= {key: made[key] for key in ("pixel_values_videos", "video_grid_thw")}
        return found
