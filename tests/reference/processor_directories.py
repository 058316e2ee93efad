# SPDX-License-Identifier: Apache-2.0
"""A random Hugging Face directory: a config, a processor of transformers with random values, a tokenizer, a chat
template. What a draw leaves out is left to the defaults of both sides."""

import functools
import json
import random

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from transformers.models.smolvlm import processing_smolvlm

# Only texts of its videos need the package; those of the tests have few frames.
NUMBERS = "zero one two three four five six seven".split()
processing_smolvlm.num2words = processing_smolvlm.num2words or NUMBERS.__getitem__

TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 4}
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SPECIAL = ["<s>", "</s>", "<unk>", "<image>", "<video>", "<audio>", "[INST]", "[/INST]", "<|im_start|>", "<|im_end|>",
           "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<start_of_turn>", "<end_of_turn>",
           "<start_of_image>", "<end_of_image>", "<image_soft_token>", "<img>", "</img>", "<IMG_CONTEXT>",
           "<end_of_utterance>", "<fake_token_around_image>", "<global-img>",
           *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))]
# Named tokens of these families' tokenizers, in addition to their ids.
NAMED = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
NAMED_BY_INTERNVL = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
                     "video_token": "<video>"}
NAMED_BY_GEMMA4 = {"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>",
                   "audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>"}
PARTS = ("{% for part in message['content'] %}{% if part['type'] == 'image' %}IMAGE{% elif part['type'] == 'video' %}"
         "VIDEO{% elif part['type'] == 'audio' %}SOUND{% else %}{{ part['text'] }}{% endif %}{% endfor %}")
CHATML = ("{% for message in messages %}<|im_start|>{{ message['role'] }}\n" + PARTS + "<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
INST = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}[INST]" + PARTS + "[/INST]"
        "{% else %}" + PARTS + "{{ eos_token }}{% endif %}{% endfor %}")
PLAIN = ("{% for message in messages %}{{ message['role'] | upper }}: " + PARTS +
         "{% if message['role'] == 'assistant' %}{{ eos_token }}{% else %} {% endif %}{% endfor %}"
         "{% if add_generation_prompt %}ASSISTANT:{% endif %}")


# Families whose processors have a part for videos.
OF_VIDEOS = ("Glm4v", "Glm46V", "Kimi_K25", "Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "InternVL", "LlavaOnevision", "SmolVLM")


@functools.cache
def tokenizer_of(kind, special):
    """Returns a tokenizer of bytes, or of words with a mark before them that puts <s> before a text."""
    tokenizer = Tokenizer(models.BPE(unk_token=None if kind == "bytes" else "<unk>"))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if kind == "bytes":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.decoder = decoders.Metaspace()
        begin = [("<s>", 0)]
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=begin)
    more = {"show_progress": False, "initial_alphabet": alphabet, "vocab_size": 420}
    texts = ["user assistant USER ASSISTANT: What is it? It is noise. \n\n Here are the pictures, <0.5 seconds>"] * 9
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(special_tokens=list(special), **more))
    return tokenizer


class Draw(random.Random):
    """Draws the settings of directory `number`."""

    number = 0

    def chance(self, share):
        return self.random() < share

    def values(self):
        """How pixels become values, and by which kernel images are resized."""
        said = {}
        if self.chance(0.6):
            said["image_mean"] = [round(self.random(), 3) for _ in range(3)]
            said["image_std"] = [round(self.uniform(0.1, 1), 3) for _ in range(3)]
        if self.chance(0.1):
            said["do_normalize"] = False
        if self.chance(0.1):
            said["do_rescale"] = False
        elif self.chance(0.2):
            said["rescale_factor"] = self.choice([1 / 127.5, 1 / 256, 0.01])
        if self.chance(0.5):
            said["resample"] = self.choice([2, 3])
        if self.chance(0.2):
            said["do_convert_rgb"] = self.choice([True, False])  # all are of RGB
        return said

    def size(self, step, most=400):
        """Returns the size of an image: tiny, of one pixel a side, long, whole steps or one off, or any."""
        kind = self.randrange(6)
        if kind == 0:
            return self.randint(1, 9), self.randint(1, 9)
        if kind == 1:
            sides = [1, self.randint(1, 180)]
        elif kind == 2:
            sides = [self.randint(2, 40), self.randint(200, 3 * most)]
        elif kind == 3:
            whole = [step * self.randint(1, max(1, most // step)) for _ in range(2)]
            sides = [max(1, side + self.choice([-1, 0, 0, 1])) for side in whole]
        else:
            sides = [self.randint(10, most) for _ in range(2)]
        self.shuffle(sides)
        return tuple(sides)

    def tower(self, types):
        """Its config, how many patches a side, and what stands before them."""
        kind = self.choice(types)
        patch = self.choice([4, 7, 8])
        side = patch * self.randint(2, 6) + self.choice([0, 0, 0, 1, patch - 1])
        config = {"model_type": kind, **TOWER, "image_size": side, "patch_size": patch}
        learned = {"siglip_vision_model": 0, "dinov2_with_registers": 3}.get(kind, 1)
        if kind.startswith("dinov2"):
            del config["intermediate_size"]
        if kind == "dinov2_with_registers":
            config["num_register_tokens"] = 2
        return config, learned


class Case:
    """`said`: the directory's settings for images; `made`: keys of the processor of images and text, None: the family
    is composed by a deck, and has none; `mark`, `placeholder`: in templates and in ids; `asked`: settings that
    transformers takes only from a call, and zea from the directory; `sound`: the mark and placeholder of audio beside
    images."""

    samples, special, video_placeholder = {"image": 5}, SPECIAL, "<|video_pad|>"
    processor_of_videos = video_said = sound = None

    def __init__(self, draw, config, image_class, said, kind=None, made=None, mark="<image>", placeholder="<image>",
                 named=None, asked=None, name_of_token="image_token_id", step=8):
        self.draw, self.config, self.image_class, self.said = draw, config, image_class, said
        self.by_torchvision = draw.number % 2 == 1 and image_class not in ("Idefics3", "SmolVLM")
        self.by_torchvision |= image_class == "Kimi_K25"
        backend = "" if self.by_torchvision else "Pil"
        self.images = getattr(transformers, f"{image_class}ImageProcessor{backend}")(**said)
        self.asked, self.step, self.kind = asked or {}, step, kind
        self.mark, self.placeholder = mark, placeholder
        self.set_tokenizer(draw, named)
        self.made = made
        if made is not None:
            text = config["text_config"]
            text["vocab_size"] = len(self.tokenizer)
            config[name_of_token] = self.tokenizer.convert_tokens_to_ids(placeholder)

    def set_tokenizer(self, draw, named=None):
        templates = [INST, PLAIN] + [CHATML] * ("<|im_start|>" in self.special)
        self.template = draw.choice(templates).replace("IMAGE", self.mark)
        self.template = self.template.replace("SOUND", self.sound or self.mark)
        self.tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer_of(draw.choice(["bytes", "words"]), tuple(self.special)), bos_token="<s>",
            eos_token="</s>", extra_special_tokens=named or {},
        )

    def processor(self):
        parts = [self.images, self.tokenizer]
        if self.kind in OF_VIDEOS:
            parts.append(self.processor_of_videos or video_processor(self.kind))
        return getattr(transformers, f"{self.kind}Processor")(*parts, chat_template=self.template, **self.made)

    def write(self, folder):
        said = self.said_in_file()
        config, files = dict(self.config), {}
        if config["model_type"] == "composed":
            config["encoders"] = {"eyes": {**config["encoders"]["eyes"], "image_processor": said}}
        else:
            files = self.files(said)
        names = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
        for name, value in (files | {"config.json": config, "tokenizer_config.json": names}).items():
            (folder / name).write_text(json.dumps(value))
        (folder / "chat_template.jinja").write_text(self.template)
        self.tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))

    def said_in_file(self):
        """All of it, or only what is not usual."""
        said = self.said if self.draw.chance(0.5) else json.loads(self.images.to_json_string())
        backend = "Fast" if self.by_torchvision else ""  # as transformers 4 called it
        return {**said, "image_processor_type": f"{self.image_class}ImageProcessor{backend}"}

    def files(self, said):
        """One of its own, or that of the whole processor, which goes before it."""
        if self.draw.chance(0.5) and not self.video_said:
            return {"preprocessor_config.json": said}
        whole = {"image_processor": said} | ({"video_processor": self.video_said} if self.video_said else {})
        return {"preprocessor_config.json": {**said, "image_mean": [0.3, 0.3, 0.3]}, "processor_config.json": whole}

    def several(self):
        """Images of a sample."""
        return self.draw.choice([1, 1, 2, 3])

    def pixels(self, inputs):
        """Returns the pixels of a sample, in zea's order."""
        return inputs["pixel_values"].numpy().reshape(-1)


    def placeholder_of(self, kind):
        if kind == "video":
            return self.video_placeholder
        return self.sound if kind == "audio" and self.sound else self.placeholder

    def heard(self, inputs):
        """Returns the log-mel features of a sample, in zea's order."""
        return inputs["input_features"].numpy().reshape(-1)


def video_processor(kind):
    name = {"Qwen2_5_VL": "Qwen2VL", "SmolVLM": "SmolVLM"}.get(kind, kind)
    return getattr(transformers, f"{name}VideoProcessor")()
