# SPDX-License-Identifier: Apache-2.0
"""The archive of jobs/bundle.sh runs wherever it is unpacked, with the libtorch of a folder that is named at start, and
with the machine's Open MPI or, if it has none, with the packed one.

usage: check_bundle.py BUNDLE_SCRIPT PRESET PYTHON MPIRUN [OPTION ...]
PYTHON runs the unpacked packer.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import script_main  # noqa: E402
from search_paths import unsafe_search_paths  # noqa: E402

BUNDLE, PRESET, PYTHON = sys.argv[1:4]
MPIRUN = sys.argv[4:]
WITHOUT_OPEN_MPI = Path(__file__).with_name("without_open_mpi.sh")
PACKED_MPIRUN = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
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
        cls.said = packed.stderr
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

    def expect_without_open_mpi(self, *command, **environment):
        result = run(WITHOUT_OPEN_MPI, *command, cwd=self.folder, ZEA_TORCH_ROOT=self.torch, **environment)
        if result.returncode == 77:
            self.skipTest("no mounts of its own are allowed here")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def test_is_small(self):
        self.assertLess(self.archive.stat().st_size, MOST_BYTES)

    def test_needs_nothing_of_the_build(self):
        recorder = [*self.tree.glob("libexec/zea/tests/record_activity.so")]  # where CUPTI was found
        programs = [self.tree / "libexec/zea/zea", *map(self.program, TOOLS), *recorder]
        for program in programs:
            paths = re.findall(r"R(?:UN)?PATH.*\[(.*)\]", run("readelf", "-d", program).stdout)
            self.assertEqual(len(paths), 1, program)
            self.assertRegex(paths[0], r"^\$ORIGIN/[./]*lib\S*/zea$")
        unsafe, files = unsafe_search_paths(self.tree)
        self.assertEqual(unsafe, [])
        self.assertGreater(files, 10)
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

    def first_run(self, out):
        """The script for machines with GPUs, and what it does on the host."""
        if not (self.tree / "libexec/zea/tests/gpu_device_kernels").is_file():
            self.skipTest("no device kernels in this build")
        script = self.tree / "share/zea/tests/gpu/first_run.sh"
        return [script, "--device", "cpu", "--out", out, "--parts", "versions", "kernels"]

    def expect_kernels(self, out):
        report = (self.folder / out / "report.md").read_text()
        self.assertIn("libtorch: ", report)
        self.assertIn("gpu_device_kernels on 1 ranks", report)
        self.assertNotIn("WRONG", report)
        return report

    def test_brings_what_a_machine_with_gpus_is_asked(self):
        script = self.first_run("asked")
        result = run(*script, "--mpirun", " ".join(MPIRUN), cwd=self.folder, ZEA_TORCH_ROOT=self.torch, PYTHON=PYTHON)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.expect_kernels("asked")

    def test_brings_what_a_gpu_measures(self):
        script = self.tree / "share/zea/tests/gpu/lease.sh"
        if not (self.tree / "libexec/zea/tests/gpu_cuda_layouts").is_file():
            self.skipTest("no NCCL in this build")
        if run(PYTHON, "-c", "import h5py, torch, transformers").returncode:
            self.skipTest("no h5py, torch or transformers")
        command = [script, "--device", "cpu", "--quick", "--out", "lease", "--mpirun", " ".join(MPIRUN)]
        result = run(*command, "--parts", "pipelines", cwd=self.folder, ZEA_TORCH_ROOT=self.torch, PYTHON=PYTHON)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"(?m)^pipelines: good, \d+ s: 1 pipelines of 8 ranks, 0 wrong; decides ")

    def test_asks_machines_without_open_mpi(self):
        self.expect_without_open_mpi(*self.first_run("without"), PYTHON=PYTHON)
        self.assertIn("(OpenRTE) 4.", self.expect_kernels("without"))

    def training(self, name):
        """Two steps of a model that both were made here, with what is packed."""
        if run(PYTHON, "-c", "import h5py, tokenizers").returncode:
            self.skipTest("no h5py or tokenizers")
        share = self.tree / "share" / "zea"
        text = self.folder / "text.txt"
        text.write_text("".join(f"{number} and one are {number + 1}.\n" for number in range(2000)))
        if not (self.folder / "packed").exists():
            pack = [PYTHON, "-B", share / "jobs/pack_text.py", text, "--out", "packed"]
            self.expect(*pack, "--train-bpe", "512", "--max-tokens", "64")
            self.expect(self.program("zea-import"), "--random", share / "inputs/gpt2_2m.json", "w.h5")
        deck = [self.program("zea"), "-i", share / "inputs/gpt2_2m_jargon.toml"]
        keys = ["model.weights=w.h5", "data.train=packed/train.h5", 'data.eval=""', "eval.every=0"]
        small = ["schedule.steps=2", "optim.warmup_steps=1", "schedule.global_batch=4", "data.row_tokens=64"]
        return [*deck, *keys, *small, "-d", name]

    def expect_two_ranks(self, name):
        manifest = json.loads((self.folder / name / "checkpoints/step-00000002/manifest.json").read_text())
        self.assertEqual(manifest["world_size"], 2)

    def test_trains(self):
        self.expect(*MPIRUN, "-n", "2", *self.training("run"))
        self.expect_two_ranks("run")

    def test_trains_without_open_mpi(self):
        needs = self.expect_without_open_mpi("ldd", self.tree / "libexec/zea/zea")
        self.assertRegex(needs, r"libmpi\.so\.\d+ => not found")
        launcher = [self.program("zea-mpirun"), *PACKED_MPIRUN]
        self.expect_without_open_mpi(*launcher, "-n", "2", *self.training("without"))
        self.expect_two_ranks("without")

    def test_trains_on_nodes_without_open_mpi(self):
        """The other node's environment tells nothing: its shell finds the tree alone (in a place without blanks)."""
        plain = self.folder / "plain"
        plain.mkdir()
        self.expect("tar", "-C", plain, "-xf", self.archive)
        (tree,) = plain.iterdir()
        agent = self.folder / "agent.sh"
        agent.write_text('#!/bin/sh\nshift\nexec env -i HOME="$HOME" PATH=/usr/bin:/bin sh -c "$*"\n')
        agent.chmod(0o755)
        lo = ["--mca", "oob_tcp_if_include", "lo", "--mca", "btl_tcp_if_include", "lo"]
        over = ["--mca", "plm_rsh_agent", agent, *lo]
        hosts = ["--host", f"{socket.gethostname()}:1,127.0.0.2:1", "-x", "ZEA_TORCH_ROOT"]
        launcher = [tree / "bin/zea-mpirun", *PACKED_MPIRUN, *over, *hosts]
        self.expect_without_open_mpi(*launcher, "-n", "2", tree / "bin/zea", *self.training("nodes")[1:])
        self.expect_two_ranks("nodes")

    def test_starts_alone_without_open_mpi(self):
        self.assertRegex(self.expect_without_open_mpi(self.program("zea"), "--version"), r"^zea \d")

    def test_refuses_launchers_that_ranks_would_not_find_each_other_by(self):
        command = [self.program("zea"), "--version"]
        result = run(WITHOUT_OPEN_MPI, *command, ZEA_TORCH_ROOT=self.torch, PMI_SIZE=2)
        if result.returncode == 77:
            self.skipTest("no mounts of its own are allowed here")
        self.assertEqual(result.returncode, 2)
        self.assertIn(f"start them with {self.program('zea-mpirun')}", result.stderr)
        self.expect(*command)  # by the machine's own MPI

    def test_brings_licenses(self):
        if run("dpkg", "-S", "libc.so.6").returncode:
            self.skipTest("only Debian's packages are known")
        texts = self.tree / "share/doc/zea/licenses"
        self.assertIn("http://open-mpi.org/", (texts / "libopenmpi3.txt").read_text())
        self.assertIn("GNU LESSER GENERAL PUBLIC LICENSE", (texts / "common-licenses/LGPL-2.1").read_text())
        self.assertLessEqual({"libhdf5-103-1.txt", "libpmix2.txt"}, {text.name for text in texts.iterdir()})
        self.assertNotIn("no licence", self.said)

    def test_leaves_open_mpi_out(self):
        archive = self.folder / "small.tar.gz"
        self.expect(BUNDLE, "--no-mpi", PRESET, archive)
        self.assertNotRegex(self.expect("tar", "-tf", archive), r"openmpi|zea-mpirun|libmpi")
        self.assertLess(archive.stat().st_size, self.archive.stat().st_size)

    def test_refuses(self):
        unknown = run(BUNDLE, "--without-mpi", PRESET, self.folder / "none.tar.gz")
        self.assertEqual(unknown.returncode, 1)
        self.assertIn("--without-mpi is neither --tests nor --no-mpi", unknown.stderr)
        pack = Path(BUNDLE).with_name("bundle_mpi.sh")
        for program, why in ((self.program("zea-import"), "is not linked to an MPI"), (self.program("zea"), "")):
            result = run(pack, program, self.folder / "nowhere")
            self.assertEqual(result.returncode, 1, result.stdout)
            self.assertIn(why, result.stderr)
            self.assertIn("jobs/bundle.sh --no-mpi", result.stderr)


script_main.main()
