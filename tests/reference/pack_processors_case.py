# SPDX-License-Identifier: Apache-2.0
"""Tiny directories of models of images and videos, with the processors that transformers has for them."""

import json

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    CLIPImageProcessor,
    Gemma3ImageProcessor,
    Gemma3Processor,
    Gemma4AudioFeatureExtractor,
    Gemma4ImageProcessor,
    Gemma4Processor,
    Gemma4VideoProcessor,
    Glm4vImageProcessor,
    Glm4vProcessor,
    Glm4vVideoProcessor,
    Glm46VProcessor,
    Glm46VVideoProcessor,
    GotOcr2ImageProcessor,
    Idefics3ImageProcessor,
    Idefics3Processor,
    InternVLProcessor,
    InternVLVideoProcessor,
    Kimi_K25ImageProcessor,
    Kimi_K25Processor,
    Kimi_K25VideoProcessor,
    LlavaNextImageProcessor,
    LlavaNextProcessor,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    LlavaProcessor,
    PixtralImageProcessor,
    PixtralProcessor,
    PreTrainedTokenizerFast,
    Qwen2_5OmniProcessor,
    Qwen3OmniMoeProcessor,
    Qwen2AudioProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2_5_VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
    WhisperFeatureExtractor,
)

END = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{% if c.type == 'image' %}IMAGE{% elif c.type == 'video' %}VIDEO{% else %}{{ c.text }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}" + END
)
# Images come first, each followed by a new line, as in LLaVA's.
IMAGES_FIRST = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.content if c.type == 'image' %}{{ 'IMAGE\n' }}"
    "{% endfor %}{% for c in m.content if c.type == 'text' %}{{ c.text }}{% endfor %}<|im_end|>\n{% endfor %}" + END
)
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"]
VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
GLM = ["<|begin_of_image|>", "<|end_of_image|>", "<|image|>"]
KIMI = ["<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>", "<|kimi_k25_video_placeholder|>"]
ROWS = ["[IMG]", "[IMG_BREAK]", "[IMG_END]"]
GEMMA = ["<start_of_image>", "<end_of_image>", "<image_soft_token>"]
GEMMA4 = {"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>",
          "audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>"}
OMNI = {f"{key}_token": f"<|{key.upper()}|>" for key in ("image", "video", "audio")}
OMNI |= {f"{key}_token": f"<|{key}|>" for key in ("vision_bos", "vision_eos", "audio_bos", "audio_eos")}
OMNI3 = {f"{key}_token": f"<|{key}_pad|>" for key in ("image", "video", "audio")}
OMNI3 |= {f"{key}_{side}_token": f"<|{key}_{name}|>" for key in ("vision", "audio")
          for side, name in (("bos", "start"), ("eos", "end"))}
QWEN = {"patch_size": 8, "temporal_patch_size": 2, "merge_size": 2}


def make_tokenizer(special, is_begun=False):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    sizes = {"show_progress": False, "initial_alphabet": alphabet, "vocab_size": 380}
    trainer = trainers.BpeTrainer(special_tokens=special, **sizes)
    tokenizer.train_from_iterator(["What is it? A cup. seconds \n\n\n user assistant <0.2 seconds>"] * 9, trainer)
    if is_begun:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def qwen_vl(family):
    vision = {"patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2}
    limits = {"min_pixels": 256, "max_pixels": 4096}
    is_timed = family.startswith("qwen3")
    sizes = {"size": {"shortest_edge": 256, "longest_edge": 1 << 20 if is_timed else 4096}}
    video = (Qwen3VLVideoProcessor if is_timed else Qwen2VLVideoProcessor)(**QWEN, **sizes)
    make = {"qwen2_vl": Qwen2VLProcessor, "qwen2_5_vl": Qwen2_5_VLProcessor}.get(family, Qwen3VLProcessor)
    around = lambda token: VISION[0] + token + VISION[1]  # noqa: E731
    source = PARTS.replace("IMAGE", around(VISION[2])).replace("VIDEO", around(VISION[3]))
    special = SPECIAL + VISION
    config = {"image_token_id": special.index(VISION[2]), "video_token_id": special.index(VISION[3])}
    build = lambda t: make(Qwen2VLImageProcessor(**QWEN, **limits), t, video, chat_template=source)  # noqa: E731
    return special, {**config, "vision_config": vision}, build


def glm(family):
    vision = {"patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2}
    special = SPECIAL + GLM
    config = {"image_token_id": special.index(GLM[2]), "vision_config": vision}
    image = Glm4vImageProcessor(**QWEN, size={"shortest_edge": 512, "longest_edge": 8192})
    source = PARTS.replace("IMAGE", GLM[0] + GLM[2] + GLM[1])
    make, video = Glm4vProcessor, Glm4vVideoProcessor
    if family == "glm46v":
        make, video = Glm46VProcessor, Glm46VVideoProcessor
    return special, config, lambda t: make(image, t, video(**QWEN), chat_template=source)


def kimi(family):
    special = SPECIAL + KIMI
    ids = {"media_placeholder_token_id": special.index(KIMI[3]), "video_token_id": special.index(KIMI[4])}
    config = {**ids, "vision_config": {"patch_size": 8}}
    image = Kimi_K25ImageProcessor(patch_size=8, max_patches=64, size={"max_height": 12, "max_width": 12})
    begin, content, end, token, video = KIMI
    source = PARTS.replace("IMAGE", f"{begin}image{content}{token}{end}").replace("VIDEO", video)
    videos = Kimi_K25VideoProcessor(patch_size=8)
    return special, config, lambda t: Kimi_K25Processor(image, t, videos, chat_template=source)


def llava(family):
    special = SPECIAL + ["<image>"]
    vision = {"model_type": "clip_vision_model", "image_size": 28, "patch_size": 14}
    config = {"image_token_index": len(special) - 1, "vision_config": vision}
    size = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    source = "{{ bos_token }}" * (family == "begun") + IMAGES_FIRST.replace("IMAGE", "<image>")
    more = {"patch_size": 14, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
    build = lambda t: LlavaProcessor(CLIPImageProcessor(**size), t, chat_template=source, **more)  # noqa: E731
    return special, config, build


def pixtral(family):
    special = SPECIAL + ROWS
    vision = {"model_type": "pixtral", "patch_size": 8, "image_size": 64}
    config = {"image_token_index": special.index("[IMG]"), "spatial_merge_size": 2, "vision_config": vision}
    merge = 2 if family == "mistral3" else 1
    image = PixtralImageProcessor(size={"longest_edge": 64}, patch_size=8)
    more = {"patch_size": 8, "spatial_merge_size": merge, "chat_template": PARTS.replace("IMAGE", "[IMG]")}
    build = lambda t: PixtralProcessor(image, t, **more)  # noqa: E731
    return special, config, build


def gemma3(family):
    special = SPECIAL + GEMMA
    config = {"image_token_index": len(special) - 1, "mm_tokens_per_image": 4, "vision_config": {}}
    image = Gemma3ImageProcessor(size={"height": 28, "width": 28})
    more = {"image_seq_length": 4, "chat_template": PARTS.replace("IMAGE", GEMMA[0])}
    build = lambda t: Gemma3Processor(image, t, **more)  # noqa: E731
    return special, config, build


def gemma4(family):
    special = SPECIAL + [*GEMMA4.values(), "<|video|>"]
    ids = {f"{key}_token_id": special.index(GEMMA4[f"{key}_token"]) for key in ("image", "boi", "eoi")}
    sizes = {"patch_size": 4, "pooling_kernel_size": 2}
    config = {**ids, "video_token_id": special.index("<|video|>"), "vision_config": sizes}
    image, video = Gemma4ImageProcessor(**sizes, max_soft_tokens=70), Gemma4VideoProcessor(**sizes)
    source = PARTS.replace("IMAGE", GEMMA4["image_token"]).replace("VIDEO", "<|video|>")
    sound = Gemma4AudioFeatureExtractor()
    build = lambda t: Gemma4Processor(sound, image, t, video, chat_template=source)  # noqa: E731
    return special, config, build


def internvl(family):
    special = SPECIAL + ["<img>", "</img>", "<IMG_CONTEXT>", "<video>"]
    vision = {"image_size": [28, 28], "patch_size": [7, 7]}
    config = {"image_token_id": special.index("<IMG_CONTEXT>"), "downsample_ratio": 0.5, "vision_config": vision}
    image = GotOcr2ImageProcessor(size={"height": 28, "width": 28}, crop_to_patches=True, max_patches=3)
    more = {"image_seq_length": 4, "chat_template": IMAGES_FIRST.replace("IMAGE", "<IMG_CONTEXT>")}
    build = lambda t: InternVLProcessor(image, t, InternVLVideoProcessor(), **more)  # noqa: E731
    return special, config, build


def smolvlm(family):
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    special = SPECIAL + ["<fake_token_around_image>", "<global-img>", "<image>", "<end_of_utterance>", *tiles]
    vision = {"image_size": 28, "patch_size": 7}
    config = {"image_token_id": special.index("<image>"), "scale_factor": 2, "vision_config": vision}
    sizes = {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}}
    source = (
        "<|im_start|>{% for m in messages %}{{ m.role | capitalize }}{% if m.content[0].type == 'image' %}{{ ':' }}"
        "{% else %}{{ ': ' }}{% endif %}{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}"
        "{% elif c.type == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
    )
    more = {"image_seq_len": 4, "chat_template": source}
    build = lambda t: Idefics3Processor(Idefics3ImageProcessor(**sizes), t, **more)  # noqa: E731
    return special, config, build


def llava_next(family):
    special = SPECIAL + ["<image>"]
    grid = [[28, 56], [56, 28], [56, 56]]
    tower = {"llava_next": "clip_vision_model", "llava_onevision": "siglip_vision_model"}[family]
    vision = {"model_type": tower, "image_size": 28, "patch_size": 14}
    config = {"image_token_index": special.index("<image>"), "vision_config": vision, "image_grid_pinpoints": grid}
    source = IMAGES_FIRST.replace("IMAGE", "<image>")
    if family == "llava_next":
        sizes = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}, "image_grid_pinpoints": grid}
        more = {"patch_size": 14, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
        more["chat_template"] = source
        build = lambda t: LlavaNextProcessor(LlavaNextImageProcessor(**sizes), t, **more)  # noqa: E731
        return special, config, build
    image = LlavaOnevisionImageProcessor(size={"height": 28, "width": 28}, image_grid_pinpoints=grid)
    more = {"num_image_tokens": 4, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_9"}
    video = LlavaOnevisionVideoProcessor()
    build = lambda t: LlavaOnevisionProcessor(image, t, video, chat_template=source, **more)  # noqa: E731
    return special, {**config, "vision_feature_select_strategy": "full"}, build


def qwen2_audio(family):
    special = SPECIAL + ["<|audio_bos|>", "<|audio_eos|>", "<|AUDIO|>"]
    audio = {"num_mel_bins": 24, "max_source_positions": 100}
    config = {"audio_token_index": special.index("<|AUDIO|>"), "audio_config": audio}
    hearing = WhisperFeatureExtractor(feature_size=24, chunk_length=2)
    return special, config, lambda t: Qwen2AudioProcessor(hearing, t)


def omni(family):
    is_moe = family == "qwen3_omni_moe_thinker"
    names = OMNI3 if is_moe else OMNI
    special = SPECIAL + list(names.values())
    vision = {"patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2}
    key = "token_id" if is_moe else "token_index"
    ids = {f"{item}_{key}": special.index(names[f"{item}_token"]) for item in ("image", "video", "audio")}
    config = {**ids, "vision_config": vision, "audio_config": {"num_mel_bins": 24}}
    if is_moe:
        config["position_id_per_seconds"] = 13  # as in the processor
    images, videos = Qwen2VLImageProcessor(**QWEN, min_pixels=256, max_pixels=4096), Qwen2VLVideoProcessor(**QWEN)
    hearing = WhisperFeatureExtractor(feature_size=24, chunk_length=30, return_attention_mask=True)
    image, video, sound = (names[f"{mark}_bos_token"] + names[f"{item}_token"] + names[f"{mark}_eos_token"]
                           for item, mark in (("image", "vision"), ("video", "vision"), ("audio", "audio")))
    source = PARTS.replace("IMAGE", image).replace("VIDEO", video)
    hears = "{% elif c.type == 'audio' %}" + sound
    source = source.replace("{% else %}{{ c.text", hears + "{% else %}{{ c.text")
    of_family = Qwen3OmniMoeProcessor if is_moe else Qwen2_5OmniProcessor
    build = lambda t: of_family(images, videos, hearing, t, chat_template=source)  # noqa: E731
    return special, config, build


# By name: model_type, and its parts.
MODELS = {
    "LLaVA": ("llava", llava),
    "LLaVA that writes what begins a text": ("llava", lambda _: llava("begun")),
    "Qwen2-VL": ("qwen2_vl", qwen_vl),
    "Qwen3-VL": ("qwen3_vl", qwen_vl),
    "Qwen3.5": ("qwen3_5", qwen_vl),
    "Qwen3.5-MoE": ("qwen3_5_moe", qwen_vl),
    "Pixtral": ("llava", pixtral),
    "Mistral 3": ("mistral3", pixtral),
    "Gemma 3": ("gemma3", gemma3),
    "GLM-4.1V": ("glm4v", glm),
    "GLM-4.5V": ("glm4v_moe", glm),
    "GLM-4.6V": ("glm46v", glm),
    "Kimi-K2.5": ("kimi_k25", kimi),
    "Gemma 4": ("gemma4", gemma4),
    "Qwen2.5-VL": ("qwen2_5_vl", qwen_vl),
    "Qwen2.5-Omni": ("qwen2_5_omni_thinker", omni),
    "Qwen3-Omni": ("qwen3_omni_moe_thinker", omni),
    "InternVL": ("internvl", internvl),
    "SmolVLM": ("smolvlm", smolvlm),
    "LLaVA-NeXT": ("llava_next", llava_next),
    "LLaVA-OneVision": ("llava_onevision", llava_next),
}
SPOKEN = {"Qwen2-Audio": ("qwen2_audio", qwen2_audio)}
NAMED = {"gemma3": {"boi_token": GEMMA[0], "eoi_token": GEMMA[1], "image_token": GEMMA[2]}}
NAMED |= {"qwen2_5_omni_thinker": OMNI, "qwen3_omni_moe_thinker": OMNI3}
NAMED["gemma4"] = {**GEMMA4, "pad_token": "<|endoftext|>"}
NAMED["internvl"] = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
NAMED["internvl"]["video_token"] = "<video>"


def write_model(folder, name):
    """A directory that pack.py takes, and its processor."""
    family, make = (MODELS | SPOKEN)[name]
    special, config, build = make(family)
    folder.mkdir(parents=True)
    tokenizer = make_tokenizer(special, is_begun=name.startswith("LLaVA"))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|im_end|>"}
    settings |= NAMED.get(family, {})
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": family, **config}))
    processor = build(PreTrainedTokenizerFast.from_pretrained(folder))
    processor.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return processor
