# SPDX-License-Identifier: Apache-2.0
"""Token ids and loss mask of a record: the text of its turns, which a chat template writes or else the form that its
family is known by, is encoded as a whole, with the tokens that stand for its items in it."""

import bisect
import re
import sys

from model_directory import OMNI3
from packing.anchors import NOT_CHARACTERS
from packing.chat_template import PROBE, Unmaskable
from packing.forms import unread
from packing.record import ITEMS, LEARNED, MARKS, EntryFault, Item
from packing.video_audio import VideoWithAudio, joined, parts_of, turns_of
from tokenizers import AddedToken, Tokenizer

# Texts around images with crops, as Gemma3Processor writes them.
BEFORE_ORIGINAL = "Here is the original image "
BEFORE_CROPS = " and here are some crops to help you see better "
# Tokens of a form, as most tokenizers spell them.
BARRED = re.compile(r"<\|[^|<>]+\|>")
# Stand for placeholders that have no token of the tokenizer's.
STAND_INS = {"image": "\ufde0\ufdd5", "audio": "\ufde0\ufdd6", "video": "\ufde0\ufdd7"}


class FixedCounts:
    """In place of a model's directory: so many placeholders for each image and each clip of sound."""

    missing, frames_per_item = {}, 0

    def __init__(self, arguments, turns, id_of):
        each = {"image": arguments.image_tokens, "audio": arguments.audio_tokens}
        names = {"image": arguments.image_token, "audio": arguments.audio_token}
        self.placeholders = {modality: id_of(name) for modality, name in names.items() if each[modality]}
        self.form, self.each, self.own_length = turns, each, arguments.audio_own_length

    def turns(self, tokenizer):
        return self.form

    def rows(self, modality, item, is_alone):
        if modality != "audio" or not self.own_length:
            return [self.each[modality]]
        count = item.averaged_features(self.each[modality])
        if not count:
            raise ValueError("too short for a feature, or of unknown length")
        return [count]

    def crops(self, item):
        return 0

    def spelled(self, modality, item):
        return None


class Tokens:
    """The common part of both forms of turns: the text that stands for items, and ids and mask of a whole text.
    `template_wraps`: the chat template writes the tokens around an image."""

    template_wraps = False

    def __init__(self, tokenizer, arguments, model):
        self.tokenizer, self.model, self.max_tokens = tokenizer, model, arguments.max_tokens
        self.turns = model.turns(tokenizer)
        self.placeholder = {name: model.placeholders.get(name, -1) for name in MARKS}
        self.modalities = tuple(name for name, token in self.placeholder.items() if token >= 0)
        self.is_prompt = getattr(arguments, "prompts", False)
        self.interleaves_audio = getattr(arguments, "audio_in_video", False)
        if self.interleaves_audio and not getattr(model, "interleaves_audio", False):
            sys.exit("--audio-in-video: the model cannot interleave a video with its audio track; Qwen2.5-Omni and "
                     "Qwen3-Omni can. Leave the option out")
        added = tokenizer.get_added_tokens_decoder()
        self.special = [token.content for token in added.values() if token.special]
        self.heads = {token[:2] for token in self.special}
        self.spell = {
            name: added[self.placeholder[name]].content if self.placeholder[name] in added else STAND_INS[name]
            for name in self.modalities
        }
        self.encoder, self.replaced = tokenizer, {}
        lacking = [name for name in self.modalities if self.spell[name] == STAND_INS[name]]
        if lacking:
            self.encoder = Tokenizer.from_str(tokenizer.to_str())
            self.encoder.add_special_tokens([AddedToken(STAND_INS[name], special=True) for name in lacking])
            self.replaced = {self.encoder.token_to_id(STAND_INS[name]): self.placeholder[name] for name in lacking}

    def name(self, text):
        """A token that a form writes, or several with words between them; its tokenizer must know each, and as a
        whole."""
        for token in BARRED.findall(text) or filter(None, [text]):
            if self.tokenizer.token_to_id(token) is None:
                raise EntryFault("items", f"the tokenizer has no token {token}, which stands around images")
            if token_id(self.tokenizer, token) not in self.tokenizer.get_added_tokens_decoder():
                self.tokenizer.add_special_tokens([AddedToken(token, special=True)])
                if self.encoder is not self.tokenizer:
                    self.encoder.add_special_tokens([AddedToken(token, special=True)])
        return text

    def item(self, modality, item, is_alone):
        """The text that stands for an item, the only one of its sample or not, with the text around an image and
        between its rows, and how many placeholders are in it."""
        try:
            return self.video(item) if modality == "video" else self.image_or_sound(modality, item, is_alone)
        except ValueError as fault:
            raise EntryFault("items", f"{modality}: {fault}") from None

    def video(self, item):
        moments = self.model.moments(item)
        if isinstance(item, VideoWithAudio):
            return self.talking_video(item, sum(count for _, count, _ in moments))
        # Temporal patches with time stamps are wrapped one by one, also if a chat template wraps the video.
        is_wrapped = any(stamp or late for stamp, _, late in moments) or not self.template_wraps
        around = self.turns.around_part or self.turns.around_image
        before, after = map(self.name, around) if is_wrapped else ("", "")
        begin, end = ("", "") if self.template_wraps else map(self.name, self.turns.around_video)
        frames = (f"{stamp}{before}{self.spell['video'] * count}{after}{late}" for stamp, count, late in moments)
        return f"{begin}{''.join(frames)}{end}", sum(count for _, count, _ in moments)

    def talking_video(self, video, seen):
        heard = self.model.features("audio", video.sound)
        turns = turns_of(video, self.model.config, seen, heard, self.model.family == OMNI3)
        text = "".join(self.spell["video"] * seen + self.spell["audio"] * heard for seen, heard in turns)
        before, after = ("", "") if self.template_wraps else map(self.name, self.turns.around_image)
        begin, end = map(self.name, self.turns.around_audio)
        return f"{before}{begin}{text}{end}{after}", seen

    def image_or_sound(self, modality, item, is_alone):
        placeholder = self.spell[modality]
        spelled = self.model.spelled(modality, item)
        if spelled:
            text = "".join(placeholder * p if isinstance(p, int) else p for p in spelled)
            return text, sum(p for p in spelled if isinstance(p, int))
        rows = self.model.rows(modality, item, is_alone)
        turns, is_image = self.turns, modality == "image"
        crops = self.model.crops(item) if is_image else 0
        around = ("", "") if self.template_wraps else turns.around_image if is_image else turns.around_audio
        before, after, between = map(self.name, (*around, turns.row_end if is_image else ""))
        beside = turns.beside_image if is_image else ""
        image = f"{beside}{before}{between.join(placeholder * count for count in rows)}{after}{beside}"
        if not crops:
            return image, sum(rows)
        return f"{BEFORE_ORIGINAL}{image}{BEFORE_CROPS}{' '.join([image] * crops)}", sum(rows) * (1 + crops)

    def sample(self, record, items):
        """Ids, mask, and items in the order in which they stand."""
        for message in record.messages:
            self.check_message(message, record.notes)
        for name, mark in MARKS.items():
            marks = record.marks(name)
            if marks and self.placeholder[name] < 0:
                usual = "a model of videos (--model)" if name == "video" else f"--{name}-tokens"
                fault = self.model.missing.get(name, f"{usual} is not given, or the model takes none")
                raise EntryFault("items", f"has {mark}, but {fault}")
            if marks != len(items[name]):
                raise EntryFault(
                    "items", f"has {len(items[name])} {ITEMS[name]} but {marks} {mark} in its human turns"
                )
        check_text("".join(record.answers))
        if self.interleaves_audio:
            record, items = joined(record, items)
        sounds = [item.sound for item in items["video"] if isinstance(item, VideoWithAudio)]
        stands = {
            name: [self.item(name, item, len(found) == 1) for item in found] for name, found in items.items()
        }
        text, spans, order = self.written(record, {n: [text for text, _ in found] for n, found in stands.items()})
        tokens, mask = self.encoded(text, spans)
        for name, mark in MARKS.items():
            placeholders = tokens.count(self.placeholder[name])
            same = [other for other in MARKS if self.placeholder[other] == self.placeholder[name]]
            joint = sum(self.model.features("audio", sound) for sound in sounds) if name == "audio" else 0
            if placeholders != joint + sum(count for other in same for _, count in stands[other]):
                raise EntryFault(
                    "items",
                    f"has {placeholders} placeholders for {len(items[name])} {ITEMS[name]}: is {mark} in a gpt turn?",
                )
        if self.max_tokens and len(tokens) > self.max_tokens:
            raise EntryFault("too long", f"has {len(tokens)} tokens, more than --max-tokens {self.max_tokens}")
        ordered = (items[one.modality][one.number] for one in order)
        return tokens, mask, [part for item in ordered for part in parts_of(item, self.model.frames_per_item)]

    def check_message(self, message, notes):
        """Tokens of the tokenizer in somebody's text are what they are, as in transformers, and noted."""
        text = "\n".join(part for part in message.parts if isinstance(part, str))
        check_text(text)
        if any(head in text for head in self.heads):
            notes += [f"the text of the {message.role} holds the special token {t}" for t in self.special if t in text]
        if message.role != "assistant" and any(message.fields.get(key) for key in LEARNED):
            notes.append(f"turns of the {message.role} are marked as to be learned, which only the assistant's are")

    def encoded(self, text, spans):
        try:
            encoding = self.encoder.encode(text, add_special_tokens=False)
        except Exception as fault:  # the library throws nothing narrower
            raise EntryFault("text", f"the tokenizer says: {fault}") from None
        ids = [self.replaced.get(number, number) for number in encoding.ids] if self.replaced else encoding.ids
        return ids, mask_of(encoding.offsets, spans)


class FamilyTurns(Tokens):
    """Turns in the form that a family's instruction models are trained with, or in Vicuna's."""

    def __init__(self, tokenizer, arguments, model):
        super().__init__(tokenizer, arguments, model)
        for token in filter(None, (self.turns.start, self.turns.end)):
            token_id(tokenizer, token)
            self.name(token)

    def prompt(self, parts, stands):
        begins_with_image = isinstance(parts[0], Item) and parts[0].modality == "image"
        pieces = [self.turns.opening, "" if begins_with_image else self.turns.before_text]
        pieces += [part if isinstance(part, str) else stands[part.modality][part.number] for part in parts]
        return "".join([*pieces, self.turns.reply])

    def written(self, record, stands):
        messages, turns = record.messages, self.turns
        check_order(messages)
        record.notes.extend(unread(messages, lambda key: False))
        if record.tools:
            record.notes.append("tools left out, for which a chat template is needed")
        pieces, spans, length = [turns.start], [], len(turns.start)
        for human, gpt in zip(messages[::2], [*messages[1::2], None]):
            prompt = self.prompt(human.parts, stands)
            answer = f"{turns.lead}{''.join(gpt.parts)}{turns.end}" if gpt else turns.end
            pieces += [prompt, answer, turns.gap if gpt else ""]
            begin = length + len(prompt)
            if gpt is None or gpt.is_learned:
                spans.append((begin, begin + len(answer)))
            length = begin + len(answer) + len(pieces[-1])
        return "".join(pieces), spans, [p for m in messages for p in m.parts if isinstance(p, Item)]


class TemplateTurns(Tokens):
    """Turns as a chat template writes them. Its mark of an item gives way to what stands for the item.
    `for_tools`: the template of conversations with tools, where it is another."""

    def __init__(self, tokenizer, arguments, model, template, for_tools=None):
        super().__init__(tokenizer, arguments, model)
        self.template, self.for_tools = template, for_tools or template
        self.template_wraps = self.turns.template_wraps
        known = [name for name in self.modalities if tokenizer.id_to_token(self.placeholder[name])]
        self.marks = {name: self.mark(name) for name in known}
        self.spaced = {name: self.is_spaced(name) for name in known}
        # As in transformers, where processors let the tokenizer add what begins a text, and its own templates do not.
        self.opening = opening(tokenizer) if self.marks else []

    def tried(self, modality):
        return self.template.tried([{"type": modality}, {"type": "text", "text": PROBE}])

    def mark(self, modality):
        """Returns the part of the template's text that an item's text replaces, and whether the template writes it."""
        placeholder = self.tokenizer.id_to_token(self.placeholder[modality])
        if modality == "video":
            placeholder = self.turns.video_mark or placeholder
        before = self.around(modality)[0]
        written = self.tried(modality)
        found = next((name for name in (placeholder, before, MARKS[modality]) if name and name in written), None)
        return found or placeholder, found is not None

    def around(self, modality):
        if modality == "video" and (any(self.turns.around_video) or self.turns.around_part):
            return self.turns.around_video
        return self.turns.around_audio if modality == "audio" else self.turns.around_image

    def inserted(self, modality):
        """The text for an item in a message of a template that takes texts alone."""
        before, after = self.around(modality) if self.template_wraps else ("", "")
        return before + self.marks[modality][0] + after

    def is_spaced(self, modality):
        """Whether a new line is written between an item and a text in any case, so that LLaVA's "<image>\n" would make
        another."""
        beside = self.turns.beside_image if modality == "image" else ""
        between, text, _ = self.tried(modality).partition(self.marks[modality][0])[2].partition(PROBE)
        return beside.endswith("\n") or (text == PROBE and between.endswith("\n"))

    def content(self, message):
        """A text, or a list of parts, as the entry has it where the template takes that."""
        template = self.template
        if message.fields.get("content", "") is None:
            return None
        own = all(self.marks[part.modality][1] for part in message.parts if isinstance(part, Item))
        has_items = any(isinstance(part, Item) for part in message.parts)
        if template.takes_lists and own and (has_items or message.is_list or not template.takes_text):
            texts = lambda part: {"type": "text", "text": part} if isinstance(part, str) else {"type": part.modality}  # noqa: E731
            return [texts(part) for part in self.unspaced(message)]
        text = "".join(part if isinstance(part, str) else self.inserted(part.modality) for part in message.parts)
        return text if template.takes_text else [{"type": "text", "text": text}]

    def unspaced(self, message):
        """Its parts, without the new lines by which LLaVA's form sets marks of items apart."""
        parts = list(message.parts)
        if message.is_list:
            return parts
        spaced = lambda n: 0 <= n < len(parts) and isinstance(parts[n], Item) and self.spaced[parts[n].modality]  # noqa: E731
        for number, part in enumerate(parts):
            if not isinstance(part, str):
                continue
            if spaced(number - 1) and part.startswith("\n"):
                part = part[1:]
            if spaced(number + 1) and number + 2 == len(parts):
                part = part.removesuffix("\n")
            parts[number] = part
        return [part for part in parts if part != ""]

    def written(self, record, stands):
        for name in stands:
            if stands[name] and name not in self.marks:
                token = self.placeholder[name]
                raise EntryFault("items", f"the tokenizer has no token {token}, which stands for {ITEMS[name]}")
        template = self.for_tools if record.tools else self.template
        messages = [self.whole(message) for message in record.messages]
        self.check_fields(record, messages, template)
        if self.is_prompt:
            text = template.write(messages, prompt=True, tools=record.tools)
            spans = [(len(text), len(text) + len(template.end))]
            text += template.end
        else:
            text, spans = self.answers(record, messages, template)
        places = self.places(text, stands)
        text, spans = replaced(text, spans, places, lambda item: stands[item.modality][item.number])
        return text, spans, [item for _, _, item in places]

    def whole(self, message):
        """The message as the entry has it, with what its template takes for content."""
        if message.fields and "content" not in message.fields:
            return {**message.fields, "role": message.role}
        content = {"role": message.role, "content": self.content(message)}
        return {**content, **message.fields, **content}

    def check_fields(self, record, messages, template):
        """Notes on what the template leaves out; a call of a tool that would be lost is at fault."""
        for number, message in enumerate(messages):
            lost = [key for key in ("tool_calls", "function_call") if message.get(key) and not template.reads(key)]
            if lost:
                raise EntryFault("tools", f"message {number} calls a tool ({lost[0]}), which the chat template does not "
                                 "write; name another: --chat-template FILE")
        record.notes.extend(unread(record.messages, template.reads))
        if record.tools and not template.reads("tools"):
            record.notes.append("tools left out, which the chat template does not write")
        if any(isinstance(arguments, str) for message in messages for arguments in arguments_of(message)):
            record.notes.append("arguments of tool calls are texts, and written as the chat template writes texts")
        if {message.role for message in record.messages} - {"system", "user", "assistant"}:
            for role in template.unwritten(messages, record.tools):
                record.notes.append(f"the chat template writes nothing of a message of the {role}")

    def answers(self, record, messages, template):
        try:
            text, spans = template.render(messages, record.tools)
        except Unmaskable as fault:
            raise EntryFault("mask", f"its answers cannot be masked exactly: {fault}") from None
        learned = [message.is_learned for message in record.messages if message.role == "assistant"]
        if len(spans) == len(learned):
            return text, [span for span, is_learned in zip(spans, learned) if is_learned]
        if template.lacking or not all(learned) or not spans:
            raise EntryFault("mask", f"the chat template marks {len(spans)} answers of {len(learned)}")
        return text, spans

    def encoded(self, text, spans):
        ids, mask = super().encoded(text, spans)
        if ids[: len(self.opening)] != self.opening:  # the template may write bos_token itself
            ids, mask = self.opening + ids, [0] * len(self.opening) + mask
        return ids, mask

    def places(self, text, stands):
        """Begin, end and item of each mark, in order."""
        places = []
        for name, (mark, _) in self.marks.items():
            count = text.count(mark) if stands[name] else 0
            if count != len(stands[name]):
                raise EntryFault("items", f"the chat template writes {count} {mark} for {len(stands[name])} {ITEMS[name]}")
            begin = 0
            for number in range(count):
                begin = text.index(mark, begin)
                places.append((begin, begin + len(mark), Item(name, number)))
                begin += len(mark)
        return sorted(places)


def arguments_of(message):
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function", call) if isinstance(call, dict) else {}
        yield function.get("arguments") if isinstance(function, dict) else None


def check_order(messages):
    """Forms without a chat template have user and assistant by turns; the first is the user's."""
    if messages[0].role == "system":
        raise EntryFault("turns", "has a system's turn, for which a chat template is needed: --chat-template")
    for number, message in enumerate(messages):
        if message.role != ("user", "assistant")[number % 2]:
            raise EntryFault("turns", f"the {message.role}'s message {number} is not where it should be: user and "
                             "assistant take turns where there is no chat template")
        if message.fields.get("tool_calls"):
            raise EntryFault("tools", f"message {number} calls a tool, for which a chat template is needed: --chat-template")


def opening(tokenizer):
    """Ids that the tokenizer puts before a text: bos_token, or none."""
    encoding = tokenizer.encode("a", add_special_tokens=True)
    return encoding.ids[: [*encoding.special_tokens_mask, 0].index(0)]


def replaced(text, spans, places, spelled):
    """The text with marks replaced, and spans moved with it, in which no mark may lie."""
    pieces, last, grown, ends = [], 0, [0], [end for _, end, _ in places]
    for begin, end, item in places:
        span = bisect.bisect_right(spans, (begin, begin))
        for first, after in spans[max(0, span - 1) : span + 1]:
            if first < end and begin < after:
                raise EntryFault("items", "an answer holds the mark of an item")
        pieces += [text[last:begin], spelled(item)]
        grown.append(grown[-1] + len(pieces[-1]) - (end - begin))
        last = end
    moved = [tuple(side + grown[bisect.bisect_right(ends, side)] for side in span) for span in spans]
    return "".join([*pieces, text[last:]]), moved


def mask_of(offsets, spans):
    """1 for tokens with a character of a span. A token reaches from the end of the one before, whatever
    its offsets leave out as space; tokens that share a character are as the first of them. Spans are in order."""
    mask, last, number = [], 0, 0
    for _, end in offsets:
        end = max(end, last)
        if end == last and mask:
            mask.append(mask[-1])
            continue
        while number < len(spans) and spans[number][1] <= last:
            number += 1
        mask.append(int(number < len(spans) and spans[number][0] < end))
        last = end
    return mask


def check_text(text):
    try:
        text.encode()
    except UnicodeEncodeError as fault:
        raise EntryFault("text", f"text is not valid Unicode: {fault.reason}") from None
    found = NOT_CHARACTERS.search(text)
    if found:
        raise EntryFault("text", f"text holds U+{ord(found[0]):X}, which is no character")


def token_id(tokenizer, name):
    number = tokenizer.token_to_id(name)
    if number is None:
        sys.exit(f"the tokenizer has no token {name}; see --bos, --eos, --image-token, --audio-token")
    return number
