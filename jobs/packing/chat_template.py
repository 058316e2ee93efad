# SPDX-License-Identifier: Apache-2.0
"""A model's own chat template, and which characters of what it writes are answers.

It is rendered as transformers' apply_chat_template does, in Jinja's sandbox. Answers are what stands in
{% generation %}, or, in a template without these, what each turn of the assistant adds to the text of
the turns before it with the prompt for an answer, up to the token that ends the turn. That token is part
of an answer also where it stands behind {% endgeneration %}, and where the template writes none it is eos_token.
"""

import datetime
import json
import os
import sys

from model_directory import read_object
from packing.record import EntryFault

PROBE = "zea asks"
BEGIN, END = "\ufdd0", "\ufdd1"  # which stand for no characters


class Unmaskable(Exception):
    """Where answers begin or end cannot be told."""


def read_template(folder):
    """The template of a Hugging Face directory, from the file that transformers takes; None: it has none."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = folder / name
        found = read_object(path).get("chat_template") if path.is_file() else None
        if isinstance(found, list):
            named = {one.get("name"): one.get("template") for one in found}
            found = named.get("default", next(iter(named.values()), None))
        if found:
            return found
    return None


def special_tokens(folder):
    """Those that templates name: bos_token and the like."""
    path = folder / "tokenizer_config.json"
    config = read_object(path) if path.is_file() else {}
    text = lambda token: token.get("content") if isinstance(token, dict) else token  # noqa: E731
    names = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
    found = {f"{name}_token": text(config.get(f"{name}_token")) for name in names}
    return {name: token for name, token in found.items() if isinstance(token, str)}


def compiled(source, date):
    """What {% generation %} writes stands between BEGIN and END."""
    import jinja2
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            call = self.call_method("written")
            return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

        def written(self, caller):
            return f"{BEGIN}{caller()}{END}"

    def refuse(message):
        raise jinja2.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    extensions = [Generation, "jinja2.ext.loopcontrols"]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.fromisoformat(date).strftime(form)
    return environment.from_string(source)


class ChatTemplate:
    """`ends`: the special tokens, one of which ends a turn. `date`: what templates take for today."""

    def __init__(self, source, names, ends, date):
        self.names, self.ends = names, tuple(sorted(filter(None, ends)))
        try:
            self.template = compiled(source, date)
        except Exception as fault:  # Jinja's, and what its extensions throw
            sys.exit(f"the chat template cannot be compiled: {fault}")
        self.takes_text = PROBE in self.tried(PROBE)
        listed = self.tried([{"type": "text", "text": PROBE}])
        self.takes_lists = PROBE in listed and "'text'" not in listed and '"text"' not in listed
        self.has_marks = BEGIN in self.tried_all([self.turn("user", PROBE), self.turn("assistant", PROBE)])
        self.check()

    def turn(self, role, text):
        return {"role": role, "content": text if self.takes_text else [{"type": "text", "text": text}]}

    def tried(self, content):
        return self.tried_all([{"role": "user", "content": content}])

    def tried_all(self, messages):
        try:
            return self.write(messages)
        except EntryFault:
            return ""

    def check(self):
        """Refuses a template that answers cannot be found in."""
        if not self.takes_text and not self.takes_lists:
            sys.exit("the chat template writes nothing of a user's text; name another: --chat-template FILE")
        roles = ("user", "assistant", "user", "assistant")
        talk = [self.turn(role, f"{PROBE} {number}") for number, role in enumerate(roles)]
        try:
            text, spans = self.answered(talk)
        except Unmaskable as fault:
            sys.exit(f"the chat template cannot be masked exactly: {fault}; mark its answers with {{% generation %}}, "
                     "or name another: --chat-template FILE")
        except EntryFault as fault:
            sys.exit(f"{fault}; name another: --chat-template FILE")
        if len(spans) != 2:
            sys.exit(f"the chat template marks {len(spans)} answers of 2; name another: --chat-template FILE")
        self.lacking = self.lacking_end(text, *spans[-1])  # behind an earlier answer a token may begin the next turn
        first = text[slice(*spans[0])].rstrip()
        self.earlier_end = max(filter(first.endswith, self.ends), key=len, default=None)

    def write(self, messages, prompt=False):
        try:
            return self.template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=prompt, **self.names
            )
        except Exception as fault:  # a template may fail in any way, and says why itself
            raise EntryFault("template", f"the chat template says: {fault}") from None

    def render(self, messages):
        """The text, and begin and end of each answer in it. Raises Unmaskable."""
        text, spans = self.answered(messages)
        return self.ended(text, spans) if self.lacking else (text, spans)

    def answered(self, messages):
        """As the template writes it."""
        text = self.write(messages)
        return marked(text) if self.has_marks else (text, self.spans(messages, text))

    def lacking_end(self, text, begin, end):
        """The token that ends a turn, where it is not in its answer."""
        if text[begin:end].rstrip().endswith(self.ends):
            return None
        behind = text[end:].lstrip()
        token = max(filter(behind.startswith, self.ends), key=len, default=self.names.get("eos_token"))
        if not token:
            sys.exit("the chat template writes no token that ends an answer, and tokenizer_config.json names no "
                     "eos_token to end it; name it there, or another template: --chat-template FILE")
        return token

    def ended(self, text, spans):
        """Every answer through the token that it lacks, which, where it does not follow, takes the place of the
        white space at the answer's end: as LLaVA was trained, "ASSISTANT: answer</s>USER: "."""
        written, moved, last = "", [], 0
        for begin, end in spans:
            written += text[last:begin]
            answer, last = self.ended_answer(text, begin, end)
            moved.append((len(written), len(written) + len(answer)))
            written += answer
        return written + text[last:], moved

    def ended_answer(self, text, begin, end):
        """And where the text goes on behind it. A template may end earlier answers alone."""
        if text[end:].lstrip().startswith(self.lacking):
            end = text.index(self.lacking, end) + len(self.lacking)
            return text[begin:end], end
        if self.earlier_end and text[begin:end].rstrip().endswith(self.earlier_end):
            return text[begin:end], end
        return text[begin:end].rstrip() + self.lacking, end

    def spans(self, messages, text):
        spans = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            begin = self.begin(messages, number, text)
            is_last = number + 1 == len(messages)
            through = text if is_last else self.write(messages[: number + 1])
            end = len(through) if text.startswith(through) else self.end_of(message, begin, text)
            written = text[begin:end].rstrip()
            spans.append((begin, begin + len(written) if written.endswith(self.ends) else end))
        return spans

    def begin(self, messages, number, text):
        """Behind the prompt for an answer; of a template that writes none, where the answer begins."""
        before, plain = self.write(messages[:number], True), self.write(messages[:number])
        if not text.startswith(before):
            raise Unmaskable(f"what it writes of the first {number} messages changes with those behind them")
        if before != plain:
            return len(before)
        # Not by looking for the answer, which may be as short as a letter of the turn's header.
        tried = [self.write([*messages[:number], self.turn("assistant", a), *messages[number + 1 :]]) for a in "xy"]
        header = os.path.commonprefix(tried)
        if tried[0] == tried[1] or not text.startswith(header):
            raise Unmaskable(f"it does not write message {number} as it is")
        return len(header) if text[len(before) : len(header)].strip() else len(before)

    def end_of(self, message, begin, text):
        """Where a template writes earlier turns otherwise than the last one."""
        answer = text_of(message).strip()
        end = begin + len(answer)
        token = next((end_token for end_token in self.ends if text.startswith(end_token, end)), None)
        if not text.startswith(answer, begin) or token is None:
            raise Unmaskable("it writes an earlier answer otherwise than it is")
        return end + len(token)


def text_of(message):
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def marked(text):
    """Without the marks, which lie at the spans."""
    spans, plain = [], ""
    for piece in text.split(BEGIN):
        answer, end, rest = piece.partition(END)
        if end:
            spans.append((len(plain), len(plain) + len(answer)))
        plain += answer + rest
    return plain, spans
