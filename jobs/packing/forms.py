# SPDX-License-Identifier: Apache-2.0
"""Forms of conversations, each of which becomes a list of messages:

    {"conversations": [{"from", "value"}]}    LLaVA and ShareGPT; also "conversation", and role and content in it
    {"messages": [{"role", "content"}]}       OpenAI, with whatever else its messages have
    {"instruction", "input", "output"}        Alpaca, with "system" and "history"
    {"prompt", "completion"}                  texts, or lists of messages, of which the completion is learned
    {"text"}                                  a caption beside an image

"system" beside turns is a turn in front of them, "tools" are the chat template's. A key that is not read is noted.
"""

import json
from typing import NamedTuple

from packing.record import LEARNED, MARKS, PLURALS, EntryFault, Item, Message

TURNS = ("conversations", "messages", "conversation")
SYSTEMS = ("system", "system_prompt")
# Questions and answers that stand in keys of their own.
PAIRS = (
    ("instruction", "output"),
    ("instruction", "response"),
    ("prompt", "completion"),
    ("prompt", "response"),
    ("question", "answer"),
    ("query", "response"),
    ("input", "output"),
)
MORE = ("input", "context")  # which an instruction may have beside it
ROLES = dict.fromkeys(("human", "user", "prompter"), "user") | {"system": "system", "developer": "developer"}
ROLES |= dict.fromkeys(("gpt", "assistant", "chatgpt", "model", "bot", "bing", "bard"), "assistant")
ROLES |= dict.fromkeys(("observation", "tool", "function_response", "tool_response", "function", "ipython"), "tool")
CALLS = ("function_call", "tool_call")
# Read by others: the name of an entry, a video's rate, the answers that predictions are scored by.
READ = {"id", "answers", *MARKS, *PLURALS.values()}


class Form(NamedTuple):
    messages: list
    notes: list
    tools: list | None


def turns_key(value):
    return next((key for key in TURNS if value.get(key) is not None), next((key for key in TURNS if key in value), None))


def pair_of(value):
    return next((pair for pair in PAIRS if all(value.get(key) is not None for key in pair)), None)


def has_turns(value):
    """Whether it is a conversation, and no caption."""
    return turns_key(value) is not None or ("text" not in value and pair_of(value) is not None)


def form_of(value, maker):
    """The form that an entry has, by its keys."""
    turns, pair = turns_key(value), pair_of(value)
    if turns:
        messages, read = listed(value[turns], turns, maker), {turns}
    elif isinstance(value.get("text"), str):
        messages, read = caption(value, maker), {"text", "prompt"}
    elif pair:
        messages, read = of_pair(value, pair, maker), {*pair, *(MORE if pair[0] == "instruction" else ()), "history"}
    else:
        pairs = ", ".join(f"{question} and {answer}" for question, answer in PAIRS)
        has = ", ".join(map(str, list(value)[:8])) or "nothing"
        raise EntryFault("turns", f"has no conversations: its keys are {has}; allowed are {', '.join(TURNS)}, text, or {pairs}")
    messages, of_system = with_system(value, messages)
    read |= of_system | READ | ({"fps"} if any(maker.sources["video"]) else set())
    tools, of_tools = tools_of(value)
    notes = [f"the key {key} is not used" for key in value if key not in read | of_tools]
    return Form(messages, notes, tools)


def with_system(value, messages):
    """The messages behind the system's turn, and the keys that were read for it."""
    key = next((key for key in SYSTEMS if value.get(key) not in (None, "")), None)
    if key is None:
        return messages, set(SYSTEMS)
    if not isinstance(value[key], str):
        raise EntryFault("turns", f"its {key} is no text")
    if messages[0].role == "system":
        return messages, set()
    return [Message("system", [value[key]], False, {"role": "system", "content": value[key]}), *messages], {key}


def tools_of(value):
    key = next((key for key in ("tools", "functions") if value.get(key)), None)
    tools = value.get(key)
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError) as fault:
            raise EntryFault("tools", f"its {key} are not JSON: {fault}") from None
    if not tools:
        return None, {"tools", "functions"}
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise EntryFault("tools", f"its {key} must be a list of objects")
    return [{"type": "function", "function": tool} for tool in tools] if key == "functions" else tools, {key}


def listed(turns, key, maker):
    if isinstance(turns, str):  # as tables have them
        try:
            turns = json.loads(turns)
        except (ValueError, RecursionError) as fault:
            raise EntryFault("not JSON", f"its {key} are not JSON: {fault}") from None
    if not isinstance(turns, list) or not turns:
        raise EntryFault("turns", f"has no {key}")
    return [message_of(number, turn, maker) for number, turn in enumerate(turns)]


def message_of(number, turn, maker):
    """One message of OpenAI's or a turn of ShareGPT's."""
    name = next((key for key in ("role", "from") if isinstance(turn, dict) and isinstance(turn.get(key), str)), None)
    content = next((key for key in ("content", "value") if isinstance(turn, dict) and key in turn), None)
    spoken = turn[name].lower() if name else None
    is_call = spoken in CALLS
    role = "assistant" if is_call else ROLES.get(spoken, None if name == "from" else spoken)
    if role is None or (content is None and role != "assistant"):
        raise EntryFault(
            "turns",
            f'turn {number} must be {{"from": speaker, "value": text}} or {{"role": speaker, "content": text or parts}}; '
            f"speakers are {', '.join([*ROLES, *CALLS])}",
        )
    found = turn.get(content)
    if name == "role" and spoken == "function":
        role = "function"  # as OpenAI had it once; a template may know it
    fields = {("role" if key == name else "content" if key == content else key): v for key, v in turn.items()}
    fields["role"] = role
    if is_call:
        fields |= {"content": "", "tool_calls": calls_of(number, found)}
        found = ""
    if isinstance(found, list):
        return maker.of_parts(number, role, found, fields)
    if found is None and role == "assistant":
        return maker.of_text(number, role, "", fields)
    if not isinstance(found, str):
        raise EntryFault("turns", f"message {number} of the {role} has no text or list of parts")
    return maker.of_text(number, role, found, fields)


def calls_of(number, text):
    """ShareGPT's calls of functions, as OpenAI has them."""
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        found = None
    calls = found if isinstance(found, list) else [found]
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        raise EntryFault("tools", f'turn {number} calls a function, but is not {{"name", "arguments"}} as JSON')
    return [{"type": "function", "function": call} for call in calls]


def user(maker, text):
    """A question; items that it has no marks for stand before it."""
    message = maker.of_text(0, "user", text, {"role": "user", "content": text})
    if any(isinstance(part, Item) for part in message.parts) or not any(maker.sources.values()):
        return message
    parts = [maker.item(modality) for modality in MARKS for _ in maker.sources[modality]]
    return message._replace(parts=[*parts, *([text] if text else [])], is_list=True)


def assistant(text):
    return Message("assistant", [text], False, {"role": "assistant", "content": text})


def caption(value, maker):
    if maker.has_items and not any(maker.sources.values()):
        raise EntryFault("items", "the image, sound or video beside its text is null")
    prompt = value.get("prompt", maker.prompt)
    if not isinstance(prompt, str):
        raise EntryFault("turns", "its prompt is no text")
    return [user(maker, prompt), assistant(value["text"])]


def of_pair(value, pair, maker):
    question, answer = (value[key] for key in pair)
    if isinstance(question, list) and isinstance(answer, list):
        asked = [m._replace(is_learned=False) for m in listed(question, pair[0], maker)]
        return asked + listed(answer, pair[1], maker)
    more = [value.get(key) for key in MORE if pair[0] == "instruction" and value.get(key)]
    texts = [question, *more]
    if not isinstance(answer, str) or not all(isinstance(text, str) for text in texts):
        raise EntryFault("turns", f"its {' and '.join(pair)} must be texts, or both lists of messages")
    history = value.get("history") or []
    if not all(isinstance(turn, list) and len(turn) == 2 and all(isinstance(t, str) for t in turn) for turn in history):
        raise EntryFault("turns", "its history must be pairs of a question and an answer")
    # As LLaMA-Factory joins them.
    asked = [*(question for question, _ in history), "\n".join(text for text in texts if text)]
    answers = [*(answer for _, answer in history), answer]
    turns = [[maker.of_text(0, "user", q, {"role": "user", "content": q}), assistant(a)] for q, a in zip(asked[:-1], answers)]
    return [message for turn in turns for message in turn] + [user(maker, asked[-1]), assistant(answers[-1])]


def unread(messages, reads):
    """Notes on keys of messages that nothing reads. `reads`: whether the turns' form reads that key."""
    keys = {(key, m.role) for m in messages for key in m.fields if key not in ("role", "content")}
    for key, role in sorted(keys):
        if not reads(key) and not (role == "assistant" and key in LEARNED):
            yield f"the key {key} of the {role}'s messages is not used"
