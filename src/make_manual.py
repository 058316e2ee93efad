# SPDX-License-Identifier: Apache-2.0
"""Man page and bash completion of a program, from its own declarations of options: C++ programs print
them (--manual), of a Python script the parser is asked.

usage: make_manual.py NAME PROGRAM VERSION FOLDER
Writes FOLDER/man1/NAME.1 and FOLDER/completions/NAME.
"""

import argparse
import importlib.abc
import importlib.util
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from unittest import mock

DECK_WORDS = "section.key=value"


class Declared(BaseException):  # no script may catch it
    """A script has declared its options."""


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that are not installed where zea is built: only the options count."""

    def find_spec(self, name, path=None, target=None):
        # The standard library looks for modules of other systems, which must not be found.
        return None if name in sys.stdlib_module_names else importlib.util.spec_from_loader(name, self)

    def create_module(self, spec):
        return mock.MagicMock(__path__=[], __spec__=spec)

    def exec_module(self, module):
        pass


def parser_of(script):
    def declared(parser, *_, **__):
        raise Declared(parser)

    sys.meta_path.append(Absent())
    sys.path.insert(0, str(Path(script).parent))
    with mock.patch.object(argparse.ArgumentParser, "parse_args", declared):
        try:
            runpy.run_path(script, run_name="__main__")
        except Declared as found:
            return found.args[0]
    raise SystemExit(f"{script} parses no arguments")


def option_of(parser, action):
    if action.nargs == 0:
        value = ""
    elif action.choices:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    else:
        value = action.metavar or action.dest.upper()
    expanded = dict(vars(action), prog=parser.prog)
    return {
        "names": ",".join(action.option_strings) or str(action.metavar or action.dest),
        "is_positional": not action.option_strings,
        "is_required": action.required,
        "is_number": action.type in (int, float),
        "value": "" if not action.option_strings else str(value),
        "help": (action.help or "") % expanded,
    }


def manual_of(program):
    if not program.endswith(".py"):
        return json.loads(subprocess.run([program, "--manual"], check=True, capture_output=True).stdout)
    parser = parser_of(program)
    first, _, rest = (parser.description or "").strip().partition("\n\n")
    return {
        "purpose": " ".join(first.split()),
        "options": [option_of(parser, action) for action in parser._actions],
        "texts": {"description": rest} if rest.strip() else {},
    }


def roff(text):
    """As it is, whatever it holds."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line for line in text.split("\n"))


def usage_of(name, manual):
    if "usage" in manual:
        return manual["usage"]
    options = [option for option in manual["options"] if option["is_positional"]]
    words = [o["names"] if o["is_required"] else f"[{o['names']}]" for o in options]
    return " ".join([name, "[options]", *words])


def item(title, text):
    return [".TP", f".B {roff(title)}", roff(text)]


def literal(text):
    return [".nf", roff(text.strip("\n")), ".fi"]


def page(name, version, manual):
    purpose = manual["purpose"].rstrip(".").removeprefix(f"{name} ")
    lines = [
        f'.TH {name.upper()} 1 "" "zea {version}" "User Commands"',
        *(".SH NAME", roff(f"{name} - {purpose}")),
        *(".SH SYNOPSIS", ".nh", roff(usage_of(name, manual)), ".hy"),
        ".SH OPTIONS",
    ]
    for option in manual["options"]:
        title = option["names"].replace(",", ", ")
        lines += item(f"{title} {option['value']}".strip(), option["help"])
    for title, text in manual.get("texts", {}).items():
        lines += [f".SH {title.upper()}", *literal(text)]
    if "keys" in manual:
        lines += [".SH DECK", "Keys of a deck (TOML) with their defaults."]
    for key in manual.get("keys", []):
        lines += item(f"{key['path']} = {key['default']}", f"({key['values']}) {key['help']}")
    return "\n".join(lines) + "\n"


def words_after(option):
    """A command of bash that fills COMPREPLY with what may follow the option."""
    value = option["value"]
    choices = re.search(r"\{([^}]*)\}", value)
    if choices:
        return f'COMPREPLY=($(compgen -W "{choices[1].replace(",", " ")}" -- "$word"))'
    if value == "KEY":
        return 'COMPREPLY=($(compgen -W "$keys $sections" -- "$word"))'
    if value == "DECK":
        return 'mapfile -t COMPREPLY < <(compgen -f -X "!*.toml" -- "$word"; compgen -d -- "$word")'
    if value == "DIRECTORY":
        return 'mapfile -t COMPREPLY < <(compgen -d -- "$word")'
    if option.get("is_number") or re.search(r"\b(INT|UINT|FLOAT)\b", value):
        return "COMPREPLY=()"
    return files()


def files():
    return 'mapfile -t COMPREPLY < <(compgen -f -- "$word")'


def completion(name, manual):
    function = "_" + re.sub(r"\W", "_", name)
    options = [option for option in manual["options"] if not option["is_positional"]]
    takes_keys = any(DECK_WORDS in option["value"] for option in manual["options"])
    names = [name for option in options for name in option["names"].split(",")]
    keys = [key["path"] for key in manual.get("keys", [])]
    sections = sorted({key.rpartition(".")[0] for key in keys})
    lines = [f"# bash completion of {name}: made with it, from its own options", f"{function}() {{"]
    lines.append('  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}')
    if keys:
        lines.append(f'  local keys="{" ".join(keys)}" sections="{" ".join(sections)}"')
    lines.append('  case $before in')
    for option in options:
        if option["value"]:
            lines.append(f"    {option['names'].replace(',', '|')}) {words_after(option)}; return ;;")
    lines += ["  esac", "  if [[ $word == -* ]]; then"]
    lines += [f'    COMPREPLY=($(compgen -W "{" ".join(names)}" -- "$word"))', "  else"]
    if takes_keys:
        lines += [
            '    COMPREPLY=($(compgen -S = -W "$keys" -- "$word"))',
            "    compopt -o nospace 2> /dev/null",
        ]
    else:
        lines.append(f"    {files()}")
    lines += ["  fi", "}", f"complete -o filenames -F {function} {name}"]
    return "\n".join(lines) + "\n"


def main():
    name, program, version, folder = sys.argv[1:]
    manual = manual_of(program)
    for path, text in (("man1/" + name + ".1", page(name, version, manual)),
                       ("completions/" + name, completion(name, manual))):
        (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
        (Path(folder) / path).write_text(text)


main()
