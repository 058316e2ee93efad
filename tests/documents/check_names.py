# SPDX-License-Identifier: Apache-2.0
"""Names in backticks in the documents must exist: deck keys and their values, options, files, tests, environment
variables, messages, identifiers. Links and anchors resolve, lines are short, and the first page is read to its end.

usage: check_names.py ROOT BUILD CTEST
"""

import re
import subprocess
import sys
import unittest
from functools import cache
from pathlib import Path

from pages import CODE_SPAN, LINK, page_paths, read_pages

ROOT, BUILD = (Path(word).resolve() for word in sys.argv[1:3])
CTEST = sys.argv[3]
MAX_COLUMNS, MAX_CELL, MAX_LINES_OF_README = 120, 100, 150
FIRST_COLUMN_IS_OF_OTHERS = "inputs/from_other_programs.md"
SOURCES = ["src", "include", "tests", "jobs", "inputs", "postprocess", "CMakeLists.txt", "CMakePresets.json"]
SUFFIXES = "md cpp hpp cu py sh toml json jsonl h5 txt sbatch def safetensors cff sif checked tmp png"
FILE = re.compile(rf"[\w.+*-]*(/[\w.+*<>-]*)+|[\w.-]+\.({SUFFIXES.replace(' ', '|')})")
SENTENCE = re.compile(r"[\w.;,'=/ ]+")
WRITTEN = re.compile(
    r"(quickstart\w*|finetuned|runs|checkpoints|trained\S*|model_hf|bin|share/zea|build)(/.*)?|.*-\d{5,}.*"
)
SCRIPTS = ["jobs/pack*.py", "postprocess/*.py", "tests/bench/bench_*.py"]
OWN_PROGRAMS = ["zea", "zea-import", "zea-consolidate", "zea-inspect", "zea-compare", "zea-generate"]
# Programs of others, whose options are theirs.
OTHERS = """
    mpirun kill touch scancel sbatch srun tensorboard cp rsync ulimit dd perf apptainer spack nproc unshare
""".split()
OPTIONS_OF_OTHERS = """
    --bind --shm-size --allow-run-as-root --oversubscribe --bind-to --gpu-bind --gpus-per-task -x --exclusive
    --gres --gpus-per-node --ntasks-per-node --mem --time --signal
""".split()
# Names of libraries, of processors and of libraries' output, which no source of ours spells.
NOT_OURS = """
    vader_segment amx_tile async_save find_package torch nvidia cuda crt cccl at parallel_for f member path LOCK SAVE
    STOP import Torch oob_tcp_dynamic_ipv4_ports btl_tcp_port_min_v4 btl_tcp_port_range_v4
""".split()


@cache
def text_of_sources():
    """All of them but the documents and their tests, adjacent literals joined as a compiler joins them."""
    paths = [path for name in SOURCES for path in [ROOT / name, *(ROOT / name).rglob("*")] if path.is_file()]
    kept = [path for path in paths if "documents" not in path.parts and path.suffix not in (".md", ".png", ".pyc")]
    text = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in kept)
    return re.sub(r'"\s*\n\s*f?"', "", text)


@cache
def words_of_sources():
    return set(re.findall(r"\w+", text_of_sources()))


def answer(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


@cache
def help_texts():
    tools = [BUILD / "postprocess" / name for name in OWN_PROGRAMS[1:]]
    scripts = [path for pattern in SCRIPTS for path in ROOT.glob(pattern)]
    return {
        "zea": answer(BUILD / "src/zea", "-h") + answer(BUILD / "src/zea", "-h", "hardware"),
        **{tool.name: answer(tool, "--help") for tool in tools},
        # argparse's own, of scripts that need packages: read, not run.
        **{script.name: script.read_text() for script in scripts},
        "setup.sh": (ROOT / "jobs/setup.sh").read_text(),
        "bundle.sh": (ROOT / "jobs/bundle.sh").read_text(),
        "file": "--file " + (ROOT / "tests/support/chosen_tests.cpp").read_text(),
    }


@cache
def deck_keys():
    """Every key of decks and hardware files with its section, and the line of the help that says what is allowed."""
    keys, section = {}, None
    for line in help_texts()["zea"].splitlines():
        if re.fullmatch(r"\[[\w.]+\]", line):
            section = line[1:-1]
        elif section and (found := re.match(r"  (\w+)(?: =|:) (.*)", line)):
            keys[f"{section}.{found[1]}"] = found[2]
    assert len(keys) > 100, "the help of zea lists no keys"
    return keys


@cache
def sections():
    return {key.rpartition(".")[0] for key in deck_keys()}


@cache
def test_names():
    listed = answer(CTEST, "--test-dir", BUILD, "-N")
    names = {line.split()[-1] for line in listed.splitlines() if line.lstrip().startswith("Test ")}
    stems = {path.stem for path in (ROOT / "tests").rglob("*.*")}
    return names | stems | set(re.findall(r"\bTEST(?:_[FP])?\(\w+, (\w+)\)", text_of_sources()))


def is_own_option(option):
    return any(re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text) for text in help_texts().values())


def file_exists(name, page):
    name = name.split(":")[0].rstrip(".")
    places = [ROOT, ROOT / "src", page.path.parent]
    if any((place / name).exists() for place in places):
        return True
    # Names of files that programs write are in their source, or in tests that look for them.
    return WRITTEN.fullmatch(name) is not None or name in text_of_sources() or "<" in name


def faults_of_setting(key, value):
    """Returns the faults of `key = value`; the key may lack its section."""
    asked = [allowed for name, allowed in deck_keys().items() if name == key or name.endswith("." + key)]
    if not asked:
        return [] if key.upper() == key else [f"no deck key is called {key}"]
    quoted = re.fullmatch(r'"(\w+)"', value)
    if quoted and not any(value in allowed or "one of" not in allowed and "string)" in allowed for allowed in asked):
        return [f"{key} does not allow {value}"]
    return []


def faults_of_word(word, page):
    """Returns the faults of one word of a code span."""
    word = word.strip(",;\"'()")
    if not word or re.fullmatch(r"[\W\d]+|<.*>|\d.*|\$.*", word):
        return []
    if word.startswith("-") and word.split("=")[0] not in OPTIONS_OF_OTHERS:
        option = word.split("=")[0]
        return [] if is_own_option(option) else [f"no program of ours has the option {option}"]
    if found := re.fullmatch(r"(?!section\.key)([a-z_]+(?:\.[a-z_]+)*)=(.*)", word):
        return faults_of_setting(found[1], found[2])
    if re.fullmatch(r"[a-z]+(\.[a-z_]+)+", word) and word.split(".")[0] in {name.split(".")[0] for name in sections()}:
        is_unit = re.match(r"(vision|audio|llm)\.(cp_|tp|layers|embed|merge|head|pp)", word)
        if word in deck_keys() or word in sections() or is_unit:
            return []
        if not FILE.fullmatch(word):
            return [f"no deck key is called {word}"]
    if re.fullmatch(r"(test|run|network|check|documents|deck|style|reference|bench)_\w+|other_processors", word):
        return [] if word in test_names() or word in words_of_sources() else [f"no test is called {word}"]
    if FILE.fullmatch(word):
        return [] if file_exists(word, page) else [f"there is no file {word}"]
    if re.fullmatch(r"([A-Z][a-z0-9]+){5,}", word):
        return [] if word in test_names() else [f"no test is called {word}"]
    names = [name for name in re.findall(r"[A-Za-z_]\w+", word) if name not in NOT_OURS]
    return [f"nothing in the source is called {name}" for name in names if name not in words_of_sources()]


def faults_of_span(span, page):
    if section := re.fullmatch(r"\[([a-z.]+)\]", span):
        return [] if section[1] in sections() else [f"no section is called {span}"]
    if section := re.fullmatch(r"\[(\w+)\.\*\]", span):
        return []
    if setting := re.fullmatch(r'([a-z_]+(?:\.[a-z_]+)*) = (\S+|"[^"]*"|\[.*\])', span):
        return faults_of_setting(setting[1], setting[2])
    words = span.split()
    if words[0] in OTHERS:
        words = [word for word in words if "/" in word and not word.startswith(("-", "<", "/"))]
    elif len(words) > 1 and words[0] not in OWN_PROGRAMS and SENTENCE.fullmatch(span):
        return [] if span in text_of_sources() else ["nothing says so"]
    return [fault for word in words for fault in faults_of_word(word, page)]


def spans_to_check(page):
    for number, text in page.lines:
        if page.name == FIRST_COLUMN_IS_OF_OTHERS and text.startswith("|"):
            text = text.split("|", 2)[2]
        for span in CODE_SPAN.findall(text):
            yield number, span


class Names(unittest.TestCase):
    def test_what_is_named_exists(self):
        for page in read_pages(ROOT):
            for number, span in spans_to_check(page):
                with self.subTest(f"{page.name}:{number}: `{span}`"):
                    self.assertEqual(faults_of_span(span, page), [])

    def test_what_does_not_exist_is_found(self):
        page = read_pages(ROOT)[0]
        wrong = ["optim.rate", "[mesh.text]", 'cp_mode = "star"', "--no-such-option", "src/nowhere.cpp", "test_nothing"]
        wrong += ["ZEA_NO_SUCH_VARIABLE", "NobodyEverWroteATestOfThisName", "no message says this", "no_such_function"]
        for span in wrong:
            with self.subTest(span):
                self.assertNotEqual(faults_of_span(span, page), [])


class Links(unittest.TestCase):
    def test_resolve(self):
        pages = {page.path: page for page in read_pages(ROOT)}
        for page in pages.values():
            for number, link in page.links():
                if link.startswith(("http://", "https://")):
                    continue
                with self.subTest(f"{page.name}:{number}: {link}"):
                    name, _, anchor = link.partition("#")
                    target = (page.path.parent / name).resolve() if name else page.path
                    self.assertTrue(target.exists(), "there is no such file")
                    if anchor:
                        self.assertIn(anchor, pages[target].anchors)


class Lines(unittest.TestCase):
    def test_are_short(self):
        for path in (*page_paths(ROOT), ROOT / "CHANGELOG.md"):
            lines = path.read_text(encoding="utf-8").splitlines()
            long = [n for n, line in enumerate(lines, 1) if len(line) > MAX_COLUMNS and not line.startswith("|")]
            self.assertEqual(long, [], f"{path.relative_to(ROOT)}: lines of more than {MAX_COLUMNS} columns")

    def test_cells_are_read_at_a_glance(self):
        for page in read_pages(ROOT):
            for number, text in page.lines:
                cells = LINK.sub("]", text).split("|") if text.startswith("|") else []
                widest = max(map(len, map(str.strip, cells)), default=0)
                self.assertLessEqual(widest, MAX_CELL, f"{page.name}:{number} has a cell of {widest} characters")

    def test_readme_is_a_page(self):
        self.assertLessEqual(len((ROOT / "README.md").read_text().splitlines()), MAX_LINES_OF_README)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
