# SPDX-License-Identifier: Apache-2.0
"""CITATION.cff, LICENSE, CHANGELOG.md, the Spack recipe and the Apptainer definition say what CMakeLists.txt says, and
their linters have nothing to say: cffconvert, Spack's audit and shellcheck, each where it is there.

usage: check_packaging.py ROOT
"""

import contextlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import types
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import script_main  # noqa: E402

ROOT = Path(sys.argv[1])
CMAKE = (ROOT / "CMakeLists.txt").read_text()
VERSION = re.search(r"project\(zea VERSION ([0-9.]+)", CMAKE)[1]
OPTIONS = set(re.findall(r"^(?:option|set)\((ZEA_\w+) ", CMAKE, re.MULTILINE))
CITATION = ROOT / "CITATION.cff"
SPACK_REPOSITORY = ROOT / "jobs" / "spack" / "spack_repo" / "zea"
RECIPE = SPACK_REPOSITORY / "packages" / "zea" / "package.py"
DEFINITION = ROOT / "jobs" / "zea.def"

# Packages that CMakeLists.txt looks for, by name in Spack; None: the compiler has it.
SPACK_NAMES = {
    "CLI11": "cli11",
    "FLAC": "flac",
    "GTest": "googletest",
    "HDF5": "hdf5",
    "JPEG": "jpeg",
    "Kokkos": "kokkos",
    "MPI": "mpi",
    "PNG": "libpng",
    "Threads": None,
    "XXHASH": "xxhash",
    "nlohmann_json": "nlohmann-json",
    "spdlog": "spdlog",
    "tomlplusplus": "tomlplusplus",
}
# Sections of a definition that holds one image; those named last hold shell scripts.
SCRIPTS = {"post", "environment", "runscript", "startscript", "test", "setup", "pre"}
SECTIONS = {"labels", "files", "help", "arguments"} | SCRIPTS


def said_by(command, text=""):
    """Returns a linter's output for a text, empty if it is content."""
    done = subprocess.run(
        command, check=False, input=text, capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr if done.returncode else ""


class Citation(unittest.TestCase):
    def test_names_the_version(self):
        self.assertIn(f"\nversion: {VERSION}\n", CITATION.read_text())

    def test_is_valid(self):
        try:
            from cffconvert import Citation as Checked
        except ImportError:
            self.skipTest("no cffconvert")
        Checked(CITATION.read_text()).validate()


class Files(unittest.TestCase):
    def test_license_is_the_one_that_others_name(self):
        text = (ROOT / "LICENSE").read_text()
        self.assertRegex(text, r"^\s*Apache License\s+Version 2\.0, January 2004\n")
        self.assertIn("END OF TERMS AND CONDITIONS", text)
        self.assertIn("\nlicense: Apache-2.0\n", CITATION.read_text())
        self.assertIn('license("Apache-2.0"', RECIPE.read_text())

    def test_changelog_begins_with_what_is_next_and_names_the_version(self):
        titles = re.findall(r"(?m)^## (.+)$", (ROOT / "CHANGELOG.md").read_text())
        self.assertEqual(titles[0], "Unreleased")
        for title in titles[1:]:
            self.assertRegex(title, r"^\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d$")
        self.assertIn(VERSION, (ROOT / "CHANGELOG.md").read_text())

    def test_install_takes_them(self):
        installed = re.search(r"(?m)^install\(FILES (.+) DESTINATION \$\{CMAKE_INSTALL_DOCDIR\}", CMAKE)[1]
        self.assertLessEqual({"LICENSE", "CHANGELOG.md"}, set(installed.split()))


class Recipe:
    """The recipe, run with directives that only note what they are given."""

    def __init__(self, variants):
        self.calls, self.defined = [], {}
        build_systems = "spack_repo.builtin.build_systems"
        names = ["spack", "spack.package", "spack_repo", "spack_repo.builtin", build_systems]
        modules = {name: types.ModuleType(name) for name in [*names, f"{build_systems}.cmake"]}
        modules[f"{build_systems}.cmake"].CMakePackage = type("CMakePackage", (), {})
        package = modules["spack.package"]
        for directive in ("license", "version", "variant", "depends_on"):
            setattr(package, directive, self.noting(directive))
        package.when = lambda condition: contextlib.nullcontext()
        package.join_path = os.path.join
        sys.modules.update(modules)
        recipe = runpy.run_path(str(RECIPE))
        recipe["Zea"].cmake_args(self.package_with(variants))

    def noting(self, directive):
        return lambda name, *_, **__: self.calls.append((directive, name))

    def package_with(self, variants):
        python = types.SimpleNamespace(platlib="lib/python3.11/site-packages")
        installed = {
            "python": types.SimpleNamespace(package=python),
            "py-torch": types.SimpleNamespace(prefix="/spack/py-torch"),
        }
        return types.SimpleNamespace(
            spec=installed,
            run_tests=False,
            define=self.defined.__setitem__,
            define_from_variant=lambda key, variant: self.defined.update({key: variants[variant]}),
        )

    def named(self, directive):
        return [re.split(r"[@+~ ]", name)[0] for kind, name in self.calls if kind == directive]


class Spack(unittest.TestCase):
    def setUp(self):
        self.recipe = Recipe({"nccl": True})

    def test_names_the_version(self):
        self.assertEqual(self.recipe.named("version"), [VERSION])
        self.assertIn(f"zea@{VERSION}", (SPACK_REPOSITORY / "repo.yaml").read_text())

    def test_brings_what_cmake_looks_for(self):
        finds = r"(?m)^ *find_(?:package|path|library)\((\w+?)(?:_INCLUDE_DIR|_LIBRARY)?[ )]"
        looked_for = re.findall(finds, CMAKE)
        self.assertGreater(len(looked_for), 8)
        for name in looked_for:
            self.assertIn(name, SPACK_NAMES, f"CMakeLists.txt looks for {name}: name it here")
            if SPACK_NAMES[name]:
                self.assertIn(SPACK_NAMES[name], self.recipe.named("depends_on"))

    def test_sets_options_that_there_are(self):
        self.assertEqual(set(self.recipe.defined) - OPTIONS, set())
        self.assertEqual(
            self.recipe.defined["ZEA_TORCH_ROOT"],
            "/spack/py-torch/lib/python3.11/site-packages/torch",
        )
        self.assertIs(self.recipe.defined["ZEA_ENABLE_NCCL"], True)

    def test_passes_spacks_audit(self):
        if not shutil.which("spack"):
            self.skipTest("no spack")
        said = said_by(["spack", "-c", f"repos:zea:{SPACK_REPOSITORY}", "audit", "packages", "zea"])
        self.assertEqual(said, "")


class Apptainer(unittest.TestCase):
    def setUp(self):
        text = DEFINITION.read_text()
        self.head, *parts = re.split(r"^%", text, flags=re.MULTILINE)
        self.titles = [part.split("\n")[0] for part in parts]
        self.bodies = {part.split(maxsplit=1)[0]: part.partition("\n")[2] for part in parts}

    def test_has_a_base_and_known_sections(self):
        self.assertRegex(self.head, r"(?m)^Bootstrap: docker\nFrom: debian:\S+$")
        self.assertEqual(set(self.bodies) - SECTIONS, set())
        self.assertEqual(len(self.bodies), len(self.titles), "a section is there twice")
        self.assertIn("post -c /bin/bash", self.titles)

    def test_names_the_version(self):
        self.assertIn(f"image.version {VERSION}\n", self.bodies["labels"])

    def test_copies_what_there_is_and_what_the_build_needs(self):
        copied = {}
        for line in self.bodies["files"].split("\n"):
            if line.strip():
                source, target = line.split()
                self.assertTrue((ROOT / source).exists(), source)
                copied[source] = target
        self.assertEqual(set(copied.values()), {f"/opt/zea/{source}" for source in copied})
        folders = re.findall(r"(?m)^add_subdirectory\((\w+)\)", CMAKE)
        files = re.findall(r"(?m)^install\((?:DIRECTORY|FILES) ([^$)]+?) DESTINATION", CMAKE)
        needed = {name for listed in files for name in listed.split()} | set(folders)
        self.assertEqual(needed - set(copied), set())

    def test_sets_options_that_there_are(self):
        options = re.findall(r"-D(ZEA_\w+)=", self.bodies["post"])
        self.assertEqual(options, ["ZEA_ENABLE_TESTS"])
        self.assertEqual(set(options) - OPTIONS, set())

    def test_scripts_pass_shellcheck(self):
        linter = shutil.which("shellcheck")
        for section in SCRIPTS & set(self.bodies):
            shell = "bash" if section == "post" else "sh"
            script = f"#!/bin/{shell}\n" + self.bodies[section]
            with self.subTest(section=section):
                self.assertEqual(said_by(["bash", "-n"], script), "")
                if linter:
                    self.assertEqual(said_by([linter, "-"], script), "")


script_main.main()
