# SPDX-License-Identifier: Apache-2.0
"""The tree of cmake --install works from its prefix, and find_package finds it.

usage: check_install.py CMAKE BUILD_FOLDER PYTHON
PYTHON runs the installed scripts; without matplotlib there, the picture is left out.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import script_main  # noqa: E402
from search_paths import search_paths, unsafe_search_paths  # noqa: E402

CMAKE, BUILD, PYTHON = sys.argv[1:4]
PROGRAMS = ["zea", "zea-import", "zea-inspect", "zea-consolidate", "zea-compare"]
SCRIPTS = [
    *["contact_sheet.py", "merge_traces.py", "plot_metrics.py", "plot_plan.py", "plot_schedule.py"],
    *["read_checkpoint.py", "score.py"],
    "spoken_sheet.py",
    *["pack.py", "pack_fashion_mnist.py", "pack_spoken.py", "pack_text.py"],
]
GENERATE = "zea-generate"  # a program that is a script, generate.py
# Completes the given words, the last of them incomplete; prints the completions, a line each.
COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
$(complete -p "$1" | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES NONE)
find_package(zea ${WANTED} CONFIG REQUIRED)
foreach(program zea import inspect consolidate compare)
  get_target_property(place zea::${program} LOCATION)
  message(STATUS "found ${zea_VERSION}: ${place}")
endforeach()
"""


def run(*command, cwd=None):
    words = [str(word) for word in command]
    return subprocess.run(words, check=False, capture_output=True, text=True, cwd=cwd, timeout=250)


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="zea-install-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.prefix = cls.folder / "prefix"
        cls.share = cls.prefix / "share" / "zea"
        cls.elsewhere = cls.folder / "elsewhere"
        cls.elsewhere.mkdir()
        installed = run(CMAKE, "--install", BUILD, "--prefix", cls.prefix)
        assert installed.returncode == 0, installed.stderr

    def expect(self, *command):
        """Output of a command that is started far from source and build."""
        result = run(*command, cwd=self.elsewhere)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def program(self, name):
        return self.prefix / "bin" / name

    def test_nothing_loads_libraries_from_the_working_directory(self):
        for folder, least in ((Path(BUILD), 6), (self.prefix, 6)):
            unsafe, files = unsafe_search_paths(folder)
            self.assertEqual(unsafe, [])
            self.assertGreaterEqual(files, least)
        self.assertEqual(search_paths(self.prefix / "libexec/zea/zea"), [["$ORIGIN/../../lib/zea"]])
        for name in PROGRAMS[1:]:
            self.assertEqual(search_paths(self.program(name)), [["$ORIGIN/../lib/zea"]])

    def test_license_and_changes(self):
        names = {path.name for path in (self.prefix / "share" / "doc").rglob("*")}
        self.assertLessEqual({"README.md", "CITATION.cff", "LICENSE", "CHANGELOG.md"}, names)

    def test_links_of_its_readme_resolve(self):
        readme = next((self.prefix / "share" / "doc").rglob("CITATION.cff")).parent / "README.md"
        links = re.findall(r"\]\(([^)#]+)", readme.read_text())
        self.assertGreater(len(links), 10)
        self.assertEqual([link for link in links if not (readme.parent / link).exists()], [])

    def test_plans(self):
        deck = self.share / "inputs" / "fashion_captions_2m.toml"
        config = f"model.config={deck.with_suffix('.json')}"
        plan = [self.program("zea"), "-n", "--ranks", 8, "-i", deck, 'model.weights=""', config]
        self.assertIn("8 ranks", self.expect(*plan))

    def test_programs_and_scripts(self):
        names = sorted(path.name for path in (self.prefix / "bin").iterdir())
        self.assertEqual(names, sorted([*PROGRAMS, GENERATE]))
        for name in PROGRAMS[1:]:
            self.assertIn(f"{name} [OPTIONS]", self.expect(self.program(name), "--help"))
        self.assertIn("usage: zea-generate [-h]", self.expect(self.program(GENERATE), "--help"))
        refused = run(self.program(GENERATE), "nowhere", "Why?", cwd=self.elsewhere)
        self.assertEqual((refused.returncode, refused.stdout), (1, ""))
        self.assertIn("nowhere: there is no such directory or file", refused.stderr)
        config = self.share / "inputs" / "gpt2_2m.json"
        self.expect(self.program("zea-import"), "--random", config, "weights.h5")
        self.assertIn("2,222,208 elements", self.expect(self.program("zea-inspect"), "weights.h5"))

    def test_draws(self):
        if run(PYTHON, "-c", "import matplotlib").returncode:
            self.skipTest("no matplotlib")
        directory = self.elsewhere / "run"
        directory.mkdir()
        line = {"kind": "train", "step": 1, "loss": 2.0}
        (directory / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        self.expect(PYTHON, self.share / "postprocess" / "plot_metrics.py", "run")
        self.assertTrue((directory / "metrics.png").is_file())

    def test_packers_find_what_they_import(self):
        if run(PYTHON, "-c", "import h5py, tokenizers").returncode:
            self.skipTest("no h5py or tokenizers")
        for script in self.share.glob("jobs/pack*.py"):
            self.assertIn("usage:", self.expect(PYTHON, "-B", script, "--help"))

    def test_batch_scripts_name_the_installed_program(self):
        scripts = sorted(self.share.glob("jobs/*.sbatch"))
        self.assertEqual(len(scripts), 3)
        for script in scripts:
            text = script.read_text()
            self.assertIn(f"zea=${{ZEA:-{self.program('zea')}}}", text)
            self.assertIn(f"zea_folder=${{ZEA_FOLDER:-{self.share}}}", text)
            self.expect("bash", "-n", script)
        self.assertTrue((self.share / "jobs" / "train_chain.sh").is_file())

    def page(self, name):
        """As it is read, but for the control lines of roff."""
        text = (self.prefix / "share" / "man" / "man1" / f"{name}.1").read_text()
        self.assertTrue(text.startswith(f'.TH {name.upper()} 1 "" "zea 0'), text[:80])
        sections = re.findall(r"(?m)^\.SH (.*)$", text)
        self.assertEqual(sections[:3], ["NAME", "SYNOPSIS", "OPTIONS"])
        unknown = set(re.findall(r"(?m)^\.(\w*)", text)) - {"TH", "SH", "TP", "B", "nf", "fi", "nh", "hy"}
        self.assertEqual(unknown, set())
        self.assertEqual(set(re.findall(r"\\(\(?.)", text)) - set("-e&") - {"(d"}, set())
        lines = [line for line in text.splitlines() if not re.match(r"\.(TH|SH|TP|nf|fi|nh|hy)", line)]
        for written, read in (("\\-", "-"), ("\\(dq", '"'), ("\\&", ""), (".B ", ""), ("\\e", "\\")):
            lines = [line.replace(written, read) for line in lines]
        return "\n".join(lines)

    def test_every_option_and_key_is_in_a_man_page(self):
        pages = self.prefix / "share" / "man" / "man1"
        names = sorted(path.name for path in pages.iterdir())
        self.assertEqual(names, sorted(f"{name}.1" for name in [*PROGRAMS, GENERATE, *SCRIPTS]))
        for name in PROGRAMS:
            said = self.expect(self.program(name), "--help")
            page = self.page(name)
            options = re.findall(r"(?m)^  ((?:-\w,)?--?\w[\w-]*)", said.partition("\nDeck (TOML)")[0])
            self.assertGreater(len(options), 2)
            for option in options:
                self.assertRegex(page, rf"(?m)^{option.replace(',', ', ')}( |$)")
            self.assertIn("75   stopped on purpose" if name == "zea" else "7 storage", page)
        reference = self.expect(self.program("zea"), "-h").partition("\nDeck (TOML)")[2]
        section, keys, page = "", 0, self.page("zea")
        for line in reference.splitlines():
            if line.startswith("["):
                section = line.strip("[]")
            if key := re.fullmatch(r"  (\w+ = .*?)   \((.*)\)", line):
                self.assertIn(f"\n{section}.{key[1]}\n({key[2]}) ", page)
                keys += 1
        self.assertGreater(keys, 100)
        for name in [GENERATE, *SCRIPTS]:
            script = "generate.py" if name == GENERATE else name
            source = self.share / ("jobs" if name.startswith("pack") else "postprocess") / script
            for option in re.findall(r"add_argument\(\s*\"(-[\w-]+)", source.read_text()):
                self.assertRegex(self.page(name), rf"(?m)(^|, ){option}( |,|$)")

    def test_man_pages_have_no_faults(self):
        if not shutil.which("groff"):
            self.skipTest("no groff")
        for page in (self.prefix / "share" / "man" / "man1").iterdir():
            result = run("groff", "-man", "-Tascii", "-ww", "-z", page)
            self.assertEqual((result.returncode, result.stderr), (0, ""), page)

    def complete(self, *words):
        script = self.prefix / "share" / "bash-completion" / "completions" / words[0]
        found = self.expect("bash", "-c", COMPLETE, "bash", script, *words).splitlines()
        return sorted(filter(None, found))

    def test_completion(self):
        (self.elsewhere / "a deck.toml").touch()
        (self.elsewhere / "a_deck.txt").touch()
        (self.elsewhere / "a_folder").mkdir()
        self.assertEqual(self.complete("zea", "--r"), ["--ranks", "--ranks-per-node", "--reproduce"])
        self.assertEqual(self.complete("zea", "-h", "mesh.llm.t"), ["mesh.llm.tp", "mesh.llm.tp_chunks"])
        self.assertIn("mesh.vision", self.complete("zea", "-h", "mesh."))
        self.assertEqual(self.complete("zea", "-i", "a"), ["a deck.toml", "a_folder"])
        self.assertEqual(self.complete("zea", "-r", "a"), ["a_folder"])
        self.assertEqual(self.complete("zea", "--ranks", ""), [])
        self.assertEqual(self.complete("zea", "-n", "optim.warm"), ["optim.warmup_steps="])
        self.assertEqual(self.complete("zea-consolidate", "--dtype", "b"), ["bfloat16"])
        self.assertEqual(self.complete("zea-consolidate", "--op"), ["--optimizer"])
        self.assertEqual(self.complete("zea-inspect", "a_"), ["a_deck.txt", "a_folder"])
        self.assertEqual(self.complete("pack.py", "--on-fault", "s"), ["skip", "stop"])
        for name in [*PROGRAMS, GENERATE, *SCRIPTS]:
            self.assertNotIn("--manual", self.complete(name, "-"))
            self.assertTrue(self.complete(name, "-"), name)

    def test_example_builds_against_the_library_and_runs(self):
        source, built = Path(__file__).parents[1] / "library", self.folder / "example"
        self.expect(CMAKE, "-S", source, "-B", built, f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.expect(CMAKE, "--build", built)
        config = self.share / "inputs" / "fashion_captions_2m.json"
        self.expect(self.program("zea-import"), "--random", config, "example.h5")
        deck = self.share / "inputs" / "fashion_captions_2m.toml"
        printed = self.expect(built / "example", "example.h5", deck, "example_set.h5")
        self.assertRegex(printed, r"example.h5: \d+ tensors; \S+ begins with -?\d")
        self.assertRegex(printed, r"on 2 ranks: \d{6,} bytes per rank\n1 samples, the first with 2 targets")
        checkpoint = Path(__file__).parent / "kept" / "checkpoint"
        self.assertIn("39 tensors", self.expect(built / "example", checkpoint, deck, "other_set.h5"))
        self.assertIn("1 samples, 3 tokens", self.expect(self.program("zea-inspect"), "example_set.h5"))
        refused = run(built / "example", "nowhere.h5", deck, "set.h5", cwd=self.elsewhere)
        self.assertEqual((refused.returncode, refused.stdout), (4, ""))
        self.assertIn("nowhere.h5: does not exist", refused.stderr)

    def test_public_headers_stand_alone(self):
        """Each compiles by itself, of none but standard headers and its neighbours."""
        headers = sorted((self.prefix / "include" / "zea").glob("*.hpp"))
        self.assertLessEqual(len(headers), 15)
        for header in headers:
            included = re.findall(r'#include "([^"]*)"', header.read_text())
            self.assertEqual([name for name in included if not name.startswith("zea/")], [])
            self.expect("c++", "-std=c++20", "-fsyntax-only", "-Wall", "-Werror", "-I", self.prefix / "include",
                        "-x", "c++", "-include", header, "/dev/null")

    def find_package(self, version):
        source = self.folder / f"user-{version}"
        source.mkdir()
        (source / "CMakeLists.txt").write_text(PROJECT.replace("${WANTED}", version))
        arguments = ["-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}"]
        return run(CMAKE, *arguments)

    def test_package_and_its_version(self):
        version = self.expect(self.program("zea"), "--version").split()[1]
        result = self.find_package(version)
        self.assertEqual(result.returncode, 0, result.stderr)
        for name in PROGRAMS:
            self.assertIn(f"found {version}: {self.program(name)}", result.stdout)
        major, minor, patch = version.split(".")
        for other in (f"{major}.{minor}.{int(patch) + 1}", f"{major}.{int(minor) + 1}", "99"):
            refused = self.find_package(other)
            self.assertNotEqual(refused.returncode, 0, other)
            self.assertIn(f"version: {version}", refused.stderr)

    def test_nothing_leads_back_to_the_build(self):
        build = os.fsencode(str(Path(BUILD).resolve()))
        for path in self.prefix.rglob("*"):
            if path.is_file():
                self.assertNotIn(build + b"/", path.read_bytes(), path)


script_main.main()
