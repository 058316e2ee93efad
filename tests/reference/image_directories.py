# SPDX-License-Identifier: Apache-2.0
"""Models of directories, whose image processors have unusual values."""

import transformers
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 64}
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
COLOURS = {"image_mean": [0.1, 0.0, 0.7], "image_std": [0.3, 0.9, 0.2]}


def of_llava(tower, select, **sizes):
    vision = {"model_type": tower, **TOWER, **sizes}
    text = {"model_type": "llama", **TEXT}
    return {"model_type": "llava", "vision_config": vision, "text_config": text,
            "vision_feature_select_strategy": select}


def put_together(tower, select, **sizes):
    """A tower of its own beside a language model."""
    llava = of_llava(tower, select, **sizes)
    encoder = {key: llava[key] for key in ("vision_config", "vision_feature_select_strategy")}
    return {"model_type": "composed", "text_config": llava["text_config"],
            "encoders": {"eyes": {**encoder, "image_token_index": 3}}}


def with_processor(config, said):
    """The config, and what stands beside it: what is put together has in its config what is said of its encoder."""
    if config["model_type"] != "composed":
        return config, {"image_processor": said}
    return {**config, "encoders": {"eyes": {**config["encoders"]["eyes"], "image_processor": said}}}, {}


def of_qwen(family, **vision):
    text = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
    return {"model_type": family, "vision_config": {"embed_dim": 32, "hidden_size": 32, "num_heads": 4, **vision},
            "text_config": text}


def of_internvl():
    vision = {**TOWER, "model_type": "internvl_vision", "image_size": [32, 32], "patch_size": [8, 8]}
    return {"model_type": "internvl", "vision_config": vision, "text_config": {"model_type": "qwen2", **TEXT}}


def of_gemma3():
    vision = {**TOWER, "model_type": "siglip_vision_model", "image_size": 32, "patch_size": 8}
    text = {**TEXT, "model_type": "gemma3_text", "head_dim": 8}
    return {"model_type": "gemma3", "vision_config": vision, "text_config": text, "mm_tokens_per_image": 4}


def directories(backend):
    """What a directory says of a model, its processor (of a backend, "Pil" or "" for torchvision) with unusual values,
    and how that takes what zea makes."""
    clip_images, siglip_images, pixtral_images, ocr_images, gemma3_images, onevision_images, qwen_images = (
        getattr(transformers, f"{name}ImageProcessor{backend}")
        for name in ("CLIP", "Siglip", "Pixtral", "GotOcr2", "Gemma3", "LlavaOnevision", "Qwen2VL")
    )
    clip = of_llava("clip_vision_model", "default", image_size=32, patch_size=8)
    siglip = of_llava("siglip_vision_model", "full", image_size=32, patch_size=8)
    pixtral = of_llava("pixtral", "full", image_size=120, patch_size=8, hidden_act="silu")
    crop, square = {"height": 32, "width": 32}, {"height": 32, "width": 32}
    as_it_is = lambda processor, values, shape, *_: values.reshape(shape)  # noqa: E731
    yield clip, clip_images(size={"shortest_edge": 41}, crop_size=crop, **COLOURS, resample=2), as_it_is
    yield clip, clip_images(size=square, do_center_crop=False, rescale_factor=1 / 127.5), as_it_is
    yield clip, clip_images(size={"shortest_edge": 32}, crop_size=crop, do_rescale=False), as_it_is
    yield siglip, siglip_images(size=square, do_normalize=False), as_it_is
    yield siglip, clip_images(size={"shortest_edge": 33}, crop_size=crop), as_it_is
    clip_alone = put_together("clip_vision_model", "default", image_size=32, patch_size=8)
    siglip_alone = put_together("siglip_vision_model", "full", image_size=32, patch_size=8)
    yield clip_alone, clip_images(size={"shortest_edge": 36}, crop_size=crop, **COLOURS), as_it_is
    yield clip_alone, clip_images(size=square, do_center_crop=False), as_it_is
    yield clip_alone, clip_images(size=square, crop_size=crop), as_it_is
    yield siglip_alone, siglip_images(size={"shortest_edge": 32}, crop_size=crop, do_center_crop=True), as_it_is
    yield siglip_alone, clip_images(size={"shortest_edge": 41}, crop_size=crop), as_it_is
    yield pixtral, pixtral_images(size={"longest_edge": 100}, patch_size=8, **COLOURS), as_it_is
    processor = ocr_images(
        size=square, crop_to_patches=True, min_patches=2, max_patches=5, resample=2, **COLOURS
    )
    yield of_internvl(), processor, as_it_is

    gemma3 = of_gemma3()
    # (crops, values): transformers puts these in one list, too.
    pans = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 20, "pan_and_scan_max_num_crops": 4,
            "pan_and_scan_min_ratio_to_activate": 1.3}
    yield gemma3, gemma3_images(size=square, **pans, **COLOURS), as_it_is
    pinpoints = [[high, wide] for high in (32, 64, 96) for wide in (32, 64, 96, 160)]
    fitted = {**siglip, "model_type": "llava_onevision", "image_grid_pinpoints": pinpoints}
    yield fitted, onevision_images(size=square, image_grid_pinpoints=pinpoints, **COLOURS), as_it_is

    def patches(processor, values, shape, height, width):
        side = processor.patch_size * processor.merge_size
        to = smart_resize(height, width, side, *(processor.size[f"{way}est_edge"] for way in ("short", "long")))
        pixels = values.reshape(3, *to)
        return Qwen2VLImageProcessorPil().patchify(pixels, processor.patch_size, processor.merge_size, 2)[0]

    for limits in ({"shortest_edge": 20000, "longest_edge": 60000}, {"shortest_edge": 100, "longest_edge": 5000}):
        yield of_qwen("qwen2_vl", patch_size=8), qwen_images(size=limits, patch_size=8, **COLOURS), patches
