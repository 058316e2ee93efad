# SPDX-License-Identifier: Apache-2.0
"""Device kernels read and write 16 bytes at once: in the code that nvcc makes of every row, logit and flat functor.
Single elements of 2 bytes are those of tails. A functor that hides its pointers from the lanes is found.

usage: check_device_loads.py ROOT [NVCC]
"""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(sys.argv[1])
NVCC = sys.argv[2:]
KERNELS = ROOT / "src" / "kernels"
# Their only results are sums.
SUMS = ("AddLogitRow", "SquaresOfChunk")

PLANTED = """
#include "device_launcher.cuh"
namespace zea::detail {
struct SingleBf16 {
  const Bf16* x;
  Bf16* y;
  template <class Lanes>
  __device__ void operator()(const Lanes& lanes, int64_t row) const {
    for (int64_t i = lanes.is_first(); i < 64; ++i) y[row * 64 + i] = x[row * 64 + i];
  }
};
struct BesideBf16 {
  const Bf16 *x, *w;
  Bf16* y;
  template <class Lanes>
  __device__ void operator()(const Lanes& lanes, int64_t row) const {
    const auto value = [=, this](int64_t i, float v) { return v * load(w[i]); };
    lanes.each(64, StoreTo<Bf16>{y + row * 64}, OfPlace{value}, x + row * 64);
  }
};
ZEA_INSTANTIATE_LAUNCH(SingleBf16)
ZEA_INSTANTIATE_LAUNCH(BesideBf16)
}
"""


def kernels_of(source, folder):
    """What the kernels of a file do with memory, by their mangled names."""
    ptx = Path(folder) / "kernels.ptx"
    includes = [f"-I{path}" for path in (ROOT / "include", KERNELS, KERNELS / "device" / "cuda")]
    command = [*NVCC, "-ptx", "-O3", "-std=c++20", "-arch=sm_80", "--expt-relaxed-constexpr", *includes]
    subprocess.run([*command, source, "-o", ptx], check=True, timeout=300)
    entries = re.split(r"\.entry (\w+)\(", ptx.read_text())
    return dict(zip(entries[1::2], entries[2::2]))


def faults(name, code):
    """Why a kernel is not one of packs."""

    def accesses(what):
        of = rf"\b{what}\.global(?:\.wb)?\."
        return len(re.findall(of + r"v(?:4\.\w32|2\.\w64)\s", code)), len(re.findall(of + r"\w16\s", code))

    for what in ("ld",) if any(sums in name for sums in SUMS) else ("ld", "st"):
        packs, singles = accesses(what)
        if packs == 0:
            yield f"{name}: no {what} of 16 bytes"
        # One of a tail beside each; the logit of a row's target is read and written by itself.
        elif "Bf16" in name and singles > packs + 1:
            yield f"{name}: {singles} {what} of 2 bytes beside {packs} of 16"


class DeviceLoads(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="zea-device-loads-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def faults_of(self, source):
        kernels = kernels_of(source, self.folder)
        self.assertTrue(kernels)
        return [fault for name, code in kernels.items() for fault in faults(name, code)]

    def test_kernels_read_and_write_packs(self):
        for name in ("row", "logit", "flat"):
            with self.subTest(name):
                self.assertEqual(self.faults_of(KERNELS / "device" / f"{name}_kernels.cu"), [])

    def test_functors_that_do_not_are_found(self):
        planted = self.folder / "planted.cu"
        planted.write_text(PLANTED)
        found = "\n".join(self.faults_of(planted))
        self.assertRegex(found, "SingleBf16.*: no ld of 16 bytes")
        self.assertRegex(found, "SingleBf16.*: no st of 16 bytes")
        self.assertRegex(found, "BesideBf16.*: [0-9]+ ld of 2 bytes beside 1 of 16")


if __name__ == "__main__":
    if not NVCC:
        print("skipped: no nvcc")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
