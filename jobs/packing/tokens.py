# SPDX-License-Identifier: Apache-2.0
"""Token ids and loss mask of a record: what stands for its items, and its turns, which a chat template
writes or else the form that its family is known by."""

import sys

from packing.chat_template import BEGIN, Unmaskable
from packing.record import ITEMS, MARKS, EntryFault, Item

# Of images beside which crops stand, as Gemma3Processor writes it.
BEFORE_ORIGINAL = "Here is the original image "
BEFORE_CROPS = " and here are some crops to help you see better "


class FixedCounts:
    """In place of a model's directory: so many placeholders for each image and each clip of sound."""

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
    """What turns of both forms share: ids of texts, and what stands for items."""

    def __init__(self, tokenizer, arguments, model):
        self.tokenizer, self.model, self.max_tokens = tokenizer, model, arguments.max_tokens
        self.turns = model.turns(tokenizer)
        self.placeholder = {name: model.placeholders.get(name, -1) for name in MARKS}

    def id_of(self, name):
        return token_id(self.tokenizer, name)

    def encode(self, text):
        check_text(text)
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def item(self, modality, item, is_alone):
        """What stands for an item, the only one of its sample or not, in texts and lists of ids, with
        what stands around an image and between its rows, and how many placeholders these have."""
        try:
            return self.video(item) if modality == "video" else self.image_or_sound(modality, item, is_alone)
        except ValueError as fault:
            raise EntryFault("items", f"{modality}: {fault}") from None

    def video(self, item):
        before, after = ([self.id_of(name)] if name else [] for name in self.turns.around_image)
        ids, moments = [], self.model.moments(item)
        for stamp, count in moments:
            ids += self.encode(stamp) if stamp else []
            ids += before + [self.placeholder["video"]] * count + after
        return [ids], sum(count for _, count in moments)

    def image_or_sound(self, modality, item, is_alone):
        spelled = self.model.spelled(modality, item)
        if spelled:
            pieces = [[self.placeholder[modality]] * p if isinstance(p, int) else p for p in spelled]
            return pieces, sum(p for p in spelled if isinstance(p, int))
        rows = self.model.rows(modality, item, is_alone)
        turns, is_image = self.turns, modality == "image"
        crops = self.model.crops(item) if is_image else 0
        around = (*turns.around_image, turns.row_end) if is_image else ("", "", "")
        before, after, between = ([self.id_of(name)] if name else [] for name in around)
        ids = before
        for count in rows:
            ids = ids + [self.placeholder[modality]] * count + between
        beside = turns.beside_image if is_image else ""
        image = [beside, ids[: len(ids) - len(between)] + after, beside]
        if not crops:
            return image, sum(rows)
        of_crops = [*image, *[" ", *image] * (crops - 1)]
        return [BEFORE_ORIGINAL, *image, BEFORE_CROPS, *of_crops], sum(rows) * (1 + crops)

    def sample(self, record, items):
        """Ids, mask, and items in the order in which they stand."""
        check_text("".join(record.answers))
        for name, mark in MARKS.items():
            marks = record.marks(name)
            if marks and self.placeholder[name] < 0:
                missing = "a model of videos (--model)" if name == "video" else f"--{name}-tokens"
                raise EntryFault("items", f"has {mark}, but {missing} is not given")
            if marks != len(items[name]):
                raise EntryFault(
                    "items", f"has {len(items[name])} {ITEMS[name]} but {marks} {mark} in its human turns"
                )
        stands = {
            name: [self.item(name, item, len(found) == 1) for item in found] for name, found in items.items()
        }
        tokens, mask, order = self.written(record.messages, stands)
        for name, mark in MARKS.items():
            placeholders = tokens.count(self.placeholder[name])
            if placeholders != sum(count for _, count in stands[name]):
                raise EntryFault(
                    "items",
                    f"has {placeholders} placeholders for {len(items[name])} {ITEMS[name]}: is {mark} in a gpt turn?",
                )
        if self.max_tokens and len(tokens) > self.max_tokens:
            raise EntryFault("too long", f"has {len(tokens)} tokens, more than --max-tokens {self.max_tokens}")
        return tokens, mask, [items[part.modality][part.number] for part in order]


class FamilyTurns(Tokens):
    """Turns in the form that a family's instruction models are trained with, or in Vicuna's."""

    def joined(self, pieces):
        """Ids of texts and lists of ids; texts that follow each other are one."""
        ids, text = [], ""
        for piece in [*pieces, []]:
            if isinstance(piece, str):
                text += piece
                continue
            ids += (self.encode(text) if text else []) + piece
            text = ""
        return ids

    def prompt(self, parts, stands):
        begins_with_image = isinstance(parts[0], Item) and parts[0].modality == "image"
        pieces = [self.turns.opening, "" if begins_with_image else self.turns.before_text]
        for part in parts:
            pieces += [part] if isinstance(part, str) else stands[part.modality][part.number][0]
        return self.joined([*pieces, self.turns.reply])

    def written(self, messages, stands):
        if messages[0].role == "system":
            raise EntryFault("turns", "has a system's turn, for which a chat template is needed: --chat-template")
        turns, order = self.turns, [p for m in messages for p in m.parts if isinstance(p, Item)]
        start, end = ([self.id_of(name)] if name else [] for name in (turns.start, turns.end))
        tokens, mask = list(start), [0] * len(start)
        gap = self.encode(turns.gap) if turns.gap else []
        for human, gpt in zip(messages[::2], messages[1::2]):
            prompt = self.prompt(human.parts, stands)
            answer = self.encode(turns.lead + "".join(gpt.parts)) + end
            tokens += prompt + answer + gap
            mask += [0] * len(prompt) + [1] * len(answer) + [0] * len(gap)
        return tokens, mask, order


class TemplateTurns(Tokens):
    """Turns as a chat template writes them. Its mark of an item gives way to what stands for the item."""

    def __init__(self, tokenizer, arguments, model, template):
        super().__init__(tokenizer, arguments, model)
        self.template = template
        known = [name for name, token in self.placeholder.items() if token >= 0 and tokenizer.id_to_token(token)]
        self.marks = {name: self.mark(name) for name in known}
        # As in transformers, where processors let the tokenizer add what begins a text, and its own templates do not.
        self.opening = opening(tokenizer) if self.marks else []

    def mark(self, modality):
        """What the template writes for an item, and whether it does it itself."""
        placeholder = self.tokenizer.id_to_token(self.placeholder[modality])
        before, after = self.turns.around_image if modality != "audio" else ("", "")
        names = (before + placeholder + after, placeholder, before, MARKS[modality])
        written = self.template.tried([{"type": modality}, {"type": "text", "text": "?"}])
        found = next((name for name in names if name and name in written), None)
        return found or names[0], found is not None

    def content(self, message):
        """A text, or a list of parts, as the entry has it where the template takes that."""
        template = self.template
        own = all(self.marks[part.modality][1] for part in message.parts if isinstance(part, Item))
        has_items = any(isinstance(part, Item) for part in message.parts)
        if template.takes_lists and own and (has_items or message.is_list or not template.takes_text):
            texts = lambda part: {"type": "text", "text": part} if isinstance(part, str) else {"type": part.modality}  # noqa: E731
            return [texts(part) for part in message.parts]
        text = "".join(part if isinstance(part, str) else self.marks[part.modality][0] for part in message.parts)
        return text if template.takes_text else [{"type": "text", "text": text}]

    def written(self, messages, stands):
        for name in stands:
            if stands[name] and name not in self.marks:
                token = self.placeholder[name]
                raise EntryFault("items", f"the tokenizer has no token {token}, which stands for {ITEMS[name]}")
        for message in messages:
            check_text("".join(part for part in message.parts if isinstance(part, str)))
        try:
            text, spans = self.template.render([{"role": m.role, "content": self.content(m)} for m in messages])
        except Unmaskable as fault:
            raise EntryFault("mask", f"its answers cannot be masked exactly: {fault}") from None
        if len(spans) != sum(message.role == "assistant" for message in messages):
            raise EntryFault("mask", f"the chat template marks {len(spans)} answers")
        places = self.places(text, stands)
        text, spans = replaced(text, spans, places, lambda item: self.spelt(stands[item.modality][item.number][0]))
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        ids, mask = encoding.ids, mask_of(encoding.offsets, spans)
        if ids[: len(self.opening)] != self.opening:  # the template may write bos_token itself
            ids, mask = self.opening + ids, [0] * len(self.opening) + mask
        return ids, mask, [item for _, _, item in places]

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

    def spelt(self, pieces):
        names = (p if isinstance(p, str) else "".join(map(self.tokenizer.id_to_token, p)) for p in pieces)
        return "".join(names)


def opening(tokenizer):
    """Ids that the tokenizer puts before a text: bos_token, or none."""
    encoding = tokenizer.encode("a", add_special_tokens=True)
    return encoding.ids[: [*encoding.special_tokens_mask, 0].index(0)]


def replaced(text, spans, places, spelt):
    """The text with marks replaced, and spans moved with it, in which no mark may lie."""
    pieces, last, moved = [], 0, [list(span) for span in spans]
    for begin, end, item in places:
        if any(first < end and begin < after for first, after in spans):
            raise EntryFault("items", "an answer holds the mark of an item")
        pieces += [text[last:begin], spelt(item)]
        for span, (first, after) in zip(moved, spans):
            grown = len(pieces[-1]) - (end - begin)
            span[0] += grown * (first >= end)
            span[1] += grown * (after >= end)
        last = end
    return "".join([*pieces, text[last:]]), moved


def mask_of(offsets, spans):
    """1 for tokens with a character of a span. A token reaches from the end of the one before, whatever
    its offsets leave out as space; tokens that share a character are as the first of them."""
    mask, last = [], 0
    for _, end in offsets:
        end = max(end, last)
        if end == last and mask:
            mask.append(mask[-1])
            continue
        mask.append(int(any(last < after and first < end for first, after in spans)))
        last = end
    return mask


def check_text(text):
    try:
        text.encode()
    except UnicodeEncodeError as fault:
        raise EntryFault("text", f"text is not valid Unicode: {fault.reason}") from None
    if BEGIN in text:
        raise EntryFault("text", "text holds U+FDD0, which is no character")


def token_id(tokenizer, name):
    number = tokenizer.token_to_id(name)
    if number is None:
        sys.exit(f"the tokenizer has no token {name}; see --bos, --eos, --image-token, --audio-token")
    return number
