# SPDX-License-Identifier: Apache-2.0
"""Random directories of every family that takes images, videos or sound."""

import json

import numpy as np
import transformers
from transformers.image_processing_utils import select_best_resolution

from audio_directories import Qwen2Audio, Voxtral, Whisper
from kimi_k25_processors import KimiK25
from processor_directories import NAMED, NAMED_BY_GEMMA4, NAMED_BY_INTERNVL, SPECIAL, TEXT, TOWER, Case


def composed(llava):
    encoder = {key: llava[key] for key in ("vision_config", "vision_feature_select_strategy")}
    return {"model_type": "composed", "text_config": {**llava["text_config"], "vocab_size": 64},
            "encoders": {"eyes": {**encoder, "image_token_index": 3}}}


def of_square(draw, side):
    """A processor of images that become squares, and what it says."""
    image_class = draw.choice(["CLIP", "Bit", "Siglip", "ViT", "DeiT"])
    crop, square = draw.choice([side, {"height": side, "width": side}]), {"height": side, "width": side}
    said = draw.values()
    if image_class == "ViT" and draw.chance(0.3):
        said |= {"size": side}  # which is both sides to this class
    elif image_class in ("CLIP", "Bit", "DeiT") and draw.chance(0.7):
        size = draw.choice([square, {"shortest_edge": side + draw.choice([0, 0, 1, 3, 17])}])
        said |= {"size": size, "crop_size": crop}
    elif image_class in ("Siglip", "ViT") and draw.chance(0.2):
        said |= {"size": {"shortest_edge": side + draw.choice([0, 5])}, "crop_size": crop, "do_center_crop": True}
    else:
        said |= {"size": square, "do_center_crop": False}
    return image_class, said


class Llava(Case):
    towers = ["clip_vision_model", "siglip_vision_model", "vit", "dinov2", "dinov2_with_registers"]

    def __init__(self, draw):
        tower, learned = draw.tower(self.towers)
        select = "default" if learned else "full"
        config = {"model_type": "llava", "vision_config": tower, "text_config": {"model_type": "llama", **TEXT},
                  "vision_feature_select_strategy": select}
        made = {"patch_size": tower["patch_size"], "vision_feature_select_strategy": select,
                "num_additional_image_tokens": learned}
        super().__init__(draw, config, *of_square(draw, tower["image_size"]), "Llava", made,
                         name_of_token="image_token_index")


class Composed(Case):
    """Towers of their own, those of SigLIP 2 among them."""

    def __init__(self, draw):
        tower, learned = draw.tower(Llava.towers)
        llava = {"vision_config": tower, "text_config": {"model_type": "llama", **TEXT},
                 "vision_feature_select_strategy": "default" if learned else "full"}
        if draw.chance(0.4):
            patch = draw.choice([4, 8, 14])
            tower = {"model_type": "siglip2_vision_model", **TOWER, "num_patches": 16, "patch_size": patch}
            llava["vision_config"] = tower
            llava["vision_feature_select_strategy"] = "full"
            said = {**draw.values(), "patch_size": patch, "max_num_patches": draw.randint(4, 90)}
            super().__init__(draw, composed(llava), "Siglip2", said, step=patch)
        else:
            super().__init__(draw, composed(llava), *of_square(draw, tower["image_size"]))

    def several(self):
        return 1

    def pixels(self, inputs):
        values = inputs["pixel_values"][0].numpy()
        if self.image_class != "Siglip2":
            return values.reshape(-1)
        high, wide = inputs["spatial_shapes"][0].tolist()
        patch = self.images.patch_size
        squares = values[: high * wide].reshape(high, wide, patch, patch, 3)
        return squares.transpose(4, 0, 2, 1, 3).reshape(-1)


class Pixtral(Case):
    special = [*SPECIAL, "[IMG]", "[IMG_BREAK]", "[IMG_END]"]

    def __init__(self, draw):
        patch, merge = draw.choice([4, 8, 14]), self.merges(draw)
        most = draw.randint(2 * patch, 300)
        said = {**draw.values(), "patch_size": {"height": patch, "width": patch}}
        said["size"] = {"longest_edge": most - draw.choice([0, 0, most // 3])}
        tower = {"model_type": "pixtral", **TOWER, "image_size": most, "patch_size": patch, "hidden_act": "silu"}
        config = {**self.family(merge), "vision_config": tower, "text_config": {"model_type": "mistral", **TEXT}}
        made = {"patch_size": patch, "spatial_merge_size": merge}
        super().__init__(draw, config, "Pixtral", said, "Pixtral", made, "[IMG]", "[IMG]",
                         name_of_token="image_token_index", step=patch * merge)

    def merges(self, draw):
        return 1

    def family(self, merge):
        return {"model_type": "llava", "vision_feature_select_strategy": "full", "vision_feature_layer": -1}

    def pixels(self, inputs):
        """Returns the pixels of a sample's images, which transformers pads to the largest."""
        cut = [image[:, :high, :wide].numpy().reshape(-1)
               for image, (high, wide) in zip(inputs["pixel_values"], inputs["image_sizes"].tolist())]
        return np.concatenate(cut)


class Mistral3(Pixtral):
    def merges(self, draw):
        return draw.choice([1, 2, 2, 3])

    def family(self, merge):
        return {"model_type": "mistral3", "spatial_merge_size": merge, "tie_word_embeddings": False}


class LlavaNext(Case):
    kinds = ["clip_vision_model", "siglip_vision_model"]
    family, image_class, text = "llava_next", "LlavaNext", "llama"

    def __init__(self, draw):
        patch = draw.choice([4, 8])
        side = patch * draw.randint(2, 6) + draw.choice([0, 0, patch // 2])
        kind = draw.choice(self.kinds)
        tower = {"model_type": kind, **TOWER, "image_size": side, "patch_size": patch}
        all_of = [[high * side, wide * side] for high in range(1, 5) for wide in range(1, 5) if high * wide > 1]
        pinpoints = draw.sample(all_of, draw.randint(1, 8))
        learned = int(kind == "clip_vision_model")
        select = "default" if learned else "full"
        config = {"model_type": self.family, "vision_config": tower, "text_config": {"model_type": self.text, **TEXT},
                  "image_grid_pinpoints": pinpoints, "vision_feature_select_strategy": select}
        square = {"height": side, "width": side}
        said = {**self.values(draw), "image_grid_pinpoints": pinpoints, **self.sizes(draw, square)}
        super().__init__(draw, config, self.image_class, said, self.image_class,
                         self.made_of(draw, config, tower, select, learned), step=side)

    def sizes(self, draw, square):
        return {"size": draw.choice([square, {"shortest_edge": square["height"]}]), "crop_size": square}

    def values(self, draw):
        return draw.values()

    def made_of(self, draw, config, tower, select, learned):
        return {"patch_size": tower["patch_size"], "vision_feature_select_strategy": select,
                "num_additional_image_tokens": learned}

    def pixels(self, inputs):
        """Returns the pixels of a sample's images, which transformers pads to the most tiles; zea does not."""
        counts = [self.tiles(size) for size in inputs["image_sizes"].tolist()]
        images = inputs["pixel_values"]
        return np.concatenate([image[:count].numpy().reshape(-1) for image, count in zip(images, counts)])

    def tiles(self, size):
        side = self.config["vision_config"]["image_size"]
        high, wide = select_best_resolution(size, self.config["image_grid_pinpoints"])
        return 1 + (high // side) * (wide // side)


def processor_of_squares(case, name, side, **changes):
    """The processor of videos whose frames become squares; colors and kernel are those of images."""
    same = ("image_mean", "image_std", "do_normalize", "do_rescale", "rescale_factor", "resample")
    said = {key: getattr(case.images, key) for key in same} | {"size": {"height": side, "width": side}} | changes
    case.processor_of_videos = getattr(transformers, f"{name}VideoProcessor")(**said, do_sample_frames=False)
    case.video_said = json.loads(case.processor_of_videos.to_json_string())


class LlavaOnevision(LlavaNext):
    samples, video_placeholder = {"image": 5, "video": 2}, "<video>"
    kinds, family, image_class, text = ["siglip_vision_model"], "llava_onevision", "LlavaOnevision", "qwen2"

    def __init__(self, draw):
        super().__init__(draw)
        self.template = self.template.replace("VIDEO", "<video>")
        self.config["video_token_index"] = self.tokenizer.convert_tokens_to_ids("<video>")
        processor_of_squares(self, "LlavaOnevision", self.config["vision_config"]["image_size"])

    def sizes(self, draw, square):
        return {"size": square}

    def values(self, draw):
        """Without the mean color, which images beside others are padded with, nothing is read."""
        return {**draw.values(), "do_normalize": True}

    def made_of(self, draw, config, tower, select, learned):
        most = draw.choice([None, 1, 2, 3, 9])
        if most:
            config["vision_aspect_ratio"] = f"anyres_max_{most}"
        patches = (tower["image_size"] // tower["patch_size"]) ** 2
        return {"num_image_tokens": patches, "vision_feature_select_strategy": select,
                "vision_aspect_ratio": f"anyres_max_{most or 9}"}

    def pixels_of_videos(self, inputs):
        return inputs["pixel_values_videos"].numpy().reshape(-1)

    def pixels(self, inputs):
        if len(inputs["image_sizes"]) > 1:
            return inputs["pixel_values"][:, 0].numpy().reshape(-1)
        return super().pixels(inputs)


class Qwen2VL(Case):
    samples = {"image": 5, "video": 2}
    family, kind_of = "qwen2_vl", "Qwen2VL"
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}

    def __init__(self, draw):
        patch, merge = draw.choice([4, 8, 14]), draw.choice([1, 2, 2, 3])
        square = (patch * merge) ** 2
        least = square * draw.randint(1, 6) + draw.choice([0, 1, -1])
        most = least + square * draw.choice([0, 1, 5, 40]) + draw.randrange(9)
        limits = {"size": {"shortest_edge": least, "longest_edge": most}}
        if draw.chance(0.3):
            limits = {"min_pixels": least, "max_pixels": most}
        said = {**draw.values(), "patch_size": patch, "merge_size": merge, **limits}
        vision = {"patch_size": patch, "spatial_merge_size": merge, "depth": 2, **self.tower()}
        config = {"model_type": self.family, "vision_config": vision,
                  "text_config": {**TEXT, "head_dim": 8, "rope_parameters": self.rope}}
        if not self.family.startswith("qwen3"):
            del config["text_config"]["head_dim"]
        super().__init__(draw, config, "Qwen2VL", said, self.kind_of, {},
                         "<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>", step=patch * merge)
        self.template = self.template.replace("VIDEO", self.mark_of_videos())
        config["video_token_id"] = self.tokenizer.convert_tokens_to_ids("<|video_pad|>")
        self.add_videos(draw, patch, merge, square, "Qwen3VL" if self.family.startswith("qwen3") else "Qwen2VL")

    def mark_of_videos(self):
        return "<|vision_start|><|video_pad|><|vision_end|>"

    def add_videos(self, draw, patch, merge, square, name):
        """Colours and kernel are those of images. `name`: of the video processor's class."""
        least = square * draw.randint(1, 6)
        size = {"shortest_edge": least, "longest_edge": least + square * draw.choice([2, 9, 60])}
        same = ("image_mean", "image_std", "do_normalize", "do_rescale", "rescale_factor", "resample")
        said = {key: getattr(self.images, key) for key in same}
        said |= {"do_sample_frames": False} | ({"cap_pixels_per_frame": False} if name.startswith("Qwen") else {})
        make = getattr(transformers, f"{name}VideoProcessor")
        self.processor_of_videos = make(**said, size=size, patch_size=patch, merge_size=merge)
        self.video_said = json.loads(self.processor_of_videos.to_json_string())

    def tower(self):
        return {"embed_dim": 32, "hidden_size": 32, "num_heads": 4}

    def pixels(self, inputs):
        """Returns the pixels of patches in the first of equal frames, in rows of an image."""
        return np.concatenate(list(self.rows_of(inputs["pixel_values"].numpy(), inputs["image_grid_thw"].tolist(), 1)))

    def pixels_of_videos(self, inputs):
        grids = inputs["video_grid_thw"].tolist()
        return np.concatenate(list(self.rows_of(inputs["pixel_values_videos"].numpy(), grids, 2)))

    def rows_of(self, values, grids, frames):
        patch, merge = self.images.patch_size, self.images.merge_size
        begin = 0
        for times, high, wide in grids:
            end = begin + times * high * wide
            squares = values[begin:end].reshape(times, high // merge, wide // merge, merge, merge, 3, 2, patch, patch)
            images = squares.transpose(0, 6, 5, 1, 3, 7, 2, 4, 8)[:, :frames]
            yield images.reshape(-1)
            begin = end


class Qwen25VL(Qwen2VL):
    family, kind_of = "qwen2_5_vl", "Qwen2_5_VL"

    def tower(self):
        return {"hidden_size": 32, "num_heads": 4, "intermediate_size": 48, "out_hidden_size": 32,
                "fullatt_block_indexes": [1]}


class Qwen3VL(Qwen2VL):
    family, kind_of = "qwen3_vl", "Qwen3VL"
    rope = {**Qwen2VL.rope, "mrope_interleaved": True, "mrope_section": [2, 1, 1]}

    def mark_of_videos(self):
        return "<|video_pad|>"  # with marks around each temporal patch

    def tower(self):
        return {"hidden_size": 32, "num_heads": 4, "intermediate_size": 48, "out_hidden_size": 32,
                "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}


class Qwen35(Qwen3VL):
    family = "qwen3_5"
    rope = {**Qwen3VL.rope, "partial_rotary_factor": 1.0}

    def tower(self):
        return {name: value for name, value in super().tower().items() if name != "deepstack_visual_indexes"}


class Glm4v(Case):
    """GLM-4.1V, GLM-4.5V or GLM-4.6V. The limits are of the pixels of two equal frames."""

    samples, video_placeholder = {"image": 5, "video": 2}, "<|image|>"
    special = [*SPECIAL, "<|begin_of_image|>", "<|end_of_image|>", "<|image|>"]
    special += ["<|begin_of_video|>", "<|end_of_video|>", "<|video|>"]
    pixels, pixels_of_videos, rows_of = Qwen2VL.pixels, Qwen2VL.pixels_of_videos, Qwen2VL.rows_of
    add_videos = Qwen2VL.add_videos

    def __init__(self, draw):
        patch, merge = draw.choice([4, 8, 14]), draw.choice([1, 2, 2, 3])
        square = (patch * merge) ** 2
        least = 2 * (square * draw.randint(1, 6) + draw.choice([0, 1, -1]))
        most = least + 2 * (square * draw.choice([0, 1, 5, 40]) + draw.randrange(9))
        said = {**draw.values(), "patch_size": patch, "merge_size": merge,
                "size": {"shortest_edge": least, "longest_edge": most}}
        vision = {"patch_size": patch, "spatial_merge_size": merge, "depth": 2, "hidden_size": 32, "num_heads": 4,
                  "intermediate_size": 48, "out_hidden_size": 32, "image_size": 28}
        family = draw.choice(["glm4v", "glm4v_moe", "glm46v"])
        kind = "Glm46V" if family == "glm46v" else "Glm4v"
        rope = {**Qwen2VL.rope, "mrope_section": [1, 1, 1], "partial_rotary_factor": 0.75}
        text = {**TEXT, "rope_parameters": rope}
        if family == "glm4v_moe":
            text |= {"n_routed_experts": 4, "num_experts_per_tok": 2}
        super().__init__(draw, {"model_type": family, "vision_config": vision, "text_config": text}, kind, said, kind,
                         {}, "<|begin_of_image|><|image|><|end_of_image|>", "<|image|>", step=patch * merge)
        self.template = self.template.replace("VIDEO", "<|begin_of_video|><|video|><|end_of_video|>")
        self.config["video_token_id"] = self.tokenizer.convert_tokens_to_ids("<|video|>")
        self.add_videos(draw, patch, merge, square, kind)


class InternVL(Case):
    samples, video_placeholder = {"image": 5, "video": 2}, "<IMG_CONTEXT>"
    pixels_of_videos = Case.pixels

    def __init__(self, draw):
        patch, square = draw.choice([4, 8]), draw.choice([1, 2, 2, 4])
        along = square * draw.randint(1, 3)
        side = patch * along
        tower = {**TOWER, "model_type": "internvl_vision", "image_size": [side, side], "patch_size": [patch, patch]}
        config = {"model_type": "internvl", "vision_config": tower, "text_config": {"model_type": "qwen2", **TEXT},
                  "downsample_ratio": 1 / square}
        least = draw.choice([1, 1, 1, 2, 3])
        said = {**draw.values(), "size": {"height": side, "width": side}, "min_patches": least,
                "max_patches": least + draw.randint(0, 11), "crop_to_patches": draw.chance(0.5)}
        super().__init__(draw, config, "GotOcr2", said, "InternVL", {"image_seq_length": (along // square) ** 2},
                         "<IMG_CONTEXT>", "<IMG_CONTEXT>", named=NAMED_BY_INTERNVL, step=side)
        self.template = self.template.replace("VIDEO", "<video>")
        processor_of_squares(self, "InternVL", side)


class Idefics3(Case):
    family = "Idefics3"

    def __init__(self, draw):
        patch, square = draw.choice([4, 8]), draw.choice([1, 2, 3])
        side = patch * square * draw.randint(1, 3)
        most = side * draw.choice([1, 1, 2, 3, 4])
        said = {**draw.values(), "size": {"longest_edge": most}, "max_image_size": {"longest_edge": side}}
        if draw.number % 3 == 0:
            said.pop("resample", None)  # Lanczos, as published
        tower = {**TOWER, "image_size": side, "patch_size": patch}
        if draw.chance(0.5):
            tower |= {key: said[key] for key in ("size", "max_image_size")}
        config = {"model_type": self.family.lower(), "vision_config": tower, "scale_factor": square,
                  "text_config": {"model_type": "llama", **TEXT, "pad_token_id": 0}}
        super().__init__(draw, config, self.family, said, self.family,
                         {"image_seq_len": (side // patch // square) ** 2}, step=side)

    def pixels(self, inputs):
        """Returns the pixels of a sample, which are one list of tiles."""
        return inputs["pixel_values"].numpy().reshape(-1)


class SmolVLM(Idefics3):
    family = "SmolVLM"
    samples, video_placeholder = {"image": 5, "video": 2}, "<image>"
    pixels_of_videos = Idefics3.pixels

    def __init__(self, draw):
        super().__init__(draw)
        self.template = self.template.replace("VIDEO", "<video>")
        side = self.said["max_image_size"]["longest_edge"]
        sizes = {"size": {"longest_edge": side * draw.choice([1, 2, 3])}, "max_image_size": {"longest_edge": side}}
        if draw.chance(0.5):
            of_samples = {"longest_edge": side * draw.choice([1, 2])}
            sizes["video_sampling"] = {"fps": 1, "max_frames": 64, "video_size": of_samples}
        processor_of_squares(self, "SmolVLM", side, **sizes)


class Gemma3(Case):
    def __init__(self, draw):
        patch, pooled, along = draw.choice([4, 8]), draw.randint(1, 3), draw.randint(1, 3)
        side = patch * pooled * along
        tower = {**TOWER, "model_type": "siglip_vision_model", "image_size": side, "patch_size": patch}
        config = {"model_type": "gemma3", "vision_config": tower, "mm_tokens_per_image": along**2,
                  "text_config": {**TEXT, "model_type": "gemma3_text", "head_dim": 8}}
        pans = {}
        if draw.chance(0.6):
            pans = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": draw.choice([1, 16, 20, 90]),
                    "pan_and_scan_max_num_crops": draw.choice([2, 3, 4, 7]),
                    "pan_and_scan_min_ratio_to_activate": draw.choice([1.0, 1.2, 1.3, 2.0])}
        said = {**draw.values(), "size": {"height": side, "width": side}, **pans}
        super().__init__(draw, config, "Gemma3", said, "Gemma3", {"image_seq_length": along**2}, "<start_of_image>",
                         "<image_soft_token>", named=NAMED, asked=pans, step=side, name_of_token="image_token_index")


class Gemma4(Case):
    """Pixels are those that the model makes of its processor's, 2 x - 1."""

    samples = {"image": 5, "video": 2, "audio": 4}
    special = [*SPECIAL, *NAMED_BY_GEMMA4.values(), "<|video|>"]
    video_placeholder, sound = "<|video|>", "<|audio|>"
    conformer = {"model_type": "gemma4_audio", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                 "output_proj_dims": 12}

    def __init__(self, draw):
        self.lengths = [490000] * (draw.number % 3 == 0)
        patch, pooled = draw.choice([4, 8]), draw.randint(1, 3)
        sizes = {"patch_size": patch, "pooling_kernel_size": pooled}
        tower = {**TOWER, **sizes, "model_type": "gemma4_vision", "head_dim": 8, "num_key_value_heads": 4}
        text = {"model_type": "gemma4_text", **TEXT, "head_dim": 8, "hidden_size_per_layer_input": 0}
        config = {"model_type": "gemma4", "vision_config": tower, "text_config": text, "audio_config": self.conformer}
        said = {**draw.values(), **sizes, "max_soft_tokens": draw.choice([70, 70, 140, 280])}
        super().__init__(draw, config, "Gemma4", said, "Gemma4", {}, "<|image|>", "<|image|>", named=NAMED_BY_GEMMA4,
                         step=patch * pooled)
        self.template = self.template.replace("VIDEO", self.video_placeholder)
        self.tokenizer.pad_token = "<unk>"  # its processor pads
        ids = {key: self.tokenizer.convert_tokens_to_ids(NAMED_BY_GEMMA4[f"{key}_token"])
               for key in ("boi", "eoi", "boa", "eoa", "audio")}
        config |= {f"{key}_token_{'index' if key == 'eoa' else 'id'}": token for key, token in ids.items()}
        config["video_token_id"] = self.tokenizer.convert_tokens_to_ids(self.video_placeholder)
        same = ("image_mean", "image_std", "do_normalize", "do_rescale", "rescale_factor", "resample")
        said = {key: getattr(self.images, key) for key in same} | {"do_sample_frames": False, **sizes}
        self.processor_of_videos = transformers.Gemma4VideoProcessor(**said, max_soft_tokens=draw.choice([70, 140]))
        self.video_said = json.loads(self.processor_of_videos.to_json_string())

    def processor(self):
        parts = (transformers.Gemma4AudioFeatureExtractor(), self.images, self.tokenizer, self.processor_of_videos)
        return transformers.Gemma4Processor(*parts, chat_template=self.template)

    def length(self):
        """Samples of a clip: about whole frames or features, or about 30 s. Transformers cuts a clip after 30 s."""
        draw = self.draw
        if self.lengths:
            return self.lengths.pop()
        if draw.chance(0.1):
            return 480000 + draw.choice([-1, 0, 1, 5000])
        return draw.choice([160, 160, 640]) * draw.randint(1, 60) + draw.choice([-1, 0, 1, 2])

    def heard(self, inputs):
        columns = int(inputs["input_features_mask"][0].sum())
        return inputs["input_features"][0].numpy().T[:, :columns].reshape(-1)

    def pixels(self, inputs):
        return self.pixels_of(inputs["pixel_values"], inputs["image_position_ids"])

    def pixels_of_videos(self, inputs):
        return self.pixels_of(inputs["pixel_values_videos"][0], inputs["video_position_ids"][0])

    def pixels_of(self, values, positions):
        patch, images = self.images.patch_size, []
        for patches, cells in zip(values, positions.tolist()):
            wide, high = (max(sides) + 1 for sides in zip(*cells))
            squares = patches[: high * wide].reshape(high, wide, patch, patch, 3).permute(4, 0, 2, 1, 3)
            images.append((2 * (squares - 0.5)).numpy().reshape(-1))
        return np.concatenate(images)


FAMILIES = [Llava, Composed, Pixtral, Mistral3, LlavaNext, LlavaOnevision, Qwen2VL, Qwen25VL, Qwen3VL, Qwen35, Glm4v,
            InternVL, Idefics3, SmolVLM, Gemma3, Gemma4, KimiK25, Qwen2Audio, Voxtral, Whisper]
