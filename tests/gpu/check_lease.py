# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/lease.sh and several.sh measure on the host what they measure on GPUs, and report what fails.

usage: check_lease.py FOLDER BUILD MPIRUN
FOLDER has both scripts. MPIRUN: a list as CMake writes it. ZEA_WHOLE: every measurement.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from types import SimpleNamespace

FOLDER, BUILD, MPIRUN = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].replace(";", " ")
WHOLE = os.environ.get("ZEA_WHOLE")
NUMBER = r"[0-9.e+-]+"

# A line of each measurement.
LINES = {
    "experts": rf"TFLOP/s: forward, even {NUMBER}, inputs, even .*, weights, skewed {NUMBER}, loop, skewed {NUMBER}",
    "pipelines": r"1 pipelines of 8 ranks, 0 wrong",
    "graphs": rf"0 of 10 steps launched as graphs, losses differ by {NUMBER}",
}
LONG_LINES = {
    "order": rf"order 1, one communicator: reduce-scatter {NUMBER} ms, all-gathers begin at {NUMBER} and {NUMBER}; .*"
    rf"order 0, two: reduce-scatter {NUMBER} ms",
    "beside": rf"alone {NUMBER} ms; spinner: 8 blocks \S+ %; priority: 8 blocks \S+ %; carve-out: 8 blocks \S+ %",
    "layers": rf"a layer, a sample of 64 tokens: {NUMBER} ms, MFU - \({NUMBER} TFLOP/s\)",
    "slices": rf"TFLOP/s: causal, forward: FA2 {NUMBER}; .*blocks, both: FA2 {NUMBER}",
    "fp8": rf"products in bf16 {NUMBER} ms; tensor {NUMBER} x, tensor to fp32 {NUMBER} x, its cast {NUMBER} %, row ",
    "ragged": rf"expandable segments: {NUMBER} MiB counted at most; fixed segments: {NUMBER} MiB counted at most",
    "communicators": rf"2 ranks: all: {NUMBER} s, {NUMBER} MiB a rank; all, few SMs: .*; pairs: .* MiB a rank",
    "speed": rf"the quickstart's model, 4 samples: zea, fp32 {NUMBER} ms, transformers, fp32 {NUMBER} ms",
}

# Replaces the table of measurements by one that hangs, one whose program fails, and the one that follows.
PLANTED = """
import runpy, sys
folder = sys.argv[1]
sys.path[:0] = [f"{folder}/lease", f"{folder}/first_run", f"{folder}/../../jobs"]
import measurements
def hang(setting, part):
    part.result = "as far as it came"
    setting.on_ranks(2, "sleep", "98765", seconds=600)
def fail(setting, part):
    measurements.answer(setting.run(["sh", "-c", "echo its last words; exit 3"], 60))
measurements.MEASUREMENTS = {
    "hangs": (hang, 0.4, "nothing"), "fails": (fail, 60, "nothing"), **{"graphs": measurements.MEASUREMENTS["graphs"]}
}
sys.argv = ["lease", *sys.argv[2:]]
runpy.run_path(f"{folder}/lease/__main__.py", run_name="__main__")
"""

# In place of zea: as many steps as it is told, of 50 ns of computation and 30 of NCCL, after it on odd ranks.
RECORDER = f"""#!{sys.executable}
import os, sys
steps = next(int(word.split("=")[1]) for word in sys.argv if word.startswith("schedule.steps="))
begin = 50 * (int(os.environ["OMPI_COMM_WORLD_RANK"]) % 2)
with open(os.environ["ZEA_ACTIVITY_FILE"] + ".1", "w") as file:
    for step in range(0, 100 * steps, 100):
        file.write(f"{{step}}\\t{{step + 50}}\\t7\\tgemm\\n")
        file.write(f"{{step + begin}}\\t{{step + begin + 30}}\\t8\\tncclDevKernel_AllGather_RING_LL\\n")
"""

sys.path[:0] = [str(FOLDER / name) for name in ("several", "lease", "first_run", "../../jobs")]

if subprocess.run([sys.executable, "-c", "import h5py, torch, transformers"], check=False).returncode:
    print("skipped: no h5py, torch or transformers")
    sys.exit(77)


class Scripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="zea-lease-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_script(self, *command):
        """The exit code, what it printed and the report."""
        out = self.folder / "out"
        options = ["--device", "cpu", "--quick", "--tree", BUILD, "--out", out, "--mpirun", MPIRUN, "--minutes", "30"]
        words = [str(word) for word in (*command, *options)]
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=1000)
        return done.returncode, done.stdout + done.stderr, (out / "report.md").read_text()

    def expect_lines(self, lines):
        code, said, report = self.run_script(FOLDER / "lease.sh", "--parts", *lines)
        self.assertEqual(code, 0, said + report)
        for name, line in lines.items():
            self.assertRegex(said, rf"(?m)^{name}: good, \d+ s: {line}.*; decides (how|which|whether|where) ")
            self.assertRegex(report, rf"(?s)## {name}\n\nLimit: \d+ s\. It decides .*{line}")

    def test_each_measurement_has_its_line(self):
        self.expect_lines({**LINES, **LONG_LINES} if WHOLE else LINES)

    def test_lists_the_measurements(self):
        from measurements import MEASUREMENTS

        self.assertEqual({*MEASUREMENTS}, {*LINES, *LONG_LINES})
        self.assertEqual([*MEASUREMENTS][-1], "speed")

    def test_goes_on_after_a_part_that_hangs_and_one_that_fails(self):
        code, said, report = self.run_script(sys.executable, "-c", PLANTED, FOLDER)
        self.assertEqual(code, 1, said + report)
        over = r"as far as it came; its time, at most 2\.0 s, was over; decides nothing"
        self.assertRegex(said, rf"(?m)^hangs: cut short, \d+ s: {over}$")
        self.assertRegex(said, r"(?m)^fails: 1 wrong, \d+ s: decides nothing$")
        self.assertIn("WRONG**: fails came to its end\n\n```text\nRuntimeError: exit code 3\nits last words\n", report)
        self.assertRegex(said, rf"(?m)^graphs: good, \d+ s: {LINES['graphs']}")
        self.assertEqual(subprocess.run(["pgrep", "-f", "^sleep 98765"], check=False, stdout=-3).returncode, 1)

    def test_orders_kernels_by_their_launches(self):
        from activity import nccl_spans

        names = ["ncclDevKernel_AllGather_RING_LL", "gemm", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"]
        events = [
            {"cat": "kernel", "name": name, "ts": 10 * i, "dur": 5, "args": {"correlation": 9 - i}}
            for i, name in enumerate(names)
        ]
        trace = self.folder / "trace.json"
        trace.write_text(json.dumps({"traceEvents": [*events, {"cat": "cpu_op", "name": "nccl:all_gather"}]}))
        found = nccl_spans(trace)
        self.assertEqual([name for name, *_ in found], [names[2], names[0]])
        self.assertAlmostEqual(found[0][1], 20e-6)
        self.assertAlmostEqual(found[0][2], 25e-6)

    def test_compiles_the_spinner(self):
        """For Hopper, where CUDA's run-time compiler is there."""
        source = re.search(r'SPINNER = """(.*?)"""', (FOLDER / "lease/kernels.py").read_text(), re.DOTALL)[1]
        try:
            from torch.cuda._utils import _get_nvrtc_library, _nvrtc_compile

            _get_nvrtc_library()
        except (ImportError, OSError) as why:
            self.skipTest(str(why))
        self.assertEqual(_nvrtc_compile(source, "spin", "90")[1], "spin")

    def test_tells_how_reserved_memory_grows(self):
        from measurements import reserved

        lines = [
            {"gpu_memory": {"peak_reserved_bytes": n << 30, "peak_allocated_bytes": 7 << 30, "alloc_retries": n - 8}}
            for n in [8] * 10 + [9] * 10
        ]
        self.assertEqual(
            reserved(SimpleNamespace(lines=lambda: lines)),
            "8.00 GiB reserved after 2 steps, 9.00 after all; allocated 7.00 at most; 1 retries",
        )

    def test_several_names_a_prediction_that_is_off(self):
        """By the rates of a core that multiplies a thousand times slower than any."""
        rates = (FOLDER / "../../inputs/hardware/epyc_core.toml").read_text()
        slow = re.sub(r"(?m)^(bf16_tflops = )([\d.]+)", lambda found: f"{found[1]}{float(found[2]) / 1000}", rates)
        self.assertNotEqual(rates, slow)
        (self.folder / "out").mkdir()
        (self.folder / "out/hardware.toml").write_text(slow)
        code, said, report = self.run_script(FOLDER / "several.sh", "--parts", "fsdp", "predictions")
        self.assertEqual(code, 0, said + report)
        off = r"[12] of 2 off by more than 15 %: fsdp: seconds of a step \+\d+"
        self.assertRegex(said, rf"(?m)^predictions: good, \d+ s: {off}")
        self.assertRegex(report, r"\| seconds of a step \| .* ms \| .* ms \| \+\d+ % \| \*\*off\*\* \|")

    def test_several_needs_rates(self):
        code, said, report = self.run_script(FOLDER / "several.sh", "--parts", "tp")
        self.assertEqual(code, 1, said + report)
        self.assertIn("there is no hardware.toml of the part links", report)

    @unittest.skipUnless(WHOLE, "under the label long")
    def test_several_compares_every_layout(self):
        code, said, report = self.run_script(FOLDER / "several.sh")
        self.assertEqual(code, 0, said + report)
        self.assertRegex(said, rf"(?m)^links: good, \d+ s: links of 2 ranks: {NUMBER} us, {NUMBER} GB/s$")
        step = rf"seconds of a step {NUMBER} ms \({NUMBER} ms predicted\)"
        for name, axes in {"fsdp": ["dp"], "tp": ["tp"], "cp": ["cp", "dp"], "pp": ["pp and idle"]}.items():
            shares = "".join(rf", exposed share of {axis} {NUMBER} % \({NUMBER} % predicted\)" for axis in axes)
            self.assertRegex(said, rf"(?m)^{name}: good, \d+ s: {step}{shares}")
            self.assertRegex(report, r"\| seconds of a step \| .* ms \| .* ms \| [+-]\d+ % \| ")
        self.assertRegex(said, r"(?m)^predictions: good, \d+ s: \d of 9 off by more than 15 %")

    def test_says_which_prediction_is_off(self):
        from axes import WAITS, Figure, figures_of, predictions
        from report import Part

        plan = {"seconds": 0.1, "idle_share": 0.05, "exposed_seconds": {"dp": 0.01, "pp": 0.02}}
        step, dp, pp = figures_of(plan, 0.11, {"dp": (0.022, 0.05), WAITS: (0.0275, 0.11)})
        self.assertAlmostEqual(step.deviation, -1 / 11)
        self.assertFalse(step.is_off)
        self.assertEqual(dp.cells(), ["exposed share of dp", "10.0 %", "20.0 %", "-50 %", "**off**"])
        self.assertAlmostEqual(pp.deviation, 0)
        self.assertFalse(pp.is_off)
        for predicted, is_share, is_off in ((1.14, False, False), (1.16, False, True), (0.84, False, True)):
            self.assertEqual(Figure("", predicted, 1, is_share).is_off, is_off)
        self.assertFalse(Figure("", 0.02, 0.012, True).is_off)  # of a step nobody sees it
        self.assertTrue(Figure("", 0.02, 0, True).is_off)
        part = Part("predictions")
        predictions(part, {"fsdp": [step, dp], "pp": [pp]})
        self.assertEqual(part.result, "1 of 3 off by more than 15 %: fsdp: exposed share of dp -50 %")
        predictions(part, {"pp": [pp]})
        self.assertEqual(part.result, "0 of 1 off by more than 15 %")

    def test_counts_what_computation_does_not_hide(self):
        from axes import GATHERS, LAYOUTS, exposed, kind_of, of_recordings

        gather, gemm = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nvjet_tst_128x256"
        kinds = {gather: "AllGather", gemm: None, "ncclKernel_SendRecv": "SendRecv"}
        self.assertEqual([kind_of(name) for name in kinds], [*kinds.values()])
        spans = [("AllGather", 0, 6), (None, 4, 10), ("AllReduce", 9, 14), ("SendRecv", 13, 16)]
        self.assertEqual(exposed(spans, GATHERS), (7, 9))
        self.assertEqual(exposed(spans, {"AllReduce"}), (4, 5))
        self.assertEqual(exposed(spans, set()), (10, 16))
        for rank in range(2):
            for steps in (2, 4):
                folder = self.folder / f"{steps}" / f"rank-{rank}"
                folder.mkdir(parents=True)
                lines = [(100 * step + begin, 100 * step + end, 7, name) for step in range(steps)
                         for begin, end, name in ((0, 10 + 4 * rank, gather), (5, 50, gemm))]  # fmt: skip
                (folder / "process.1").write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
        (seconds, whole) = of_recordings(self.folder, 2, LAYOUTS["fsdp"])["dp"]
        self.assertAlmostEqual(seconds, 5e-9)
        self.assertAlmostEqual(whole, 12e-9)

    def test_records_each_rank(self):
        """By a program in place of zea, whose communication the even ranks hide."""
        from axes import LAYOUTS, recorded
        from setting import Setting

        program = self.folder / "zea.py"
        program.write_text(RECORDER)
        program.chmod(0o755)
        tree = SimpleNamespace(zea=program, test=lambda _: program, environment=dict)
        setting = Setting(tree, "cpu", 2, self.folder, MPIRUN.split(), True, time.monotonic() + 100)
        (self.folder / "runs").mkdir()
        ((seconds, whole),) = recorded(setting, "tp", "deck.toml", [], LAYOUTS["tp"]).values()
        self.assertAlmostEqual(seconds, 15e-9)
        self.assertAlmostEqual(whole, 30e-9)

    def test_tells_axes_of_groups(self):
        from axes import axis_of

        groups = {"llm.tp (ranks 0 1)": "tp", "llm.cp_outer (ranks 0 1)": "cp", "llm.pp0>llm.pp1 gradients": "pp",
                  "llm.dp_shard+encoder_dp+cp (ranks 0 1)": "dp", "control (ranks 0 1)": None}  # fmt: skip
        for group, axis in groups.items():
            self.assertEqual(axis_of(group), axis, group)


unittest.main(argv=sys.argv[:1])
