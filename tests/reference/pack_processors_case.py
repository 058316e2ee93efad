# SPDX-License-Identifier: Apache-2.0
"""Tiny directories of models of images and videos, with the processors that transformers has for them."""

import json

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    CLIPImageProcessor,
    Gemma3ImageProcessor,
    Gemma3Processor,
    LlavaProcessor,
    PixtralImageProcessor,
    PixtralProcessor,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

END = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{% if c.type == 'image' %}IMAGE{% elif c.type == 'video' %}VIDEO{% else %}{{ c.text }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}" + END
)
# Images first, each with a new line behind it, as LLaVA's.
IMAGES_FIRST = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.content if c.type == 'image' %}{{ 'IMAGE\n' }}"
    "{% endfor %}{% for c in m.content if c.type == 'text' %}{{ c.text }}{% endfor %}<|im_end|>\n{% endfor %}" + END
)
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"]
VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
ROWS = ["[IMG]", "[IMG_BREAK]", "[IMG_END]"]
GEMMA = ["<start_of_image>", "<end_of_image>", "<image_soft_token>"]
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
    sizes = {"size": {"shortest_edge": 256, "longest_edge": 4096 if family == "qwen2_vl" else 1 << 20}}
    video = (Qwen2VLVideoProcessor if family == "qwen2_vl" else Qwen3VLVideoProcessor)(**QWEN, **sizes)
    make = Qwen2VLProcessor if family == "qwen2_vl" else Qwen3VLProcessor
    around = lambda token: VISION[0] + token + VISION[1]  # noqa: E731
    source = PARTS.replace("IMAGE", around(VISION[2])).replace("VIDEO", around(VISION[3]))
    special = SPECIAL + VISION
    config = {"image_token_id": special.index(VISION[2]), "video_token_id": special.index(VISION[3])}
    build = lambda t: make(Qwen2VLImageProcessor(**QWEN, **limits), t, video, chat_template=source)  # noqa: E731
    return special, {**config, "vision_config": vision}, build


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


# By name: model_type, and what it is made of.
MODELS = {
    "LLaVA": ("llava", llava),
    "LLaVA that writes what begins a text": ("llava", lambda _: llava("begun")),
    "Qwen2-VL": ("qwen2_vl", qwen_vl),
    "Qwen3-VL": ("qwen3_vl", qwen_vl),
    "Pixtral": ("llava", pixtral),
    "Mistral 3": ("mistral3", pixtral),
    "Gemma 3": ("gemma3", gemma3),
}
NAMED = {"boi_token": GEMMA[0], "eoi_token": GEMMA[1], "image_token": GEMMA[2]}


def write_model(folder, name):
    """A directory that pack.py takes, and its processor."""
    family, make = MODELS[name]
    special, config, build = make(family)
    folder.mkdir(parents=True)
    tokenizer = make_tokenizer(special, is_begun=name.startswith("LLaVA"))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|im_end|>"}
    settings |= NAMED if family == "gemma3" else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": family, **config}))
    processor = build(PreTrainedTokenizerFast.from_pretrained(folder))
    processor.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return processor
