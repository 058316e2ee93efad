# SPDX-License-Identifier: Apache-2.0
"""What zea answers without ranks."""

import re

import zea_run as zr


class Answers(zr.ZeaTest):
    def answer(self, *arguments):
        result = zr.answer(*arguments)
        self.assert_code(result, 0)
        return result.output

    def test_help(self):
        text = self.answer("-h")
        for word in ("Usage: mpirun", "--ranks", "SIGUSR2", "requeue me", "global_batch", "[data]"):
            self.assertIn(word, text)
        self.assertEqual(text, self.answer("--help"))

    def test_version_and_build(self):
        self.assertRegex(self.answer("--version"), r"^zea \d+\.\d+\.\d+\n$")
        build = self.answer("-c")
        for line in (
            r"C\+\+ compiler: \w+ \d+\.\d+\.\d+",
            r"build type: \w+",
            r"kernels for: .*",
            r"libtorch: 2\.\d+\.\d+ in /.*/torch; its vector code here: \w+",
            r"MPI: \w+.* \(standard \d\.\d\)",
            r"HDF5: \d+\.\d+\.\d+",
            r"Kokkos: (none|\d+\.\d+\.\d+ [\w ]+)",
            r"NCCL: (none|\d+\.\d+\.\d+)",
            r"device kernels: (none.*|CUDA \d+\.\d+\.\d+ for sm_\d+.*)",
        ):
            self.assertRegex(build, rf"(?m)^{line}$")

    def test_plan(self):
        weights = zr.make_weights(self.folder / "weights.h5")
        deck = zr.write_deck(self.folder, weights, "not_there.h5")
        plans = {n: self.answer("-n", "--ranks", n, "-i", deck) for n in ("1", "512")}
        self.assertRegex(plans["512"], r"\b512\b")
        self.assertIsNone(re.search(r"\b512\b", plans["1"]))
        self.assertEqual([entry.name for entry in self.folder.glob("runs")], [])


zr.main()
