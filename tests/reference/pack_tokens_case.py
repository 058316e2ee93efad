# SPDX-License-Identifier: Apache-2.0
"""The table of check_pack_tokens.py: kinds of tokenizer directories, chat templates, and forms of data."""

import json
import random
import re

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CHATML = (
    "{% if tools %}{{ '<|im_start|>tools\n' + tools | tojson + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' and m.tool_calls %}"
    "{{ m.content or '' }}{% for c in m.tool_calls %}{{ '\n<tool_call>' + c.function | tojson + '</tool_call>' }}"
    "{% endfor %}"
    "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GENERATION = (
    "{{ bos_token or '' }}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = (
    "{%- set last = namespace(n=0) %}{%- for m in messages %}{%- if m.role == 'user' %}{%- set last.n = loop.index0 %}"
    "{%- endif %}{%- endfor %}{%- for m in messages %}{%- if m.role == 'assistant' %}{%- set text = m.content or '' %}"
    "{%- set why = m.reasoning_content or '' %}{%- if '</think>' in text %}"
    "{%- set why = text.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{%- set text = text.split('</think>')[-1].lstrip('\n') %}{%- endif %}{{- '<|im_start|>assistant\n' }}"
    "{%- if loop.index0 > last.n and why %}{{- '<think>\n' + why + '\n</think>\n\n' }}{%- endif %}"
    "{{- text + '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}"
)
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ '<<SYS>>' + m.content + '<</SYS>>' }}"
    "{% elif m.role == 'user' %}{{ '[INST] ' + m.content | trim + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content | trim + eos_token }}{% endif %}{% endfor %}"
)
HEADERS = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start|>' + m.role + '<|sep|>\n\n' + m.content | trim + '<|im_end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant<|sep|>\n\n' }}{% endif %}"
)
# Each with the regular expression by which the assistant's turns are found in its text.
TEMPLATES = {
    "chatml": (CHATML, r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)"),
    "generation": (GENERATION, r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)"),
    "thinking": (THINKING, r"<\|im_start\|>assistant\n(?:<think>\n)?(.*?<\|im_end\|>)"),
    "inst": (INST, r" \[/INST\]( .*?</s>)"),
    "headers": (HEADERS, r"<\|start\|>assistant<\|sep\|>\n\n(.*?<\|im_end\|>)"),
}
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|sep|>", "<unk>"]
WORDS = "Where is the cup? It's on 12 tables, gr\u00fc\u00df dich \u4e16\u754c e\u0301 \ufb01ne".split(" ")
WORDS += ["\U0001f600", "and\tthen:", "<b>no</b>"]
CORPUS = [" ".join(WORDS), "assistant user system tool What now, all done. \n\n <think> why </think>"] * 9


def byte_level(special=SPECIAL, **more):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        special_tokens=[*special], show_progress=False, initial_alphabet=alphabet, vocab_size=420, **more
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_fallback(prepend=True, metaspace=False):
    """As Llama 2's or Gemma's."""
    letters = sorted(set("".join(CORPUS).replace(" ", "\u2581")) - set("\u4e16\U0001f600") | {"\u2581"})
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    merges = []
    for pair in ("t h", "th e", "\u2581 t", "e r", "i s", "a n", "\u2581 \u2581", "\u2581 I"):
        merges.append(tuple(pair.split(" ")))
        vocabulary.setdefault("".join(merges[-1]), len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    spaces = normalizers.Replace(" ", "\u2581")
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces]) if prepend else spaces
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def with_bos(tokenizer):
    number = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", number)])
    return tokenizer


def normalized(tokenizer, normalizer):
    tokenizer.normalizer = normalizer
    return tokenizer


def added_token(text, **flags):
    unset = dict.fromkeys(("normalized", "lstrip", "rstrip", "single_word"), False)
    return {"content": text, "special": True, **unset, **flags}


NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
AS_IT_IS = {"tokenizer_class": "PreTrainedTokenizerFast", **NAMES}
MAPPED = {"bos_token": "<s>", "eos_token": added_token("</s>", rstrip=True)}
MAPPED["additional_special_tokens"] = SPECIAL[2:]
LISTED = {str(900 + n): added_token(token) for n, token in enumerate(SPECIAL[2:])}
# Files of a directory: tokenizer.json, tokenizer_config.json, model_type, and others.
TOKENIZERS = {
    "byte-level": (byte_level, AS_IT_IS, "llama", {}),
    "byte-level, begins texts": (lambda: with_bos(byte_level()), {**AS_IT_IS, "add_bos_token": False}, "mistral", {}),
    "compatible letters": (lambda: normalized(byte_level(), normalizers.NFKC()), AS_IT_IS, "llama", {}),
    "lower case": (lambda: normalized(byte_level(), normalizers.Lowercase()), AS_IT_IS, "llama", {}),
    "prepend": (byte_fallback, AS_IT_IS, "llama", {}),
    "prepend, no class": (byte_fallback, NAMES, "llama", {}),
    "replace": (lambda: byte_fallback(prepend=False), AS_IT_IS, "llama", {}),
    "metaspace": (lambda: byte_fallback(metaspace=True), AS_IT_IS, "llama", {}),
    "Llama's, legacy": (byte_fallback, {**NAMES, "tokenizer_class": "LlamaTokenizer", "legacy": True}, "llama", {}),
    "Llama's": (byte_fallback, {**NAMES, "tokenizer_class": "LlamaTokenizerFast", "legacy": False}, "llama", {}),
    "Gemma's": (lambda: byte_fallback(prepend=False), {**NAMES, "tokenizer_class": "GemmaTokenizer"}, "gemma3", {}),
    "Qwen2's": (byte_level, {**NAMES, "tokenizer_class": "Qwen2Tokenizer"}, "qwen3", {}),
    "Qwen2's, named otherwise": (byte_level, {**AS_IT_IS}, "qwen2", {}),
    "Qwen3.5's": (byte_level, {**NAMES, "tokenizer_class": "Qwen3_5Tokenizer"}, "qwen3_5_text", {}),
    "Qwen3.5's, by its family": (byte_level, NAMES, "qwen3_5", {}),
    "Qwen3.5's, called Qwen2's": (byte_level, {**NAMES, "tokenizer_class": "Qwen2Tokenizer"}, "qwen3_5_moe", {}),
    "GPT-2's, by its family": (byte_level, {**NAMES, "add_prefix_space": True}, "gpt2", {}),
    "tokens in added_tokens_decoder": (
        lambda: byte_level(SPECIAL[:2]), {**AS_IT_IS, "added_tokens_decoder": LISTED}, "llama", {}),
    "tokens in additional_special_tokens": (
        lambda: byte_level(SPECIAL[:2]), {**AS_IT_IS, "additional_special_tokens": SPECIAL[2:]}, "llama", {}),
    "tokens in special_tokens_map.json": (
        lambda: byte_level(["<x>"]),
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        "llama",
        {"special_tokens_map.json": MAPPED},
    ),
    "tokens in added_tokens.json": (
        lambda: byte_level(SPECIAL[:2]),
        AS_IT_IS,
        "llama",
        {"added_tokens.json": {token: 700 + number for number, token in enumerate(SPECIAL[2:])}},
    ),
    "tokens that strip": (
        lambda: byte_level(SPECIAL[:2]),
        {**AS_IT_IS, "added_tokens_decoder": {k: {**v, "lstrip": True, "rstrip": True} for k, v in LISTED.items()}},
        "llama",
        {},
    ),
}


def write_directory(folder, kind, template):
    make, settings, family, more = TOKENIZERS[kind]
    folder.mkdir(parents=True)
    make().save(str(folder / "tokenizer.json"))
    files = {"config.json": {"model_type": family}, **more}
    files["tokenizer_config.json"] = {**settings, **({"chat_template": template} if template else {})}
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    return folder


class Talker:
    """Random conversations as transformers takes them."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def text(self, most=7):
        words = self.random.choices(WORDS, k=self.random.randint(1, most))
        text = "".join(word + self.random.choice([" ", " ", "\n", "  "]) for word in words)
        return self.random.choice(["", "", " ", "\n"]) + text[: -1 if self.random.random() < 0.8 else None]

    def words(self):
        """Without white space at its ends."""
        return self.text().strip() or "no"

    def talk(self, turns, system=False):
        messages = [{"role": "system", "content": self.words()}] if system else []
        for _ in range(turns):
            messages += [{"role": "user", "content": self.text()}, {"role": "assistant", "content": self.text()}]
        return messages


def spoken(messages, user="human", assistant="gpt"):
    names = {"user": user, "assistant": assistant, "system": "system"}
    return [{"from": names[m["role"]], "value": m["content"]} for m in messages]


def forms(talker, thinks, calls):
    """Name, value of an entry, messages, which of the assistant's turns are learned, tools: for each form."""
    draw = talker.random
    turns = lambda: draw.randint(1, 4)  # noqa: E731
    for user, assistant in (("human", "gpt"), ("user", "assistant"), ("human", "chatgpt"), ("User", "Model")):
        talk = talker.talk(turns())
        yield f"from {user}", {"id": "1", "conversations": spoken(talk, user, assistant)}, talk, None, None
    talk = talker.talk(turns(), system=True)
    yield "a turn of the system", {"conversations": spoken(talk)}, talk, None, None
    yield "system beside", {"system": talk[0]["content"], "conversations": spoken(talk[1:])}, talk, None, None
    yield "system beside messages", {"system": talk[0]["content"], "messages": talk[1:]}, talk, None, None
    yield "roles in conversations", {"conversations": talk}, talk, None, None
    yield "messages", {"messages": talk}, talk, None, None
    as_parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in talk]
    yield "parts", {"messages": as_parts}, talk, None, None
    weights, switches = [("weight", 1, 0), ("weight", 1.0, 0.0)], [("loss", True, False), ("train", None, False)]
    for key, yes, no in (*weights, *switches, ("train", "true", "false")):
        talk = talker.talk(3, draw.random() < 0.5)
        learned = [True, False, False]
        draw.shuffle(learned)
        flags = iter(learned)
        marked = [{**m, key: yes if next(flags) else no} if m["role"] == "assistant" else m for m in talk]
        yield f"{key} of messages", {"messages": marked}, talk, learned, None
        shared = [{**s, **({key: m[key]} if key in m else {})} for s, m in zip(spoken(talk), marked)]
        yield f"{key} of conversations", {"conversations": shared}, talk, learned, None
    question, more, answer, system = talker.words(), talker.words(), talker.text(), talker.words()
    pair = lambda q, a: [{"role": "user", "content": q}, {"role": "assistant", "content": a}]  # noqa: E731
    yield "Alpaca", {"instruction": question, "input": "", "output": answer}, pair(question, answer), None, None
    value = {"instruction": question, "input": more, "output": answer, "system": system}
    whole = [{"role": "system", "content": system}, *pair(f"{question}\n{more}", answer)]
    yield "Alpaca, all keys", value, whole, None, None
    value = {"instruction": question, "output": answer, "history": [[more, system]]}
    yield "Alpaca, history", value, pair(more, system) + pair(question, answer), None, None
    yield "prompt and completion", {"prompt": question, "completion": answer}, pair(question, answer), None, None
    yield "prompt and response", {"prompt": question, "response": answer}, pair(question, answer), None, None
    talk = talker.talk(2)
    value = {"prompt": talk[:3], "completion": talk[3:]}
    yield "prompt and completion of messages", value, talk, [False, True], None
    if thinks:
        beside = lambda m: {**m, "reasoning_content": talker.words()} if m["role"] == "assistant" else m  # noqa: E731
        talk = [beside(message) for message in talker.talk(turns())]
        yield "reasoning beside", {"messages": talk}, talk, None, None
        why = lambda: f"<think>\n{talker.words()}\n</think>\n\n"  # noqa: E731
        inside = lambda m: {**m, "content": why() + m["content"]} if m["role"] == "assistant" else m  # noqa: E731
        talk = [inside(message) for message in talker.talk(turns())]
        yield "reasoning inside", {"conversations": spoken(talk)}, talk, None, None
    if calls:
        call = {"name": "look", "arguments": {"where": talker.words()}}
        talk = [
            {"role": "user", "content": talker.text()},
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
            {"role": "tool", "content": talker.words()},
            {"role": "assistant", "content": talker.text()},
        ]
        tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
        yield "calls of tools", {"messages": talk, "tools": tools}, talk, None, tools
        null = [{**m, "content": m["content"] or None} for m in talk]
        yield "calls with null", {"messages": null, "tools": json.dumps(tools)}, null, None, tools
        names = {"user": "human", "tool": "observation", "assistant": "gpt"}
        shared = [{"from": names[m["role"]], "value": m["content"]} for m in talk]
        shared[1] = {"from": "function_call", "value": json.dumps(call)}
        yield "ShareGPT's calls", {"conversations": shared, "tools": json.dumps(tools)}, talk, None, tools


def spans_of(pattern, text):
    return [match.span(1) for match in re.finditer(pattern, text, re.DOTALL)]
