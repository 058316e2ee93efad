# SPDX-License-Identifier: Apache-2.0
"""Random directories of Kimi-K2.5, as processor_cases.py has them of other families."""

import json

import numpy as np
import transformers

from processor_directories import SPECIAL, TEXT, TOWER, Case

AROUND = "<|media_begin|>", "<|media_content|>", "<|media_end|>"


class KimiK25(Case):
    """The processor always resizes with torchvision, though its class name does not say so. Each chunk of frames of a
    video is one item."""

    samples, video_placeholder = {"image": 5, "video": 3}, "<|kimi_k25_video_placeholder|>"
    special = [*SPECIAL, *AROUND, "<|media_pad|>", video_placeholder]

    def __init__(self, draw):
        patch, merge = draw.choice([4, 8, 14]), draw.choice([1, 2, 2, 3])
        side = draw.choice([3, 9, 40, 512])
        said = {**draw.values(), "patch_size": patch, "merge_size": merge, "max_patches": draw.choice([1, 7, 60, 900]),
                "size": {"max_height": side, "max_width": side}}
        experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
        latents = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4}
        config = {"model_type": "kimi_k25", "projection_hidden_size": 32,
                  "vision_config": {**TOWER, "patch_size": patch, "merge_kernel_size": [merge, merge]},
                  "text_config": {**TEXT, **experts, **latents, "model_type": "deepseek_v3"}}
        begin, content, end = AROUND
        super().__init__(draw, config, "Kimi_K25", said, "Kimi_K25", {},
                         f"{begin}image{content}<|media_pad|>{end}", "<|media_pad|>", step=patch * merge)
        self.template = self.template.replace("VIDEO", self.video_placeholder)
        self.config["video_token_id"] = self.tokenizer.convert_tokens_to_ids(self.video_placeholder)
        same = ("image_mean", "image_std", "do_normalize", "do_rescale", "rescale_factor", "resample", "patch_size")
        said = {key: getattr(self.images, key) for key in same} | {"max_patches": draw.choice([1, 9, 50, 4096])}
        said |= {"temporal_patch_size": draw.choice([2, 3, 4]), "merge_size": merge, "do_sample_frames": False}
        said["size"] = {"max_height": side, "max_width": side}
        self.processor_of_videos = transformers.Kimi_K25VideoProcessor(**said)
        self.video_said = json.loads(self.processor_of_videos.to_json_string())

    def said_in_file(self):
        said = self.said if self.draw.chance(0.5) else json.loads(self.images.to_json_string())
        return {**said, "image_processor_type": "Kimi_K25ImageProcessor"}

    def pixels(self, inputs):
        """Returns the pixels of patches, in rows of an image."""
        return self.pixels_of(inputs["pixel_values"].numpy(), inputs["image_grid_thw"].tolist())

    def pixels_of_videos(self, inputs):
        return self.pixels_of(inputs["pixel_values_videos"].numpy(), inputs["video_grid_thw"].tolist())

    def pixels_of(self, values, grids):
        patch, begin, images = self.images.patch_size, 0, []
        for frames, high, wide in grids:
            end = begin + frames * high * wide
            squares = values[begin:end].reshape(frames, high, wide, 3, patch, patch)
            images.append(squares.transpose(0, 3, 1, 4, 2, 5).reshape(-1))
            begin = end
        return np.concatenate(images)
