# SPDX-License-Identifier: Apache-2.0
"""A model's own chat template, and which characters of the text that it writes are answers.

The template is rendered as transformers' apply_chat_template does, in Jinja's sandbox, under limits. Answers are what
stands in {% generation %}, or, in a template without these, each turn of the assistant behind the prompt for an answer,
up to the token that ends the turn. Where turns stand, marks around the contents of messages show, so that a
conversation takes a few renderings however long it is, and turns are found where a template rewrites them. The token
that ends a turn is part of an answer also where it stands behind {% endgeneration %}, and where the template writes
none it is eos_token.
"""

import os
import sys

from model_directory import read_object
from packing.anchors import Anchors, margins, marked_messages
from packing.record import EntryFault
from packing.sandbox import BEGIN, END, MOST_BYTES, TooMuch, compiled, limits

PROBE = "zea asks"
LIMITS = "template's limits"
MOST_SINGLY = 64  # turns of a conversation that are found by renderings of their own


class Unmaskable(Exception):
    """Where answers begin or end cannot be told."""


def read_templates(folder):
    """The templates of a Hugging Face directory by name, from the file that transformers takes; empty: it has none."""
    path = folder / "chat_template.jinja"
    found = {"default": read_text(path)} if path.is_file() else {}
    for more in sorted(folder.glob("additional_chat_templates/*.jinja")):
        found[more.stem] = read_text(more)
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = folder / name
        source = read_object(path).get("chat_template") if path.is_file() and not found else None
        if isinstance(source, list):
            found = {one.get("name"): one.get("template") for one in source if isinstance(one, dict)}
        elif source:
            found = source if isinstance(source, dict) else {"default": source}
    if found and not isinstance(found.get("default"), str):
        names = ", ".join(map(str, found))
        sys.exit(f"{folder}: its chat templates are called {names}, and none default; name one: --chat-template FILE")
    return {name: source for name, source in found.items() if isinstance(source, str)}


def read_text(path):
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        sys.exit(f"{path} cannot be read: {fault}")


class ChatTemplate:
    """`ends`: the special tokens, one of which ends a turn. `date`: what templates take for today."""

    def __init__(self, source, names, ends, date):
        self.names, self.ends = names, tuple(sorted(filter(None, ends)))
        try:
            self.template, self.read = compiled(source, date)
        except Exception as fault:  # Jinja's, and what its extensions throw
            sys.exit(f"the chat template cannot be compiled: {fault or type(fault).__name__}")
        self.takes_text = PROBE in self.tried(PROBE)
        listed = self.tried([{"type": "text", "text": PROBE}])
        self.takes_lists = PROBE in listed and "'text'" not in listed and '"text"' not in listed
        self.has_marks = BEGIN in self.tried_all([self.turn("user", PROBE), self.turn("assistant", PROBE)])
        asked = [self.turn("user", PROBE)]
        self.has_prompt = self.tried_all(asked, prompt=True) != self.tried_all(asked)
        self.check()

    def reads(self, key):
        """Whether it may read that key of a message."""
        return key in self.read

    def turn(self, role, text):
        return {"role": role, "content": text if self.takes_text else [{"type": "text", "text": text}]}

    def tried(self, content):
        return self.tried_all([{"role": "user", "content": content}])

    def tried_all(self, messages, prompt=False):
        try:
            return self.write(messages, prompt)
        except EntryFault as fault:
            if fault.kind == LIMITS:
                sys.exit(f"{fault}; name another: --chat-template FILE")
            return ""

    def check(self):
        """Refuses a template that answers cannot be found in."""
        if not self.takes_text and not self.takes_lists:
            sys.exit("the chat template writes nothing of a user's text; name another: --chat-template FILE")
        roles = ("user", "assistant", "user", "assistant")
        talk = [self.turn(role, f"{PROBE} {number}") for number, role in enumerate(roles)]
        self.closing = ()
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
        first, last = (self.end_token(text[slice(*span)]) for span in spans)
        self.earlier_end = first
        self.closing = tuple(token for token in (first, last) if token)
        self.end = last or self.lacking

    def end_token(self, text):
        return max(filter(text.rstrip().endswith, self.ends), key=len, default=None)

    def write(self, messages, prompt=False, tools=None):
        try:
            with limits():
                return self.template.render(
                    messages=messages, tools=tools, documents=None, add_generation_prompt=prompt, **self.names
                )
        except MemoryError:
            raise EntryFault(LIMITS, f"the chat template takes more than {MOST_BYTES >> 20} MiB of memory") from None
        except TooMuch as fault:
            raise EntryFault(LIMITS, f"the chat template is stopped: {fault}") from None
        except Exception as fault:  # a template may fail in any way, and says why itself
            raise EntryFault("template", f"the chat template says: {fault}") from None

    def render(self, messages, tools=None):
        """The text, and begin and end of each answer in it. Raises Unmaskable."""
        text, spans = self.answered(messages, tools)
        answers = sum(message["role"] == "assistant" for message in messages)
        if self.lacking and len(spans) == answers:
            text, spans = self.ended(text, spans)
        return text, spans

    def answered(self, messages, tools=None):
        """As the template writes it."""
        text = self.write(messages, tools=tools)
        return marked(text) if self.has_marks else (text, Turns(self, messages, tools, text).spans())

    def unwritten(self, messages, tools=None):
        """Roles of messages with a text of which it writes nothing."""
        try:
            found = Anchors(self.write(marked_messages(messages, lambda _: True), tools=tools))
        except EntryFault:
            return []
        has_text = lambda number: marked_messages(messages[number : number + 1], lambda _: True) != messages[number : number + 1]  # noqa: E731
        seen = found.first.keys() | found.last.keys()
        return sorted({m["role"] for number, m in enumerate(messages) if number not in seen and has_text(number)})

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
        written, length, moved, last = [], 0, [], 0
        for begin, end in spans:
            before = text[last:begin]
            answer, last = self.ended_answer(text, begin, end)
            moved.append((length + len(before), length + len(before) + len(answer)))
            written += [before, answer]
            length += len(before) + len(answer)
        return "".join([*written, text[last:]]), moved

    def ended_answer(self, text, begin, end):
        """And where the text goes on behind it. A template may end earlier answers alone."""
        behind = end
        while behind < len(text) and text[behind].isspace():
            behind += 1
        if text.startswith(self.lacking, behind):
            end = behind + len(self.lacking)
            return text[begin:end], end
        if self.earlier_end and text[begin:end].rstrip().endswith(self.earlier_end):
            return text[begin:end], end
        return text[begin:end].rstrip() + self.lacking, end


class Turns:
    """Where the assistant's turns of one conversation stand in what a template without {% generation %} writes."""

    def __init__(self, template, messages, tools, text):
        self.template, self.messages, self.tools, self.text = template, messages, tools, text
        self.singly, self.before, self.behind = 0, {}, {}
        self.anchors = Anchors(text)
        if len(self.answers()) == 1:  # which is found as soon alone
            return
        for chosen in (lambda _: True, lambda message: message["role"] != "assistant"):
            self.chosen = chosen
            try:
                found = Anchors(self.write(len(messages), chosen=chosen))
            except EntryFault:  # of the marks
                continue
            if found.text == text:
                self.anchors = found
                break

    def answers(self):
        return [number for number, message in enumerate(self.messages) if message["role"] == "assistant"]

    def write(self, count, prompt=False, chosen=lambda _: False):
        return self.template.write(marked_messages(self.messages[:count], chosen), prompt, self.tools)

    def margin(self, number, side):
        return margins(self.messages[number].get("content"))[side]

    def spans(self):
        found = []
        for number in self.answers():
            begin = self.begin(number)
            found.append((begin, self.end(number, begin)))
        return found

    def alone(self, number):
        """Counts renderings for a single turn, each as long as the conversation."""
        self.singly += 1
        if self.singly > MOST_SINGLY:
            raise Unmaskable(f"message {number} and {MOST_SINGLY} before it are not written as they are")

    def begin(self, number):
        """Behind the prompt for an answer; of a template that writes none, where the answer begins."""
        last = self.anchors.last.get(number - 1)
        if last is not None:
            kind = self.messages[number - 1]["role"]
            for prompts in (self.prompts, self.headers):
                if (kind, prompts) not in self.before:
                    self.before[kind, prompts] = prompts(number)
                begin = self.behind_prompt(number, last, self.before[kind, prompts])
                if begin is not None:
                    return begin
        self.alone(number)
        before = self.tried(number, True)
        if self.template.has_prompt and before and self.text.startswith(before):
            return len(before)
        plain = self.tried(number, False)
        header = self.header(number)
        if header is None or not self.text.startswith(plain):
            raise Unmaskable(f"it does not write message {number} as it is, or changes the messages before it")
        return len(header) if self.text[len(plain) : len(header)].strip() else len(plain)

    def tried(self, number, prompt):
        try:
            return self.write(number, prompt)
        except EntryFault:  # of no messages, it may be
            return ""

    def behind_prompt(self, number, last, prompts):
        """Where the answer begins, if one of these texts stands behind the content before it, which may end with white
        space of its own."""
        margin = self.margin(number - 1, 1)
        for prompt in prompts:
            for behind in (margin + prompt, prompt):
                if self.text.startswith(behind, last):
                    return last + len(behind)
        return None

    def prompts(self, number):
        """The text from the end of the content before to the end of the prompt for an answer, if the template writes
        one, with and without the content's own white space."""
        return self.tails(number, True) if self.template.has_prompt else []

    def headers(self, number):
        """The same to where an answer begins by its looks."""
        header, last, plain = self.header(number), self.anchors.last[number - 1], self.tails(number, False)
        header = header[last:] if header is not None and len(header) >= last else None
        if header is None:
            return [] if self.template.has_prompt else plain
        if plain and not self.template.has_prompt and not (header.startswith(plain[0]) and header[len(plain[0]) :].strip()):
            return plain
        return [header, header.removeprefix(self.margin(number - 1, 1))]

    def tails(self, number, prompt):
        try:
            anchors = Anchors(self.write(number, prompt, self.chosen))
        except EntryFault:
            return []
        if number - 1 not in anchors.last:
            return []
        tail = anchors.text[anchors.last[number - 1] :]
        return [tail, tail.removeprefix(self.margin(number - 1, 1))]

    def header(self, number):
        """The text before an answer. Not by looking for the answer, which may be as short as a letter of that."""
        messages, tried = self.messages, []
        for answer in "xy":
            changed = [*messages[:number], self.template.turn("assistant", answer), *messages[number + 1 :]]
            try:
                tried.append(self.template.write(changed, tools=self.tools))
            except EntryFault:
                return None
        header = os.path.commonprefix(tried)
        return header if tried[0] != tried[1] and self.text.startswith(header) else None

    def end(self, number, begin):
        """Behind the token that ends the turn, or, where none does, where the turn behind begins."""
        ends = self.template.ends
        if number + 1 == len(self.messages):
            end = len(self.text)
        else:
            end = self.end_before(number, begin)
        written = self.text[begin:end].rstrip()
        return begin + len(written) if written.endswith(ends) else end

    def end_before(self, number, begin):
        following = self.anchors.first.get(number + 1, -1)
        if following >= begin:
            kind = self.messages[number + 1]["role"]
            if kind not in self.behind:
                through = self.write(number + 1)
                is_same = self.text.startswith(through) and len(through) <= following
                header = self.text[len(through) : following]
                self.behind[kind] = [header, header.removesuffix(self.margin(number + 1, 0))] if is_same else []
            margin = self.margin(number + 1, 0)
            for header in self.behind[kind]:
                for before in (header + margin, header):
                    if self.text.endswith(before, begin, following):
                        return following - len(before)
            closed = [self.text.rfind(token, begin, following) + len(token) for token in self.template.closing
                      if self.text.rfind(token, begin, following) >= 0]
            if closed:
                return max(closed)
        self.alone(number)
        through = self.write(number + 1)
        if self.text.startswith(through) and len(through) >= begin:
            return len(through)
        return self.end_of(number, begin)

    def end_of(self, number, begin):
        """Where a template writes earlier turns otherwise than the last one."""
        answer = text_of(self.messages[number]).strip()
        end = begin + len(answer)
        token = next((token for token in self.template.ends if self.text.startswith(token, end)), None)
        if not self.text.startswith(answer, begin) or token is None:
            raise Unmaskable("it writes an earlier answer otherwise than it is")
        return end + len(token)


def text_of(message):
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content if isinstance(content, str) else ""


def marked(text):
    """Without the marks, which lie at the spans."""
    spans, plain, length = [], [], 0
    for piece in text.split(BEGIN):
        answer, end, rest = piece.partition(END)
        if end:
            spans.append((length, length + len(answer)))
        plain += [answer, rest]
        length += len(answer) + len(rest)
    return "".join(plain), spans
