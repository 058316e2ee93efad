#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the corpus: what each target reads, well formed and hostile, in files of few bytes.

    tests/fuzz/make_corpus.py [FOLDER]

Findings of fuzzing are added manually, as found_*, and so are config.json and preprocessor_config.json of published
models, as good_published_*; this script leaves both alone. Needs h5py, NumPy and Pillow.
"""
import io
import json
import pathlib
import struct
import zlib

import numpy as np
from PIL import Image

from corpus_folder import LLAMA, put
from h5_corpus import write_dataset, write_index, write_weights


# --- images -----------------------------------------------------------------------------------------------------------


def picture(mode, size=(9, 7)):
    values = np.arange(size[0] * size[1] * 4, dtype=np.uint32).reshape(size[1], size[0], 4) * 37 % 256
    return Image.fromarray(values.astype(np.uint8)[..., :3], "RGB").convert(mode)


def encoded(image, **options):
    buffer = io.BytesIO()
    image.save(buffer, **options)
    return buffer.getvalue()


def png_chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width, height, depth, colour, data, before=b"", interlace=0):
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    return (b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", head) + before + png_chunk(b"IDAT", zlib.compress(data, 9))
            + png_chunk(b"IEND", b""))


def write_png():
    for mode in ("RGB", "L", "1", "P", "RGBA", "LA"):
        put("png", f"good_{mode}.png", encoded(picture(mode), format="PNG"))
    put("png", "good_grey16.png", png(2, 2, 16, 0, b"\0\1\2\3\4" * 2))
    put("png", "good_interlaced.png", png(1, 1, 8, 2, b"\0\1\2\3", interlace=1))
    put("png", "bomb_sizes.png", png(0x7fffffff, 0x7fffffff, 8, 2, b"\0\0\0"))
    put("png", "bomb_million_pixels.png", png(1 << 20, 1, 16, 6, b"\0\0\0"))
    put("png", "bomb_of_zeros.png", png(4096, 256, 1, 0, b"\0" * (513 * 256)))
    for name, kind in (("text", b"zTXt"), ("profile", b"iCCP")):
        bomb = png_chunk(kind, b"a\0\0" + zlib.compress(b"a" * 999999))
        put("png", f"bomb_{name}.png", png(1, 1, 8, 0, b"\0\1", bomb))
    beyond = b"\0" + bytes(range(248, 256))
    put("png", "short_palette.png", png(8, 1, 8, 3, beyond, png_chunk(b"PLTE", b"\1\2\3")))
    put("png", "rest_missing.png", encoded(picture("RGB"), format="PNG")[:60])


def write_jpeg():
    for mode in ("RGB", "L", "CMYK"):
        put("jpeg", f"good_{mode}.jpg", encoded(picture(mode), format="JPEG"))
    progressive = encoded(picture("RGB"), format="JPEG", progressive=True)
    put("jpeg", "good_progressive.jpg", progressive)
    put("jpeg", "good_subsampled.jpg", encoded(picture("RGB", (33, 17)), format="JPEG", subsampling=2, quality=5))
    put("jpeg", "good_restarts.jpg", encoded(picture("L", (33, 17)), format="JPEG", restart_marker_blocks=1))
    for name, base in (("sizes", encoded(picture("RGB"), format="JPEG")), ("progressive", progressive)):
        place = base.index(b"\xff\xc2" if name == "progressive" else b"\xff\xc0") + 5
        put("jpeg", f"bomb_{name}.jpg", base[:place] + b"\xff\xff\xff\xff" + base[place + 4:])
        put("jpeg", f"bomb_{name}_allowed.jpg", base[:place] + b"\x04\0\x04\0" + base[place + 4:])
    scan = progressive[progressive.index(b"\xff\xda"):-2]
    put("jpeg", "bomb_scans.jpg", progressive[:-2] + scan * 8)
    put("jpeg", "rest_missing.jpg", progressive[: len(progressive) // 2])


# --- audio ------------------------------------------------------------------------------------------------------------


def riff(*chunks):
    body = b"WAVE"
    for name, data in chunks:
        body += name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def wav_format(tag=1, channels=1, rate=16000, bits=16):
    frame = channels * bits // 8
    return b"fmt ", struct.pack("<HHIIHH", tag, channels, rate, rate * frame, frame, bits)


def write_wav():
    for bits in (8, 16, 24, 32):
        put("wav", f"good_{bits}.wav", riff(wav_format(bits=bits), (b"data", bytes(range(48)))))
    put("wav", "good_float.wav", riff(wav_format(3, 2, 44100, 32), (b"data", struct.pack("<4f", 0, 0.5, -0.5, 1))))
    put("wav", "good_double.wav", riff(wav_format(3, 1, 8000, 64), (b"data", struct.pack("<2d", 0, 0.5))))
    name, body = wav_format()
    guid = bytes([1, 0, 0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71])
    extensible = (name, b"\xfe\xff" + body[2:] + struct.pack("<HHI", 22, 16, 4) + guid)
    put("wav", "good_extensible.wav", riff(extensible, (b"LIST", b"abc"), (b"data", b"\1\2\3\4")))
    piped = riff(wav_format(), (b"data", b"\1\2\3\4"))
    put("wav", "good_of_a_pipe.wav", piped.replace(struct.pack("<I", 4) + b"\1", b"\xff\xff\xff\xff\1"))
    put("wav", "nan.wav", riff(wav_format(3, 1, 8000, 32), (b"data", struct.pack("<f", float("nan")))))
    put("wav", "no_channels.wav", riff(wav_format(channels=0), (b"data", b"\1\2\3\4")))
    put("wav", "many_channels.wav", riff(wav_format(channels=65535, bits=8), (b"data", b"\1\2\3\4")))
    put("wav", "chunk_beyond.wav", b"RIFF\0\0\0\0WAVEfmt \xff\xff\xff\xff" + b"\0" * 16)


def crc(data, width, polynomial):
    value = 0
    for byte in data:
        value ^= byte << (width - 8)
        for _ in range(8):
            value = (value << 1 ^ (polynomial if value >> (width - 1) else 0)) & ((1 << width) - 1)
    return value.to_bytes(width // 8, "big")


def flac_head(rate, channels, bits, total, most=4096):
    info = struct.pack(">HH", 16, most) + bytes(6)
    info += ((rate << 44) | (channels - 1) << 41 | (bits - 1) << 36 | total).to_bytes(8, "big") + bytes(16)
    return b"fLaC\x80" + len(info).to_bytes(3, "big") + info


def flac_frame(samples, number, subframe):
    """Returns a frame of one channel of 16 bits; its rate is the header's."""
    head = b"\xff\xf8\x70\x08" + bytes([number]) + struct.pack(">H", samples - 1)
    frame = head + crc(head, 8, 0x07) + subframe
    return frame + crc(frame, 16, 0x8005)


def write_flac():
    values = struct.pack(">20h", *range(-1000, 1000, 100))
    good = flac_frame(20, 0, b"\x02" + values)
    put("flac", "good.flac", flac_head(16000, 1, 16, 20) + good)
    put("flac", "good_no_total.flac", flac_head(16000, 1, 16, 0) + good)
    constant = b"".join(flac_frame(4096, i, b"\0\1\2") for i in range(4))
    put("flac", "good_constant.flac", flac_head(16000, 1, 16, 4 * 4096) + constant)
    bomb = b"".join(flac_frame(65536 - 1, i, b"\0\1\2") for i in range(20))
    put("flac", "bomb.flac", flac_head(655350, 1, 16, 0, 65535) + bomb)
    put("flac", "bomb_total.flac", flac_head(16000, 1, 16, (1 << 36) - 1) + good)
    picture_block = b"\x06\xff\xff\xff" + bytes(40)
    head = flac_head(16000, 1, 16, 20)
    put("flac", "bomb_picture.flac", head[:4] + b"\0" + head[5:] + picture_block)
    comment = b"\x84\0\0\x10" + struct.pack("<I", 0) + struct.pack("<I", 0xffffffff) + bytes(8)
    put("flac", "bomb_comments.flac", head[:4] + b"\0" + head[5:] + comment + good)
    put("flac", "no_info.flac", b"fLaC\x81\0\0\4abcd" + good)


# --- text -------------------------------------------------------------------------------------------------------------

CLIP = {"model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
WHISPER = {"model_type": "whisper", "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2,
           "encoder_ffn_dim": 24, "max_source_positions": 12}
LLAVA = {"model_type": "llava", "text_config": LLAMA, "vision_config": CLIP, "audio_config": WHISPER,
         "image_token_index": 38, "audio_token_index": 39, "vision_feature_layer": [-2, -1]}

SEEING = {key: value for key, value in LLAVA.items() if not key.startswith("audio")}
TEXT = {key: value for key, value in LLAMA.items() if key not in ("model_type", "rope_scaling")}
TOWER = {"depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 4, "out_hidden_size": 16}
MROPE = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 1, 1]}
QWEN_VL = {"image_token_id": 3, "video_token_id": 4,
           "text_config": {**TEXT, "num_attention_heads": 2, "num_key_value_heads": 1,
                           "rope_parameters": MROPE}}
QWEN25_VL = {**QWEN_VL, "model_type": "qwen2_5_vl", "vision_config": {**TOWER, "fullatt_block_indexes": [1]}}
QWEN3_TEXT = {**QWEN_VL["text_config"], "head_dim": 8}
QWEN3_TEXT["rope_parameters"] = {**QWEN3_TEXT["rope_parameters"], "mrope_interleaved": True}
QWEN3_VL = {**QWEN_VL, "model_type": "qwen3_vl", "text_config": QWEN3_TEXT,
            "vision_config": {**TOWER, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}}
QWEN3_VL_MOE = {**QWEN3_VL, "model_type": "qwen3_vl_moe",
                "text_config": {**QWEN3_TEXT, "num_experts": 4, "num_experts_per_tok": 2}}
GLM4V_MOE = {**QWEN_VL, "model_type": "glm4v_moe", "vision_config": {**TOWER, "image_size": 16},
             "text_config": {**QWEN3_TEXT, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
                             "rope_parameters": {**MROPE, "mrope_section": [1, 1, 1], "partial_rotary_factor": 0.75}}}
GLM4V = {**GLM4V_MOE, "model_type": "glm4v",
         "text_config": {key: value for key, value in GLM4V_MOE["text_config"].items() if "expert" not in key}}
for only_of_others in ("moe_intermediate_size", "head_dim"):
    del GLM4V["text_config"][only_of_others]
GLM46V = {**GLM4V_MOE, "model_type": "glm46v",
          "text_config": {**GLM4V_MOE["text_config"], "model_type": "glm4v_moe_text"}}
HYBRID = {**TEXT, "head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4,
          "linear_value_head_dim": 6, "full_attention_interval": 2}
QWEN35 = {**QWEN3_VL, "model_type": "qwen3_5",
          "text_config": {**HYBRID, "rope_parameters": {"mrope_section": [2, 1, 1], "partial_rotary_factor": 1.0}},
          "vision_config": {**TOWER, "num_position_embeddings": 16}}
CARRIED = {"mtp.norm.weight": [16], "mtp.fc.weight": [16, 32]}
TILES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
INTERNVL = {"model_type": "internvl", "image_token_id": 3, "tie_word_embeddings": False, "text_config": TEXT,
            "vision_config": {**TILES, "image_size": [16, 16], "patch_size": [4, 4], "use_qk_norm": True}}
SMOLVLM = {"model_type": "smolvlm", "image_token_id": 3, "text_config": {"model_type": "llama", **TEXT},
           "vision_config": {**TILES, "image_size": 16, "patch_size": 4, "size": {"longest_edge": 32}}}
SIGLIP2 = {"model_type": "siglip2_vision_model", **TILES, "patch_size": 4, "num_patches": 25}
LLAVA_NEXT = {"model_type": "llava_next", "image_token_index": 3, "image_grid_pinpoints": [[8, 16], [16, 8]],
              "text_config": {"model_type": "llama", **TEXT}, "vision_config": CLIP}
GEMMA3 = {"model_type": "gemma3", "image_token_index": 3, "mm_tokens_per_image": 4,
          "text_config": {**TEXT, "head_dim": 8, "sliding_window": 4, "sliding_window_pattern": 2},
          "vision_config": {**TILES, "image_size": 16, "patch_size": 4, "vision_use_head": False}}
GEMMA4 = {**TEXT, "model_type": "gemma4_text", "num_hidden_layers": 2, "head_dim": 8, "global_head_dim": 12,
          "num_global_key_value_heads": 1, "attention_k_eq_v": True, "sliding_window": 4,
          "layer_types": ["sliding_attention", "full_attention"], "hidden_size_per_layer_input": 0,
          "rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
                              "sliding_attention": {"rope_type": "default"}}}
GEMMA4_TOWER = {"model_type": "gemma4_vision", **TILES, "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4,
                "pooling_kernel_size": 2, "position_embedding_size": 600}
PIXTRAL = {"model_type": "pixtral", **TILES, "image_size": 16, "patch_size": 4, "hidden_act": "silu"}
MISTRAL3 = {"model_type": "mistral3", "image_token_index": 3, "text_config": {"model_type": "mistral", **TEXT},
            "vision_config": PIXTRAL}
QWEN2_AUDIO = {"model_type": "qwen2_audio", "audio_token_index": 3, "text_config": {"model_type": "qwen2", **TEXT},
               "audio_config": {**WHISPER, "model_type": "qwen2_audio_encoder"}}
KIMI_K25 = {"model_type": "kimi_k25", "image_token_id": 3, "projection_hidden_size": 16, "video_token_id": 40,
            "weights_files": {"names": "running"}, "video_processor": {"temporal_patch_size": 2, "max_patches": 9},
            "text_config": {**TEXT, "model_type": "kimi_k2", "num_key_value_heads": 4, "q_lora_rank": 6,
                            "kv_lora_rank": 4, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 6,
                            "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
                            "moe_intermediate_size": 8, "first_k_dense_replace": 1},
            "vision_config": {**TILES, "patch_size": 4, "merge_kernel_size": [2, 2], "pos_emb_height": 4,
                              "init_pos_emb_width": 4, "pos_emb_time": 3}}
QWEN25_OMNI = {"model_type": "qwen2_5_omni_thinker", "audio_token_index": 5, "image_token_index": 3,
               "text_config": {**QWEN_VL["text_config"], "model_type": "qwen2_5_omni_text"},
               "vision_config": {**QWEN25_VL["vision_config"], "model_type": "qwen2_5_omni_vision_encoder"},
               "audio_config": {**WHISPER, "model_type": "qwen2_5_omni_audio_encoder", "n_window": 5, "output_dim": 16}}
QWEN3_OMNI = {"model_type": "qwen3_omni_moe_thinker", "audio_token_id": 5, "image_token_id": 3,
              "text_config": {**QWEN3_VL_MOE["text_config"], "model_type": "qwen3_omni_moe_text"},
              "vision_config": {**QWEN3_VL_MOE["vision_config"], "model_type": "qwen3_omni_moe_vision_encoder"},
              "audio_config": {**WHISPER, "model_type": "qwen3_omni_moe_audio_encoder", "max_source_positions": 13,
                               "downsample_hidden_size": 4, "output_dim": 16}}
VOXTRAL = {"model_type": "voxtral", "audio_token_id": 3,
           "text_config": {"model_type": "llama", "head_dim": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e4, **TEXT},
           "audio_config": {**TILES, "intermediate_size": 64, "model_type": "voxtral_encoder", "num_mel_bins": 16,
                            "max_source_positions": 12}}


def write_composites(config):
    """Writes accepted configs, one for each reader, and numbers that no model has."""
    config("good_qwen2_vl", QWEN_VL, model_type="qwen2_vl",
           vision_config={"depth": 2, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "patch_size": 4})
    for name, base in (("qwen2_5_vl", QWEN25_VL), ("qwen3_vl", QWEN3_VL), ("qwen3_vl_moe", QWEN3_VL_MOE),
                       ("glm4v", GLM4V), ("glm4v_moe", GLM4V_MOE), ("glm46v", GLM46V),
                       ("qwen3_5", QWEN35), ("internvl", INTERNVL), ("kimi_k25", KIMI_K25), ("gemma3", GEMMA3),
                       ("llava_next", LLAVA_NEXT), ("qwen2_5_omni_thinker", QWEN25_OMNI), ("mistral3", MISTRAL3),
                       ("qwen3_omni_moe_thinker", QWEN3_OMNI), ("qwen2_audio", QWEN2_AUDIO), ("voxtral", VOXTRAL)):
        config("good_" + name, base)
    config("good_qwen2_5_omni", {"model_type": "qwen2_5_omni", "thinker_config": QWEN25_OMNI},
           feature_extractor={"chunk_length": 1, "feature_size": 128})
    config("good_qwen3_omni_moe", {"model_type": "qwen3_omni_moe", "thinker_config": QWEN3_OMNI},
           feature_extractor={"chunk_length": 1, "feature_size": 128})
    config("wide_qwen3_omni_convolutions", QWEN3_OMNI,
           audio_config={**QWEN3_OMNI["audio_config"], "downsample_hidden_size": 1 << 40})
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
    config("good_qwen3_5_moe", QWEN35, model_type="qwen3_5_moe", text_config={**QWEN35["text_config"], **experts},
           weights_files={"splits_experts": True, "carried": CARRIED})
    for family in ("qwen3_next", "qwen3_5_moe_text", "qwen3_5_text"):
        config("good_" + family, HYBRID, model_type=family, **(experts if family != "qwen3_5_text" else {}))
    config("many_carried", QWEN35, weights_files={"carried": {f"mtp.{n}": [1 << 62] * 9 for n in range(99)}})
    config("many_taps", HYBRID, model_type="qwen3_5_text", linear_conv_kernel_dim=1 << 40)
    config("many_value_heads", HYBRID, model_type="qwen3_5_text", linear_num_value_heads=1 << 28)
    config("good_smolvlm", SMOLVLM)
    config("good_idefics3", SMOLVLM, model_type="idefics3")
    config("good_llava_onevision", LLAVA_NEXT, model_type="llava_onevision", vision_aspect_ratio="anyres_max_9",
           vision_config={**CLIP, "model_type": "siglip_vision_model"}, vision_feature_select_strategy="full")
    siglip2 = {"vision_config": SIGLIP2, "image_token_index": 3, "vision_feature_select_strategy": "full"}
    config("good_siglip2", {"model_type": "composed", "text_config": {"model_type": "llama", **TEXT},
                            "encoders": {"eyes": siglip2 | {"projector": "pixel_shuffle_mlp"}}})
    config("good_pixtral", SEEING, vision_config=PIXTRAL, vision_feature_layer=-1,
           vision_feature_select_strategy="full")
    for tower in ("vit", "dinov2", "dinov2_with_registers"):
        sizes = {key: value for key, value in CLIP.items() if tower == "vit" or key != "intermediate_size"}
        config("good_" + tower, SEEING, vision_config={**sizes, "model_type": tower})

    def tower(name, base, **changes):
        config(name, base, vision_config={**base["vision_config"], **changes})

    tower("many_frames", QWEN25_VL, temporal_patch_size=1 << 40)
    tower("long_seconds", QWEN25_VL, tokens_per_second=1 << 62)
    tower("wide_windows", QWEN25_VL, window_size=1 << 62)
    tower("large_squares", QWEN25_VL, spatial_merge_size=1 << 31)
    tower("many_positions", QWEN3_VL, num_position_embeddings=1 << 60)
    tower("many_rows_of_positions", KIMI_K25, pos_emb_height=1 << 30, init_pos_emb_width=1 << 30)
    tower("large_kimi_patches", KIMI_K25, patch_size=1 << 30)
    tower("many_times", KIMI_K25, pos_emb_time=1 << 60)
    tower("many_depths", QWEN3_VL, deepstack_visual_indexes=[-(1 << 63)] * 2000)
    tower("large_edges", SMOLVLM, size={"longest_edge": 1 << 62})
    tower("large_tiles", INTERNVL, image_size=[1 << 40, 1 << 40])
    config("large_resolutions", LLAVA_NEXT, image_grid_pinpoints=[[8 << 40, 8], [8, 8 << 59]] * 500)
    config("many_pooled", GEMMA3, mm_tokens_per_image=(1 << 62))


def write_config():
    def config(name, base, **changes):
        put("config", name + ".json", json.dumps({**base, **changes}))

    write_composites(config)

    config("good_llama", LLAMA)
    config("good_rope_twice", LLAMA, rope_parameters=LLAMA["rope_scaling"], unsloth_fixed=True,
           gradient_checkpointing=False, _attn_implementation="sdpa")
    config("rope_of_two_kinds", LLAMA, rope_parameters={"rope_type": "linear", "factor": 2})
    config("quantized", LLAMA, quantization_config={"quant_method": ["a", {"b": 1}]})
    config("fp8", LLAMA, quantization_config={"quant_method": "fp8", "weight_block_size": [64, 1 << 30]})
    int4 = {"format": "pack-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}}}
    config("int4_text", LLAVA, text_config={**LLAVA["text_config"], "quantization_config": {
        "quant_method": "compressed-tensors", **int4}})
    fp8 = '{"model_type": "llama", "quantization_config": {"quant_method": "fp8"'
    put("config", "deep_blocks.json", fp8 + ', "weight_block_size": ' + "[" * 3000 + "]" * 3000 + "}}")
    put("config", "deep_beside_fp8.json", fp8 + '}, "x": ' + "[" * 3000 + "]" * 3000 + "}")
    put("config", "twice_beside_fp8.json", fp8 + '}, "hidden_size": 16, "hidden_size": 32}')
    config("original_llava", LLAVA, model_type="llava_llama", mm_vision_tower="org/clip")
    for family in ("gemma", "gemma2", "gemma3_text", "mistral", "phi3", "qwen2", "qwen3"):
        config("good_" + family, LLAMA, model_type=family, rope_scaling=None)
    config("good_gemma4_text", GEMMA4)
    config("good_gemma4", {"model_type": "gemma4", "text_config": GEMMA4, "vision_config": None})
    like_e4b = {"num_hidden_layers": 3, "num_kv_shared_layers": 1, "use_double_wide_mlp": True,
                "layer_types": ["full_attention", "sliding_attention", "full_attention"],
                "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 1 << 10}
    config("good_gemma4_e4b", GEMMA4, **like_e4b)
    config("shared_gemma4_keys", GEMMA4, **{**like_e4b, "num_kv_shared_layers": -(1 << 63)})
    config("wide_gemma4_layer_inputs", GEMMA4, **{**like_e4b, "hidden_size_per_layer_input": 1 << 62})
    seeing = {"model_type": "gemma4", "image_token_id": 3, "video_token_id": 4, "text_config": GEMMA4}
    for name, more in (("images", {"standardize": True}), ("clipped_images", {"use_clipped_linears": True})):
        config(f"good_gemma4_{name}", seeing, vision_config={**GEMMA4_TOWER, **more},
               image_processor={"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 70})
    config("good_gemma4_e4b_images", seeing, text_config={**GEMMA4, **like_e4b}, vision_config=GEMMA4_TOWER)
    sound = {"model_type": "gemma4_audio", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
             "subsampling_conv_channels": [8, 3], "output_proj_dims": 12}
    hearing = {**seeing, "audio_token_id": 5, "vision_config": GEMMA4_TOWER}
    config("good_gemma4_audio", hearing, audio_config=sound)
    config("wide_gemma4_conformer", hearing, audio_config={**sound, "hidden_size": 1 << 62, "num_attention_heads": 1})
    config("long_gemma4_windows", hearing, audio_config={**sound, "attention_context_right": 1 << 62})
    config("large_gemma4_patches", seeing, vision_config={**GEMMA4_TOWER, "patch_size": 1 << 40,
                                                          "pooling_kernel_size": 1 << 40})
    config("many_gemma4_experts", GEMMA4, enable_moe_block=True, num_experts=1 << 40, top_k_experts=2,
           moe_intermediate_size=8)
    config("heads_of_gemma4_layers", GEMMA4, global_head_dim=None, num_global_key_value_heads=None,
           per_layer_config={"1": {"head_dim": 12, "num_key_value_heads": 1}})
    # Layer numbers are those that transformers saves for 12 layers.
    of_layers = {key: value for key, value in GEMMA4.items() if "global" not in key} | {"num_hidden_layers": 12}
    of_layers["layer_types"] = (["sliding_attention"] * 5 + ["full_attention"]) * 2
    config("good_gemma4_saved", of_layers,
           per_layer_config={layer: {"head_dim": 12, "num_key_value_heads": 1} for layer in ("05", "11")})
    config("numbers_of_gemma4_layers", of_layers, per_layer_config={"05": {}, "5": {}, "99999999999999999999": {}})
    experts = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4}
    for family in ("mixtral", "olmoe", "qwen2_moe", "qwen3_moe"):
        unread = {"num_experts" if family == "mixtral" else "num_local_experts": None}
        config("good_" + family, LLAMA, model_type=family, rope_scaling=None, **{**experts, **unread})
    config("good_glm4_moe", LLAMA, model_type="glm4_moe", rope_scaling=None, n_routed_experts=4, num_experts_per_tok=2,
           n_group=2, topk_group=1, moe_intermediate_size=8, num_nextn_predict_layers=1)
    config("good_deepseek_v3", LLAMA, model_type="deepseek_v3", rope_scaling=None, num_key_value_heads=4, q_lora_rank=6,
           kv_lora_rank=4, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=4, n_routed_experts=4,
           num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=8, first_k_dense_replace=1)
    config("wide_latents", LLAMA, model_type="deepseek_v3", num_key_value_heads=4, kv_lora_rank=1 << 40,
           qk_nope_head_dim=1 << 40, qk_rope_head_dim=1 << 40, v_head_dim=1 << 62)
    config("many_groups", LLAMA, model_type="glm4_moe", rope_scaling=None, n_group=(1 << 62), topk_group=(1 << 62))
    many = {**experts, "num_experts": 1 << 30, "num_local_experts": None}
    config("many_experts", LLAMA, model_type="qwen3_moe", rope_scaling=None, **many)
    config("good_gpt2", {"model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_layer": 2, "vocab_size": 40})
    config("good_llava", LLAVA)
    config("good_siglip", SEEING, vision_config={**CLIP, "model_type": "siglip_vision_model"})
    config("many_layers", LLAMA, num_hidden_layers=1 << 40)
    config("wide", LLAMA, hidden_size=1 << 40, num_attention_heads=1 << 40, head_dim=1 << 40)
    config("long", LLAMA, vocab_size=1 << 40, intermediate_size=1 << 40)
    config("large_images", LLAVA, vision_config={**CLIP, "image_size": 1 << 40, "patch_size": 1})
    config("large_patches", LLAVA, vision_config={**CLIP, "image_size": 1 << 39, "patch_size": 1 << 39})
    config("long_clips", LLAVA, audio_config={**WHISPER, "max_source_positions": 1 << 40})
    config("beyond", LLAMA, hidden_size=-(1 << 63), vocab_size=(1 << 64) - 1, rms_norm_eps=1e308)
    config("taps", LLAVA, vision_feature_layer=[-(1 << 63), (1 << 63) - 1])
    config("tokens", LLAVA, image_token_index=(1 << 64) - 1, eos_token_id=[-(1 << 63)])
    config("large_processor", QWEN25_VL, image_processor={"min_pixels": 1 << 62, "max_pixels": (1 << 63) - 1},
           video_processor={"size": {"shortest_edge": 1, "longest_edge": 1 << 62}, "max_frames": 1 << 62})
    config("odd_processor", SEEING, image_processor={"size": [1], "image_mean": {"a": 1}, "rescale_factor": 1e-320})
    config("unknown_value", LLAMA, weird={"a": [[[[{"b": "\udcff"}]]]]})
    put("config", "deep.json", '{"model_type": "llama", "id2label": ' + '{"a":[' * 300 + "]}" * 300 + "}")
    put("config", "deep_open.json", "[" * 3000)
    put("config", "not_utf8.json", b'{"model_type": "\xff\xfe\xc0\x80"}')
    put("config", "numbers.json", '{"model_type": "llama", "hidden_size": 1e999, "num_hidden_layers": 1.5}')


ADAPTER = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "lora_dropout": 0.1, "bias": "none", "use_rslora": True,
           "target_modules": ["q_proj"], "alpha_pattern": {"^model.layers.1.mlp.down_proj": 3, "q_proj": 7}}


def write_adapter():
    def adapter(name, **changes):
        put("adapter", name + ".json", json.dumps({**ADAPTER, **changes}))

    adapter("good")
    adapter("good_parameters", target_parameters=["mlp.experts.gate_up_proj", 4, "gate.weight"])
    adapter("texts", r="4", lora_alpha="6", use_rslora="no")
    adapter("numbers", r=(1 << 64) - 1, lora_alpha=1e308, lora_dropout=-1)
    adapter("deep_pattern", alpha_pattern={"(" * 5000 + ")" * 5000: 1})
    adapter("slow_pattern", alpha_pattern={"((((a*|.)*)*)*)*!": 1})
    adapter("counted_pattern", alpha_pattern={"((a{9999}){9999}){9999}": 1})
    put("adapter", "list.json", '[{"peft_type": "LORA"}]')


def write_tokenizer():
    def tokenizer(name, vocabulary, added=(), **more):
        put("tokenizer", name + ".json", json.dumps({"added_tokens": added, "model": {"vocab": vocabulary}, **more}))

    token = {"id": 2, "content": "<image>", "special": True}
    tokenizer("good", {"a": 0, "b": 1}, [token])
    tokenizer("good_pieces", [["a", -1.5], ["b", -2.5]])
    tokenizer("good_words", {"a": 0}, added_tokens_decoder={"0": {"content": "a"}})
    tokenizer("large", {"a": (1 << 63) - 1}, [{**token, "id": (1 << 63) - 1}])
    tokenizer("beyond", {"a": -1, "b": (1 << 64) - 1}, [{**token, "content": "b"}])
    tokenizer("odd_pieces", [[], "a", [["a"]], {"<image>": 1}])
    tokenizer("odd_lists", {"a": 0}, {"id": 1}, added_tokens_decoder=[1])
    put("tokenizer", "deep.json", '{"model": {"vocab": ' * 500)


def write_deck():
    inputs = pathlib.Path(__file__).resolve().parents[2] / "inputs"
    for path in sorted(inputs.glob("*.toml"))[:3]:
        put("deck", "good_" + path.name, path.read_bytes())
    put("deck", "deep.toml", "a = " + "[" * 2000)
    put("deck", "deep_key.toml", "a" + ".b" * 2000 + " = 1")
    put("deck", "not_utf8.toml", b"[model]\nweights = \"\xff\xc0\"\n")
    numbers = "[train]\nsteps = 9223372036854775807\nseed = -9223372036854775808\n[mesh]\ndp_shard = nan\n"
    put("deck", "numbers.toml", numbers)


def write_manifest():
    """Without their digests, which the target puts in (mend_manifest)."""
    piece = {"tensor": "w", "state": "parameter", "offset": [0, 0], "length": [4, 3], "dtype": "float32",
             "file": "rank-00000.h5", "dataset": "w", "hashes": ["0" * 32]}
    position = dict.fromkeys(("step", "optimizer_step", "samples", "tokens", "target_tokens"), 1)
    base = {"run_id": "r", "position": position, "mesh": "m", "world_size": 1, "deck": "", "config": "{}",
            "files": [{"name": "rank-00000.h5", "rest_hash": "0a"}],
            "tensors": [{"name": "w", "shape": [4, 3], "dtype": "float32", "trained": False}], "pieces": [piece]}

    def manifest(name, **changes):
        text = '{"format": "zea.checkpoint", "version": "2",\n' + json.dumps({**base, **changes})[1:-1] + ",\n"
        put("manifest", name + ".json", text + '"digest": "' + "0" * 32 + '"\n}\n')

    manifest("good")
    manifest("good_halves", pieces=[{**piece, "length": [1, 3]}, {**piece, "offset": [1, 0], "length": [3, 3]}])
    manifest("overlap", pieces=[piece, piece])
    large = [1 << 20, 1 << 40]
    manifest("large", tensors=[{**base["tensors"][0], "shape": large}], pieces=[{**piece, "length": large}])
    ends = {**piece, "offset": [(1 << 63) - 1, 1], "length": [(1 << 63) - 1, 1], "hashes": []}
    manifest("ends", pieces=[ends])
    empty = [0, (1 << 62), (1 << 62)]
    manifest("empty", tensors=[{**base["tensors"][0], "shape": empty}],
             pieces=[{**piece, "offset": [0, 0, 0], "length": empty, "hashes": []}])
    manifest("no_lists", tensors="w", pieces={"a": 1}, files=None)
    manifest("paths", files=[{"name": "../rank-00000.h5", "rest_hash": ""}])
    manifest("deep", mesh=json.loads("[" * 100 + "]" * 100))


# --- weights ----------------------------------------------------------------------------------------------------------


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def write_safetensors():
    def entry(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    def file(name, header, data=b"", length=None):
        put("safetensors", name + ".safetensors", safetensors(header, data, length))

    file("good", {"__metadata__": {"format": "pt"}, "a": entry("F32", [2, 3], 0, 24), "b": entry("BF16", [4], 24, 32),
                  "c": entry("U8", [], 32, 33)}, bytes(33))
    file("good_types", {n: entry(n, [1], b, b + s) for n, b, s in
                        (("F64", 0, 8), ("F16", 8, 2), ("I64", 10, 8), ("I32", 18, 4))}, bytes(22))
    buffers = {f"{n}.attn.bias": entry(n, [1, 2], b, b + s) for n, b, s in
               (("BOOL", 0, 2), ("I8", 2, 2), ("U16", 4, 4), ("U32", 8, 8), ("C64", 16, 16), ("F8_E4M3", 32, 2))}
    file("good_buffers", buffers, bytes(34))
    file("good_mxfp4", {"a_blocks": entry("U8", [1, 2, 1, 16], 0, 32), "a_scales": entry("U8", [1, 2, 1], 32, 34),
                        "b": entry("U8", [0, 2, 1, 16], 34, 34)}, bytes(range(34)))
    file("good_fp8", {"a": entry("F8_E4M3", [2, 3, 5], 0, 30), "a_scale_inv": entry("BF16", [2, 1, 1], 30, 34)},
         bytes(range(34)))
    file("mxfp4_alone", {"a_blocks": entry("U8", [1, 2, 1, 16], 0, 32)}, bytes(32))
    file("fp8_alone", {"a": entry("F8_E4M3", [1 << 30, 1 << 30, 0], 0, 0)}, b"")
    file("bool", {"a": entry("BOOL", [1], 0, 1)}, b"\0")
    put("safetensors", "pointer.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    file("good_none", {}, b"")
    file("overlap", {"a": entry("U8", [8], 0, 8), "b": entry("U8", [8], 4, 12)}, bytes(12))
    file("beyond", {"a": entry("U8", [8], 0, 8)}, bytes(4))
    file("elements", {"a": entry("U8", [1 << 60], 0, 1 << 60)}, bytes(4))
    file("product", {"a": entry("F32", [1 << 31, 1 << 31, 4], 0, 0)}, b"")
    file("empty", {"a": entry("F32", [0, 1 << 62, 1 << 62], 0, 0)}, b"")
    file("dims", {"a": entry("U8", [1] * 100, 0, 1)}, b"\0")
    one = '"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    file("twice", "{" + one + "," + one + "}", b"\0")
    file("deep", '{"a":' + "[" * 3000)
    file("deep_objects", '{"a":' * 1000)
    file("not_utf8", b'{"\xff\xc0":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"\0")
    file("length", {}, b"", length=(1 << 64) - 1)
    file("length_huge", {}, b"", length=99_999_999)
    file("numbers", '{"a":{"dtype":"U8","shape":[1e3,-1],"data_offsets":[0,18446744073709551615]}}', b"\0")


for write in (write_png, write_jpeg, write_wav, write_flac, write_adapter, write_config, write_deck, write_manifest,
              write_safetensors, write_tokenizer, write_weights, write_dataset, write_index):
    write()
