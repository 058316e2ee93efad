# SPDX-License-Identifier: Apache-2.0
"""jobs/pack.py writes turns as transformers' apply_chat_template does, and learns the answers alone.

usage: check_pack_templates.py JOBS_FOLDER DUMP_DATASET
"""

import itertools
import json
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

from pack_scripts import JOBS, dump, run  # isort: skip
from folder_case import FolderCase  # isort: skip
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

try:
    from transformers import PreTrainedTokenizerFast
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

sys.path.insert(0, str(JOBS))
from model_directory import Turns  # noqa: E402
from packing.chat_template import ChatTemplate, read_templates  # noqa: E402
from packing.record import MARKS, EntryFault, Message, Record  # noqa: E402
from packing.tokens import TemplateTurns  # noqa: E402

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
SPECIAL += ["<image>"]
# Shapes of templates that models come with.
CHATML = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PARTS = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}<|im_end|>
{% else %}{% for part in message['content'] %}{% if part['type'] == 'image'
%}<|vision_start|><|image_pad|><|vision_end|>{% elif part.text %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
# The template neither prompts for an answer nor separates a system's turn.
INST = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\\n\\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}"
    "{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + (system if loop.first else '') + "
    "message['content'] | trim + ' [/INST]' }}{% else %}{{ ' ' + message['content'] | trim + eos_token }}"
    "{% endif %}{% endfor %}"
)
# Writes thoughts before the last answer alone, so that earlier turns change.
THINKING = (
    "{% for message in messages %}{% if message.role == 'assistant' and loop.last %}"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n{{ message.content }}<|im_end|>\n"
    "{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GENERATION = (
    "{% for message in messages %}{% if message.role == 'assistant' %}A: {% generation %}{{ message.content }}"
    "{{ eos_token }}{% endgeneration %}{% else %}Q: {{ message.content }}{% endif %}{{ '\\n' }}{% endfor %}"
)
NO_PROMPT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
)
# The images first, as LLaVA's.
IMAGES_FIRST = """{% for message in messages %}{{ message['role'] | upper }}: {% for part in message['content'] |
selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}{% for part in message['content'] |
selectattr('type', 'equalto', 'text') %}{{ part['text'] + ' ' }}{% endfor %}{% if message['role'] == 'assistant' %}{{
eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"""
# LLaVA-1.5's template unchanged, which ends no answer, and LLaVA-OneVision's, which ends them after the mark.
LLAVA = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{# Render all images first #}{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}{# Render all text next #}{% if message['role'] != 'assistant' %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}"
    "{% endfor %}{% else %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
ONEVISION = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + ' '}}{# Render all images first #}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{# Render all text next #}{% if message['role'] != 'assistant' %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ '\n' + content['text'] }}"
    "{% endfor %}{% else %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ '\n' + content['text'] }}{% endgeneration %}{% endfor %}{% endif %}{{'<|im_end|>'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TALK = [("user", "What now?"), ("assistant", "A gr\u00fc\u00df \u4e16."), ("user", "And?"), ("assistant", "Done, all.")]


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    more = {"show_progress": False, "initial_alphabet": alphabet, "vocab_size": 300}
    trainer = trainers.BpeTrainer(special_tokens=SPECIAL, **more)
    tokenizer.train_from_iterator(["assistant user system What now Done, all. <think> \n\n"] * 9, trainer)
    return tokenizer


class Templates(FolderCase):
    def setUp(self):
        super().setUp()
        self.tokenizer = make_tokenizer()
        self.reference = PreTrainedTokenizerFast(
            tokenizer_object=self.tokenizer, bos_token="<s>", eos_token="</s>", additional_special_tokens=SPECIAL[2:]
        )
        self.names = {"bos_token": "<s>", "eos_token": "</s>"}

    def template(self, source):
        return ChatTemplate(source, self.names, set(SPECIAL), "2026-01-02")

    def learnt(self, source, talk, as_list=False):
        """The answers that are learnt, of a text that is transformers'."""
        wrap = lambda text: [{"type": "text", "text": text}] if as_list else text  # noqa: E731
        messages = [{"role": role, "content": wrap(text)} for role, text in talk]
        text, spans = self.template(source).render(messages)
        expected = self.reference.apply_chat_template(messages, chat_template=source, tokenize=False)
        self.assertEqual(text, expected)
        return [text[begin:end] for begin, end in spans]

    def test_texts_are_those_of_transformers_and_answers_are_found(self):
        first, last = TALK[1][1], TALK[3][1]
        system = [("system", "Be brief."), *TALK]
        chatml = [f"{first}<|im_end|>", f"{last}<|im_end|>"]
        for name, source, talk, expected in [
            ("chatml", CHATML, TALK, chatml),
            ("chatml with a system's turn", CHATML, system, chatml),
            ("parts", PARTS, TALK, chatml),
            ("inst", INST, system, [f" {first}</s>", f" {last}</s>"]),
            ("thinking", THINKING, TALK, [chatml[0], f"<think>\n\n</think>\n\n{chatml[1]}"]),
            ("generation", GENERATION, system, [f"{first}</s>", f"{last}</s>"]),
            ("no prompt for an answer", NO_PROMPT, TALK, chatml),
        ]:
            with self.subTest(name):
                self.assertEqual(self.learnt(source, talk), expected)
        self.assertEqual(self.learnt(PARTS, TALK, as_list=True), chatml)
        self.assertEqual(self.learnt(IMAGES_FIRST, TALK, as_list=True), [f" {first} </s>", f" {last} </s>"])
        behind = [f"\n{first}<|im_end|>", f"\n{last}<|im_end|>"]
        self.assertEqual(self.learnt(ONEVISION, TALK, as_list=True), behind)
        spaced = GENERATION.replace("{{ eos_token }}{% endgeneration %}", "{% endgeneration %} \n{{ eos_token }}")
        self.assertEqual(self.learnt(spaced, TALK), [f"{first} \n</s>", f"{last} \n</s>"])

    def test_answers_as_short_as_a_letter_of_their_header(self):
        short = [("user", "u"), ("assistant", "a"), ("user", "A"), ("assistant", "A")]
        self.assertEqual(self.learnt(NO_PROMPT, short), ["a<|im_end|>", "A<|im_end|>"])
        plain = "{% for m in messages %}{{ m.role | upper }}: {{ m.content | trim }}{{ eos_token }}\n{% endfor %}"
        self.assertEqual(self.learnt(plain, short), ["a</s>", "A</s>"])

    def test_turns_that_a_template_does_not_end(self):
        """End in eos_token, in place of the space behind them."""
        system = [("system", "Be brief. "), *TALK]
        messages = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in system]
        first, last = TALK[1][1], TALK[3][1]
        expected = f"Be brief.  USER: What now? ASSISTANT: {first}</s>USER: And? ASSISTANT: {last}</s>"
        for source in (LLAVA, LLAVA.replace("{% generation %}", "").replace("{% endgeneration %}", "")):
            text, spans = self.template(source).render(messages)
            self.assertEqual(text, expected)
            self.assertEqual([text[begin:end].strip() for begin, end in spans], [f"{first}</s>", f"{last}</s>"])
        earlier = GENERATION.replace("{{ eos_token }}", "{% if not loop.last %}{{ eos_token }}{% endif %}")
        text, spans = self.template(earlier).render([{"role": role, "content": words} for role, words in TALK])
        self.assertEqual([text[begin:end] for begin, end in spans], [f"{first}</s>", f"{last}</s>"])
        # An answer may end with another token of the tokenizer's.
        talk = [("user", "Where?"), ("assistant", f"there{SPECIAL[-1]}")]
        boxed = [{"role": role, "content": [{"type": "text", "text": words}]} for role, words in talk]
        text, spans = self.template(LLAVA).render(boxed)
        self.assertEqual([text[begin:end].strip() for begin, end in spans], [f"there{SPECIAL[-1]}</s>"])

    def sample(self, source, placeholders):
        model = SimpleNamespace(placeholders=placeholders, turns=lambda _: Turns("", "", "", "", "", ""))
        tokens = TemplateTurns(self.tokenizer, SimpleNamespace(max_tokens=0), model, self.template(source))
        messages = [Message(role, [text]) for role, text in TALK]
        return tokens.sample(Record(messages, {}, {}, []), dict.fromkeys(MARKS, []))[:2]

    def packed(self, source, modality="image"):
        """Text and learnt text of ids, by a tokenizer that puts <s> before a text."""
        self.tokenizer.decoder = decoders.ByteLevel()
        special = [("<s>", 0), ("</s>", 1)]
        self.tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=special)
        placeholders = {modality: SPECIAL.index("<image>")} if modality else {}
        ids, mask = self.sample(source, placeholders)
        learnt = [number for number, is_learnt in zip(ids, mask) if is_learnt]
        return [self.tokenizer.decode(found, skip_special_tokens=False) for found in (ids, learnt)]

    def test_what_begins_a_text_stands_once_before_samples_of_models_of_items(self):
        first, last = TALK[1][1], TALK[3][1]
        text = f"USER: What now? ASSISTANT: {first}</s>USER: And? ASSISTANT: {last}</s>"
        learnt = f"{first}</s> {last}</s>"
        self.assertEqual(self.packed(LLAVA), [f"<s>{text}", learnt])
        self.assertEqual(self.packed("{{ bos_token }}" + LLAVA), [f"<s>{text}", learnt])
        self.assertEqual(self.packed(LLAVA, modality=None), [text, learnt])

    def test_tokens_and_masks_are_those_of_transformers(self):
        """Transformers finds the same {% generation %} marks."""
        source = GENERATION.replace("A: ", "<|im_start|>").replace("Q: ", "\n ")
        messages = [{"role": role, "content": text} for role, text in TALK]
        whole = self.reference.apply_chat_template(
            messages, chat_template=source, return_dict=True, return_assistant_tokens_mask=True
        )
        ids, mask = self.sample(source, {})
        self.assertEqual(ids, whole["input_ids"])
        self.assertEqual(mask, whole["assistant_masks"])

    def test_templates_that_cannot_be_masked_are_refused(self):
        for source, part in [
            ("{% for m in messages %}{{ m.content }}{{ messages | length }}{% endfor %}", "be masked exactly"),
            ("{% for m in messages %}{{ m.role }}: {{ m.content | upper }}\n{% endfor %}", "writes nothing"),
            ("{% for m in messages | reverse %}{{ m.content }}\n{% endfor %}", "be masked exactly"),
            ("{{ 'nothing' }}", "writes nothing of a user's text"),
            ("{% for m in messages %}", "cannot be compiled"),
            ("{% if messages[1] %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}", "says: no"),
            ("{{ messages[0].content }}{{ ''.__class__.__mro__ }}", "writes nothing"),
        ]:
            with self.subTest(part), self.assertRaises(SystemExit) as left:
                self.template(source)
            self.assertIn(part, str(left.exception))
        self.names = {"bos_token": "<s>"}
        with self.assertRaises(SystemExit) as left:
            self.template(LLAVA)
        self.assertIn("names no eos_token to end it", str(left.exception))

    def test_turns_are_found_where_a_template_rewrites_them(self):
        """Thinking that it strips from earlier answers, white space, and answers like the text around them."""
        answer = "message.content.split('</think>')[-1]"
        stripped = f"{{{{ ({answer} if message.role == 'assistant' else message.content).strip() }}}}"
        stripping = THINKING.replace(
            "\n{{ message.content }}<|im_end|>\n{% endif %}", f"\n{stripped}<|im_end|>\n{{% endif %}}"
        )
        thought = {"user": "", "assistant": "<think>\nwhy\n</think>\n\n"}
        talk = [(role, thought[role] + text) for role, text in TALK * 3]
        kept = [text + "<|im_end|>" for role, text in TALK * 3 if role == "assistant"]
        kept[-1] = f"<think>\n\n</think>\n\n{talk[-1][1]}<|im_end|>"
        self.assertEqual(self.learnt(stripping, talk), kept)
        spaced = [(role, f"{text}\n" if role == "assistant" else text) for role, text in TALK]
        first, last = (f"{text}\n<|im_end|>" for role, text in TALK if role == "assistant")
        self.assertEqual(self.learnt(THINKING, spaced), [first, f"<think>\n\n</think>\n\n{last}"])
        same = [("user", "assistant\n"), ("assistant", "user\n"), ("user", "user\n"), ("assistant", "assistant\n")]
        self.assertEqual(self.learnt(CHATML, same), ["user\n<|im_end|>", "assistant\n<|im_end|>"])

    def test_many_turns_take_few_renderings(self):
        for source in (CHATML, THINKING, INST):
            template, count = self.template(source), 0
            write = template.write

            def counted(*arguments, **more):
                nonlocal count
                count += 1
                return write(*arguments, **more)

            template.write = counted
            margins = [("", ""), ("\n", " "), ("", "\n\n"), ("\n", "")]
            spaced = [f"{before}{text}{behind}" for _, text in TALK for before, behind in margins]
            texts = itertools.islice(itertools.cycle(spaced), 2000)
            talk = [{"role": role, "content": text} for role, text in zip(("user", "assistant") * 1000, texts)]
            text, spans = template.render(talk)
            self.assertEqual(len(spans), 1000)
            self.assertLess(count, 20)
            found = [text[slice(*span)].strip() for span in spans[:-1]]
            self.assertTrue(all(turn.endswith(("<|im_end|>", "</s>")) and "<|im_start|>" not in turn for turn in found))
            for turn, message in zip(found, talk[1::2]):
                self.assertTrue(turn.startswith(message["content"].strip()))

    def test_templates_run_under_limits(self):
        body = "{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}"
        long = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
        for trap, part in [
            (long, "takes more than"),
            ("{% for a in range(10**9) %}{% endfor %}", "Range too big"),
            ("{% set x = 'a' * 10**10 %}", "too large"),
            ("{% set x = 9 ** 99999999 %}", "too large"),
            ("{% set x = '%99999999999d' % 1 %}", "memory"),
            ("{% set n = namespace(x='aa') %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}", "memory"),
            ("{% set x = 'a' | center(10 ** 11) %}", "memory"),
        ]:
            source = "{% if messages | length == 3 %}" + trap + "{% endif %}" + body
            most = 0.2 if trap == long else 60
            with self.subTest(trap), mock.patch("packing.sandbox.SECONDS", most):
                with self.assertRaises(EntryFault) as left:
                    self.template(source).render([{"role": role, "content": text} for role, text in TALK[:3]])
                self.assertIn(part, str(left.exception))
        with self.assertRaises(SystemExit) as left, mock.patch("packing.sandbox.SECONDS", 0.2):
            self.template(long + body)
        self.assertIn("is stopped: it takes more than 0.2 seconds; name another", str(left.exception))

    def test_dates_stay_those_of_the_beginning(self):
        source = "{{ strftime_now('%d %b %Y') }}" + CHATML
        text, _ = self.template(source).render([{"role": role, "content": text} for role, text in TALK])
        self.assertTrue(text.startswith("02 Jan 2026<|im_start|>system"))

    def test_files_of_templates(self):
        write = lambda name, value: (self.folder / name).write_text(json.dumps(value))  # noqa: E731
        self.assertEqual(read_templates(self.folder), {})
        named = [{"name": "tools", "template": "a"}, {"name": "default", "template": "b"}]
        write("tokenizer_config.json", {"chat_template": named})
        self.assertEqual(read_templates(self.folder), {"tools": "a", "default": "b"})
        write("chat_template.json", {"chat_template": "c"})
        self.assertEqual(read_templates(self.folder), {"default": "c"})
        (self.folder / "chat_template.jinja").write_text("d")
        self.assertEqual(read_templates(self.folder), {"default": "d"})
        write("tokenizer_config.json", {"chat_template": [{"name": "rag", "template": "a"}]})
        (self.folder / "chat_template.jinja").unlink()
        (self.folder / "chat_template.json").unlink()
        with self.assertRaises(SystemExit) as left:
            read_templates(self.folder)
        self.assertIn("are called rag, and none default", str(left.exception))

    def model(self, template):
        folder = self.folder / "model"
        folder.mkdir()
        self.tokenizer.save(str(folder / "tokenizer.json"))
        vision = {"patch_size": 14, "spatial_merge_size": 2}
        config = {"model_type": "qwen2_vl", "image_token_id": SPECIAL.index("<|image_pad|>"), "vision_config": vision}
        (folder / "config.json").write_text(json.dumps(config))
        tokens = {"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "</s>"}}
        tokens["tokenizer_class"] = "PreTrainedTokenizerFast"  # not Qwen2's, which would build another
        (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
        return folder

    def pack_lines(self, lines, *more):
        (self.folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return run("pack.py", "--no-decode", self.folder / "in.jsonl", "--out", self.folder / "out.h5", *more)

    def test_a_model_with_a_template(self):
        """A picture of 56 x 84 pixels becomes six squares at the template's mark."""
        model = self.model(PARTS)
        head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (84).to_bytes(4, "big") + (56).to_bytes(4, "big")
        (self.folder / "a.png").write_bytes(head)
        parts = [{"type": "image_url", "image_url": {"url": "a.png"}}, {"type": "text", "text": "What now?"}]
        answer = {"role": "assistant", "content": "Done."}
        system = {"role": "system", "content": "Be brief."}
        tool = {"role": "assistant", "content": "", "tool_calls": [{}]}
        lines = [
            {"messages": [system, {"role": "user", "content": parts}, answer], "tools": [{"name": "f"}]},
            {"messages": [{"role": "user", "content": "x"}, tool]},
            {"messages": [{"role": "user", "content": "say <|vision_start|><|image_pad|><|vision_end|>"}, answer]},
        ]
        result = self.pack_lines(lines, "--model", model, "--on-fault", "skip")
        self.assertEqual(result.returncode, 0, result.stderr)
        (sample,) = dump(self.folder / "out.h5", 6)["samples"]
        image = "<|vision_start|>" + "<|image_pad|>" * 6 + "<|vision_end|>"
        text = (
            f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{image}What now?<|im_end|>\n"
            "<|im_start|>assistant\nDone.<|im_end|>\n"
        )
        self.assertEqual(sample["tokens"], self.tokenizer.encode(text, add_special_tokens=False).ids)
        self.assertEqual(sample["answer"], "Done.")
        self.assertEqual(sample["targets"], len(self.tokenizer.encode("Done.").ids) + 1)
        report = json.loads((self.folder / "out.h5.report.json").read_text())
        self.assertEqual({kind: found["count"] for kind, found in report["dropped"].items()}, {"tools": 1, "items": 1})
        self.assertIn("in.jsonl:2: message 1 calls a tool (tool_calls)", report["dropped"]["tools"]["examples"][0])
        self.assertEqual(report["notes"]["tools left out, which the chat template does not write"]["count"], 1)

    def test_a_template_of_a_file(self):
        """The template takes only texts, so they contain marks."""
        model = self.model(PARTS)
        (self.folder / "own.jinja").write_text(CHATML)
        turns = [{"from": "system", "value": "S"}, {"from": "human", "value": "hi"}, {"from": "gpt", "value": "Done."}]
        more = ["--model", model, "--chat-template", self.folder / "own.jinja"]
        result = self.pack_lines([{"conversations": turns}], *more)
        self.assertEqual(result.returncode, 0, result.stderr)
        (sample,) = dump(self.folder / "out.h5", 6)["samples"]
        self.assertEqual((sample["text"], sample["answer"]), ("system\nS\nuser\nhi\nassistant\nDone.\n", "Done."))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
