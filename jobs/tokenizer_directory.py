# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a Hugging Face directory, as transformers' AutoTokenizer builds it, without transformers.

tokenizer.json holds most of it. tokenizer_config.json, special_tokens_map.json and added_tokens.json may name more
tokens, and some classes of tokenizers take vocabulary and merges alone from tokenizer.json and bring the rest.
"""

import json
import sys

from model_directory import read_object
from token_bytes import read_tokenizer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

NAMED = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
PLAIN = "TokenizersBackend"  # tokenizer.json as it is
# Classes that transformers takes for a family where the files name none, and those that it takes whatever they name.
USUAL_CLASSES = dict.fromkeys(("gemma3", "gemma3_text"), "GemmaTokenizer") | {"gpt2": "GPT2Tokenizer"}
QWEN = ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_omni", "qwen2_5_vl", "qwen2_audio", "qwen3", "qwen3_moe", "qwen3_next",
        "qwen3_vl")
QWEN35 = ("qwen3_5", "qwen3_5_moe", "qwen3_5_text")
PLAIN_FAMILIES = ("deepseek_v3", "glm46v", "glm4_moe", "glm4v", "glm4v_moe", "kimi_k25", "llava", "llava_next",
                  "mistral", "mistral3", "mixtral", "pixtral", "smolvlm", "voxtral")
USUAL_CLASSES |= dict.fromkeys((*QWEN, "qwen3_omni_moe", "qwen3_vl_moe", "internvl"), "Qwen2Tokenizer")
USUAL_CLASSES |= dict.fromkeys(QWEN35, "Qwen3_5Tokenizer") | dict.fromkeys(PLAIN_FAMILIES, PLAIN)
FIXED_CLASSES = ("qwen2",)
# Classes of transformers that build a tokenizer in a way of their own, which is not built here.
OTHER_CLASSES = ("CodeLlamaTokenizer", "CohereTokenizer", "XGLMTokenizer", "T5Tokenizer")
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Marks belong to words, as letters do.
QWEN35_WORDS = QWEN2_WORDS.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
END_OF_TEXT = "<|endoftext|>"


def object_of(path):
    return read_object(path) if path.is_file() else {}


def added(token, special=None):
    """An AddedToken of what a file says of one; a text and an AddedToken stay as they are."""
    if not isinstance(token, dict):
        return token
    fields = {key: token[key] for key in ("single_word", "lstrip", "rstrip", "normalized", "special") if key in token}
    return AddedToken(token.get("content", ""), **(fields if special is None else {**fields, "special": special}))


def class_of(config, settings):
    """The name of the class that AutoTokenizer takes."""
    name = settings.get("tokenizer_class") or config.get("tokenizer_class")
    family = config.get("model_type")
    usual = USUAL_CLASSES.get(family)
    name = name.removesuffix("Fast") if isinstance(name, str) else None
    auto_map = settings.get("auto_map")
    own_code = auto_map.get("AutoTokenizer") if isinstance(auto_map, dict) else auto_map
    if name and usual and name != usual and not own_code:
        return PLAIN if usual == PLAIN else usual if family in FIXED_CLASSES else name
    return name or usual or PLAIN


def llama(model, settings):
    prefix = settings.get("add_prefix_space") is not False
    scheme = ("always" if settings.get("legacy", False) else "first") if prefix else "never"
    tokenizer = Tokenizer(models.BPE(**model, fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + [decoders.Strip(content=" ", left=1)] * prefix)
    return tokenizer


def gemma(model, settings):
    unknown = settings.get("unk_token", "<unk>")
    tokenizer = Tokenizer(models.BPE(**model, fuse_unk=True, unk_token=str(unknown), byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern=" ", behavior="merged_with_previous", invert=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def byte_level(model):
    tokenizer = Tokenizer(models.BPE(**model, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def gpt2(model, settings):
    tokenizer = byte_level(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(settings.get("add_prefix_space")))
    return tokenizer


def gpt_neox(model, settings):
    tokenizer = gpt2(model, settings)
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def qwen2(model, settings, pattern=QWEN2_WORDS):
    tokenizer = byte_level(model)
    tokenizer.normalizer = normalizers.NFC()
    prefix = bool(settings.get("add_prefix_space"))
    words = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    letters = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, letters])
    return tokenizer


def qwen35(model, settings):
    return qwen2(model, settings, QWEN35_WORDS)


# How a class builds its tokenizer, and the tokens that it names where the files name none.
CLASSES = {
    "LlamaTokenizer": (llama, {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}),
    "Qwen2Tokenizer": (qwen2, dict.fromkeys(("unk_token", "eos_token", "pad_token"), END_OF_TEXT)),
    "Qwen3_5Tokenizer": (qwen35, dict.fromkeys(("unk_token", "eos_token", "pad_token"), END_OF_TEXT)),
    "GPT2Tokenizer": (gpt2, dict.fromkeys(("unk_token", "bos_token", "eos_token"), END_OF_TEXT)),
    "GPTNeoXTokenizer": (
        gpt_neox,
        {**dict.fromkeys(("unk_token", "bos_token", "eos_token"), END_OF_TEXT), "pad_token": "<|padding|>"},
    ),
    "GemmaTokenizer": (
        gemma,
        {f"{name}_token": f"<{name}>" for name in ("unk", "bos", "eos", "pad", "mask")},
    ),
}


class TokenizerDirectory:
    """`tokenizer`, and `names`: what templates may call its tokens, bos_token and the like."""

    def __init__(self, folder):
        self.path = folder / "tokenizer.json"
        config, settings = object_of(folder / "config.json"), object_of(folder / "tokenizer_config.json")
        name = class_of(config, settings)
        as_it_is = read_tokenizer(self.path)
        description = json.loads(as_it_is.to_str())
        try:
            listed = self._read_tokens(folder, settings, description)
        except (AttributeError, KeyError, TypeError, ValueError) as fault:
            sys.exit(f"{folder}: its special tokens cannot be read: {fault}")
        if name in CLASSES:
            build, usual = CLASSES[name]
            known = {**usual, **self.special}
            self.special = {key: known[key] for key in [*NAMED, *known] if key in known}
            self.tokenizer = self._rebuilt(name, build, {**settings, **self.special}, as_it_is, description)
        elif name in OTHER_CLASSES:
            allowed = ", ".join([*CLASSES, "PreTrainedTokenizerFast"])
            sys.exit(f"{folder}: its tokenizer_class is {name}, which is not built here; allowed are {allowed}, the last of "
                     "which takes tokenizer.json as it is")
        else:
            self.tokenizer = as_it_is
        self.special = {key: token for key, token in self.special.items() if token is not None}
        try:
            self._add(listed)
        except Exception as fault:  # the library throws nothing narrower
            sys.exit(f"{folder}: its added tokens cannot be read: {fault}")
        if name == "Qwen2Tokenizer":
            named = dict.fromkeys(str(token) for token in [*self.special.values(), *self.more])
            self.tokenizer.add_tokens([AddedToken(token, special=True) for token in named])
        self.tokenizer.encode_special_tokens = bool(settings.get("split_special_tokens", False))
        self.names = {key: str(token) for key, token in self.special.items()}

    def _read_tokens(self, folder, settings, description):
        """Added tokens by id, and, in `special` and `more`, those with names and without. The older files count where
        tokenizer_config.json lists no added tokens."""
        named = dict(settings)
        more = named.get("extra_special_tokens", named.get("additional_special_tokens"))
        own, more = (more, None) if isinstance(more, dict) else ({}, more)
        unless_more = None
        if "added_tokens_decoder" in settings:
            listed = {int(number): added(token) for number, token in settings["added_tokens_decoder"].items()}
        else:
            for key, value in object_of(folder / "special_tokens_map.json").items():
                if key == "additional_special_tokens":
                    unless_more = value
                elif key == "extra_special_tokens":
                    own, more = (value, more) if isinstance(value, dict) else (own, [*(more or []), *value])
                else:
                    named[key] = added(value, special=True)
            special = {str(token) for token in [*map(named.get, NAMED), *(more or [])] if token}
            listed = {
                number: AddedToken(text, normalized=text not in special, special=text in special)
                for text, number in object_of(folder / "added_tokens.json").items()
            }
            listed |= {token["id"]: added(token) for token in description["added_tokens"]}
        more = unless_more if more is None else more
        named |= own
        self.more = [added(token, special=True) for token in more or []]
        flags = {token.content: token for token in listed.values()}
        keys = [*NAMED, *(key for key in named if key not in NAMED and (key.endswith("_token") or key in own))]
        kinds = (str, dict, AddedToken, type(None))
        found = {key: added(named[key]) for key in keys if key in named and isinstance(named[key], kinds)}
        self.special = {
            key: flags.get(str(token), token) if token is not None and key in NAMED else token
            for key, token in found.items()
        }
        return listed

    def _rebuilt(self, name, build, settings, as_it_is, description):
        """Returns the tokenizer that a class builds from the vocabulary and merges of tokenizer.json."""
        model = description["model"]
        if model.get("type") != "BPE":
            sys.exit(f"{self.path}: holds a {model.get('type')} model, but its tokenizer_class {name} takes BPE; name "
                     "PreTrainedTokenizerFast in tokenizer_config.json to take tokenizer.json as it is")
        merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
        tokenizer = build({"vocab": model["vocab"], "merges": merges}, settings)
        plain = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
        tokenizer.post_processor = as_it_is.post_processor or plain
        if name == "GPTNeoXTokenizer":
            tokenizer.post_processor = plain
        return tokenizer

    def _add(self, listed):
        """In the order of their ids, which the tokenizer gives anew to those that it has not."""
        known = {repr(token) for token in self.tokenizer.get_added_tokens_decoder().values()}
        tokens = [token for _, token in sorted(listed.items()) if repr(token) not in known]
        contents = {token.content for token in self.tokenizer.get_added_tokens_decoder().values()}
        contents |= {token.content for token in tokens}
        named = {str(token) for token in self.special.values()}
        for token in [*self.special.values(), *self.more]:
            if str(token) not in contents:
                contents.add(str(token))
                tokens.append(token)
        for number, token in enumerate(tokens):
            if isinstance(token, str):
                tokens[number] = AddedToken(token, special=True)
            elif not token.special and token.content in named:
                token.special = True
        self.tokenizer.add_tokens(tokens)
