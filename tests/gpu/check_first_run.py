# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/first_run.sh finds nothing wrong on the host, and finds what is planted.

usage: check_first_run.py FIRST_RUN BUILD MPIRUN
MPIRUN: a list as CMake writes it.
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

FIRST_RUN, BUILD, MPIRUN = sys.argv[1], Path(sys.argv[2]), sys.argv[3].replace(";", " ")
PARTS = ["versions", "kernels", "tables", "parity", "resume", "memory", "speed", "determinism"]

if subprocess.run([sys.executable, "-c", "import h5py, torch, transformers"], check=False).returncode:
    print("skipped: no h5py, torch or transformers")
    sys.exit(77)


class FirstRun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="zea-first-run-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def first_run(self, tree, *options):
        """The exit code, what it printed and the report."""
        out = self.folder / "out"
        command = [FIRST_RUN, "--tree", tree, "--out", out, "--mpirun", MPIRUN, *options]
        words = [str(word) for word in command]
        how = {"capture_output": True, "text": True, "timeout": 500}
        done = subprocess.run(words, check=False, **how)
        report = out / "report.md"
        return done.returncode, done.stdout + done.stderr, report.read_text() if report.is_file() else ""

    def test_finds_nothing_wrong(self):
        code, said, report = self.first_run(BUILD, "--device", "cpu", "--quick", "--parts", *PARTS)
        self.assertEqual(code, 0, said + report)
        self.assertNotIn("WRONG", report)
        for part in PARTS:
            self.assertIn(f"| {part} | ", report)
        told = ["ok: Llava, fp32, cp 2", "the same bits", "predicted", "| zea, fp32 | ", "| transformers, fp32 | "]
        for words in told:
            self.assertIn(words, report)
        self.assertIn("left out: gpu_device_kernels on 1 ranks", report)
        self.assertIn("ok: gpu_cuda_layouts on 8 ranks: 3 passed, 0 skipped", report)

    def test_finds_a_zea_that_computes_something_else(self):
        """Another learning rate wherever there are two ranks."""
        tree = self.folder / "tree"
        (tree / "src").mkdir(parents=True)
        (tree / "postprocess").symlink_to(BUILD / "postprocess")
        false = tree / "src/zea"
        alone = '[ "$OMPI_COMM_WORLD_SIZE" = 1 ]'
        false.write_text(f'#!/bin/sh\n{alone} || set -- "$@" optim.lr=3e-3\nexec {BUILD}/src/zea "$@"\n')
        false.chmod(0o755)
        code, said, report = self.first_run(tree, "--device", "cpu", "--quick", "--parts", "parity")
        self.assertEqual(code, 1, said + report)
        self.assertIn("**WRONG**: Llava, fp32, no_shard, 2 ranks", report)
        self.assertIn("ok: Llava, fp32, no_shard, 1 ranks", report)

    def test_stops_when_the_time_is_over(self):
        code, said, report = self.first_run(BUILD, "--device", "cpu", "--minutes", "0", "--parts", "versions", "parity")
        self.assertEqual(code, 0, said)
        self.assertEqual(report.count("left out: "), 2)

    def test_refuses_what_is_no_tree(self):
        code, said, _ = self.first_run(self.folder, "--device", "cpu")
        self.assertEqual(code, 1)
        self.assertIn("is neither a build folder (src/zea) nor a packed tree (bin/zea)", said)

    def test_wants_a_gpu(self):
        if os.path.exists("/dev/nvidia0"):
            self.skipTest("there is one")
        code, said, _ = self.first_run(BUILD)
        self.assertEqual(code, 1)
        self.assertIn("nvidia-smi shows no GPU", said)


unittest.main(argv=sys.argv[:1])
