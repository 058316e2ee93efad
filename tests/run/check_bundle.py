# SPDX-License-Identifier: Apache-2.0
"""What jobs/bundle.sh packs runs wherever it is unpacked, with the libtorch of a folder that is named at start.

usage: check_bundle.py BUNDLE_SCRIPT PRESET PYTHON MPIRUN [OPTION ...]
PYTHON runs the unpacked packer.
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUNDLE, PRESET, PYTHON = sys.argv[1:4]
MPIRUN = sys.argv[4:]
MOST_BYTES = 50 << 20
TOOLS = ["zea-import", "zea-inspect", "zea-consolidate", "zea-compare"]


def run(*command, cwd=None, **environment):
    words = [str(word) for word in command]
    known = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    return subprocess.run(
        words, check=False, capture_output=True, text=True, cwd=cwd, env=known, timeout=250
    )


class Bundle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="zea-bundle-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.archive = cls.folder / "zea.tar.gz"
        packed = run(BUNDLE, "--tests", PRESET, cls.archive)
        assert packed.returncode == 0, packed.stderr
        elsewhere = cls.folder / "a place" / "of its own"
        elsewhere.mkdir(parents=True)
        assert run("tar", "-C", elsewhere, "-xf", cls.archive).returncode == 0
        (cls.tree,) = elsewhere.iterdir()
        # The libtorch of the build, under a name that the tree does not know.
        build = Path(BUNDLE).parent.parent / "build" / PRESET
        place = re.search(r"libtorch: \S+ in ([^;]*);", run(build / "src/zea", "-c").stdout)[1]
        cls.torch = cls.folder / "site" / Path(place).name
        cls.torch.parent.symlink_to(Path(place).parent)

    def program(self, name):
        return self.tree / "bin" / name

    def expect(self, *command):
        result = run(*command, cwd=self.folder, ZEA_TORCH_ROOT=self.torch)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def test_is_small(self):
        self.assertLess(self.archive.stat().st_size, MOST_BYTES)

    def test_needs_nothing_of_the_build(self):
        programs = [self.tree / "libexec/zea/zea", *map(self.program, TOOLS)]
        for program in programs:
            paths = re.findall(r"R(?:UN)?PATH.*\[(.*)\]", run("readelf", "-d", program).stdout)
            self.assertEqual(len(paths), 1, program)
            self.assertRegex(paths[0], r"^\$ORIGIN/[./]*lib\S*/zea$")
        for line in run("ldd", self.program("zea-import")).stdout.splitlines():
            if re.search("hdf5|libsz|libaec", line):
                self.assertIn(str(self.tree), line)

    def test_says_its_version(self):
        self.assertRegex(self.expect(self.program("zea"), "--version"), r"^zea \d")
        for name in TOOLS:
            self.assertIn(f"{name} [OPTIONS]", self.expect(self.program(name), "--help"))

    def test_names_a_folder_without_libtorch(self):
        result = run(self.program("zea"), "--version", ZEA_TORCH_ROOT=self.folder)
        self.assertEqual(result.returncode, 2)
        self.assertIn(f"there is no libtorch in {self.folder} (lib/libtorch_cpu.so)", result.stderr)

    def test_brings_what_a_machine_with_gpus_is_asked(self):
        if not (self.tree / "libexec/zea/tests/gpu_device_kernels").is_file():
            self.skipTest("no device kernels in this build")
        script = self.tree / "share/zea/tests/gpu/first_run.sh"
        asked = ["--device", "cpu", "--out", "asked", "--parts", "versions", "kernels", "--mpirun", " ".join(MPIRUN)]
        result = run(script, *asked, cwd=self.folder, ZEA_TORCH_ROOT=self.torch, PYTHON=PYTHON)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        report = (self.folder / "asked/report.md").read_text()
        self.assertIn("libtorch: ", report)
        self.assertIn("gpu_device_kernels on 1 ranks", report)

    def test_trains(self):
        if run(PYTHON, "-c", "import h5py, tokenizers").returncode:
            self.skipTest("no h5py or tokenizers")
        share = self.tree / "share" / "zea"
        text = self.folder / "text.txt"
        text.write_text("".join(f"{number} and one are {number + 1}.\n" for number in range(2000)))
        pack = [PYTHON, "-B", share / "jobs/pack_text.py", text, "--out", "packed"]
        self.expect(*pack, "--train-bpe", "512", "--max-tokens", "64")
        self.expect(self.program("zea-import"), "--random", share / "inputs/gpt2_2m.json", "w.h5")
        deck = [self.program("zea"), "-i", share / "inputs/gpt2_2m_jargon.toml"]
        keys = ["model.weights=w.h5", "data.train=packed/train.h5", 'data.eval=""', "eval.every=0"]
        small = ["schedule.steps=2", "optim.warmup_steps=1", "schedule.global_batch=4", "data.row_tokens=64"]
        self.expect(*MPIRUN, "-n", "2", *deck, *keys, *small, "-d", "run")
        self.assertTrue((self.folder / "run/checkpoints/step-00000002/manifest.json").is_file())


unittest.main(argv=sys.argv[:1])
