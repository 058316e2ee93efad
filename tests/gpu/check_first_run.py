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
PARTS = ["versions", "kernels", "tables", "parity", "resume", "memory", "determinism"]  # speed has tests of its own

# Recorded activity of a zea run with that many steps: 10 fills, and for each step 7 copies of 0.1 ms, two at a time,
# then a kernel of 0.5 ms.
RECORDER = """
import os, sys
steps = next(int(word.split("=")[1]) for word in sys.argv if word.startswith("schedule.steps="))
lines = [(i, i + 1000, 7, "fill") for i in range(10)]
for step in range(steps):
    begin = 10000000 * (step + 1)
    lines += [(begin + 50000 * i, begin + 50000 * i + 100000, 8, "copy on the device") for i in range(7)]
    lines.append((begin + 900000, begin + 1400000, 7, "void zea::detail::run_items<zea::DropRow<float> >(float, int)"))
with open(f"{os.environ['ZEA_ACTIVITY_FILE']}.{os.getpid()}", "w") as file:
    file.writelines("\\t".join(map(str, line)) + "\\n" for line in lines)
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
        for words in told:
            self.assertIn(words, report)
        self.assertIn("left out: gpu_device_kernels on 1 ranks", report)
        self.assertIn("ok: gpu_cuda_layouts on 8 ranks: 4 passed, 0 skipped", report)

    def test_finds_a_zea_that_computes_something_else(self):
        """Another learning rate on two ranks, and a larger first moment on one that is not the host's."""
        tree = self.tree_with(
            'case "$OMPI_COMM_WORLD_SIZE $*" in *host*) ;; "1 "*) set -- "$@" "optim.betas=[0.85, 0.95]" ;;'
            ' *) set -- "$@" optim.lr=3e-3 ;; esac'
        )
        code, said, report = self.first_run(tree, "--device", "cpu", "--quick", "--parts", "parity")
        self.assertEqual(code, 1, said + report)
        self.assertIn("**WRONG**: Llava, fp32, no_shard, 2 ranks", report)
        self.assertRegex(report, r"WRONG\*\*: Llava, fp32, no_shard, 1 ranks: gradients of [0-9] of [0-9]+ tensors are")

    def recorded_tree(self, line):
        """One whose zea does what `line` says where it is to be recorded, by a library that is there."""
        tree = self.tree_with(f'[ -z "$ZEA_ACTIVITY_FILE" ] || {line}')
        (tree / "tests/gpu").mkdir(parents=True)
        (tree / "tests/gpu/record_activity.so").touch()
        return tree

    def test_tells_what_a_step_launches(self):
        (self.folder / "recorder.py").write_text(RECORDER)
        tree = self.recorded_tree(f'{sys.executable} {self.folder}/recorder.py "$@"')
        code, said, report = self.first_run(tree, "--device", "cpu", "--quick", "--parts", "speed")
        self.assertEqual(code, 0, said + report)
        self.assertNotIn("what the GPU does in a step of zea", report)
        row = next(line for line in report.splitlines() if line.startswith("| zea, fp32 | "))
        cells = [cell.strip() for cell in row.split("|")[2:]]
        self.assertRegex(cells[2], r"^- \([0-9.e-]+ TFLOP/s\)$")
        peer = next(line for line in report.splitlines() if line.startswith("| transformers, fp32 | ")).split("|")
        rates = [float(cell.split("(")[1].split()[0]) for cell in (cells[2], peer[4])]
        times = [float(cells[0]), float(peer[2])]
        self.assertAlmostEqual(rates[0] * times[0], rates[1] * times[1], delta=0.02 * rates[0] * times[0])
        self.assertEqual(cells[3], "8")
        self.assertAlmostEqual(float(cells[0]) - float(cells[4]), 0.9, delta=0.15)  # of one decimal each
        self.assertAlmostEqual(float(cells[5].removesuffix(" %")), 90 / float(cells[0]), delta=1)
        for line in ("copy on the device` | 7 | 0.70 | 58.3 %", "run_items<DropRow, float>` | 1 | 0.50 | 41.7 %"):
            self.assertIn(f"\n| `{line} |\n", report)
        self.assertNotIn("`fill`", report)

    def test_tells_why_a_step_was_not_recorded(self):
        from activity import NotRecorded
        from machine import Outcome
        from speed import recorded

        folder = self.folder / "recording"
        folder.mkdir()
        needs = SimpleNamespace(output="\tlibcupti.so.13 => not found\n\tlibc.so.6 => /lib/libc.so.6\n")
        setting = SimpleNamespace(run=lambda *_: needs, tree=SimpleNamespace(environment=dict))

        def why(code=0, output="its last words"):
            with self.assertRaises(NotRecorded) as caught:
                recorded(setting, "record_activity.so", folder, Outcome("zea", code, output, 1))
            return str(caught.exception).splitlines()

        self.assertEqual(why(), ["no recording was written", "libcupti.so.13 => not found", "its last words"])
        self.assertEqual(why(3), ["zea ended with 3 while it was recorded", "its last words"])
        (folder / "process.1").touch()
        self.assertEqual(why()[0], "the recording is empty")
        (folder / "process.1").write_text("1\t2\t7\tfill\n")
        complaint = "record_activity: cuptiActivityEnable of kernels: no"
        self.assertEqual(why(0, f"{complaint}\nlast")[:2], ["the recorder complains", complaint])

    def test_tells_kinds_of_kernels_apart(self):
        from activity import short

        at, copy = "at::native", "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}"
        bf16 = "c10::BFloat16"
        for name, shortened in {
            "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
            "copy from host to device": "copy from host to device",
            "void cutlass::Kernel2<cutlass_80_gemm_bf16_tn_align8>(cutlass_80_gemm_bf16_tn_align8::Params)":
                "Kernel2<cutlass_80_gemm_bf16_tn_align8>",
            "void zea::detail::run_items<zea::detail::GatedRow<zea::detail::SiluGate, zea::detail::Bf16> >(int, long)":
                "run_items<GatedRow, SiluGate, Bf16>",
            f"void {at}::(anonymous namespace)::vectorized_elementwise_kernel<4, {at}::CUDAFunctor_add<{bf16}>, "
            f"std::array<char*, 3ul> >(int, {at}::CUDAFunctor_add<{bf16}>, std::array<char*, 3ul>)":
                "vectorized_elementwise_kernel<CUDAFunctor_add, BFloat16>",
            f"void {at}::elementwise_kernel<128, 2, {at}::gpu_kernel_impl_nocast<{copy}::operator()() const::"
            f"{{lambda(float)#1}}>(at::TensorIteratorBase&)::{{lambda(int)#1}}>(int, {at}::gpu_kernel_impl<{copy}>)":
                "elementwise_kernel<direct_copy_kernel_cuda, float>",
            "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, "
            "cutlass::bfloat16_t>, false, true>(pytorch_flash::Flash_fwd_params)": "flash_fwd_kernel<bfloat16_t>",
            "zea::zeroed(float*, long)": "zeroed",
        }.items():  # fmt: skip
            self.assertEqual(short(name), shortened)
        self.assertEqual(len(short("kernel<" + "a" * 200 + ">(int)")), 100)

    def test_tells_the_costliest_kinds_and_the_rest(self):
        from activity import Activity, costliest

        step = Activity(1, {f"k{i}": (i, 1e-3 * i) for i in range(1, 5)})
        rows = [["`k4`", "4", "4.00", "40.0 %"], ["`k3`", "3", "3.00", "30.0 %"]]
        self.assertEqual(costliest(step, 2), [*rows, ["2 other kinds", "3", "3.00", "30.0 %"]])
        self.assertEqual(costliest(step, 4)[-1], ["`k1`", "1", "1.00", "10.0 %"])

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
        from activity import busy_of, of_recording, of_step, of_trace

        self.assertEqual(busy_of([(5, 6), (0, 2), (1, 3), (1, 2)]), 4)
        self.assertEqual(busy_of([]), 0)
        kernel = {"cat": "kernel", "name": "sums", "ts": 0, "dur": 2}
        events = [kernel, {"cat": "gpu_memcpy", "name": "copy", "ts": 1, "dur": 3}, {"cat": "python"}]
        trace = self.folder / "trace.json"
        trace.write_text(json.dumps({"traceEvents": events}))
        self.assertEqual(of_trace(trace).launches, 2)
        self.assertAlmostEqual(of_trace(trace).busy, 4e-6)
        folders = [self.folder / name for name in ("two", "four")]
        for folder, spans in zip(folders, ([(2, 5)], [(2, 9), (10, 15), (12, 17)])):
            folder.mkdir()
            (folder / "process.1").write_text("".join(f"{begin}\t{end}\t7\tsums\n" for begin, end in spans))
            (folder / "process.2").write_text("0\t1\t7\tstart\n")
        step = of_step(*map(of_recording, folders))
        self.assertEqual([*step.kinds], ["sums"])
        self.assertEqual(step.kinds["sums"][0], 1)
        self.assertAlmostEqual(step.kinds["sums"][1], 5e-9)
        self.assertAlmostEqual(step.busy, 3.5e-9)

    def test_stops_when_the_time_is_over(self):
        code, said, report = self.first_run(BUILD, "--device", "cpu", "--minutes", "0", "--parts", "versions", "parity")
        self.assertEqual(code, 0, said)
        self.assertEqual(report.count("left out: "), 2)

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

    @unittest.skipUnless(os.environ.get("ZEA_WHOLE"), "under the label long")
    def test_leaves_each_part_its_share_of_the_time(self):
        """The zea of this test hangs wherever its speed is not measured."""
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

    def test_trains_images_and_audio_on_separate_ranks(self):
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
