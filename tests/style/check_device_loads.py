# SPDX-License-Identifier: Apache-2.0
"""Device kernels read and write 16 bytes at once: in the code that nvcc makes of every row, logit and flat functor.
Single elements, of whatever width, are those of tails, and what there is one of for each row or chunk. A functor that
hides its pointers from the lanes is found.

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
SUMS = ("AddLogitRow", "PlaceCopies", "RouteRow", "RowDot", "SquaresOfChunk")
# Single loads and stores that are not of elements: statistics of rows, places, factors (of left matrices, too), what is
# transposed, the table of codes in which values are looked for; as often as loops are unrolled.
BESIDE = {
    "NormalizeRow": (0, 3), "NormalizeRowBackward": (2, 0), "SumNormGradients": (42, 3),
    "NormalizeHead": (0, 1), "NormalizeHeadBackward": (1, 0), "SumHeadNormGradients": (14, 1),
    "MergeHead": (6, 2), "DropRow": (1, 0), "CombineRows": (42, 1), "CombineRowBackward": (1, 1),
    "AddLogitRow": (3, 2), "LogitRowGradient": (3, 0),
    "MixDeltaToken": (17, 31), "MixDeltaTokenBackward": (26, 40), "ConvolveBackward": (2, 0),
    "AddActiveRows": (3, 0), "PlaceCopies": (20, 40), "RouteRow": (52, 12), "RouteRowBackward": (143, 0),
    "MakeChunk": (125, 25), "MakeChunkBackward": (227, 25), "StoreOutputs": (137, 0), "StoreChunkGradients": (373, 23),
    "AdamwChunk": (2, 0), "SgdChunk": (2, 0), "BlockwiseAdamwBlock": (103, 2),
}  # fmt: skip

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
struct BesideFloat {
  const float *x, *w;
  float* y;
  template <class Lanes>
  __device__ void operator()(const Lanes& lanes, int64_t row) const {
    const auto value = [=, this](int64_t i, float v) { return v * w[i]; };
    lanes.each(64, StoreTo<float>{y + row * 64}, OfPlace{value}, x + row * 64);
  }
};
ZEA_INSTANTIATE_LAUNCH(BesideBf16)
ZEA_INSTANTIATE_LAUNCH(BesideFloat)
}
"""


def kernels_of(source, folder):
    """Returns the memory accesses of a file's kernels, by their mangled names."""
    ptx = Path(folder) / "kernels.ptx"
    includes = [f"-I{path}" for path in (ROOT / "include", ROOT / "src", KERNELS / "device" / "cuda")]
    command = [*NVCC, "-ptx", "-O3", "-std=c++20", "-arch=sm_80", "--expt-relaxed-constexpr", *includes]
    subprocess.run([*command, source, "-o", ptx], check=True, timeout=300)
    entries = re.split(r"\.entry (\w+)\(", ptx.read_text())
    return dict(zip(entries[1::2], entries[2::2]))


def faults(name, code):
    """Why a kernel is not one of packs."""

    def accesses(what):
        of = rf"\b{what}\.global(?:\.wb|\.nc)?\."
        return len(re.findall(of + r"v(?:4\.\w32|2\.\w64)\s", code)), len(re.findall(of + r"\w(?:16|32|64)\s", code))

    # The mangled name has the functor's name after its length.
    beside = next((counts for functor, counts in BESIDE.items() if f"{len(functor)}{functor}" in name), (0, 0))
    for what, others in zip(("ld", "st"), beside):
        packs, singles = accesses(what)
        if packs == 0 and not (what == "st" and any(sums in name for sums in SUMS)):
            yield f"{name}: no {what} of 16 bytes"
        # Each pack may have one tail element; the logit of a row's target is read and written separately.
        elif singles > packs + 1 + others:
            yield f"{name}: {singles} single {what} beside {packs} of 16 bytes and {others} that are no elements"


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
        for functor in ("BesideBf16", "BesideFloat"):
            self.assertRegex(found, f"{functor}.*: [0-9]+ single ld beside 1 of 16 bytes")


if __name__ == "__main__":
    if not NVCC:
        print("skipped: no nvcc")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
