# SPDX-License-Identifier: Apache-2.0
"""Jinja as transformers' apply_chat_template sets it up, under limits of time and memory: templates are written by
strangers."""

import contextlib
import datetime
import json
import resource
import signal
import threading

SECONDS = 10  # of the processor, for one rendering
MOST_BYTES = 1 << 30  # that one rendering may take
MOST_BITS, MOST_LENGTH = 4096, 1 << 24  # of a product: one of large numbers cannot be interrupted
BEGIN, END = "\ufdd0", "\ufdd1"  # which stand for no characters


class TooMuch(Exception):
    """A template takes too long."""


def stop(*_):
    raise TooMuch(f"it takes more than {SECONDS} seconds")


@contextlib.contextmanager
def limits():
    """Raises TooMuch or MemoryError in what takes more time or memory than it may."""
    is_main = threading.current_thread() is threading.main_thread()  # others get no signals
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        most = int(statm.read().split()[0]) * resource.getpagesize() + MOST_BYTES
    before = signal.signal(signal.SIGPROF, stop) if is_main else None
    try:
        resource.setrlimit(resource.RLIMIT_AS, (most if soft == resource.RLIM_INFINITY else min(soft, most), hard))
        if is_main:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
        yield
    finally:
        if is_main:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def check_product(operator, left, right):
    numbers = [side for side in (left, right) if isinstance(side, int)]
    if operator == "**":
        too_large = len(numbers) == 2 and left.bit_length() * abs(right) > MOST_BITS
    elif len(numbers) == 2:
        too_large = left.bit_length() + right.bit_length() > MOST_BITS
    else:
        repeated = [side for side in (left, right) if isinstance(side, (str, bytes, list, tuple))]
        too_large = any(len(side) * number > MOST_LENGTH for side in repeated for number in numbers)
    if too_large:
        raise TooMuch(f"its product with {operator} is too large")


def environment(date):
    """Returns the environment of templates. The output of {% generation %} is between BEGIN and END. `date`: today's
    date for templates."""
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

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(["*", "**"])

        def call_binop(self, context, operator, left, right):
            check_product(operator, left, right)
            return super().call_binop(context, operator, left, right)

    def refuse(message):
        raise jinja2.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    extensions = [Generation, "jinja2.ext.loopcontrols"]
    made = Environment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.datetime.fromisoformat(date).strftime(form)
    return made


def compiled(source, date):
    """The template, and the names and texts in it, by which it reads keys of messages."""
    import jinja2

    made = environment(date)
    with limits():
        tree = made.parse(source)
        template = made.from_string(source)
    attributes = {node.attr for node in tree.find_all(jinja2.nodes.Getattr)}
    texts = {node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)}
    variables = {node.name for node in tree.find_all(jinja2.nodes.Name)}
    return template, attributes | texts | variables
