# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/first_run.sh finds nothing wrong on the host, and finds what is planted.

usage: check_first_run.py FIRST_RUN BUILD MPIRUN
MPIRUN: a list as CMake writes it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

FIRST_RUN, BUILD, MPIRUN = sys.argv[1], Path(sys.argv[2]), sys.argv[3].replace(";", " ")
PARTS = ["versions", "kernels", "tables", "parity", "resume", "memory", "speed", "determinism"]

# Runs what it is given, which has so many steps.
NSYS = """
import sqlite3, subprocess, sys
output = next(word for word in sys.argv if word.startswith("--output=")).removeprefix("--output=") + ".sqlite"
program = next(i for i, word in enumerate(sys.argv[2:], 2) if not word.startswith("--"))
steps = next(int(word.split("=")[1]) for word in sys.argv if word.startswith("schedule.steps="))
with sqlite3.connect(output) as file:
    file.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, name INT)")
    file.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, bytes INT)")
    file.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0)", [(i, i + 1000) for i in range(10)])
    spans = [(500 * i, 500 * i + 1000) for i in range(7 * steps)]
    file.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, 0)", spans)
sys.exit(subprocess.run(sys.argv[program:]).returncode)
"""

sys.path[:0] = [str(Path(FIRST_RUN).parent / "first_run"), str(Path(FIRST_RUN).parents[2] / "jobs")]

if subprocess.run([sys.executable, "-c", "import h5py, torch, transformers"], check=False).returncode:
    print("skipped: no h5py, torch or transformers")
    sys.exit(77)


class FirstRun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="zea-first-run-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def first_run(self, tree, *options, env=None):
        """The exit code, what it printed and the report."""
        out = self.folder / "out"
        command = [FIRST_RUN, "--tree", tree, "--out", out, "--mpirun", MPIRUN, *options]
        words = [str(word) for word in command]
        how = {"capture_output": True, "text": True, "timeout": 500, "env": {**os.environ, **(env or {})}}
        done = subprocess.run(words, check=False, **how)
        report = out / "report.md"
        return done.returncode, done.stdout + done.stderr, report.read_text() if report.is_file() else ""

    def tree_with(self, line):
        """A tree whose zea does what the shell's `line` says before it starts."""
        tree = self.folder / "tree"
        (tree / "src").mkdir(parents=True)
        (tree / "postprocess").symlink_to(BUILD / "postprocess")
        zea = tree / "src/zea"
        zea.write_text(f'#!/bin/sh\n{line}\nexec {BUILD}/src/zea "$@"\n')
        zea.chmod(0o755)
        return tree

    def test_finds_nothing_wrong(self):
        code, said, report = self.first_run(BUILD, "--device", "cpu", "--quick", "--parts", *PARTS)
        self.assertEqual(code, 0, said + report)
        self.assertNotIn("WRONG", report)
        for part in PARTS:
            self.assertIn(f"| {part} | ", report)
        told = ["ok: Llava, fp32, cp 2", "tensors are the host's", "the same bits", "predicted"]
        for words in [*told, "| zea, fp32 | ", "| transformers, fp32 | "]:
            self.assertIn(words, report)
        self.assertIn("left out: gpu_device_kernels on 1 ranks", report)
        self.assertIn("ok: gpu_cuda_layouts on 8 ranks: 4 passed, 0 skipped", report)

    def test_finds_a_zea_that_computes_something_else(self):
        """Another learning rate wherever there are two ranks."""
        tree = self.tree_with('[ "$OMPI_COMM_WORLD_SIZE" = 1 ] || set -- "$@" optim.lr=3e-3')
        code, said, report = self.first_run(tree, "--device", "cpu", "--quick", "--parts", "parity")
        self.assertEqual(code, 1, said + report)
        self.assertIn("**WRONG**: Llava, fp32, no_shard, 2 ranks", report)
        self.assertIn("ok: Llava, fp32, no_shard, 1 ranks", report)

    def test_tells_launches_and_idle_time_by_nsys(self):
        """By one that tells of 10 kernels of a run, and of 7 copies of each step, two at a time, of 1 us."""
        programs = self.folder / "bin"
        programs.mkdir()
        (programs / "nsys").write_text(f"#!{sys.executable}\n{NSYS}")
        (programs / "nsys").chmod(0o755)
        path = {"PATH": f"{programs}:{os.environ['PATH']}"}
        code, said, report = self.first_run(BUILD, "--device", "cpu", "--quick", "--parts", "speed", env=path)
        self.assertEqual(code, 0, said + report)
        self.assertNotIn("nsys (Nsight Systems) is not in the PATH", report)
        row = next(line for line in report.splitlines() if line.startswith("| zea, fp32 | "))
        cells = [cell.strip() for cell in row.split("|")[2:]]
        self.assertRegex(cells[2], r"^- \([0-9.e-]+ TFLOP/s\)$")
        peer = next(line for line in report.splitlines() if line.startswith("| transformers, fp32 | ")).split("|")
        rates = [float(cell.split("(")[1].split()[0]) for cell in (cells[2], peer[4])]
        times = [float(cells[0]), float(peer[2])]
        self.assertAlmostEqual(rates[0] * times[0], rates[1] * times[1], delta=0.02 * rates[0] * times[0])
        self.assertEqual(cells[3], "7")
        self.assertAlmostEqual(float(cells[0]) - float(cells[4]), 0, delta=0.15)  # of one decimal each

    def test_tells_how_much_of_the_peak_all_reach(self):
        from speed import work_of

        work = work_of([{"model_tflops": 1e3 * mfu, "mfu": mfu} for mfu in (0.2, 0.18, 0.21)], 0.5)
        self.assertEqual(work.tflop, 100)
        self.assertEqual(work.share(1), "10.0 %")
        self.assertEqual(work_of([{"model_tflops": 200}], 0.5).share(1), "- (100 TFLOP/s)")

    def test_tries_graphs_where_steps_repeat(self):
        from speed import cases, variants

        found = {case.name: variants(SimpleNamespace(device="cuda"), case) for case in cases(False)}
        with_graphs = [name for name, ways in found.items() if "zea, graphs" in ways]
        self.assertEqual(len(with_graphs), len(found) - 1)
        self.assertFalse(any("mix" in name for name in with_graphs))
        self.assertEqual(variants(SimpleNamespace(device="cpu"), cases(False)[0]), {"zea": []})

    def test_counts_what_a_gpu_did_at_a_time_once(self):
        from activity import busy_of, of_trace

        self.assertEqual(busy_of([(5, 6), (0, 2), (1, 3), (1, 2)]), 4)
        self.assertEqual(busy_of([]), 0)
        events = [{"cat": "kernel", "ts": 0, "dur": 2}, {"cat": "gpu_memcpy", "ts": 1, "dur": 3}, {"cat": "python"}]
        trace = self.folder / "trace.json"
        trace.write_text(json.dumps({"traceEvents": events}))
        launches, busy = of_trace(trace)
        self.assertEqual(launches, 2)
        self.assertAlmostEqual(busy, 4e-6)

    def test_stops_when_the_time_is_over(self):
        code, said, report = self.first_run(BUILD, "--device", "cpu", "--minutes", "0", "--parts", "versions", "parity")
        self.assertEqual(code, 0, said)
        self.assertEqual(report.count("left out: "), 2)

    def test_finds_a_tensor_with_another_gradient(self):
        """A first moment that is larger wherever a run is not the host's."""
        tree = self.tree_with('case "$*" in *host*) ;; *) set -- "$@" "optim.betas=[0.85, 0.95]" ;; esac')
        code, said, report = self.first_run(tree, "--device", "cpu", "--quick", "--parts", "parity")
        self.assertEqual(code, 1, said + report)
        self.assertRegex(report, r"WRONG\*\*: Llava, fp32, no_shard, 1 ranks: gradients of [0-9] of [0-9]+ tensors are")

    def test_judges_gradients_tensor_by_tensor(self):
        import numpy as np
        from checks import wrong_gradients

        exact = {"a": np.array([1, -2.0]), "b": np.array([1e-3, 0]), "none": np.array([1e-9])}
        close = {"a": np.array([1.001, -2.0]), "b": np.array([1.0005e-3, 0]), "none": np.array([-1e-9])}
        self.assertEqual([*wrong_gradients(close, exact, exact)], [])
        for name, value in (("b", 1.01e-3), ("a", 1.003), ("none", 1e-5), ("b", float("nan"))):
            got = {**exact, name: np.append(value, exact[name][1:])}
            self.assertEqual([line.split(":")[0] for line in wrong_gradients(got, exact, exact)], [name])
        rounded = {**exact, "b": np.array([1.02e-3, 0])}
        self.assertEqual([*wrong_gradients({**exact, "b": np.array([1.03e-3, 0])}, rounded, exact)], [])

    def test_leaves_each_part_its_share_of_the_time(self):
        """Of a zea that hangs wherever its speed is not measured."""
        tree = self.tree_with('case "$*" in *speed*) ;; *) sleep 100 ;; esac')
        parts, start = ["parity", "speed"], time.monotonic()
        budget = ["--device", "cpu", "--quick", "--minutes", "1.5", "--parts", *parts]
        code, said, report = self.first_run(tree, *budget)
        self.assertLess(time.monotonic() - start, 110)
        self.assertEqual(code, 0, said + report)
        self.assertIn("| parity | cut short | ", report)
        self.assertIn("left out: what follows: the part's share of the time was over at ", report)
        self.assertRegex(report, r"\| zea, fp32 \| [0-9.]+ \| ")

    def test_takes_families_in_turn(self):
        import checks

        taken = []

        def parity_of(_setting, _part, family):
            for layout in range(family):
                taken.append((family, layout))
                yield

        with mock.patch.multiple(checks, families=lambda quick: [1, 3, 2], parity_of=parity_of):
            checks.parity(SimpleNamespace(quick=False), None)
        self.assertEqual(taken, [(1, 0), (3, 0), (2, 0), (3, 1), (2, 1), (3, 2)])

    def test_takes_the_packed_launcher_where_the_machine_has_none(self):
        """Or one that is not Open MPI's."""
        from machine import launcher_of

        programs = self.folder / "bin"
        programs.mkdir()
        tree = SimpleNamespace(folder=self.folder)
        for path, name in (("mpirun", "mpirun (Open MPI) 4.1.6"), ("zea-mpirun", "not asked")):
            (programs / path).write_text(f"#!/bin/sh\necho '{name}'\n")
            (programs / path).chmod(0o755)
        with mock.patch.dict(os.environ, PATH=f"{programs}:/usr/bin:/bin"):
            self.assertEqual(launcher_of(tree)[0], "mpirun")
            (programs / "mpirun").write_text("#!/bin/sh\necho HYDRA build details\n")
            self.assertEqual(launcher_of(tree)[0], programs / "zea-mpirun")
            (programs / "zea-mpirun").unlink()
            self.assertEqual(launcher_of(tree)[0], "mpirun")

    def test_trains_a_model_that_sees_and_hears_on_ranks_of_their_own(self):
        from families import apart, families, prepare, ranks_apart
        from machine import Tree
        from setting import Setting, train

        setting = Setting(Tree(BUILD), "cpu", 1, self.folder, MPIRUN.split(), False, time.monotonic() + 300)
        spoken = families(False)[-1]
        got = train(setting, "apart", prepare(setting, spoken), ranks_apart(spoken), *apart(spoken), "schedule.steps=1")
        self.assertTrue(got.ok, got.outcome.tail())
        self.assertEqual(len(got.numbers()), 1)

    def test_takes_a_few_layouts_of_all_kinds_first(self):
        import checks
        from families import families

        setting = SimpleNamespace(quick=False, rank_counts=lambda: [1, 2, 4], precisions=lambda: ("fp32", "bf16"))
        for family in families(False):
            found = checks.cases(setting, family)
            self.assertEqual(len({(ranks, name, precision) for ranks, name, _, precision in found}), len(found))
            first = found[:6]
            self.assertEqual((first[0][0], first[0][1], first[0][3]), (1, "no_shard", "fp32"))
            self.assertEqual({ranks for ranks, *_ in first}, {1, 2, 4}, family.name)
            self.assertEqual({precision for *_, precision in first}, {"fp32", "bf16"}, family.name)
            self.assertGreater(len({name for _, name, *_ in first}), 2, family.name)
            if family.encoders:
                self.assertIn("modules on ranks of their own", {name for _, name, *_ in found}, family.name)

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
